//! Conversions of values and addresses (PTX ISA 9.7.9.20 to 9.7.9.22).

use crate::code::op::{Fp, Fp8};
use crate::code::{Op, Space, Src, Ty};
use crate::lower::builder::{Builder, Lowered, exactly};
use crate::lower::modifiers::{self, INTEGER_ROUNDS, Modifiers, ROUNDS, SPACES};
use crate::lower::operand::Fit;
use crate::ptx::Diagnostic;
use crate::ptx::ast::{Instruction, Operand};

const SOURCES: [Ty; 13] = [
    Ty::U8,
    Ty::U16,
    Ty::U32,
    Ty::U64,
    Ty::S8,
    Ty::S16,
    Ty::S32,
    Ty::S64,
    Ty::F16,
    Ty::Bf16,
    Ty::F32,
    Ty::F64,
    Ty::B32,
];

pub(super) fn cvt<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    if let Some(word) = i.modifiers.iter().position(|word| FP8.iter().any(|(name, _)| *name == word.text)) {
        let first = i.modifiers.iter().position(|word| modifiers::ty(&word.text).is_some());
        return if first.is_some_and(|first| first < word) { from_fp8(b, i, m) } else { to_fp8(b, i, m) };
    }
    let dty = m.ty(&[&SOURCES[..12], &[Ty::F16x2, Ty::Bf16x2]].concat())?;
    let sty = m.ty(&SOURCES[..12])?;
    let at = m.at();
    if matches!(dty, Ty::F16x2 | Ty::Bf16x2) {
        return pair(b, i, m, dty, sty);
    }
    if dty == Ty::Bf16 || sty == Ty::Bf16 {
        let old = (dty, sty) == (Ty::Bf16, Ty::F32);
        let (sm, ptx) = if old { (80, (7, 0)) } else { (90, (7, 8)) };
        b.needs("cvt with .bf16", sm, ptx, at)?;
    }
    let fp = rounding(b, m, dty, sty)?;
    let [d, a] = exactly(b, i)?;
    let d = b.dst(d, dty, Fit::Wide)?;
    let a = source(b, a, sty)?;
    b.emit(Op::Cvt { d, dty, sty, fp, a });
    Ok(())
}

/// Lowers a source: a register, a constant or, as in `mov`, a special register.
fn source(b: &mut Builder<'_, '_>, a: &Operand, sty: Ty) -> Result<Src, Diagnostic> {
    if b.register(a)?.is_none()
        && !sty.float()
        && let Some((value, ty)) = b.special(a, None)?
    {
        if ty.size() < sty.size() {
            return Err(b.mismatch(a.at, "the special register has another size"));
        }
        return Ok(value);
    }
    b.src(a, sty, Fit::Wide)
}

/// Parses the rounding modifiers that a conversion requires or allows (PTX ISA, `cvt`, tables of rounding modifiers).
fn rounding(b: &Builder<'_, '_>, m: &mut Modifiers<'_>, dty: Ty, sty: Ty) -> Result<Fp, Diagnostic> {
    let mut fp = Fp::default();
    match (dty.float(), sty.float()) {
        (false, false) => {}
        (false, true) => {
            fp.round = m.one_of(&INTEGER_ROUNDS).ok_or_else(|| rounding_missing(b, m))?;
        }
        (true, false) => fp.round = m.one_of(&ROUNDS).ok_or_else(|| rounding_missing(b, m))?,
        (true, true) if dty == sty => {
            if let Some(round) = m.one_of(&INTEGER_ROUNDS) {
                (fp.round, fp.integral) = (round, true);
            }
        }
        (true, true) if dty.size() > sty.size() => {}
        (true, true) => {
            fp.round = m.one_of(&ROUNDS).ok_or_else(|| rounding_missing(b, m))?;
            fp.relu = dty.size() == 2 && sty == Ty::F32 && m.take("relu");
        }
    }
    fp.ftz = (dty == Ty::F32 || sty == Ty::F32) && m.take("ftz");
    fp.sat = ![dty, sty].contains(&Ty::Bf16) && !contains(dty, sty) && m.take("sat");
    Ok(fp)
}

/// Whether `dty` contains every value of the integer type `sty`, so that nothing can saturate.
fn contains(dty: Ty, sty: Ty) -> bool {
    !dty.float()
        && !sty.float()
        && (dty == sty || (dty.size() > sty.size() && (dty.signed() || !sty.signed())))
}

fn rounding_missing(b: &Builder<'_, '_>, m: &Modifiers<'_>) -> Diagnostic {
    m.at().error(format!("Rounding modifier required for instruction '{}'", b.opcode))
}

/// `cvt.rn.f16x2.f32 d, a, b`.
fn pair<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>, dty: Ty, sty: Ty) -> Lowered {
    if sty != Ty::F32 {
        return Err(m.at().error("Unexpected instruction types specified for 'cvt'"));
    }
    b.needs("cvt to a pair of 16-bit floats", 80, (7, 0), m.at())?;
    let round = m.one_of(&ROUNDS[..2]).ok_or_else(|| rounding_missing(b, m))?;
    let fp = Fp { round, relu: m.take("relu"), ..Fp::default() };
    let [d, high, low] = exactly(b, i)?;
    let d = b.dst(d, dty, Fit::Exact)?;
    let (high, low) = (b.value(high, Ty::F32)?, b.value(low, Ty::F32)?);
    b.emit(Op::CvtPair { d, dty, fp, a: high, b: low });
    Ok(())
}

/// Pairs of 8-bit floats.
const FP8: [(&str, Fp8); 2] = [("e4m3x2", Fp8::E4m3), ("e5m2x2", Fp8::E5m2)];

/// `cvt.rn.satfinite.e4m3x2.f32 d, a, b` and `cvt.rn.satfinite.e4m3x2.f16x2 d, a`.
fn to_fp8<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let format = m.required("Format", &FP8)?;
    let ty = m.ty(&[Ty::F32, Ty::F16x2])?;
    b.needs("cvt with 8-bit floats", 89, (8, 1), m.at())?;
    m.required("'.rn'", &[("rn", ())])?;
    m.required("'.satfinite'", &[("satfinite", ())])?;
    let relu = m.take("relu");
    let (d, a, low) = match &i.operands[..] {
        [d, a, low] if ty == Ty::F32 => (d, a, Some(low)),
        [d, a] if ty == Ty::F16x2 => (d, a, None),
        _ => return Err(b.mismatch(m.at(), "another number of operands is wanted")),
    };
    let d = b.dst(d, Ty::B16, Fit::Exact)?;
    let a = b.value(a, ty)?;
    let low = low.map_or(Ok(Src::Imm(0)), |low| b.value(low, ty))?;
    b.emit(Op::CvtToFp8 { d, format, ty, relu, a, b: low });
    Ok(())
}

/// `cvt.rn.f16x2.e4m3x2 d, a`.
fn from_fp8<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let ty = m.ty(&[Ty::F16x2])?;
    let format = m.required("Format", &FP8)?;
    b.needs("cvt with 8-bit floats", 89, (8, 1), m.at())?;
    m.required("'.rn'", &[("rn", ())])?;
    let relu = m.take("relu");
    let [d, a] = exactly(b, i)?;
    let (d, a) = (b.dst(d, ty, Fit::Exact)?, b.value(a, Ty::B16)?);
    b.emit(Op::CvtFromFp8 { d, format, relu, a });
    Ok(())
}

pub(super) fn cvta<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let to = m.take("to");
    let space = m.required("State space", &SPACES)?;
    let ty = m.ty(&[Ty::U64])?;
    let [d, a] = exactly(b, i)?;
    let d = b.dst(d, ty, Fit::Exact)?;
    let space = b.window(space);
    if to {
        let Some(_) = b.register(a)? else {
            return Err(a.at.error("Argument 1 of instruction 'cvta.to': must be register"));
        };
        let a = b.value(a, ty)?;
        b.emit(Op::FromGeneric { space, d, a });
        return Ok(());
    }
    let a = match b.register(a)? {
        Some(_) => b.value(a, ty)?,
        None => match b.address_of(a, ty, None)? {
            Some((found, a)) if found == space => a,
            Some(_) => {
                return Err(a.at.error("State space mismatch between instruction and address in 'cvta'"));
            }
            None => b.value(a, ty)?,
        },
    };
    b.emit(Op::ToGeneric { space, d, a });
    Ok(())
}

pub(super) fn isspacep<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let space: Space = m.required("State space", &SPACES)?;
    let [p, a] = exactly(b, i)?;
    let (p, a) = (b.pred(p)?, b.value(a, Ty::U64)?);
    b.emit(Op::IsSpace { space, p, a });
    Ok(())
}
