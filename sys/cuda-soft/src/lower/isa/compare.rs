//! Comparison and selection (PTX ISA 9.7.6, 9.7.7).

use crate::code::op::{BoolOp, Cmp};
use crate::code::{Op, PredSrc, Ty};
use crate::lower::builder::{Builder, Lowered, exactly};
use crate::lower::modifiers::{BOOLEANS, COMPARISONS, Modifiers};
use crate::lower::operand::Fit;
use crate::ptx::Diagnostic;
use crate::ptx::ast::{Instruction, Operand, OperandKind};

const COMPARED: [Ty; 15] = [
    Ty::B16,
    Ty::B32,
    Ty::B64,
    Ty::U16,
    Ty::U32,
    Ty::U64,
    Ty::S16,
    Ty::S32,
    Ty::S64,
    Ty::F32,
    Ty::F64,
    Ty::F16,
    Ty::F16x2,
    Ty::Bf16,
    Ty::Bf16x2,
];

/// The types of the results of `set`.
const RESULTS: [Ty; 9] =
    [Ty::U32, Ty::S32, Ty::U16, Ty::S16, Ty::F32, Ty::F16, Ty::F16x2, Ty::Bf16, Ty::Bf16x2];

/// Whether `set` has a result of type `dty` for operands of type `ty`.
fn sets(dty: Ty, ty: Ty) -> bool {
    match ty {
        Ty::F16x2 | Ty::Bf16x2 => dty == ty || matches!(dty, Ty::U32 | Ty::S32),
        Ty::F16 | Ty::Bf16 => dty == ty || matches!(dty, Ty::U32 | Ty::S32 | Ty::U16 | Ty::S16),
        _ => matches!(dty, Ty::U32 | Ty::S32 | Ty::F32 | Ty::F16 | Ty::Bf16),
    }
}

/// Whether `cmp` exists on `ty`.
fn applies(cmp: Cmp, ty: Ty) -> bool {
    match cmp {
        Cmp::Eq | Cmp::Ne => true,
        Cmp::Lt | Cmp::Le | Cmp::Gt | Cmp::Ge => !matches!(ty, Ty::B16 | Ty::B32 | Ty::B64),
        _ => ty.float(),
    }
}

/// Parses the comparison, its type and `.ftz`. With `result`, the type of the result precedes that of the operands.
fn comparison(
    b: &Builder<'_, '_>,
    i: &Instruction,
    m: &mut Modifiers<'_>,
    result: bool,
) -> Result<(Cmp, Ty, Option<Ty>, bool), Diagnostic> {
    let unsigned_name = i.modifiers.iter().any(|w| matches!(w.text.as_str(), "lo" | "ls" | "hi" | "hs"));
    let cmp = m.required("Comparison", &COMPARISONS)?;
    let dty = if result { Some(m.ty(&RESULTS)?) } else { None };
    let ty = m.ty(&COMPARED)?;
    if dty.is_some_and(|dty| !sets(dty, ty)) {
        return Err(m.at().error("Unexpected instruction types specified for 'set'"));
    }
    if !applies(cmp, ty) || (unsigned_name && !matches!(ty, Ty::U16 | Ty::U32 | Ty::U64)) {
        return Err(m.at().error("Mismatch between instruction type and comparison qualifier"));
    }
    for ty in [Some(ty), dty].into_iter().flatten() {
        match ty {
            Ty::F16 | Ty::F16x2 => b.needs("comparison of .f16", 53, (4, 2), m.at())?,
            Ty::Bf16 | Ty::Bf16x2 => b.needs("comparison of .bf16", 90, (7, 8), m.at())?,
            _ => {}
        }
    }
    let ftz = matches!(ty, Ty::F32 | Ty::F16 | Ty::F16x2) && m.take("ftz");
    Ok((cmp, ty, dty, ftz))
}

/// Parses `.and`, `.or` or `.xor` and the predicate that it combines.
fn combination(
    b: &mut Builder<'_, '_>,
    m: &mut Modifiers<'_>,
    rest: &[Operand],
    at: &Operand,
) -> Result<Option<(BoolOp, PredSrc)>, Diagnostic> {
    match (m.one_of(&BOOLEANS), rest) {
        (None, []) => Ok(None),
        (Some(op), [c]) => Ok(Some((op, b.pred_src(c)?))),
        _ => Err(b.mismatch(at.at, "a combining operator goes with one more predicate")),
    }
}

pub(super) fn setp<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let (cmp, ty, _, ftz) = comparison(b, i, m, false)?;
    let [d, x, y, rest @ ..] = &i.operands[..] else {
        return Err(b.mismatch(i.opcode.at, "at least 3 operands wanted"));
    };
    let (p, q) = match &d.kind {
        OperandKind::Pair(_, q) if matches!(ty, Ty::F16 | Ty::Bf16) => {
            return Err(b.mismatch(q.at, "comparisons of 16-bit floats have one result"));
        }
        OperandKind::Pair(p, q) => (b.pred_or_sink(p)?, b.pred_or_sink(q)?),
        _ => (Some(b.pred(d)?), None),
    };
    let (x, y) = (b.value(x, ty)?, b.value(y, ty)?);
    let combine = combination(b, m, rest, d)?;
    b.emit(Op::Setp { cmp, ty, ftz, p, q, a: x, b: y, combine });
    Ok(())
}

pub(super) fn set<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let (cmp, ty, dty, ftz) = comparison(b, i, m, true)?;
    let dty = dty.unwrap_or(Ty::U32);
    let [d, x, y, rest @ ..] = &i.operands[..] else {
        return Err(b.mismatch(i.opcode.at, "at least 3 operands wanted"));
    };
    let combine = combination(b, m, rest, d)?;
    let d = b.dst(d, dty, Fit::Exact)?;
    let (x, y) = (b.value(x, ty)?, b.value(y, ty)?);
    b.emit(Op::Set { cmp, ty, dty, ftz, d, a: x, b: y, combine });
    Ok(())
}

const SELECTED: [Ty; 11] =
    [Ty::B16, Ty::B32, Ty::B64, Ty::U16, Ty::U32, Ty::U64, Ty::S16, Ty::S32, Ty::S64, Ty::F32, Ty::F64];

pub(super) fn selp<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let ty = m.ty(&SELECTED)?;
    let [d, x, y, p] = exactly(b, i)?;
    let d = b.dst(d, ty, Fit::Exact)?;
    let (x, y, p) = (b.value(x, ty)?, b.value(y, ty)?, b.pred_src(p)?);
    b.emit(Op::Selp { d, a: x, b: y, p });
    Ok(())
}

pub(super) fn slct<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let (ty, cty) = (m.ty(&SELECTED)?, m.ty(&[Ty::S32, Ty::F32])?);
    let ftz = cty == Ty::F32 && m.take("ftz");
    let [d, x, y, c] = exactly(b, i)?;
    let d = b.dst(d, ty, Fit::Exact)?;
    let (x, y, c) = (b.value(x, ty)?, b.value(y, ty)?, b.value(c, cty)?);
    b.emit(Op::Slct { cty, ftz, d, a: x, b: y, c });
    Ok(())
}
