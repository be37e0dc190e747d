//! Logic, shifts and bit fields (PTX ISA 9.7.1 and 9.7.8).

use super::shape::{ternary, unary};
use crate::code::op::{Binary, BoolOp, Fp, PrmtMode, Ternary, Unary};
use crate::code::{Op, PredSrc, Src, Ty};
use crate::lower::builder::{Builder, Lowered, exactly};
use crate::lower::modifiers::Modifiers;
use crate::lower::operand::Fit;
use crate::ptx::ast::{Constant, Instruction, OperandKind};

const WORDS: [Ty; 3] = [Ty::B16, Ty::B32, Ty::B64];

/// `and`, `or`, `xor`, `not` and `cnot`, on integers and predicates.
pub(super) fn logic<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let opcode = i.opcode.text.as_str();
    let (binary, of_predicates) = match opcode {
        "and" => (Some(Binary::And), BoolOp::And),
        "or" => (Some(Binary::Or), BoolOp::Or),
        "xor" => (Some(Binary::Xor), BoolOp::Xor),
        _ => (None, BoolOp::Xor),
    };
    if opcode != "cnot" && m.take("pred") {
        let op = of_predicates;
        let (d, x, y) = if binary.is_some() {
            let [d, x, y] = exactly(b, i)?;
            (b.pred(d)?, b.pred_src(x)?, b.pred_src(y)?)
        } else {
            let [d, x] = exactly(b, i)?;
            (b.pred(d)?, b.pred_src(x)?, PredSrc::Imm(true))
        };
        b.emit(Op::PredOp { op, d, a: x, b: y });
        return Ok(());
    }
    let ty = m.ty(&WORDS)?;
    let Some(op) = binary else {
        let op = if opcode == "not" { Unary::Not } else { Unary::Cnot };
        return unary(b, i, op, ty, Fp::default());
    };
    let [d, x, y] = exactly(b, i)?;
    let d = b.dst(d, ty, Fit::Exact)?;
    let (x, y) = (b.value(x, ty)?, b.value(y, ty)?);
    b.emit(Op::Binary { op, ty, fp: Fp::default(), d, a: x, b: y });
    Ok(())
}

pub(super) fn shift<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    const RIGHT: [Ty; 9] = [Ty::B16, Ty::B32, Ty::B64, Ty::U16, Ty::U32, Ty::U64, Ty::S16, Ty::S32, Ty::S64];
    let left = i.opcode.text == "shl";
    let ty = m.ty(if left { &WORDS } else { &RIGHT })?;
    let [d, x, amount] = exactly(b, i)?;
    let d = b.dst(d, ty, Fit::Exact)?;
    let (x, amount) = (b.value(x, ty)?, b.value(amount, Ty::U32)?);
    let op = if left { Binary::Shl } else { Binary::Shr };
    b.emit(Op::Binary { op, ty, fp: Fp::default(), d, a: x, b: amount });
    Ok(())
}

pub(super) fn funnel<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let left = m.required("'.l' or '.r'", &[("l", true), ("r", false)])?;
    let clamp = m.required("'.clamp' or '.wrap'", &[("clamp", true), ("wrap", false)])?;
    let ty = m.ty(&[Ty::B32])?;
    let op = match (left, clamp) {
        (true, true) => Ternary::ShfLeftClamp,
        (true, false) => Ternary::ShfLeftWrap,
        (false, true) => Ternary::ShfRightClamp,
        (false, false) => Ternary::ShfRightWrap,
    };
    ternary(b, i, op, ty, Fp::default())
}

pub(super) fn lop3<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let ty = m.ty(&[Ty::B32])?;
    let [d, x, y, z, table] = exactly(b, i)?;
    let table = match table.kind {
        OperandKind::Constant(Constant::Signed(value)) => u8::try_from(value).ok(),
        OperandKind::Constant(Constant::Unsigned(value)) => u8::try_from(value).ok(),
        _ => None,
    }
    .ok_or_else(|| b.mismatch(table.at, "the truth table is a constant from 0 to 255"))?;
    let d = b.dst(d, ty, Fit::Exact)?;
    let (x, y, z) = (b.value(x, ty)?, b.value(y, ty)?, b.value(z, ty)?);
    b.emit(Op::Ternary { op: Ternary::Lop3(table), ty, fp: Fp::default(), d, a: x, b: y, c: z });
    Ok(())
}

pub(super) fn prmt<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    const MODES: [(&str, PrmtMode); 6] = [
        ("f4e", PrmtMode::F4e),
        ("b4e", PrmtMode::B4e),
        ("rc8", PrmtMode::Rc8),
        ("ecl", PrmtMode::Ecl),
        ("ecr", PrmtMode::Ecr),
        ("rc16", PrmtMode::Rc16),
    ];
    let mode = m.one_of(&MODES).unwrap_or(PrmtMode::Index);
    let ty = m.ty(&[Ty::B32])?;
    ternary(b, i, Ternary::Prmt(mode), ty, Fp::default())
}

/// `popc`, `clz`, `brev`, `bfind`.
pub(super) fn count<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let (op, types): (Unary, &[Ty]) = match i.opcode.text.as_str() {
        "popc" => (Unary::Popc, &[Ty::B32, Ty::B64]),
        "clz" => (Unary::Clz, &[Ty::B32, Ty::B64]),
        "brev" => (Unary::Brev, &[Ty::B32, Ty::B64]),
        _ if m.take("shiftamt") => (Unary::BfindShift, &[Ty::U32, Ty::U64, Ty::S32, Ty::S64]),
        _ => (Unary::Bfind, &[Ty::U32, Ty::U64, Ty::S32, Ty::S64]),
    };
    let ty = m.ty(types)?;
    if op == Unary::Brev {
        return unary(b, i, op, ty, Fp::default());
    }
    let [d, a] = exactly(b, i)?;
    let (d, a) = (b.dst(d, Ty::U32, Fit::Exact)?, b.value(a, ty)?);
    b.emit(Op::Unary { op, ty, fp: Fp::default(), d, a });
    Ok(())
}

pub(super) fn bfe<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let ty = m.ty(&[Ty::U32, Ty::U64, Ty::S32, Ty::S64])?;
    let [d, a, pos, len] = exactly(b, i)?;
    let d = b.dst(d, ty, Fit::Exact)?;
    let (a, pos, len) = (b.value(a, ty)?, b.value(pos, Ty::U32)?, b.value(len, Ty::U32)?);
    b.emit(Op::Ternary { op: Ternary::Bfe, ty, fp: Fp::default(), d, a, b: pos, c: len });
    Ok(())
}

pub(super) fn bfi<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let ty = m.ty(&[Ty::B32, Ty::B64])?;
    let [d, field, base, pos, len] = exactly(b, i)?;
    let d = b.dst(d, ty, Fit::Exact)?;
    let (field, base) = (b.value(field, ty)?, b.value(base, ty)?);
    let (pos, len): (Src, Src) = (b.value(pos, Ty::U32)?, b.value(len, Ty::U32)?);
    b.emit(Op::Bfi { ty, d, a: field, b: base, pos, len });
    Ok(())
}

/// `bmsk` and `szext`.
pub(super) fn mask<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let clamp = m.required("'.clamp' or '.wrap'", &[("clamp", true), ("wrap", false)])?;
    let (op, types): (Binary, &[Ty]) = match (i.opcode.text.as_str(), clamp) {
        ("bmsk", true) => (Binary::BmskClamp, &[Ty::B32]),
        ("bmsk", false) => (Binary::BmskWrap, &[Ty::B32]),
        (_, true) => (Binary::SzextClamp, &[Ty::U32, Ty::S32]),
        (_, false) => (Binary::SzextWrap, &[Ty::U32, Ty::S32]),
    };
    let ty = m.ty(types)?;
    b.needs(b.opcode, 70, (7, 6), m.at())?;
    let [d, x, y] = exactly(b, i)?;
    let d = b.dst(d, ty, Fit::Exact)?;
    let (x, y) = (b.value(x, ty)?, b.value(y, Ty::U32)?);
    b.emit(Op::Binary { op, ty, fp: Fp::default(), d, a: x, b: y });
    Ok(())
}
