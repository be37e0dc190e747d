//! Integer arithmetic, and the opcodes that integers share with floats (PTX ISA 9.7.1, 9.7.3, 9.7.4).

use super::shape::{binary, ternary, unary};
use super::{carry, float};
use crate::code::op::{Binary, Fp, Ternary, Unary, Video, VideoOp};
use crate::code::{Op, Src, Ty};
use crate::lower::builder::{Builder, Lowered, exactly};
use crate::lower::modifiers::Modifiers;
use crate::lower::operand::Fit;
use crate::ptx::ast::Instruction;

const INTEGERS: [Ty; 6] = [Ty::U16, Ty::U32, Ty::U64, Ty::S16, Ty::S32, Ty::S64];
const NUMBERS: [Ty; 12] = [
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

pub(super) fn add_sub<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    if m.take("cc") {
        return carry::add_sub_out(b, i, m, false);
    }
    if i.opcode.text == "add"
        && let Some(signed) = m.one_of(&PAIRS)
    {
        return pair(b, i, m, signed);
    }
    let ty = m.ty(&NUMBERS)?;
    let mut fp = m.arithmetic(ty);
    if ty == Ty::S32 {
        fp.sat = m.take("sat");
    }
    float::supported(b, ty, m.at())?;
    let op = if i.opcode.text == "add" { Binary::Add } else { Binary::Sub };
    binary(b, i, op, ty, fp)
}

/// The part of an integer product that an instruction returns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Lo,
    Hi,
    Wide,
}

const PARTS: [(&str, Part); 3] = [("lo", Part::Lo), ("hi", Part::Hi), ("wide", Part::Wide)];

/// The error for an integer product without `.lo`, `.hi` or `.wide`.
fn part_missing(m: &Modifiers<'_>, opcode: &str) -> crate::ptx::Diagnostic {
    m.at().error(format!(
        "Unexpected instruction types specified for '{opcode}': '.lo', '.hi' or '.wide' is missing"
    ))
}

fn doubled(ty: Ty) -> Option<Ty> {
    match ty {
        Ty::U16 => Some(Ty::U32),
        Ty::S16 => Some(Ty::S32),
        Ty::U32 => Some(Ty::U64),
        Ty::S32 => Some(Ty::S64),
        _ => None,
    }
}

pub(super) fn mul<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let Some(part) = m.one_of(&PARTS) else {
        let ty = m.ty(&NUMBERS)?;
        if !ty.float() {
            return Err(part_missing(m, "mul"));
        }
        let fp = m.arithmetic(ty);
        float::supported(b, ty, m.at())?;
        return binary(b, i, Binary::Mul, ty, fp);
    };
    let ty = m.ty(&INTEGERS)?;
    let op = match part {
        Part::Lo => Binary::MulLo,
        Part::Hi => Binary::MulHi,
        Part::Wide => Binary::MulWide,
    };
    if part != Part::Wide {
        return binary(b, i, op, ty, Fp::default());
    }
    let wide = doubled(ty).ok_or_else(|| m.at().error("'.wide' does not apply to 64-bit types"))?;
    let [d, x, y] = exactly(b, i)?;
    let d = b.dst(d, wide, Fit::Exact)?;
    let (x, y) = (b.value(x, ty)?, b.value(y, ty)?);
    b.emit(Op::Binary { op, ty, fp: Fp::default(), d, a: x, b: y });
    Ok(())
}

pub(super) fn mad<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    if m.take("cc") {
        return carry::mad(b, i, m, false, true);
    }
    let Some(part) = m.one_of(&PARTS) else {
        // `mad` on floats is `fma` on all architectures that this device can have.
        return float::fma(b, i, m);
    };
    let ty = m.ty(&INTEGERS)?;
    let op = match part {
        Part::Lo => Ternary::MadLo,
        Part::Hi => Ternary::MadHi,
        Part::Wide => Ternary::MadWide,
    };
    let fp = Fp { sat: part == Part::Hi && ty == Ty::S32 && m.take("sat"), ..Fp::default() };
    if part != Part::Wide {
        return ternary(b, i, op, ty, fp);
    }
    let wide = doubled(ty).ok_or_else(|| m.at().error("'.wide' does not apply to 64-bit types"))?;
    let [d, x, y, z] = exactly(b, i)?;
    let d = b.dst(d, wide, Fit::Exact)?;
    let (x, y, z) = (b.value(x, ty)?, b.value(y, ty)?, b.value(z, wide)?);
    b.emit(Op::Ternary { op, ty, fp, d, a: x, b: y, c: z });
    Ok(())
}

pub(super) fn div<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let ty = m.ty(&[&INTEGERS[..], &[Ty::F32, Ty::F64]].concat())?;
    let fp = if ty.float() { float::precise(b, m, ty, true)? } else { Fp::default() };
    binary(b, i, Binary::Div, ty, fp)
}

pub(super) fn rem<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let ty = m.ty(&INTEGERS)?;
    binary(b, i, Binary::Rem, ty, Fp::default())
}

pub(super) fn min_max<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    if let Some(signed) = m.one_of(&PAIRS) {
        return pair(b, i, m, signed);
    }
    let ty = m.ty(&NUMBERS)?;
    let mut fp = Fp::default();
    let at = m.at();
    if ty.float() && ty != Ty::F64 {
        fp.ftz = matches!(ty, Ty::F32 | Ty::F16 | Ty::F16x2) && m.take("ftz");
        fp.nan = m.take("NaN");
        fp.xorsign_abs = m.take("xorsign") && m.take("abs");
        if ty != Ty::F32 {
            b.needs(&format!("{} with 16-bit floats", b.opcode), 80, (7, 0), at)?;
        } else if fp.nan {
            b.needs("min/max.NaN.f32", 80, (7, 0), at)?;
        }
        if fp.xorsign_abs {
            b.needs(".xorsign.abs", 86, (7, 2), at)?;
        }
    }
    let relu = ty == Ty::S32 && m.take("relu");
    if relu {
        b.needs(".relu", 90, (8, 0), at)?;
    }
    let op = if i.opcode.text == "min" { Binary::Min } else { Binary::Max };
    if ty.float() && i.operands.len() == 4 {
        return Err(at.error("min and max of three operands are not supported by the software device"));
    }
    binary(b, i, op, ty, fp)?;
    if relu {
        let [d, ..] = exactly::<3>(b, i)?;
        let d = b.dst(d, ty, Fit::Exact)?;
        b.emit(Op::Binary { op: Binary::Max, ty, fp: Fp::default(), d, a: d.into(), b: Src::Imm(0) });
    }
    Ok(())
}

/// `add`, `min` and `max` on two integers of 16 bits.
fn pair<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>, signed: bool) -> Lowered {
    let op = match i.opcode.text.as_str() {
        "add" => VideoOp::Add,
        "min" => VideoOp::Min,
        _ => VideoOp::Max,
    };
    let relu = signed && op != VideoOp::Add && m.take("relu");
    b.needs("arithmetic on pairs of 16 bits", 90, (8, 0), m.at())?;
    let [d, x, y] = exactly(b, i)?;
    let ty = Ty::B32;
    let d = b.dst(d, ty, Fit::Exact)?;
    let (x, y) = (b.value(x, ty)?, b.value(y, ty)?);
    let fp = Fp::default();
    let video = |op| Ternary::Video(Video { op, parts: 2, signed: [signed; 3], sat: false, then: None });
    b.emit(Op::Ternary { op: video(op), ty, fp, d, a: x, b: y, c: Src::Imm(0) });
    if relu {
        let zero = Src::Imm(0);
        b.emit(Op::Ternary { op: video(VideoOp::Max), ty, fp, d, a: d.into(), b: zero, c: zero });
    }
    Ok(())
}

const PAIRS: [(&str, bool); 2] = [("u16x2", false), ("s16x2", true)];

pub(super) fn neg_abs<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let ty = m.ty(&NUMBERS)?;
    if matches!(ty, Ty::U16 | Ty::U32 | Ty::U64) {
        return Err(m.at().error(format!("Instruction '{}' applies only to signed numeric types", b.opcode)));
    }
    let ftz = matches!(ty, Ty::F32 | Ty::F16 | Ty::F16x2) && m.take("ftz");
    if matches!(ty, Ty::Bf16 | Ty::Bf16x2) {
        b.needs(&format!("{}.bf16", b.opcode), 80, (7, 0), m.at())?;
    }
    let op = if i.opcode.text == "neg" { Unary::Neg } else { Unary::Abs };
    unary(b, i, op, ty, Fp { ftz, ..Fp::default() })
}

/// `.lo` or `.hi`, as whether it is `.hi`.
const HALVES: [(&str, bool); 2] = [("lo", false), ("hi", true)];

pub(super) fn mul24<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let hi = m.required("'.lo' or '.hi'", &HALVES)?;
    let ty = m.ty(&[Ty::U32, Ty::S32])?;
    binary(b, i, if hi { Binary::Mul24Hi } else { Binary::Mul24Lo }, ty, Fp::default())
}

pub(super) fn mad24<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let hi = m.required("'.lo' or '.hi'", &HALVES)?;
    let ty = m.ty(&[Ty::U32, Ty::S32])?;
    let fp = Fp { sat: hi && ty == Ty::S32 && m.take("sat"), ..Fp::default() };
    ternary(b, i, if hi { Ternary::Mad24Hi } else { Ternary::Mad24Lo }, ty, fp)
}

pub(super) fn sad<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let ty = m.ty(&INTEGERS)?;
    ternary(b, i, Ternary::Sad, ty, Fp::default())
}

pub(super) fn dot<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let half = if i.opcode.text == "dp2a" { Some(m.required("'.lo' or '.hi'", &HALVES)?) } else { None };
    let (a_ty, b_ty) = (m.ty(&[Ty::U32, Ty::S32])?, m.ty(&[Ty::U32, Ty::S32])?);
    let (a_signed, b_signed) = (a_ty.signed(), b_ty.signed());
    let op = match half {
        None => Ternary::Dp4a { a_signed, b_signed },
        Some(hi) => Ternary::Dp2a { a_signed, b_signed, hi },
    };
    let ty = if a_signed || b_signed { Ty::S32 } else { Ty::U32 };
    ternary(b, i, op, ty, Fp::default())
}
