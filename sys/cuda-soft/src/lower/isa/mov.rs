//! `mov`: copies, constants, special registers, addresses, packing and unpacking.

use crate::code::op::{BoolOp, Fp};
use crate::code::{Op, PredSrc, Reg, Src, Ty};
use crate::lower::builder::{Builder, Lowered, exactly};
use crate::lower::modifiers::Modifiers;
use crate::lower::operand::Fit;
use crate::ptx::ast::{Instruction, Operand, OperandKind};

const TYPES: [Ty; 11] =
    [Ty::B16, Ty::B32, Ty::B64, Ty::U16, Ty::U32, Ty::U64, Ty::S16, Ty::S32, Ty::S64, Ty::F32, Ty::F64];

pub(super) fn mov<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let [d, a] = exactly(b, i)?;
    if m.take("pred") {
        let (d, a) = (b.pred(d)?, b.pred_src(a)?);
        b.emit(Op::PredOp { op: BoolOp::And, d, a, b: PredSrc::Imm(true) });
        return Ok(());
    }
    let ty = m.ty(&TYPES)?;
    match (&d.kind, &a.kind) {
        (OperandKind::Vector(parts), _) => unpack(b, parts, a, ty),
        (_, OperandKind::Vector(parts)) => pack(b, d, parts, ty),
        _ => scalar(b, d, a, ty),
    }
}

fn scalar(b: &mut Builder<'_, '_>, d: &Operand, a: &Operand, ty: Ty) -> Lowered {
    let reg = b.dst(d, ty, Fit::Exact)?;
    if b.register(a)?.is_none() {
        if let Some((value, special)) = b.special(a, (ty.size() >= 4).then_some(reg))? {
            return read_special(b, reg, value, special, ty, a);
        }
        if ty.size() >= 4
            && !ty.float()
            && let Some((_, value)) = b.address_of(a, ty, Some(reg))?
        {
            if value != Src::Reg(reg) {
                b.emit(Op::Mov { d: reg, a: value });
            }
            return Ok(());
        }
    }
    let a = b.value(a, ty)?;
    b.emit(Op::Mov { d: reg, a });
    Ok(())
}

/// Moves the value that [`Builder::special`] read to `d`. A 16-bit read of a 32-bit special register is old but legal,
/// and takes the low half.
fn read_special(b: &mut Builder<'_, '_>, d: Reg, value: Src, special: Ty, ty: Ty, a: &Operand) -> Lowered {
    if ty.float() || special.size() < ty.size() || (special.size() == 8 && ty.size() != 8) {
        return Err(b.mismatch(a.at, "the special register has another size"));
    }
    if ty.size() < special.size() {
        b.emit(Op::Cvt { d, dty: Ty::U16, sty: special, fp: Fp::default(), a: value });
    } else if value != Src::Reg(d) {
        b.emit(Op::Mov { d, a: value });
    }
    Ok(())
}

/// The type of each of the `count` parts of an untyped value.
fn part(b: &Builder<'_, '_>, count: usize, ty: Ty, at: &Operand) -> Result<Ty, crate::ptx::Diagnostic> {
    match (ty, count) {
        (Ty::B16, 2) | (Ty::B32, 4) => Ok(Ty::B8),
        (Ty::B32, 2) | (Ty::B64, 4) => Ok(Ty::B16),
        (Ty::B64, 2) => Ok(Ty::B32),
        _ => Err(b.mismatch(at.at, &format!("{count} parts do not make the type"))),
    }
}

fn pack(b: &mut Builder<'_, '_>, d: &Operand, parts: &[Operand], ty: Ty) -> Lowered {
    let element = part(b, parts.len(), ty, d)?;
    let d = b.dst(d, ty, Fit::Exact)?;
    let mut sources = [Src::Imm(0); 4];
    for (place, operand) in sources.iter_mut().zip(parts) {
        *place = b.value(operand, element)?;
    }
    b.emit(Op::Pack { d, parts: sources, count: count(parts), bits: bits(element) });
    Ok(())
}

fn unpack(b: &mut Builder<'_, '_>, parts: &[Operand], a: &Operand, ty: Ty) -> Lowered {
    let element = part(b, parts.len(), ty, a)?;
    let a = b.value(a, ty)?;
    let mut d = [None; 4];
    for (place, operand) in d.iter_mut().zip(parts) {
        *place = b.dst_or_sink(operand, element, Fit::Exact)?;
    }
    b.emit(Op::Unpack { d, a, count: count(parts), bits: bits(element) });
    Ok(())
}

fn count(parts: &[Operand]) -> u8 {
    u8::try_from(parts.len()).unwrap_or(u8::MAX)
}

fn bits(ty: Ty) -> u8 {
    u8::try_from(ty.bits()).unwrap_or(u8::MAX)
}
