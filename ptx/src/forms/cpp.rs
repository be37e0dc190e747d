//! Operations as CUDA C++: inline functions around inline assembly.

use super::c::comment;
use super::operation::{Argument, Call, Term, Type};
use super::render::render;
use crate::fragment::{Direction, Fragment, FragmentParam, Variant};
use crate::{Target, TemplateError, failure};
use std::fmt::Write as _;

/// The function of an operation: finds the fragment's parameters and calls its [`block`].
pub(super) fn function(out: &mut String, call: &Call) {
    out.push('\n');
    comment(out, "", call.documentation().into_iter());
    let results: Vec<_> = call.results().collect();
    let mut list: Vec<_> = call.arguments.iter().map(|(argument, ty, _)| parameter(argument, ty)).collect();
    list.extend(results.iter().skip(1).map(|(given, _, ty)| format!("{} &{}", c_type(ty), given.name)));
    let returned = results.first().map_or_else(|| "void".to_owned(), |(_, _, ty)| c_type(ty));
    let name = &call.name;
    let _ = writeln!(
        out,
        "static __device__ __forceinline__ {returned} aqueduct_{name}({})\n{{",
        list.join(", ")
    );
    let mut passed = Vec::new();
    for (param, terms) in call.fragment.params.iter().zip(&call.values) {
        let value = terms.as_deref().map(sum);
        if param.direction == Direction::In {
            passed.push(value.unwrap_or_default());
            continue;
        }
        // A result passed by reference is written in place; every other one needs a variable.
        let variable = match results.iter().position(|(given, ..)| given.param == param.name) {
            Some(0) => "result".to_owned(),
            Some(nth) => results[nth].0.name.to_owned(),
            None => format!("{}_unused", param.name.to_lowercase()),
        };
        let reference = results.iter().skip(1).any(|(given, ..)| given.param == param.name);
        let ty = if reference { String::new() } else { c_type(&param.register(&call.variant)) + " " };
        match value {
            Some(value) => _ = writeln!(out, "    {ty}{variable} = {value};"),
            None if !reference => _ = writeln!(out, "    {ty}{variable};"),
            None => {}
        }
        passed.push(variable);
    }
    let _ = writeln!(out, "    {}({});", block_name(&call.fragment, &call.variant), passed.join(", "));
    out.push_str(if results.is_empty() { "}\n" } else { "    return result;\n}\n" });
}

/// A building block: one variant of a fragment as inline assembly, with a parameter per register.
pub(super) fn block(out: &mut String, fragment: &Fragment, variant: &Variant) -> Result<(), TemplateError> {
    // Operands are numbered outputs first, as the assembler statement lists them.
    let outputs: Vec<_> = fragment.params.iter().filter(|p| p.direction != Direction::In).collect();
    let inputs: Vec<_> = fragment.params.iter().filter(|p| p.direction == Direction::In).collect();
    let number = |param: &FragmentParam| outputs.iter().chain(&inputs).position(|p| p.name == param.name);
    // A character that no PTX contains marks the operands until the percent signs of registers are doubled.
    let mark = |_: usize, param: &FragmentParam| format!("\u{1}{}", number(param).unwrap_or_default());
    let text = render(fragment, variant, Target::new(70), mark)?;
    if text != render(fragment, variant, Target::new(100), mark)? {
        let message = "C++ has one form of it for all devices, but it depends on the target";
        return Err(failure(&fragment.name, message.to_owned()));
    }

    let list: Vec<_> = fragment.params.iter().map(|param| block_parameter(param, variant)).collect();
    let name = block_name(fragment, variant);
    let _ = writeln!(out, "\nstatic __device__ __forceinline__ void {name}({})\n{{", list.join(", "));
    let operands = |list: &[&FragmentParam]| -> String {
        list.iter().map(|p| operand(p, variant)).collect::<Vec<_>>().join(", ")
    };
    let tail = format!(
        "        : {}\n        : {}\n        : \"memory\");\n",
        operands(&outputs),
        operands(&inputs)
    );
    let _ = write!(out, "    asm volatile(\n{}{tail}", assembler(&text));
    out.push_str("}\n");
    Ok(())
}

fn block_name(fragment: &Fragment, variant: &Variant) -> String {
    format!("aqueduct_block_{}{}", fragment.name, variant.suffix)
}

/// PTX as C string literals: no comments, percent signs doubled, operand marks replaced.
fn assembler(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let code = line.split("//").next().unwrap_or("").trim();
        if !code.is_empty() {
            let code = code.replace('%', "%%").replace('\u{1}', "%");
            let _ = writeln!(out, "        \"{code}\\n\\t\"");
        }
    }
    out
}

fn block_parameter(param: &FragmentParam, variant: &Variant) -> String {
    let reference = if param.direction == Direction::In { "" } else { "&" };
    format!("{} {reference}{}", c_type(&param.register(variant)), param.name.to_lowercase())
}

fn operand(param: &FragmentParam, variant: &Variant) -> String {
    let name = param.name.to_lowercase();
    let modifier = match param.direction {
        Direction::In => "",
        Direction::Out => "=",
        Direction::InOut => "+",
    };
    let letter = match param.register(variant).as_str() {
        "u32" => 'r',
        "f32" => 'f',
        _ => 'l',
    };
    format!("\"{modifier}{letter}\"({name})")
}

fn parameter(argument: &Argument, ty: &str) -> String {
    let name = argument.name;
    match argument.ty {
        Type::Handle(layout) | Type::Value(layout) => format!("const Aqueduct{} &{name}", layout.name),
        Type::Address => format!("const volatile void *{name}"),
        _ => format!("{} {name}", c_type(ty)),
    }
}

fn sum(terms: &[Term]) -> String {
    let term = |term: &Term| match term {
        Term::Argument(argument) => match argument.ty {
            Type::Address => format!("(uint64_t)__cvta_generic_to_global((const void *){})", argument.name),
            _ => argument.name.to_owned(),
        },
        Term::Field { argument, path, .. } => format!("{}.{path}", argument.name),
        Term::Constant { name: Some(name), .. } => format!("AQUEDUCT_{name}"),
        Term::Constant { name: None, value } => value.to_string(),
    };
    terms.iter().map(term).collect::<Vec<_>>().join(" + ")
}

fn c_type(ty: &str) -> String {
    match ty.strip_prefix('u') {
        Some(bits) => format!("uint{bits}_t"),
        None => "float".to_owned(),
    }
}
