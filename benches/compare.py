#!/usr/bin/env python3
"""Compares two files of `aqueduct perf` (-J or --csv), row by row.

    benches/compare.py OLD NEW [--fail-above 1.05]

Rows match if they are about the same thing: operation, size, place, phase, number of threads, and so on. The ratio is the
new median time divided by the old one: above 1 is slower. A row is `slower` or `faster` only if the medians differ by more
than the spread, the square root of the sum of both variances; otherwise it is `same`. A row with a single sample has no
spread, and a row may lack a time: those are `unknown`. docs/perf.md describes the fields.

Exit status: 0; 1 if with --fail-above RATIO a row of the library is slower by more than RATIO, or if NEW has wrong values;
2 if the files cannot be compared, or if a run that was interrupted keeps --fail-above from a verdict. Standard error says
what to do.
"""

import argparse
import csv
import json
import math
import os
import sys

SCHEMA = "aqueduct-perf"
VERSION = 1

# The first columns of a file of --dump.
SAMPLES = ["row", "series", "algorithm"]

# What a row is about, and how it is written. The algorithm is not among them: another one may serve the same size.
KEY = {
    "series": "{}", "phase": "{}", "place": "{}", "ranks": "{} ranks", "threads": "{} threads", "datatype": "{}",
    "reduction": "{}", "sizes": "sizes {}", "size_bytes": "{} B", "count": "count {}", "window": "window {}",
}  # fmt: skip
# What is said of a pair of rows besides its size.
BRIEF = ("series", "phase", "place", "ranks", "threads", "sizes", "size_bytes", "window")


class Refused(Exception):
    """The files cannot be compared, for the reason given."""


class File:
    """Header, rows and footer of one file; the footer is None if the run was interrupted."""

    def __init__(self, path):
        self.path = path
        try:
            with open(path, encoding="utf-8", newline="") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise Refused(f"cannot read {path}: {error}") from None
        try:
            self.header, self.rows, self.footer = from_csv(text, path) if text.startswith("#") else from_json(text)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise Refused(f"{path} is no file of `aqueduct perf -J` or `--csv`: {error}") from None
        if self.header.get("schema") != SCHEMA:
            raise Refused(f"{path} has no header of schema {SCHEMA}; was it written by `aqueduct perf -J` or `--csv`?")
        version = self.header.get("schema_version")
        if version != VERSION:
            raise Refused(
                f"{path} has version {version} of schema {SCHEMA}, and this script reads version {VERSION}: "
                "use the script of the same release"
            )

    def keyed(self):
        """The rows by what they are about. Equal ones are numbered."""
        keyed = {}
        for row in self.rows:
            about = tuple((name, str(row[name])) for name in KEY if row.get(name) is not None)
            number = 0
            while (about, number) in keyed:
                number += 1
            keyed[about, number] = row
        return keyed


def from_json(text):
    lines = text.splitlines()
    # An interrupted run may end within a line.
    if lines and not text.endswith("\n"):
        lines.pop()
    records = [json.loads(line) for line in lines]
    header = records[0] if records else {}
    rows = [record for record in records if record.get("record") == "row"]
    footers = [record for record in records if record.get("record") == "footer"]
    return header, rows, footers[0] if footers else None


def from_csv(text, path):
    records = [json.loads(line[1:]) for line in text.splitlines() if line.startswith("#")]
    footers = [record for record in records if record.get("record") == "footer"]
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith("#") and line.endswith("\n")]
    if lines and lines[0].split(",")[:3] == SAMPLES:
        raise Refused(
            f"{path} is a file of --dump, which holds samples instead of rows: give the file of -J or --csv of that run, or "
            "measure again with -J"
        )
    rows = [{name: typed(cell) for name, cell in row.items() if cell != ""} for row in csv.DictReader(lines)]
    return records[0], rows, footers[0] if footers else None


def typed(cell):
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            pass
    return cell


def spread(old, new):
    """Standard deviation of the difference of two samples, or None if a row has a single sample."""
    deviations = [row.get("time_stddev_us") for row in (old, new)]
    return None if None in deviations else math.hypot(*deviations)


def judge(old, new):
    """Ratio of the medians, and the verdict."""
    before, after = old.get("time_p50_us"), new.get("time_p50_us")
    if new.get("wrong"):
        return math.nan, "WRONG"
    if not before or after is None:
        return math.nan, "unknown"
    noise = spread(old, new)
    if noise is None:
        return after / before, "unknown"
    if abs(after - before) <= noise:
        return after / before, "same"
    return after / before, "slower" if after > before else "faster"


def notes(old, new):
    """What differs besides the times."""
    for name in ("aqueduct_version", "driver", "machines", "parameters"):
        if old.header.get(name) != new.header.get(name):
            yield f"{name} differs: {json.dumps(old.header.get(name))} and {json.dumps(new.header.get(name))}"
    ranks = [len(file.header.get("ranks", [])) for file in (old, new)]
    if ranks[0] != ranks[1]:
        yield f"the number of ranks differs: {ranks[0]} and {ranks[1]}"


def warnings(old, new, common):
    """What keeps rows from being compared or judged, and what to do about it."""
    for file in (old, new):
        if file.footer is None:
            yield (
                f"{file.path} has no footer: the run was interrupted, and only the rows that it had finished are compared; "
                "measure again for all"
            )
    before, after = old.keyed(), new.keyed()
    for file, rows in ((old, before), (new, after)):
        without = [row for row in rows.values() if row.get("time_p50_us") is None]
        if without:
            yield (
                f"{file.path} has {len(without)} rows without time_p50_us, which cannot be compared; measure them again"
            )
    single = sum(
        None not in (before[about].get("time_p50_us"), after[about].get("time_p50_us"))
        and spread(before[about], after[about]) is None
        for about in common
    )
    if single:
        yield (
            f"{single} rows have a single sample in one of the files, so nobody knows their spread; measure with a larger -n, "
            "or with --batch 1"
        )


def compare(old, new, fail_above):
    """Prints the comparison and returns the exit status."""
    if old.header["operation"] != new.header["operation"]:
        raise Refused(
            f"{old.path} is about {old.header['operation']} and {new.path} about {new.header['operation']}: "
            "two operations cannot be compared"
        )
    before, after = old.keyed(), new.keyed()
    common = [about for about in after if about in before]
    interrupted = [file.path for file in (old, new) if file.footer is None]
    for warning in warnings(old, new, common):
        print(f"compare: {warning}", file=sys.stderr)
    if not common:
        raise Refused(f"{old.path} and {new.path} have no row in common: were sizes, types and options the same?")
    for path, rows in ((old.path, before), (new.path, after)):
        for row in rows.values():
            time = row.get("time_p50_us")
            if time is not None and (not isinstance(time, (int, float)) or not 0 < time < math.inf):
                raise Refused(f"{path} has a row whose time_p50_us is {time!r}: it is no time")
    print(f"# {old.header['operation']}: old {old.path} of {old.header['time_utc']}, new {new.path} of {new.header['time_utc']}")
    for note in notes(old, new):
        print(f"# note: {note}")
    print(f"#{'old':>11} {'new':>12} {'spread':>10} {'ratio':>7} verdict")
    print(f"#{'(us)':>11} {'(us)':>12} {'(us)':>10} {'':>7}")
    counts, too_slow = {}, 0
    # Rows that the old file lacks count, too.
    wrong = sum(bool(row.get("wrong")) for row in after.values())
    for about in common:
        a, b = before[about], after[about]
        ratio, verdict = judge(a, b)
        counts[verdict] = counts.get(verdict, 0) + 1
        ours = dict(about[0]).get("series") == "measured"
        failed = fail_above is not None and ours and verdict == "slower" and ratio > fail_above
        too_slow += failed
        noise = spread(a, b)
        what = ", ".join(KEY[name].format(value) for name, value in about[0] if name in BRIEF)
        algorithms = a["algorithm"] if a["algorithm"] == b["algorithm"] else f"{a['algorithm']} -> {b['algorithm']}"
        medians = ["-" if row.get("time_p50_us") is None else format(row["time_p50_us"], ".3f") for row in (a, b)]
        print(
            f"{medians[0]:>12} {medians[1]:>12} "
            f"{'-' if noise is None else format(noise, '.3f'):>10} {'-' if math.isnan(ratio) else format(ratio, '.3f'):>7} {verdict:<7} {what}, {algorithms}"
            + ("  <-- above the limit" if failed else "")
        )
    for name, rows, other in (("old", before, after), ("new", after, before)):
        missing = sum(about not in other for about in rows)
        if missing:
            print(f"# {missing} rows are only in the {name} file")
    print("# " + ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    if wrong:
        print(f"# {wrong} rows of the new file have wrong values")
    if too_slow:
        print(f"# {too_slow} rows are slower than {fail_above} times the old ones, by more than the spread")
    if wrong or too_slow:
        return 1
    if fail_above is not None and set(counts) == {"unknown"}:
        raise Refused("no row can be judged: each has a single sample or no time; measure with more iterations")
    if fail_above is not None and interrupted:
        raise Refused(f"no verdict: {' and '.join(interrupted)} may lack the slowest rows; measure again")
    return 0


def limit(text):
    value = float(text)
    if not value >= 1:
        raise argparse.ArgumentTypeError("must be a ratio of at least 1, such as 1.05")
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--fail-above", type=limit, metavar="RATIO", help="exit status 1 if a row is slower by more than this")
    arguments = parser.parse_args()
    try:
        status = compare(File(arguments.old), File(arguments.new), arguments.fail_above)
        sys.stdout.flush()
        return status
    except Refused as refusal:
        print(f"compare: {refusal}", file=sys.stderr)
        return 2
    except OSError as error:
        # Python would try to write the rest once more at its end, and then some versions exit with 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            # Whoever read the table has what it wanted.
            return 141
        print(f"compare: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
