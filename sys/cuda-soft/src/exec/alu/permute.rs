//! Moving bits: pack and unpack, fields, bytes, funnel shifts, three-input logic, dot products.

use super::super::regs::{LANES, Lanes, Regs};
use super::map::map3;
use crate::code::op::{PrmtMode, Ternary};
use crate::code::{Reg, Src, Ty};

#[inline(never)]
pub(super) fn pack(regs: &mut Regs, mask: u32, d: Reg, parts: &[Src], bits: u32) {
    let mut r = [0u64; LANES];
    let keep = (1u64 << bits) - 1;
    for (k, part) in parts.iter().enumerate() {
        let values = regs.get64(*part);
        for i in 0..LANES {
            r[i] |= (values[i] & keep) << (bits * k as u32);
        }
    }
    regs.put64(d, &r, mask);
}

#[inline(never)]
pub(super) fn unpack(regs: &mut Regs, mask: u32, d: &[Option<Reg>], a: Src, bits: u32) {
    let values = regs.get64(a);
    let keep = (1u64 << bits) - 1;
    for (k, d) in d.iter().enumerate() {
        if let Some(d) = d {
            let part: Lanes<u64> = values.map(|v| v >> (bits * k as u32) & keep);
            regs.put64(*d, &part, mask);
        }
    }
}

#[inline(never)]
pub(super) fn bfi(regs: &mut Regs, mask: u32, ty: Ty, d: Reg, [a, b]: [Src; 2], [pos, len]: [Src; 2]) {
    let (a, b) = (regs.get64(a), regs.get64(b));
    let (pos, len) = (regs.get32(pos), regs.get32(len));
    let width = ty.bits();
    let mut r = [0; LANES];
    for i in 0..LANES {
        let (pos, len) = (pos[i] & 0xff, len[i] & 0xff);
        r[i] = if pos >= width || len == 0 {
            b[i]
        } else {
            let field = if len >= 64 { u64::MAX } else { (1 << len) - 1 } << pos;
            b[i] & !field | a[i] << pos & field
        };
    }
    regs.put64(d, &r, mask);
}

#[inline(never)]
pub(super) fn lop3(regs: &mut Regs, mask: u32, table: u8, d: Reg, [a, b, c]: [Src; 3]) {
    let (a, b, c) = (regs.get32(a), regs.get32(b), regs.get32(c));
    let on = |bit: u32| if table >> bit & 1 != 0 { u32::MAX } else { 0 };
    let t: [u32; 8] = std::array::from_fn(|bit| on(bit as u32));
    let r = map3(&a, &b, &c, |a, b, c| {
        (t[7] & a & b & c)
            | (t[6] & a & b & !c)
            | (t[5] & a & !b & c)
            | (t[4] & a & !b & !c)
            | (t[3] & !a & b & c)
            | (t[2] & !a & b & !c)
            | (t[1] & !a & !b & c)
            | (t[0] & !a & !b & !c)
    });
    regs.put32(d, &r, mask);
}

#[inline(never)]
pub(super) fn funnel(regs: &mut Regs, mask: u32, op: Ternary, d: Reg, [a, b, c]: [Src; 3]) {
    let (a, b, c) = (regs.get32(a), regs.get32(b), regs.get32(c));
    let pair = |a: u32, b: u32| u64::from(b) << 32 | u64::from(a);
    let r = match op {
        Ternary::ShfLeftClamp => map3(&a, &b, &c, |a, b, c| (pair(a, b) << c.min(32) >> 32) as u32),
        Ternary::ShfLeftWrap => map3(&a, &b, &c, |a, b, c| (pair(a, b) << (c & 31) >> 32) as u32),
        Ternary::ShfRightClamp => map3(&a, &b, &c, |a, b, c| (pair(a, b) >> c.min(32)) as u32),
        _ => map3(&a, &b, &c, |a, b, c| (pair(a, b) >> (c & 31)) as u32),
    };
    regs.put32(d, &r, mask);
}

#[inline(never)]
pub(super) fn prmt(regs: &mut Regs, mask: u32, mode: PrmtMode, d: Reg, [a, b, c]: [Src; 3]) {
    let (a, b, c) = (regs.get32(a), regs.get32(b), regs.get32(c));
    regs.put32(d, &map3(&a, &b, &c, |a, b, c| bytes(mode, a, b, c)), mask);
}

/// The table of PTX ISA 9.7.9.7 (`prmt`).
fn bytes(mode: PrmtMode, a: u32, b: u32, selector: u32) -> u32 {
    let source = u64::from(b) << 32 | u64::from(a);
    let s = selector & 3;
    let pick = |k: u32| -> u32 {
        match mode {
            PrmtMode::Index => selector >> (4 * k) & 0xf,
            PrmtMode::F4e => s + k,
            PrmtMode::B4e => s.wrapping_sub(k) & 7,
            PrmtMode::Rc8 => s,
            PrmtMode::Ecl => k.max(s),
            PrmtMode::Ecr => k.min(s),
            PrmtMode::Rc16 => (s & 1) * 2 + (k & 1),
        }
    };
    (0..4).fold(0, |r, k| {
        let choice = pick(k);
        let byte = (source >> (8 * (choice & 7))) as u8;
        // Bit 3 of an index replicates the sign of the byte.
        let byte = if mode == PrmtMode::Index && choice & 8 != 0 {
            if byte & 0x80 != 0 { 0xff } else { 0 }
        } else {
            byte
        };
        r | u32::from(byte) << (8 * k)
    })
}

#[inline(never)]
pub(super) fn dot(regs: &mut Regs, mask: u32, op: Ternary, d: Reg, [a, b, c]: [Src; 3]) {
    let (a, b, c) = (regs.get32(a), regs.get32(b), regs.get32(c));
    let part = |v: u32, shift: u32, bits: u32, signed: bool| -> i64 {
        let value = i64::from(v >> shift) & ((1 << bits) - 1);
        if signed && value >> (bits - 1) != 0 { value - (1 << bits) } else { value }
    };
    let r = map3(&a, &b, &c, |a, b, c| {
        let sum: i64 = match op {
            Ternary::Dp4a { a_signed, b_signed } => {
                (0..4).map(|k| part(a, 8 * k, 8, a_signed) * part(b, 8 * k, 8, b_signed)).sum()
            }
            Ternary::Dp2a { a_signed, b_signed, hi } => (0..2)
                .map(|k| {
                    let at = 8 * k + if hi { 16 } else { 0 };
                    part(a, 16 * k, 16, a_signed) * part(b, at, 8, b_signed)
                })
                .sum(),
            // `alu::ternary` calls this function for dot products only.
            _ => 0,
        };
        c.wrapping_add(sum as u32)
    });
    regs.put32(d, &r, mask);
}
