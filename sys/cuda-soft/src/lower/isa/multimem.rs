//! `multimem.ld_reduce`, `multimem.st` and `multimem.red` (PTX ISA 9.7.9.14).

use super::shape::size_matches;
use crate::code::op::{AtomOp, Multimem, MultimemOp};
use crate::code::{Base, Op, Scope, Semantics, Space, Ty};
use crate::lower::builder::{Builder, Lowered, exactly};
use crate::lower::modifiers::{Modifiers, SCOPES, word};
use crate::lower::operand::Fit;
use crate::ptx::Diagnostic;
use crate::ptx::ast::Instruction;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    LdReduce,
    St,
    Red,
}

const OPERATIONS: [(&str, AtomOp); 6] = [
    ("add", AtomOp::Add),
    ("min", AtomOp::Min),
    ("max", AtomOp::Max),
    ("and", AtomOp::And),
    ("or", AtomOp::Or),
    ("xor", AtomOp::Xor),
];

const INTEGERS: [Ty; 6] = [Ty::B32, Ty::B64, Ty::U32, Ty::U64, Ty::S32, Ty::S64];
const FLOATS: [Ty; 6] = [Ty::F16, Ty::F16x2, Ty::Bf16, Ty::Bf16x2, Ty::F32, Ty::F64];

pub(super) fn multimem<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let at = m.at();
    let forms = [("ld_reduce", Form::LdReduce), ("st", Form::St), ("red", Form::Red)];
    let form = m.required("Operation", &forms)?;
    b.needs("multimem", 90, (8, 1), at)?;
    for word in ["acc::f16", "e4m3", "e5m2", "e4m3x2", "e5m2x2", "e4m3x4", "e5m2x4"] {
        if let Some(found) = i.modifiers.iter().find(|found| found.text == word) {
            let what = "is not supported by the software device";
            return Err(found.at.error(format!("'.{word}' of instruction 'multimem' {what}")));
        }
    }
    let (sem, scope) = ordering(m, form)?;
    let space = m.one_of(&[("global", Space::Global)]).unwrap_or(Space::Generic);
    let op = if form == Form::St { None } else { Some(m.required("Reduction", &OPERATIONS)?) };
    let wide = form == Form::LdReduce && m.take("acc::f32");
    let count = m.one_of(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1);
    let ty = m.ty(&[INTEGERS, FLOATS].concat())?;
    if op.is_some_and(|op| !has(form, op, ty)) {
        return Err(at.error(format!("Incorrect type '.{}' for the reduction of 'multimem'", word(ty))));
    }
    // The vectors of the ISA's table; integers and doubles have none.
    let sizes = u32::from(count) * ty.size();
    if !matches!(sizes, 4 | 8 | 16) || count > 1 && (INTEGERS.contains(&ty) || ty == Ty::F64) {
        return Err(at.error(format!("'.{}' with this vector is no operand of 'multimem'", word(ty))));
    }
    if wide {
        b.needs("multimem with .acc::f32", 90, (8, 2), at)?;
        if op != Some(AtomOp::Add) || !matches!(ty, Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2) {
            return Err(at.error("Modifier '.acc::f32' requires '.add' of 16-bit floats"));
        }
    }
    let operands = exactly(b, i)?;
    let (a, value) = if form == Form::LdReduce {
        let [value, a] = operands;
        (a, value)
    } else {
        let [a, value] = operands;
        (a, value)
    };
    let (space, addr) = b.address(a, space)?;
    if !matches!(space, Space::Global | Space::Generic) || matches!(addr.base, Base::Frame) {
        let what = "State space mismatch between instruction and address in instruction";
        return Err(a.at.error(format!("{what} 'multimem'")));
    }
    let parts = b.parts(value);
    size_matches(b, parts, count, value)?;
    let (mut d, mut src) = (Vec::new(), Vec::new());
    for part in parts {
        match form {
            Form::LdReduce if count > 1 => d.push(b.dst_or_sink(part, ty, Fit::Exact)?),
            Form::LdReduce => d.push(Some(b.dst(part, ty, Fit::Exact)?)),
            Form::St | Form::Red => src.push(b.value(part, ty)?),
        }
    }
    let op = match (form, op) {
        (Form::LdReduce, Some(op)) => MultimemOp::LdReduce { op, wide },
        (Form::Red, Some(op)) => MultimemOp::Red(op),
        _ => MultimemOp::St,
    };
    b.emit(Op::Multimem(Box::new(Multimem { op, ty, sem, scope, space, addr, d, src })));
    Ok(())
}

/// Whether the ISA's table has the operation on the type.
fn has(form: Form, op: AtomOp, ty: Ty) -> bool {
    match op {
        AtomOp::Add => !matches!(ty, Ty::B32 | Ty::B64 | Ty::S64),
        AtomOp::And | AtomOp::Or | AtomOp::Xor => matches!(ty, Ty::B32 | Ty::B64),
        _ => match ty {
            Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64 => true,
            Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2 => form == Form::LdReduce,
            _ => false,
        },
    }
}

/// Parses semantics and scope, which come together or not at all.
fn ordering(m: &mut Modifiers<'_>, form: Form) -> Result<(Semantics, Scope), Diagnostic> {
    let at = m.at();
    let (default, ordered) = match form {
        Form::LdReduce => ((Semantics::Weak, Scope::Cta), ("acquire", Semantics::Acquire)),
        Form::St => ((Semantics::Weak, Scope::Cta), ("release", Semantics::Release)),
        Form::Red => ((Semantics::Relaxed, Scope::Sys), ("release", Semantics::Release)),
    };
    let weak = form != Form::Red && m.take("weak");
    let sem = if weak { None } else { m.one_of(&[("relaxed", Semantics::Relaxed), ordered]) };
    match (sem, m.one_of(&SCOPES)) {
        (None, None) => Ok(default),
        (Some(sem), Some(scope)) => Ok((sem, scope)),
        _ => Err(at.error("Semantics and scope of 'multimem' require each other")),
    }
}
