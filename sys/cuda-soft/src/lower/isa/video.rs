//! Video instructions (PTX ISA 9.7.17, 9.7.18), without selectors and masks.

use crate::code::op::{AtomOp, Fp, Ternary, Video, VideoOp};
use crate::code::{Op, Src, Ty};
use crate::lower::builder::{Builder, Lowered};
use crate::lower::modifiers::{COMPARISONS, Modifiers};
use crate::lower::operand::Fit;
use crate::ptx::ast::Instruction;

const TYPES: [Ty; 2] = [Ty::U32, Ty::S32];

fn function(opcode: &str) -> VideoOp {
    match opcode.trim_end_matches(['2', '4']) {
        "vadd" => VideoOp::Add,
        "vsub" => VideoOp::Sub,
        "vavrg" => VideoOp::Avrg,
        "vabsdiff" => VideoOp::AbsDiff,
        "vmin" => VideoOp::Min,
        _ => VideoOp::Max,
    }
}

/// `vadd`, `vsub`, `vabsdiff`, `vmin`, `vmax`.
pub(super) fn scalar<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let types = [m.ty(&TYPES)?, m.ty(&TYPES)?, m.ty(&TYPES)?];
    let sat = m.take("sat");
    let then = m.one_of(&[("add", AtomOp::Add), ("min", AtomOp::Min), ("max", AtomOp::Max)]);
    let op = function(&i.opcode.text);
    emit(b, i, Video { op, parts: 1, signed: types.map(Ty::signed), sat, then }, then.is_some())
}

/// The forms on two halves or four bytes.
pub(super) fn packed<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let parts = if i.opcode.text.ends_with('2') { 2 } else { 4 };
    let video = if i.opcode.text.starts_with("vset") {
        let (a, x) = (m.ty(&TYPES)?, m.ty(&TYPES)?);
        let op = VideoOp::Set(m.required("Comparison", &COMPARISONS[..6])?);
        let then = m.one_of(&[("add", AtomOp::Add)]);
        Video { op, parts, signed: [false, a.signed(), x.signed()], sat: false, then }
    } else {
        let types = [m.ty(&TYPES)?, m.ty(&TYPES)?, m.ty(&TYPES)?];
        let sat = m.take("sat");
        let then = if sat { None } else { m.one_of(&[("add", AtomOp::Add)]) };
        Video { op: function(&i.opcode.text), parts, signed: types.map(Ty::signed), sat, then }
    };
    emit(b, i, video, true)
}

fn emit(b: &mut Builder<'_, '_>, i: &Instruction, video: Video, has_c: bool) -> Lowered {
    let (d, x, y, c) = match &i.operands[..] {
        [d, x, y, c] if has_c => (d, x, y, Some(c)),
        [d, x, y] if !has_c => (d, x, y, None),
        _ => return Err(b.mismatch(i.opcode.at, "another number of operands is wanted")),
    };
    let ty = Ty::B32;
    let d = b.dst(d, ty, Fit::Exact)?;
    let (x, y) = (b.value(x, ty)?, b.value(y, ty)?);
    let c = c.map_or(Ok(Src::Imm(0)), |c| b.value(c, ty))?;
    b.emit(Op::Ternary { op: Ternary::Video(video), ty, fp: Fp::default(), d, a: x, b: y, c });
    Ok(())
}
