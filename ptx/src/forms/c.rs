//! Constants and structures of the ABI in C.

use crate::abi::{CONSTANTS, STRUCTS, StructLayout};
use std::fmt::Write as _;

/// Every constant as a macro `AQUEDUCT_<NAME>`.
pub(super) fn constants(out: &mut String) {
    out.push('\n');
    for (name, value) in CONSTANTS {
        let _ = writeln!(out, "#define AQUEDUCT_{name} {value}u");
    }
}

/// Every structure, with assertions of its size and of each offset.
pub(super) fn structures(out: &mut String) {
    STRUCTS.iter().for_each(|layout| structure(out, layout));
}

/// A comment block.
pub(super) fn comment(out: &mut String, indent: &str, lines: impl Iterator<Item = String>) {
    let lines: Vec<_> = lines.collect();
    let _ = writeln!(out, "{indent}/* {} */", lines.join(&format!("\n{indent} * ")).replace(" * \n", " *\n"));
}

fn structure(out: &mut String, layout: &StructLayout) {
    out.push('\n');
    comment(out, "", layout.doc.iter().map(|line| plain(line)));
    let _ = writeln!(out, "typedef struct Aqueduct{} {{", layout.name);
    for field in layout.fields {
        comment(out, "    ", field.doc.iter().map(|line| plain(line)));
        let _ = writeln!(out, "    {};", declaration(field.rust_type, field.name));
    }
    let name = format!("Aqueduct{}", layout.name);
    let _ = writeln!(out, "}} {name};");
    let _ = writeln!(out, "AQUEDUCT_ASSERT(sizeof({name}) == {}, \"{name}\");", layout.size);
    for field in layout.fields {
        let (field, offset) = (field.name, field.offset);
        let _ = writeln!(out, "AQUEDUCT_ASSERT(offsetof({name}, {field}) == {offset}, \"{name}.{field}\");");
    }
}

/// A field. Arrays of the ABI are written `[u64; N]` with a literal `N`.
fn declaration(rust_type: &str, name: &str) -> String {
    let scalar = |ty: &str| match ty.strip_prefix('u').filter(|bits| bits.parse::<u32>().is_ok()) {
        Some(bits) => format!("uint{bits}_t"),
        None => format!("Aqueduct{}", ty.rsplit("::").next().unwrap_or(ty).trim()),
    };
    match rust_type.strip_prefix('[').and_then(|t| t.strip_suffix(']')).and_then(|t| t.split_once(';')) {
        Some((element, count)) => format!("{} {name}[{}]", scalar(element.trim()), count.trim()),
        None => format!("{} {name}", scalar(rust_type)),
    }
}

/// Rust documentation without the marks of its links.
fn plain(line: &str) -> String {
    line.trim().replace("[`", "").replace("`]", "").replace('`', "")
}
