//! Floating-point arithmetic and approximations (PTX ISA 9.7.3 to 9.7.5).

use super::shape::{ternary, unary};
use crate::code::op::{Binary, FloatTest, Fp, Ternary, Unary};
use crate::code::{Op, Ty};
use crate::lower::builder::{Builder, Lowered, exactly};
use crate::lower::modifiers::{Modifiers, ROUNDS};
use crate::lower::operand::Fit;
use crate::ptx::Diagnostic;
use crate::ptx::ast::{Instruction, Position};

const FLOATS: [Ty; 6] = [Ty::F32, Ty::F64, Ty::F16, Ty::F16x2, Ty::Bf16, Ty::Bf16x2];

/// Checks the target for `add`, `sub` and `mul` on 16-bit floats.
pub(super) fn supported(b: &Builder<'_, '_>, ty: Ty, at: Position) -> Lowered {
    match ty {
        Ty::F16 | Ty::F16x2 => b.needs(&format!("{}.f16", b.opcode), 53, (4, 2), at),
        Ty::Bf16 | Ty::Bf16x2 => b.needs(&format!("{}.bf16", b.opcode), 90, (7, 8), at),
        _ => Ok(()),
    }
}

/// Parses a rounding direction, `.approx` or (for `div`) `.full`; one of them is required.
pub(super) fn precise(
    b: &Builder<'_, '_>,
    m: &mut Modifiers<'_>,
    ty: Ty,
    full: bool,
) -> Result<Fp, Diagnostic> {
    let approx = m.take("approx");
    if !approx && full && ty == Ty::F32 && m.take("full") {
        // The nearest number is within the error of `.full`.
        return Ok(Fp { ftz: m.take("ftz"), ..Fp::default() });
    }
    let ftz = m.take("ftz");
    let round = if approx { None } else { m.one_of(&ROUNDS) };
    if !approx && round.is_none() {
        let what = "Rounding modifier or '.approx' modifier required for instruction";
        return Err(m.at().error(format!("{what} '{}'", b.opcode)));
    }
    if approx && ty == Ty::F64 && !ftz {
        return Err(m
            .at()
            .error(format!("'.ftz' modifier required for instruction '{}.approx.f64'", b.opcode)));
    }
    if ftz && ty == Ty::F64 && !approx {
        return Err(m.at().error(format!("Modifier '.ftz' does not apply to '.f64' type in '{}'", b.opcode)));
    }
    Ok(Fp { round: round.unwrap_or_default(), ftz, approx, ..Fp::default() })
}

pub(super) fn fma<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let ty = m.ty(&FLOATS)?;
    let rounded = i.modifiers.iter().any(|word| ROUNDS.iter().any(|(name, _)| *name == word.text));
    if !rounded {
        return Err(m.at().error(format!("Rounding modifier required for instruction '{}'", b.opcode)));
    }
    let mut fp = m.arithmetic(ty);
    if !matches!(ty, Ty::F32 | Ty::F64) {
        fp.relu = m.take("relu");
        let (sm, ptx) =
            if matches!(ty, Ty::Bf16 | Ty::Bf16x2) || fp.relu { (80, (7, 0)) } else { (53, (4, 2)) };
        b.needs("fma with 16-bit floats", sm, ptx, m.at())?;
    }
    ternary(b, i, Ternary::Fma, ty, fp)
}

/// `rcp`, `sqrt`, `rsqrt`, `sin`, `cos`, `lg2`, `ex2`, `tanh`.
pub(super) fn function<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let (op, types): (Unary, &[Ty]) = match i.opcode.text.as_str() {
        "rcp" => (Unary::Rcp, &[Ty::F32, Ty::F64]),
        "sqrt" => (Unary::Sqrt, &[Ty::F32, Ty::F64]),
        "rsqrt" => (Unary::Rsqrt, &[Ty::F32, Ty::F64]),
        "sin" => (Unary::Sin, &[Ty::F32]),
        "cos" => (Unary::Cos, &[Ty::F32]),
        "lg2" => (Unary::Lg2, &[Ty::F32]),
        "ex2" => (Unary::Ex2, &[Ty::F32, Ty::F16, Ty::F16x2, Ty::Bf16, Ty::Bf16x2]),
        _ => (Unary::Tanh, &[Ty::F32, Ty::F16, Ty::F16x2, Ty::Bf16, Ty::Bf16x2]),
    };
    let ty = m.ty(types)?;
    let exact_too = matches!(op, Unary::Rcp | Unary::Sqrt);
    let fp = if exact_too {
        precise(b, m, ty, false)?
    } else {
        m.required("'.approx'", &[("approx", ())])?;
        let ftz = match (op, ty) {
            (Unary::Tanh, _) | (_, Ty::F16 | Ty::F16x2) => false,
            (_, Ty::Bf16 | Ty::Bf16x2) => m.required("'.ftz'", &[("ftz", true)])?,
            _ => m.take("ftz"),
        };
        Fp { approx: true, ftz, ..Fp::default() }
    };
    if op == Unary::Tanh || !matches!(ty, Ty::F32 | Ty::F64) {
        let sm = if matches!(ty, Ty::Bf16 | Ty::Bf16x2) { 90 } else { 75 };
        b.needs(&format!("{} of this type", b.opcode), sm, (7, 0), m.at())?;
    }
    unary(b, i, op, ty, fp)
}

pub(super) fn copysign<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let ty = m.ty(&[Ty::F32, Ty::F64])?;
    let [d, x, y] = exactly(b, i)?;
    let d = b.dst(d, ty, Fit::Exact)?;
    // `a` gives the sign and `b` the magnitude, the reverse of C's `copysign`.
    let (x, y) = (b.value(x, ty)?, b.value(y, ty)?);
    b.emit(Op::Binary { op: Binary::Copysign, ty, fp: Fp::default(), d, a: x, b: y });
    Ok(())
}

pub(super) fn testp<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    const TESTS: [(&str, FloatTest); 6] = [
        ("finite", FloatTest::Finite),
        ("infinite", FloatTest::Infinite),
        ("number", FloatTest::Number),
        ("notanumber", FloatTest::NotANumber),
        ("normal", FloatTest::Normal),
        ("subnormal", FloatTest::Subnormal),
    ];
    let test = m.required("Property", &TESTS)?;
    let ty = m.ty(&[Ty::F32, Ty::F64])?;
    let [p, a] = exactly(b, i)?;
    let (p, a) = (b.pred(p)?, b.value(a, ty)?);
    b.emit(Op::Testp { test, ty, p, a });
    Ok(())
}
