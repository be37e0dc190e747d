"""Finds local variables that optimised code reads although nothing writes them.

undefined.py FILE.mir...    prints each with its function, and how many bodies it has read; exit status 1 if there is one

rustc 1.95 removes the comparison behind a `bool` that is both converted to an integer and branched on (rust-lang/rust#158206):
the integer is then whatever was there. Its optimised MIR shows it: a local that is read and never assigned.
"""

import re
import sys

LOCAL = re.compile(r"\b_(\d+)\b")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
# Whatever holds an address may be written through it.
ADDRESS = re.compile(r"&(?:raw )?(?:mut |const )?[^,;]*?_(\d+)")
READ = re.compile(r"(?:copy|move) \(*\**_(\d+)\b")
DECLARES = ("let ", "debug ", "scope ", "StorageLive", "StorageDead")


def bodies(path):
    """The first line and the others of each function, constant and static."""
    head, lines = None, []
    with open(path, errors="replace") as mir:
        for line in mir:
            if head is None:
                if line[0] not in " }\n" and line.rstrip().endswith("{"):
                    head, lines = line.rstrip(), []
            elif line.startswith("}"):
                yield head, lines
                head = None
            else:
                lines.append(line.strip())


def undefined(head, lines):
    written = {argument for argument in re.findall(r"_(\d+): ", head)}
    read = {}
    for line in lines:
        if line.startswith(DECLARES):
            continue
        line = STRING.sub('""', line)
        target, assigns, value = line.partition(" = ")
        if not assigns:
            value = line
        elif "*" in target:
            for local in LOCAL.findall(target):
                read.setdefault(local, line)
        else:
            written.update(LOCAL.findall(target))
        written.update(ADDRESS.findall(value))
        for local in READ.findall(value):
            read.setdefault(local, line)
    return [(local, line) for local, line in read.items() if local not in written]


def main():
    count, found = 0, 0
    for path in sys.argv[1:]:
        for head, lines in bodies(path):
            count += 1
            for local, line in undefined(head, lines):
                found += 1
                print(f"{head}\n    nothing writes _{local}: {line}")
    print(f"undefined: {found} in {count} bodies")
    return 1 if found or not count else 0


if __name__ == "__main__":
    sys.exit(main())
