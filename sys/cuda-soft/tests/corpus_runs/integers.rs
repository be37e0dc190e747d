//! integer.cu, control.cu.

use super::rig::Corpus;
use super::values;

#[test]
fn divisions() {
    let c = Corpus::load("integer.sm_75");
    let a: Vec<i64> = values(1, 64, |x| (x as i64) >> (x % 50));
    let b: Vec<i64> = values(2, 64, |x| ((x as i64) >> (x % 31)) | 1);
    let out = c.buffer(&[0i64; 256]);
    c.run("divide", 1, 64, 0, &[c.buffer(&a).address, c.buffer(&b).address, out.address]);
    for (i, got) in c.read(out).chunks(4).enumerate() {
        let (x, y) = (a[i], b[i]);
        let narrow = ((x as i32) / 7) as u32;
        let narrow = narrow.wrapping_add((x as u32) % 10).wrapping_add((x as u32) / (y as u32));
        let want =
            [x.wrapping_div(y), x.wrapping_rem(y), ((x as u64) / (y as u64)) as i64, i64::from(narrow)];
        assert_eq!(got, want, "{x} {y}");
    }
}

#[test]
fn intrinsics() {
    let c = Corpus::load("integer.sm_75");
    let input: Vec<u32> = values(3, 65, |x| (x >> (x % 30)) as u32);
    let out = c.buffer(&[0u32; 16 * 64]);
    c.run("intrinsics", 1, 64, 0, &[c.buffer(&input).address, out.address]);
    for (i, got) in c.read(out).chunks(16).enumerate() {
        let (v, low) = (input[i], input[i + 1]);
        let w = u64::from(v) << 32 | u64::from(low);
        let bytes = w_bytes(v, low);
        let permuted = (0..4).fold(0, |r, n| r | u32::from(bytes[(v >> (4 * n) & 7) as usize]) << (8 * n));
        let shift = v & 31;
        let left = if shift == 0 { low } else { low << shift | v >> (32 - shift) };
        let right = (u64::from(low) << 32 | u64::from(v)) >> shift;
        let ffs = |x: u64| if x == 0 { 0 } else { x.trailing_zeros() + 1 };
        let (sv, sl) = (v as i32, low as i32);
        let mul24 = |a: i32, b: i32| ((a << 8) >> 8).wrapping_mul((b << 8) >> 8);
        let halves = |a: i32, b: i32, r: i64| ((i64::from(a) + i64::from(b) + r) >> 1) as u32;
        let dot: i32 =
            (0..4).map(|n| i32::from((v >> (8 * n)) as i8) * i32::from((low >> (8 * n)) as i8)).sum();
        let want = [
            v.count_ones() + 100 * w.count_ones(),
            v.leading_zeros() + 100 * w.leading_zeros(),
            permuted,
            v.reverse_bits(),
            ffs(u64::from(v)) + 100 * ffs(w),
            (((u64::from(v) * u64::from(low)) >> 32) as u32)
                .wrapping_add(((u128::from(w) * u128::from(w)) >> 64) as u32),
            ((i64::from(sv) * i64::from(sl)) >> 32) as u32,
            left ^ right as u32,
            sv.abs_diff(sl).wrapping_add(3),
            v.abs_diff(low).wrapping_add(4),
            halves(sv, sl, 0).wrapping_add(halves(sv, 5, 1)),
            w.reverse_bits() as u32,
            (mul24(sv, 77) as u32).wrapping_add((v & 0xff_ffff).wrapping_mul(1000)),
            (sv.min(50) as u32).wrapping_add(v.max(7)).wrapping_add(sv.wrapping_abs() as u32),
            (v >> 5 & 0x3ff) | ((sv << 7) >> 20) as u32,
            dot.wrapping_add(5) as u32,
        ];
        for (n, (got, want)) in got.iter().zip(want).enumerate() {
            assert_eq!(*got, want, "o[{n}] of {v:#x} {low:#x}");
        }
    }
}

/// The eight bytes that `__byte_perm(v, low, ...)` chooses from.
fn w_bytes(v: u32, low: u32) -> [u8; 8] {
    (u64::from(low) << 32 | u64::from(v)).to_le_bytes()
}

#[test]
fn wide_products_and_carries() {
    let c = Corpus::load("integer.sm_75");
    let a: Vec<u64> = values(4, 64, |x| x);
    let out = c.buffer(&[0u64; 64]);
    c.run("wide_carry", 1, 32, 0, &[c.buffer(&a).address, out.address]);
    for (i, got) in c.read(out).chunks(2).enumerate() {
        let x = u128::from(a[2 * i + 1]) << 64 | u128::from(a[2 * i]);
        let x = x.wrapping_mul(3).wrapping_add(u128::from(u64::MAX)).wrapping_sub(u128::from(a[2 * i + 1]));
        assert_eq!(got, [x as u64, (x >> 64) as u64]);
    }
}

#[test]
fn functions_that_are_called() {
    let c = Corpus::load("control.sm_75");
    let ops: Vec<i32> = values(5, 128, |x| (x % 12) as i32);
    let a: Vec<i32> = values(6, 128, |x| (x >> 20) as i32);
    let b: Vec<i32> = values(7, 128, |x| ((x as i32) >> (x % 29)) * i32::from(x % 7 != 0));
    let out = c.buffer(&[0i32; 256]);
    let inputs = [c.buffer(&ops).address, c.buffer(&a).address, c.buffer(&b).address];
    c.run("interpret", 2, 64, 0, &[inputs[0], inputs[1], inputs[2], out.address, 127]);
    for (i, got) in c.read(out).chunks(2).enumerate() {
        let (a, b) = (a[i], b[i]);
        let want = match ops[i] {
            _ if i == 127 => 0,
            0 => a.wrapping_add(b),
            1 => a.wrapping_sub(b),
            2 => a.wrapping_mul(b),
            3 => {
                if b == 0 {
                    0
                } else {
                    a.wrapping_div(b)
                }
            }
            4 => {
                if b == 0 {
                    0
                } else {
                    a.wrapping_rem(b)
                }
            }
            5 => a & b,
            6 => a | b,
            7 => a ^ b,
            8 => a << (b & 31),
            9 => a >> (b & 31),
            _ => -1,
        };
        assert_eq!(got, [want, want], "{} of {a} and {b}", ops[i]);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
struct Pair {
    first: f64,
    second: i32,
    third: i16,
}

#[test]
fn structures_by_value() {
    let c = Corpus::load("control.sm_75");
    let pairs: Vec<Pair> =
        values(8, 33, |x| Pair { first: (x % 1000) as f64 / 8.0, second: x as i32, third: (x >> 40) as i16 });
    let (out, bytes) = (c.buffer(&[Pair::default(); 32]), c.buffer(&[0u8; 32]));
    c.run("structs", 1, 32, 0, &[c.buffer(&pairs).address, out.address, bytes.address]);
    let (got, low) = (c.read(out), c.read(bytes));
    for i in 0..32 {
        let (p, q) = (pairs[i], pairs[i + 1]);
        let want = Pair {
            first: p.first * q.first + 1.0,
            second: p.second.wrapping_sub(q.second),
            third: p.third.wrapping_add(q.third),
        };
        assert_eq!(got[i], want);
        let byte = p.second as u8;
        assert_eq!(low[i], if i % 2 == 1 { !byte } else { byte });
    }
}
