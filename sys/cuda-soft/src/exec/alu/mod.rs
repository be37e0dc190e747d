//! Arithmetic on whole warps. Each function computes all 32 lanes in a loop that the compiler can vectorise, then
//! stores the lanes of the mask.

mod compare;
mod convert;
mod directed;
mod float;
mod fp8;
mod half;
mod int;
mod map;
mod permute;
mod round;
mod video;

pub(super) use convert::{extend, extend_lanes};
pub(super) use half::arith_one as half_arith;

use super::regs::{LANES, Regs};
use crate::code::op::{Binary, Fp, Op, Ternary, Unary};
use crate::code::{Reg, Src, Ty};

/// Executes `op` if it is arithmetic, which means that each lane reads and writes only its own registers. Returns false
/// for any other instruction.
///
/// The functions that it calls are not inlined: inlined into one function, they take the compiler minutes.
pub(super) fn run(regs: &mut Regs, mask: u32, op: &Op) -> bool {
    match op {
        Op::Mov { d: d @ Reg::W32(_), a } => {
            let a = regs.get32(*a);
            regs.put32(*d, &a, mask);
        }
        Op::Mov { d: d @ Reg::W64(_), a } => {
            let a = regs.get64(*a);
            regs.put64(*d, &a, mask);
        }
        Op::Binary { op, ty, fp, d, a, b } => binary(regs, mask, *op, *ty, *fp, *d, *a, *b),
        Op::Ternary { op, ty, fp, d, a, b, c } => {
            ternary(regs, mask, *op, *ty, *fp, *d, [*a, *b, *c]);
        }
        Op::Unary { op, ty, fp, d, a } => unary(regs, mask, *op, *ty, *fp, *d, *a),
        Op::Setp { cmp, ty, ftz, p, q, a, b, combine } => {
            let [low, high] = compare::compare(regs, *cmp, *ty, *ftz, *a, *b);
            let (yes, mut no) = compare::combine(regs, low, *combine);
            if matches!(ty, Ty::F16x2 | Ty::Bf16x2) {
                // The second result of a pair is not the complement but the comparison of the high halves.
                no = compare::combine(regs, high, *combine).0;
            }
            if let Some(p) = p {
                regs.put_pred(*p, yes, mask);
            }
            if let Some(q) = q {
                regs.put_pred(*q, no, mask);
            }
        }
        Op::Set { cmp, ty, dty, ftz, d, a, b, combine } => {
            let holds = compare::compare(regs, *cmp, *ty, *ftz, *a, *b);
            let yes = holds.map(|holds| compare::combine(regs, holds, *combine).0);
            compare::set(regs, mask, *d, *dty, matches!(ty, Ty::F16x2 | Ty::Bf16x2), yes);
        }
        Op::Selp { d, a, b, p } => {
            let p = regs.pred_src(*p);
            let (a, b) = (regs.get64(*a), regs.get64(*b));
            let mut r = b;
            for i in 0..LANES {
                r[i] = if p >> i & 1 != 0 { a[i] } else { b[i] };
            }
            regs.put64(*d, &r, mask);
        }
        Op::Slct { cty, ftz, d, a, b, c } => compare::slct(regs, mask, *cty, *ftz, *d, [*a, *b, *c]),
        Op::PredOp { op, d, a, b } => {
            let bits = compare::boolean(*op, regs.pred_src(*a), regs.pred_src(*b));
            regs.put_pred(*d, bits, mask);
        }
        Op::Testp { test, ty, p, a } => {
            let bits = compare::test(regs, *test, *ty, *a);
            regs.put_pred(*p, bits, mask);
        }
        Op::Cvt { d, dty, sty, fp, a } => convert::convert(regs, mask, *d, *dty, *sty, *fp, *a),
        Op::CvtPair { d, dty, fp, a, b } => convert::pair(regs, mask, *d, *dty, *fp, *a, *b),
        Op::CvtToFp8 { d, format, ty, relu, a, b } => {
            fp8::narrow(regs, mask, *d, *format, *ty, *relu, [*a, *b]);
        }
        Op::CvtFromFp8 { d, format, relu, a } => fp8::widen(regs, mask, *d, *format, *relu, *a),
        Op::Pack { d, parts, count, bits } => {
            permute::pack(regs, mask, *d, &parts[..usize::from(*count)], u32::from(*bits));
        }
        Op::Unpack { d, a, count, bits } => {
            permute::unpack(regs, mask, &d[..usize::from(*count)], *a, u32::from(*bits));
        }
        Op::Bfi { ty, d, a, b, pos, len } => {
            permute::bfi(regs, mask, *ty, *d, [*a, *b], [*pos, *len]);
        }
        Op::AddCarry { sub, ty, carry_in, carry_out, d, a, b } => {
            int::add_carry(regs, mask, *sub, *ty, [*carry_in, *carry_out], *d, [*a, *b]);
        }
        Op::MadCarry { hi, ty, carry_in, carry_out, d, a, b, c } => {
            int::mad_carry(regs, mask, *hi, *ty, [*carry_in, *carry_out], *d, [*a, *b, *c]);
        }
        _ => return false,
    }
    true
}

fn unary(regs: &mut Regs, mask: u32, op: Unary, ty: Ty, fp: Fp, d: Reg, a: Src) {
    match ty {
        Ty::F32 => float::unary::<f32>(regs, mask, op, fp, d, a),
        Ty::F64 if fp.approx && fp.ftz => float::gross(regs, mask, op, d, a),
        Ty::F64 => float::unary::<f64>(regs, mask, op, fp, d, a),
        Ty::F16 | Ty::Bf16 | Ty::F16x2 | Ty::Bf16x2 => half::unary(regs, mask, op, ty, fp, d, a),
        Ty::B64 | Ty::U64 => int::unary::<u64>(regs, mask, op, d, a),
        Ty::S64 => int::unary::<i64>(regs, mask, op, d, a),
        Ty::B16 | Ty::U16 | Ty::B8 | Ty::U8 => int::unary::<u16>(regs, mask, op, d, a),
        Ty::S16 | Ty::S8 => int::unary::<i16>(regs, mask, op, d, a),
        Ty::B32 | Ty::U32 => int::unary::<u32>(regs, mask, op, d, a),
        Ty::S32 => int::unary::<i32>(regs, mask, op, d, a),
    }
}

#[allow(clippy::too_many_arguments, reason = "the operands of one instruction")]
fn binary(regs: &mut Regs, mask: u32, op: Binary, ty: Ty, fp: Fp, d: Reg, a: Src, b: Src) {
    match ty {
        Ty::B32 | Ty::U32 => int::binary::<u32>(regs, mask, op, fp.sat, d, a, b),
        Ty::S32 => int::binary::<i32>(regs, mask, op, fp.sat, d, a, b),
        Ty::B64 | Ty::U64 => int::binary::<u64>(regs, mask, op, fp.sat, d, a, b),
        Ty::S64 => int::binary::<i64>(regs, mask, op, fp.sat, d, a, b),
        Ty::F32 => float::binary::<f32>(regs, mask, op, fp, d, a, b),
        Ty::F64 => float::binary::<f64>(regs, mask, op, fp, d, a, b),
        Ty::F16 | Ty::Bf16 | Ty::F16x2 | Ty::Bf16x2 => half::binary(regs, mask, op, ty, fp, d, a, b),
        Ty::B16 | Ty::U16 | Ty::B8 | Ty::U8 => int::binary::<u16>(regs, mask, op, fp.sat, d, a, b),
        Ty::S16 | Ty::S8 => int::binary::<i16>(regs, mask, op, fp.sat, d, a, b),
    }
}

fn ternary(regs: &mut Regs, mask: u32, op: Ternary, ty: Ty, fp: Fp, d: Reg, abc: [Src; 3]) {
    match (op, ty) {
        (Ternary::Fma, Ty::F32) => float::fma::<f32>(regs, mask, fp, d, abc),
        (Ternary::Fma, Ty::F64) => float::fma::<f64>(regs, mask, fp, d, abc),
        (Ternary::Fma, _) => half::fma(regs, mask, ty, fp, d, abc),
        (Ternary::Lop3(table), _) => permute::lop3(regs, mask, table, d, abc),
        (Ternary::Video(video), _) => video::video(regs, mask, video, d, abc),
        (Ternary::Prmt(mode), _) => permute::prmt(regs, mask, mode, d, abc),
        (
            Ternary::ShfLeftClamp | Ternary::ShfLeftWrap | Ternary::ShfRightClamp | Ternary::ShfRightWrap,
            _,
        ) => permute::funnel(regs, mask, op, d, abc),
        (Ternary::Dp4a { .. } | Ternary::Dp2a { .. }, _) => permute::dot(regs, mask, op, d, abc),
        (_, Ty::S64) => int::ternary::<i64>(regs, mask, op, fp.sat, d, abc),
        (_, Ty::U64 | Ty::B64) => int::ternary::<u64>(regs, mask, op, fp.sat, d, abc),
        (_, Ty::S16) => int::ternary::<i16>(regs, mask, op, fp.sat, d, abc),
        (_, Ty::U16 | Ty::B16) => int::ternary::<u16>(regs, mask, op, fp.sat, d, abc),
        (_, Ty::S32) => int::ternary::<i32>(regs, mask, op, fp.sat, d, abc),
        _ => int::ternary::<u32>(regs, mask, op, fp.sat, d, abc),
    }
}
