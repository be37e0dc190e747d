//! Atomic read-modify-write operations (PTX ISA 9.7.13.5, 9.7.13.6), all through one compare-and-swap loop.

#![allow(trivial_numeric_casts, reason = "one body for all widths")]

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::alu;
use super::memory::word;
use crate::code::Ty;
use crate::code::op::{AtomOp, Binary};

/// Whether the hardware has `op` on `ty`.
pub(super) fn exists(op: AtomOp, ty: Ty) -> bool {
    match op {
        AtomOp::Exch | AtomOp::Cas => matches!(ty.size(), 2 | 4 | 8),
        AtomOp::Add | AtomOp::Min | AtomOp::Max => ty.size() >= 4 || ty.float(),
        AtomOp::And | AtomOp::Or | AtomOp::Xor => ty.size() >= 4 && !ty.float(),
        AtomOp::Inc | AtomOp::Dec => ty == Ty::U32,
    }
}

/// Replaces the value at `address` by `op` of it and `b`; `cas` replaces it by `c` if it equals `b`. The access is
/// relaxed. Returns the old and the new value.
///
/// # Safety
/// As for [`word`], with the size of `ty` and the right to write.
pub(super) unsafe fn update(op: AtomOp, ty: Ty, address: u64, b: u64, c: u64) -> (u64, u64) {
    macro_rules! each {
        ($atomic:ty, $t:ty) => {{
            // SAFETY: the caller keeps the contract of `word`.
            let cell = unsafe { word::<$atomic>(address) };
            let mut old = cell.load(Ordering::Relaxed);
            loop {
                let new = compute(op, ty, u64::from(old), b, c) as $t;
                match cell.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => return (u64::from(old), u64::from(new)),
                    Err(now) => old = now,
                }
            }
        }};
    }
    match ty.size() {
        2 => each!(AtomicU16, u16),
        4 => each!(AtomicU32, u32),
        _ => each!(AtomicU64, u64),
    }
}

/// Computes the new value. `redux.sync` combines its operands with this function too.
pub(super) fn compute(op: AtomOp, ty: Ty, old: u64, b: u64, c: u64) -> u64 {
    let (x, y) = (alu::extend(old, ty), alu::extend(b, ty));
    match op {
        AtomOp::Exch => b,
        AtomOp::Cas => {
            if x == y {
                c
            } else {
                old
            }
        }
        AtomOp::And => x & y,
        AtomOp::Or => x | y,
        AtomOp::Xor => x ^ y,
        AtomOp::Inc => {
            if x >= y {
                0
            } else {
                x + 1
            }
        }
        AtomOp::Dec => {
            if x == 0 || x > y {
                y
            } else {
                x - 1
            }
        }
        AtomOp::Add | AtomOp::Min | AtomOp::Max if ty.float() => float(op, ty, x, y),
        AtomOp::Add => x.wrapping_add(y),
        AtomOp::Min if ty.signed() => x.cast_signed().min(y.cast_signed()).cast_unsigned(),
        AtomOp::Max if ty.signed() => x.cast_signed().max(y.cast_signed()).cast_unsigned(),
        AtomOp::Min => x.min(y),
        AtomOp::Max => x.max(y),
    }
}

fn float(op: AtomOp, ty: Ty, x: u64, y: u64) -> u64 {
    let pick = |less: bool| match op {
        AtomOp::Min => less,
        _ => !less,
    };
    match ty {
        Ty::F32 => {
            let (a, b) = (f32::from_bits(x as u32), f32::from_bits(y as u32));
            let r = if op == AtomOp::Add {
                a + b
            } else if b.is_nan() || pick(a < b) && !a.is_nan() {
                a
            } else {
                b
            };
            u64::from(r.to_bits())
        }
        Ty::F64 => {
            let (a, b) = (f64::from_bits(x), f64::from_bits(y));
            let r = if op == AtomOp::Add {
                a + b
            } else if b.is_nan() || pick(a < b) && !a.is_nan() {
                a
            } else {
                b
            };
            r.to_bits()
        }
        _ => {
            let op = match op {
                AtomOp::Add => Binary::Add,
                AtomOp::Min => Binary::Min,
                _ => Binary::Max,
            };
            let one = |shift: u32| {
                let half = alu::half_arith(op, ty, (x >> shift) as u16, (y >> shift) as u16);
                u64::from(half) << shift
            };
            if ty.size() == 4 { one(0) | one(16) } else { one(0) }
        }
    }
}
