//! Operations as PTX functions, for `cuLinkAddData` beside a user's kernel.

use super::operation::{Argument, Call, Term, Type};
use super::render::render;
use crate::{Target, TemplateError};
use std::fmt::Write as _;

/// Writes the declaration for callers: `.extern .func ...;`.
pub(super) fn declare(out: &mut String, call: &Call) {
    let _ = writeln!(out, ".extern .func {};\n", signature(call));
}

/// Returns the function's name.
pub(super) fn symbol(call: &Call) -> String {
    format!("aqueduct_device_{}", call.name)
}

/// Writes the whole function with its documentation.
pub(super) fn define(out: &mut String, call: &Call, target: Target) -> Result<(), TemplateError> {
    document(out, call);
    let _ = writeln!(out, ".visible .func {}\n{{", signature(call));
    for param in &call.fragment.params {
        let _ = writeln!(out, "    .reg .{} {};", param.register(&call.variant), register(&param.name));
    }
    let handles = call.arguments.iter().filter(|(argument, ..)| matches!(argument.ty, Type::Handle(_)));
    for (handle, ..) in handles {
        let name = handle.name;
        let _ = writeln!(out, "    .reg .u64 %at_{name};\n    ld.param.u64 %at_{name}, [{name}];");
    }
    out.push_str("    .reg .u64 %more;\n");
    for (param, terms) in call.fragment.params.iter().zip(&call.values) {
        let (ty, to) = (param.register(&call.variant), register(&param.name));
        for (nth, term) in terms.iter().flatten().enumerate() {
            let _ = match term {
                _ if nth == 0 => writeln!(out, "    {}", load(term, &ty, &to)),
                Term::Constant { value, .. } => writeln!(out, "    add.{ty} {to}, {to}, {value};"),
                _ => writeln!(out, "    {}\n    add.{ty} {to}, {to}, %more;", load(term, &ty, "%more")),
            };
        }
    }
    out.push_str(&render(&call.fragment, &call.variant, target, |_, param| register(&param.name))?);
    for (slot, (_, param, ty)) in call.results().enumerate() {
        let _ = writeln!(out, "    st.param.{ty} [result+{}], {};", slot * 8, register(&param.name));
    }
    out.push_str("    ret;\n}\n\n");
    Ok(())
}

/// Writes its documentation as comments.
pub(super) fn document(out: &mut String, call: &Call) {
    for line in call.documentation() {
        let _ = writeln!(out, "// {line}");
    }
}

/// `(results) name (parameters)`. One result is a value; several lie in slots of 8 bytes.
fn signature(call: &Call) -> String {
    let types: Vec<_> = call.results().map(|(_, _, ty)| ty).collect();
    let results = match &types[..] {
        [] => String::new(),
        [ty] => format!("(.param .{ty} result) "),
        several => format!("(.param .align 8 .b8 result[{}]) ", several.len() * 8),
    };
    let list: Vec<_> = call.arguments.iter().map(|(argument, ty, _)| parameter(argument, ty)).collect();
    format!("{results}{}({}\n)", symbol(call), list.join(","))
}

fn parameter(argument: &Argument, ty: &str) -> String {
    match argument.ty {
        Type::Value(layout) => format!("\n    .param .align 8 .b8 {}[{}]", argument.name, layout.size),
        _ => format!("\n    .param .{ty} {}", argument.name),
    }
}

fn register(param: &str) -> String {
    format!("%arg_{}", param.to_lowercase())
}

fn load(term: &Term, ty: &str, into: &str) -> String {
    match term {
        Term::Argument(argument) => format!("ld.param.{ty} {into}, [{}];", argument.name),
        Term::Field { argument, offset, .. } => match argument.ty {
            Type::Value(_) => format!("ld.param.{ty} {into}, [{}+{offset}];", argument.name),
            _ => format!("ld.weak.{ty} {into}, [%at_{}+{offset}];", argument.name),
        },
        Term::Constant { value, .. } => format!("mov.{ty} {into}, {value};"),
    }
}
