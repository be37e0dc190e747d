//! Video instructions: a word as one number, two halves or four bytes (PTX ISA 9.7.17, 9.7.18).

use super::super::regs::Regs;
use super::map::map3;
use crate::code::op::{AtomOp, Cmp, Video, VideoOp};
use crate::code::{Reg, Src};

#[inline(never)]
pub(super) fn video(regs: &mut Regs, mask: u32, video: Video, d: Reg, [a, b, c]: [Src; 3]) {
    let (a, b, c) = (regs.get32(a), regs.get32(b), regs.get32(c));
    regs.put32(d, &map3(&a, &b, &c, |a, b, c| one(video, a, b, c)), mask);
}

fn one(video: Video, a: u32, b: u32, c: u32) -> u32 {
    let bits = 32 / u32::from(video.parts);
    let mut word = 0u32;
    let (mut sum, mut last) = (0i64, 0);
    for part in 0..u32::from(video.parts) {
        let [dst_signed, a_signed, b_signed] = video.signed;
        let value = compute(video.op, field(a, part, bits, a_signed), field(b, part, bits, b_signed));
        let value = if video.sat { clamp(value, bits, dst_signed) } else { value };
        sum = sum.wrapping_add(value);
        last = value;
        word |= (value as u32 & (u32::MAX >> (32 - bits))) << (part * bits);
    }
    match (video.then, video.parts) {
        (None, _) => word,
        (Some(AtomOp::Add), _) => c.wrapping_add(sum as u32),
        (Some(op), _) => {
            if is_larger(video, last, word, c) == (op == AtomOp::Max) {
                word
            } else {
                c
            }
        }
    }
}

/// Whether a result counts as larger than `c`. PTX does not say how one that needs more than 32 bits is compared; an H200 does it so.
fn is_larger(video: Video, value: i64, word: u32, c: u32) -> bool {
    let [signed, a_signed, b_signed] = video.signed;
    let bounded = matches!(video.op, VideoOp::Min | VideoOp::Max);
    if matches!(video.op, VideoOp::AbsDiff) || signed && bounded {
        return value > if signed { c.cast_signed().into() } else { c.into() };
    }
    if signed {
        return word.cast_signed() > c.cast_signed();
    }
    // A sum, and what else may be below zero, counts as larger wherever both have the top bit.
    let may_be_negative = match video.op {
        VideoOp::Min => !video.sat && (a_signed || b_signed),
        VideoOp::Max => !video.sat && a_signed && b_signed,
        _ => true,
    };
    word > c || may_be_negative && (word & c) >> 31 == 1
}

fn field(word: u32, part: u32, bits: u32, signed: bool) -> i64 {
    let value = i64::from(word >> (part * bits)) & ((1 << bits) - 1);
    if signed && value >> (bits - 1) != 0 { value - (1 << bits) } else { value }
}

fn compute(op: VideoOp, a: i64, b: i64) -> i64 {
    match op {
        VideoOp::Add => a + b,
        VideoOp::Sub => a - b,
        VideoOp::Avrg => (a + b + i64::from(a + b >= 0)) >> 1,
        VideoOp::AbsDiff => (a - b).abs(),
        VideoOp::Min => a.min(b),
        VideoOp::Max => a.max(b),
        VideoOp::Set(cmp) => i64::from(match cmp {
            Cmp::Eq => a == b,
            Cmp::Ne => a != b,
            Cmp::Lt => a < b,
            Cmp::Le => a <= b,
            Cmp::Gt => a > b,
            _ => a >= b,
        }),
    }
}

fn clamp(value: i64, bits: u32, signed: bool) -> i64 {
    if signed {
        value.clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    } else if bits == 32 {
        // An H200 clamps what is below zero, and lets what is above 2^32 - 1 wrap, against PTX's text.
        value.max(0)
    } else {
        value.clamp(0, (1 << bits) - 1)
    }
}
