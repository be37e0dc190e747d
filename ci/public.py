"""Prints one line for each public item of the library that users can reach, from rustdoc's JSON.

public.py JSON

An item that is reachable by several paths has its line, and those of its members, at the shortest; the other paths say
`use`. rustdoc leaves out what is `#[doc(hidden)]`. Traits that the compiler implements by itself (`Send`) or for all
types are left out.
"""

import json
import re
import sys

KNOWN_FORMATS = range(55, 60)

crate = json.load(open(sys.argv[1]))
if crate["format_version"] not in KNOWN_FORMATS:
    sys.exit(f"public: rustdoc's JSON has format {crate['format_version']}: look through its changes, then add it to KNOWN_FORMATS in ci/public.py")
index = crate["index"]


def last(path):
    return path.rsplit("::", 1)[-1]


def type_text(t):
    (kind, v), = t.items() if isinstance(t, dict) else ((t, None),)
    match kind:
        case "primitive" | "generic":
            return v
        case "resolved_path":
            return last(v["path"]) + arguments_text(v["args"])
        case "borrowed_ref":
            life = v["lifetime"] + " " if v["lifetime"] else ""
            return f"&{life}{'mut ' if v['is_mutable'] else ''}{type_text(v['type'])}"
        case "raw_pointer":
            return f"*{'mut' if v['is_mutable'] else 'const'} {type_text(v['type'])}"
        case "tuple":
            return f"({', '.join(map(type_text, v))}{',' if len(v) == 1 else ''})"
        case "slice":
            return f"[{type_text(v)}]"
        case "array":
            return f"[{type_text(v['type'])}; {v['len']}]"
        case "dyn_trait":
            bounds = [binder_text(b["generic_params"]) + last(b["trait"]["path"]) + arguments_text(b["trait"]["args"]) for b in v["traits"]]
            return "dyn " + " + ".join(bounds + ([v["lifetime"]] if v["lifetime"] else []))
        case "impl_trait":
            return f"impl {bounds_text(v)}"
        case "function_pointer":
            return binder_text(v["generic_params"]) + header_text(v["header"]) + "fn" + signature_text(v["sig"])
        case "qualified_path":
            args = arguments_text(v["args"])
            if v["trait"] and v["trait"]["path"]:
                return f"<{type_text(v['self_type'])} as {last(v['trait']['path'])}{arguments_text(v['trait']['args'])}>::{v['name']}{args}"
            return f"{type_text(v['self_type'])}::{v['name']}{args}"
        case "infer":
            return "_"
    sys.exit(f"public: unknown type {t}")


def arguments_text(args):
    if not args:
        return ""
    (kind, v), = args.items() if isinstance(args, dict) else ((args, None),)
    if kind == "parenthesized":
        return f"({', '.join(map(type_text, v['inputs']))})" + (f" -> {type_text(v['output'])}" if v["output"] else "")
    if kind != "angle_bracketed":
        return ""
    parts = []
    for a in v["args"]:
        (kind, value), = a.items() if isinstance(a, dict) else ((a, None),)
        parts.append(value if kind == "lifetime" else type_text(value) if kind == "type" else value["expr"] if kind == "const" else "_")
    for c in v["constraints"]:
        (kind, value), = c["binding"].items()
        bound = f" = {term_text(value)}" if kind == "equality" else f": {bounds_text(value)}"
        parts.append(c["name"] + arguments_text(c["args"]) + bound)
    return f"<{', '.join(parts)}>" if parts else ""


def term_text(term):
    return type_text(term["type"]) if "type" in term else term["constant"]["expr"]


def bounds_text(bounds):
    parts = []
    for b in bounds:
        if "outlives" in b:
            parts.append(b["outlives"])
        elif "use" in b:
            parts.append("use<..>")
        else:
            b = b["trait_bound"]
            sign = "?" if b["modifier"] == "maybe" else ""
            parts.append(sign + binder_text(b["generic_params"]) + last(b["trait"]["path"]) + arguments_text(b["trait"]["args"]))
    return " + ".join(parts)


def binder_text(params):
    return f"for<{', '.join(p['name'] for p in params)}> " if params else ""


def generics_text(generics):
    """What stands behind the name, and the `where` clause."""
    params = []
    for p in generics["params"]:
        (kind, v), = p["kind"].items()
        if kind == "type" and not v["is_synthetic"]:
            params.append(p["name"] + (f": {bounds_text(v['bounds'])}" if v["bounds"] else ""))
        elif kind == "lifetime":
            params.append(p["name"] + (f": {' + '.join(v['outlives'])}" if v["outlives"] else ""))
        elif kind == "const":
            params.append(f"const {p['name']}: {type_text(v['type'])}")
    where = []
    for predicate in generics["where_predicates"]:
        (kind, v), = predicate.items()
        if kind == "bound_predicate":
            where.append(f"{binder_text(v['generic_params'])}{type_text(v['type'])}: {bounds_text(v['bounds'])}")
        elif kind == "lifetime_predicate":
            where.append(f"{v['lifetime']}: {' + '.join(v['outlives'])}")
        else:
            where.append(f"{type_text(v['lhs'])} == {term_text(v['rhs'])}")
    return f"<{', '.join(params)}>" if params else "", f" where {', '.join(where)}" if where else ""


def header_text(header):
    abi = header["abi"]
    text = "const " * header["is_const"] + "async " * header["is_async"] + "unsafe " * header["is_unsafe"]
    return text + (f'extern "{abi if isinstance(abi, str) else next(iter(abi))}" ' if abi != "Rust" else "")


def signature_text(sig):
    inputs = []
    for name, t in sig["inputs"]:
        text = type_text(t)
        if name == "self" and re.fullmatch(r"(&('\w+ )?(mut )?)?Self", text):
            inputs.append(text.removesuffix("Self") + "self")
        else:
            inputs.append(f"{name}: {text}" if name not in ("", "_") else text)
    return f"({', '.join(inputs)})" + (f" -> {type_text(sig['output'])}" if sig["output"] else "")


lines = []  # (path, text)


def say(path, kind, rest="", item=None):
    sealed = "#[non_exhaustive] " if item and "non_exhaustive" in item["attrs"] else ""
    lines.append((path, f"{sealed}{kind} {path}{rest}"))


def fields(path, ids):
    for id in ids:
        field = index.get(str(id)) if id is not None else None
        if field:
            say(f"{path}::{field['name']}", "field", f": {type_text(field['inner']['struct_field'])}")


def member(path, item):
    path = f"{path}::{item['name']}"
    (kind, v), = item["inner"].items()
    match kind:
        case "function":
            generics, where = generics_text(v["generics"])
            say(path, header_text(v["header"]) + "fn", generics + signature_text(v["sig"]) + where, item)
        case "assoc_const":
            say(path, "const", f": {type_text(v['type'])}")
        case "assoc_type":
            say(path, "type", f": {bounds_text(v['bounds'])}" if v["bounds"] else "")


def implementations(path, ids):
    traits = set()
    for id in ids:
        item = index[str(id)]
        v = item["inner"]["impl"]
        if v["is_synthetic"] or v["blanket_impl"]:
            continue
        if v["trait"]:
            of = type_text(v["for"]) if "borrowed_ref" in v["for"] else ""
            name = last(v["trait"]["path"])
            if name == "StructuralPartialEq":  # comes with every derived PartialEq
                continue
            traits.add(name + arguments_text(v["trait"]["args"]) + (f" for {of}" if of else ""))
            continue
        for id in v["items"]:
            if str(id) in index:
                member(path, index[str(id)])
    if traits:
        lines.append((path, f"impl {path}: {', '.join(sorted(traits))}"))


def item_lines(path, item):
    (kind, v), = item["inner"].items()
    generics, where = generics_text(v["generics"]) if isinstance(v, dict) and "generics" in v else ("", "")
    match kind:
        case "function":
            say(path, header_text(v["header"]) + "fn", generics + signature_text(v["sig"]) + where, item)
        case "constant" | "static":
            say(path, "const" if kind == "constant" else "static", f": {type_text(v['type'])}")
        case "type_alias":
            say(path, "type", f"{generics} = {type_text(v['type'])}")
        case "struct" | "union":
            say(path, kind, generics + where, item)
            shape = v["kind"] if kind == "struct" else {"plain": v}
            if isinstance(shape, dict):
                fields(path, shape["tuple"] if "tuple" in shape else shape["plain"]["fields"])
            implementations(path, v["impls"])
        case "enum":
            say(path, "enum", generics + where, item)
            for id in v["variants"]:
                variant = index.get(str(id))
                if variant:
                    shape = variant["inner"]["variant"]["kind"]
                    say(f"{path}::{variant['name']}", "variant", "", variant)
                    if isinstance(shape, dict):
                        fields(f"{path}::{variant['name']}", shape["tuple"] if "tuple" in shape else shape["struct"]["fields"])
            implementations(path, v["impls"])
        case "trait":
            bounds = f": {bounds_text(v['bounds'])}" if v["bounds"] else ""
            say(path, "unsafe trait" if v["is_unsafe"] else "trait", generics + bounds + where, item)
            for id in v["items"]:
                if str(id) in index:
                    member(path, index[str(id)])
        case "module":
            say(path, "mod")
        case _:
            say(path, kind)


def walk():
    """Breadth first, so that the first path by which an item is found is a shortest one."""
    home = {}
    queue = [(crate["root"], index[str(crate["root"])]["name"])]
    while queue:
        following = []
        for id, path in sorted(queue, key=lambda entry: entry[1]):
            if id in home:
                say(path, "use", f" = {home[id]}")
                continue
            home[id] = path
            item = index[str(id)]
            item_lines(path, item)
            for child in item["inner"]["module"]["items"] if "module" in item["inner"] else ():
                reach(child, path, following, frozenset())
        queue = following


def reach(id, path, following, through):
    """Adds what stands at `id` of the module `path`; a `use` leads to another item, or for a glob to all of a module."""
    item = index.get(str(id))
    if item is None or id in through:
        return
    if "use" not in item["inner"]:
        following.append((id, f"{path}::{item['name']}"))
        return
    use = item["inner"]["use"]
    target = index.get(str(use["id"]))
    if use["is_glob"] and target and "module" in target["inner"]:
        for child in target["inner"]["module"]["items"]:
            reach(child, path, following, through | {id})
    elif target is None or use["is_glob"]:
        say(f"{path}::{'*' if use['is_glob'] else use['name']}", "use", f" = {use['source']}")
    elif "use" in target["inner"]:
        reach(use["id"], path, following, through | {id})
    else:
        following.append((use["id"], f"{path}::{use['name']}"))


walk()
for _, line in sorted(lines, key=lambda entry: (entry[0], entry[1].startswith("impl "), entry[1])):
    print(line)
