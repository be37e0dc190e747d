"""Finds circles between the source files of our crates.

circles.py check KNOWN FOLDER...    prints each circle with a use that the file KNOWN does not list, and lists what KNOWN
                                    need not list any more; exit status 1 for either
circles.py bless KNOWN FOLDER...    rewrites KNOWN from today's tree
circles.py uses FOLDER...           prints every use of one file by another, with the names

File A uses file B if the code of A names something that B defines. How it is written does not matter: a name is followed
through imports and re-exports to the file with its definition. So `use super::Thing` uses the parent's file only if
`Thing` is defined there, and a parent that only declares and re-exports its children (`mod x; pub use x::Y;`) uses none
of them. A method is looked for only where an `impl` stands in another file than its type: `self.method()`,
`Self::method` and `Type::method` then use the file of that `impl`. Code behind `cfg(test)` or `cfg(loom)` does not count.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)
      | \#\[path\s*=\s*"(?P<path>[^"]*)"\]
      | (?P<text>(?:b|c)?"(?:[^"\\]|\\.)*"|(?:b|c)?r(?P<hash>\#*)".*?"(?P=hash)|b?'(?:[^'\\\n]|\\[^\n]+?)')
      | (?P<lifetime>'\w+)
      | (?P<name>(?:r\#)?[A-Za-z_]\w*)
      | (?P<other>\d[\w.]*(?<!\.)|::|\.\.=?|->|=>|.)""",
    re.S | re.X,
)
PATH = "#[path]"  # begins the token that stands for such an attribute
CLOSING = {"(": ")", "[": "]", "{": "}"}
DEFINES = {"fn", "struct", "enum", "union", "trait", "type", "const", "static", "mod", "use", "impl", "macro_rules"}


def is_name(token):
    return token[0].isalpha() or token[0] == "_"


def tokens_of(text):
    tokens = []
    for match in TOKEN.finditer(text):
        if match["path"]:
            tokens.append(PATH + match["path"])
        elif not match["skip"]:
            tokens.append('""' if match["text"] else match[0].removeprefix("r#") if match["name"] else match[0])
    return without_tests(tokens)


def end_of_group(tokens, start):
    """The index behind the bracket that closes the one at `start`."""
    depth = 0
    for index in range(start, len(tokens)):
        if tokens[index] in CLOSING:
            depth += 1
        elif tokens[index] in CLOSING.values():
            depth -= 1
            if depth == 0:
                return index + 1
    return len(tokens)


def is_built(condition):
    """Whether code under this `cfg` belongs to an ordinary build. What is neither `test` nor `loom` may be either way: None."""
    if condition[0] in ("all", "any", "not") and condition[1:2] == ["("]:
        parts, start = [], 2
        depth = 0
        for index in range(2, len(condition)):
            depth += (condition[index] in CLOSING) - (condition[index] in CLOSING.values())
            if (condition[index] == "," and depth == 0) or depth < 0:
                if condition[start:index]:
                    parts.append(is_built(condition[start:index]))
                start = index + 1
        if condition[0] == "not":
            return None if parts[0] is None else not parts[0]
        decisive = condition[0] == "any"
        return decisive if decisive in parts else None if None in parts else not decisive
    return False if condition[0] in ("test", "loom") else None


def without_tests(tokens):
    kept, index = [], 0
    while index < len(tokens):
        if tokens[index] != "#" or tokens[index + 1 : index + 2] not in (["["], ["!"]):
            kept.append(tokens[index])
            index += 1
            continue
        inner = tokens[index + 1] == "!"
        end = end_of_group(tokens, index + 1 + inner)
        attribute = tokens[index + 2 + inner : end - 1]
        dropped = attribute[:2] == ["cfg", "("] and is_built(attribute[2:-1]) is False
        if dropped and inner:
            return []
        index = end_of_item(tokens, end) if dropped else end
    return kept


def end_of_item(tokens, index):
    """The index behind the item, statement, field or arm at `index`, attributes before it included."""
    whole = False  # ends with a semicolon only
    while index < len(tokens):
        token = tokens[index]
        if token in ("use", "static", "type", "let") or (token == "const" and tokens[index + 1] not in ("fn", "unsafe")):
            whole = True
        if token in (";", ","):
            return index + 1
        if token in CLOSING.values():
            return index
        if token in CLOSING:
            index = end_of_group(tokens, index)
            if token == "{" and not whole:
                return index
        else:
            index += 1
    return index


class Module:
    def __init__(self, file, parent, name):
        self.file, self.parent, self.name = file, parent, name
        self.children, self.items, self.imports, self.globs = {}, {}, {}, []
        self.code, self.impls, self.uses = [], [], []

    def root(self):
        return self.parent.root() if self.parent else self


class Crate:
    """One crate: the modules that its root file reaches."""

    def __init__(self, root):
        self.modules, self.macros, self.traits = [], {}, {}
        self.read(root, root.parent, None, "crate")

    def read(self, file, folder, parent, name):
        module = Module(str(file), parent, name)
        if parent:
            parent.children[name] = module
        self.parse(tokens_of(file.read_text()), module, folder)

    def parse(self, tokens, module, folder):
        self.modules.append(module)
        index = 0
        while index < len(tokens):
            start = index
            while index < len(tokens) and tokens[index] not in DEFINES and tokens[index] not in CLOSING and tokens[index] != ";":
                index += 1
                if tokens[index - 1] == "pub" and tokens[index : index + 1] == ["("]:
                    index = end_of_group(tokens, index)
            word = tokens[index] if index < len(tokens) else ""
            public = "pub" in tokens[start:index]
            if word == "const" and tokens[index + 1] in ("fn", "unsafe", "extern", "async"):
                index, word = tokens.index("fn", index), "fn"
            name = tokens[index + 1] if index + 1 < len(tokens) else ""
            path = next((token.removeprefix(PATH) for token in tokens[start:index] if token.startswith(PATH)), None)
            if word == "mod" and tokens[index + 2] == ";":
                files = [folder / path] if path else [folder / f"{name}.rs", folder / name / "mod.rs"]
                files = [file for file in files if file.exists()]
                if not files:
                    sys.exit(f"circles: {module.file} declares mod {name}, but {folder}/{name}.rs does not exist")
                self.read(files[0], files[0].parent if path else folder / name, module, name)
                index += 3
            elif word == "mod":
                end = end_of_group(tokens, index + 2)
                child = module.children[name] = Module(module.file, module, name)
                self.parse(tokens[index + 3 : end - 1], child, folder / (path or name))
                index = end
            elif word == "use":
                end = tokens.index(";", index)
                self.add_use(tokens[index + 1 : end], [], module, public)
                index = end + 1
            else:
                end = max(end_of_item(tokens, index), index + 1)
                if word == "macro_rules":
                    name = tokens[index + 2]
                    self.macros.setdefault(name, set()).add(module.file)
                if word == "impl":
                    module.impls.append(tokens[index:end])
                elif word in DEFINES and is_name(name):
                    module.items[name] = word
                    if word == "trait":
                        self.traits[module.file, name] = methods(tokens[index:end])
                module.code.append(tokens[start:end])
                for at in range(start, end):  # imports inside functions
                    if tokens[at] == "use" and tokens[at - 1] in ("{", ";", "}"):
                        self.add_use(tokens[at + 1 : tokens.index(";", at)], [], module, False)
                index = end

    def add_use(self, tree, path, module, public):
        index = 0
        if tree and tree[0] == "::":
            return
        while index < len(tree) and is_name(tree[index]) and tree[index] != "as":
            path = path + [tree[index]]
            index += 2 if tree[index + 1 : index + 2] == ["::"] else 1
        rest = tree[index:]
        if rest[:1] == ["*"]:
            module.globs.append((path, public))
        elif rest[:1] == ["{"]:
            start, depth = index + 1, 0
            for at in range(index + 1, len(tree)):
                depth += (tree[at] in CLOSING) - (tree[at] in CLOSING.values())
                if (tree[at] == "," and depth == 0) or depth < 0:
                    if tree[start:at]:
                        self.add_use(tree[start:at], path, module, public)
                    start = at + 1
        else:
            if len(path) > 1 and path[-1] == "self":
                path = path[:-1]
            alias = rest[1] if rest[:1] == ["as"] else path[-1]
            module.imports[alias if alias != "_" else f"_ {path}"] = path
            module.uses.append((path, public))

    def lookup(self, module, name, as_module, seen):
        """A module, or the file and name of a definition, or None for what this crate does not define."""
        if (id(module), name, as_module) in seen:
            return None
        seen = seen | {(id(module), name, as_module)}
        if as_module and name in module.children:
            return module.children[name]
        if name in module.items:
            return (module.file, name)
        if name in module.imports:
            found = self.resolve(module, module.imports[name], seen)
            if found:
                return found
        if name in module.children:
            return module.children[name]
        for path, _ in module.globs:
            found = self.resolve(module, path, seen)
            if isinstance(found, Module):
                found = self.lookup(found, name, as_module, seen)
                if found:
                    return found
        return None

    def resolve(self, module, path, seen=frozenset()):
        here, rest = None, path
        if path[0] == "crate":
            here, rest = module.root(), path[1:]
        while rest and rest[0] in ("self", "super"):
            here = here or module
            if rest[0] == "super":
                here = here.parent
                if here is None:
                    return None
            rest = rest[1:]
        if here is None:
            here = self.lookup(module, rest[0], len(rest) > 1, seen)
            rest = rest[1:]
        while rest and isinstance(here, Module):
            found = self.lookup(here, rest[0], len(rest) > 1, seen)
            if found is None and (id(here), rest[0], len(rest) > 1) in seen:
                return None
            # A macro may have defined it: then it stands in the module's own file.
            here = found or (here.file, rest[0])
            rest = rest[1:]
        return here

    def uses(self):
        """(file, file) -> names"""
        found = defaultdict(set)

        def add(module, target, name=None):
            if isinstance(target, tuple) and target[0] != module.file:
                found[module.file, target[0]].add(name or target[1])

        elsewhere, at_home = self.impl_methods()
        for module in self.modules:
            code = [token for part in module.code for token in part]
            called = {b for a, b in zip(code, code[1:]) if a == "." and is_name(b)}
            for path, public in module.uses:
                target = self.resolve(module, path)
                first = path[1] if path[0] == "self" and len(path) > 1 else path[0]
                if first not in module.children:
                    add(module, target)
                elif not public and target in self.traits and self.traits[target] & called:
                    add(module, target)
            for path, next_token in paths(code):
                if next_token == "!" and len(path) == 1 and path[0] not in module.imports:
                    for file in self.macros.get(path[0], ()):
                        add(module, (file, path[0] + "!"))
                    continue
                target = self.resolve(module, path)
                add(module, target)
                if isinstance(target, tuple) and len(path) > 1 and path[-1] not in at_home.get(target, ()):
                    for file in elsewhere.get((target, path[-1]), ()):
                        add(module, (file, f"{target[1]}::{path[-1]}"))
            for tokens in module.impls:
                of = self.type_of(module, tokens)
                for a, b, c in zip(tokens, tokens[1:], tokens[2:]):
                    if (a, b) in (("self", "."), ("Self", "::")) and (of, c) in elsewhere and c not in at_home.get(of, ()):
                        for file in elsewhere[of, c]:
                            add(module, (file, f"{of[1]}::{c}"))
        return found

    def type_of(self, module, tokens):
        """The definition of the type that an `impl` block is for."""
        head = tokens[1 : tokens.index("{")] if "{" in tokens else tokens
        depth, start = 0, 0
        for index, token in enumerate(head):
            depth += (token == "<") - (token == ">")
            if (depth == 0 and token == "for") or (index and depth == 0 and head[0] == "<" and not start):
                start = index + (token == "for" or token == ">")
            if token == "where":
                break
        names = next(iter(paths(head[start:])), None)
        target = self.resolve(module, names[0]) if names else None
        return target if isinstance(target, tuple) else None

    def impl_methods(self):
        elsewhere, at_home = defaultdict(set), defaultdict(set)
        for module in self.modules:
            for tokens in module.impls:
                of = self.type_of(module, tokens)
                if of and "{" in tokens:
                    for method in methods(tokens):
                        if of[0] == module.file:
                            at_home[of].add(method)
                        elif "for" not in tokens[: tokens.index("{")]:
                            elsewhere[of, method].add(module.file)
        return elsewhere, at_home


def methods(tokens):
    return {b for a, b in zip(tokens, tokens[1:]) if a in ("fn", "const") and is_name(b)}


def paths(tokens):
    """Every path in the code, with the token behind it."""
    index = 0
    while index < len(tokens):
        before = tokens[index - 1] if index else ""
        if not is_name(tokens[index]) or before in (".", "::", "fn", "'"):
            index += 1
            continue
        path = [tokens[index]]
        index += 1
        while tokens[index : index + 1] == ["::"] and index + 1 < len(tokens) and is_name(tokens[index + 1]):
            path.append(tokens[index + 1])
            index += 2
        yield path, tokens[index] if index < len(tokens) else ""


def circles(uses):
    """The strongly connected sets of more than one file (Tarjan)."""
    graph = defaultdict(list)
    for a, b in sorted(uses):
        graph[a].append(b)
    order, low, stack, found = {}, {}, [], []

    def visit(file):
        order[file] = low[file] = len(order)
        stack.append(file)
        for other in graph[file]:
            if other not in order:
                visit(other)
            if other in stack:
                low[file] = min(low[file], low[other])
        if low[file] == order[file]:
            at = stack.index(file)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for file in sorted(graph):
        if file not in order:
            visit(file)
    return found


def uses_of(folders):
    uses = defaultdict(set)
    for folder in map(Path, folders):
        roots = [*folder.glob("src/lib.rs"), *folder.glob("src/main.rs"), *folder.glob("src/bin/*.rs")]
        if not roots:
            sys.exit(f"circles: no crate in {folder}")
        for root in roots:
            for pair, names in Crate(root).uses().items():
                uses[pair] |= names
    return uses


def check(uses, found, listing):
    """Prints what is wrong. Returns whether something is."""
    known = {line for line in listing.read_text().splitlines() if line and line[0] != "#"} if listing.exists() else set()
    wrong = False
    for files in found:
        tied = sorted(pair for pair in uses if pair[0] in files and pair[1] in files)
        new = {pair for pair in tied if " -> ".join(pair) not in known}
        known -= {" -> ".join(pair) for pair in tied}
        if new:
            wrong = True
            print(f"circles: {len(files)} files use each other in a circle; every line below is part of it:")
            for pair in tied:
                note = " (new)" if len(new) < len(tied) and pair in new else ""
                print(f"  {' -> '.join(pair)}: {', '.join(sorted(uses[pair]))}{note}")
    for line in sorted(known):
        print(f"circles: {line} is not part of a circle any more; ci/circles.sh --bless takes it off the list")
    return wrong or bool(known)


def main():
    command, *arguments = sys.argv[1:]
    sys.setrecursionlimit(10_000)
    if command == "uses":
        for pair, names in sorted(uses_of(arguments).items()):
            print(f"{' -> '.join(pair)}: {', '.join(sorted(names))}")
        return
    listing, uses = Path(arguments[0]), uses_of(arguments[1:])
    found = circles(uses)
    if command == "bless":
        tied = sorted(" -> ".join(pair) for files in found for pair in uses if set(pair) <= set(files))
        head = "# Uses between files that are part of a circle and known. None may be added. Written by ci/circles.sh --bless.\n"
        listing.write_text(head + "".join(line + "\n" for line in tied))
    elif check(uses, found, listing):
        sys.exit(1)


main()
