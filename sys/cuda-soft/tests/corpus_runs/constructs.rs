//! Calls through pointers, the heap, barrier objects and pipelines, long division, halves and bytes, as nvcc compiles them.

use super::output::child;
use super::rig::Corpus;
use super::values;

#[test]
fn tables_of_functions_and_virtual_functions() {
    let c = Corpus::load("calls.sm_75");
    let which: Vec<i32> = values(1, 96, |x| (x % 1000) as i32);
    let out = c.buffer(&[0i32; 96]);
    c.run("through_pointers", 3, 32, 0, &[c.buffer(&which).address, out.address]);
    let expected: Vec<i32> =
        (0..96).map(|i| 1 + [2 * i, i * i, -i][which[i as usize] as usize % 3]).collect();
    assert_eq!(c.read(out), expected);
    c.run("virtual_functions", 1, 64, 0, &[out.address]);
    let expected: Vec<i32> = (0..64).map(|i| if i % 2 == 1 { i * i * 10 + 4 } else { 30 * i * i }).collect();
    assert_eq!(c.read(out)[..64], expected);
}

#[test]
#[ignore = "the child of another test"]
fn says() {
    let c = Corpus::load("calls.sm_75");
    let out = c.buffer(&[0i32; 2]);
    c.run("says", 1, 40, 0, &[out.address]);
    assert_eq!(c.read(out), [6; 2]);
}

#[test]
#[ignore = "the child of another test"]
fn checks() {
    let c = Corpus::load("calls.sm_75");
    c.run("checks", 2, 32, 0, &[32]);
    c.start("checks", 1, 32, &[31]);
    assert_eq!(c.synchronize(), Err(cuda_driver_sys::CUresult::CUDA_ERROR_ASSERT));
}

#[test]
fn kernels_print_and_assert_as_compiled() {
    let (stdout, _) = child("constructs::says");
    let lines = "even 0: 0  0.00 a 0x10%\nodd 1: -5000000000  1.50 b 0x11%\n";
    assert!(stdout.contains(lines), "{stdout}");
    let (_, stderr) = child("constructs::checks");
    let end =
        "void checks(int): block: [0,0,0], thread: [31,0,0] Assertion `int(threadIdx.x) < limit` failed.\n";
    assert!(stderr.contains(end) && stderr.contains("calls.cu:"), "{stderr}");
}

#[test]
fn quotients_of_128_bits() {
    let c = Corpus::load("wide_division.sm_75");
    let number = |x: u64| u128::from(x) << (x % 64) | u128::from(x.rotate_left(17));
    let a: Vec<u128> = values(2, 64, number);
    let b: Vec<u128> = values(3, 64, |x| (number(x) >> (x % 120)).max(1));
    let out = c.buffer(&[0u128; 192]);
    c.run("divide", 1, 64, 0, &[c.buffer(&a).address, c.buffer(&b).address, out.address]);
    for (i, got) in c.read(out).chunks(3).enumerate() {
        let (a, b) = (a[i], b[i]);
        let third = a.wrapping_mul(b).wrapping_sub(a << 3).wrapping_add(b >> 5);
        assert_eq!(got, [a / b, a % b, third], "{a:#x} by {b:#x}");
    }
}

#[test]
fn comparisons_and_sums_of_halves() {
    use half::f16;
    let c = Corpus::load("half_compare.sm_90");
    // Few different numbers, so that many are equal; some are NaN.
    let some =
        |x: u64| if x.is_multiple_of(11) { 0x7e00 } else { f16::from_f32((x % 5) as f32 - 2.0).to_bits() };
    let a: Vec<[u16; 2]> = values(4, 64, |x| [some(x), some(x >> 20)]);
    let b: Vec<[u16; 2]> = values(5, 64, |x| [some(x), some(x >> 20)]);
    let out = c.buffer(&[0u32; 64 * 6]);
    c.run("compare", 1, 64, 0, &[c.buffer(&a).address, c.buffer(&b).address, out.address]);
    for (i, got) in c.read(out).chunks(6).enumerate() {
        let pair = |f: fn(f32, f32) -> bool| {
            [0, 1].map(|k| f(f16::from_bits(a[i][k]).to_f32(), f16::from_bits(b[i][k]).to_f32()))
        };
        let packed =
            |[low, high]: [bool; 2], truth: u32| (u32::from(low) * truth) | ((u32::from(high) * truth) << 16);
        let all = |both: [bool; 2]| u32::from(both[0] && both[1]);
        let most = [0, 1].map(|k| {
            let (x, y) = (f16::from_bits(a[i][k]), f16::from_bits(b[i][k]));
            let most = if x.is_nan() && y.is_nan() { 0x7fff } else { x.max(y).to_bits() };
            u32::from(if most == 0x8000 { 0 } else { most })
        });
        let expected = [
            packed(pair(|x, y| x > y), 0x3c00),
            packed(pair(|x, y| x <= y), 0xffff),
            packed(pair(|x, y| x != y), 0xffff),
            u32::from(pair(|x, y| x < y)[0]),
            all(pair(|x, y| x == y)) * 2 + all(pair(|x, y| x.partial_cmp(&y).is_none_or(|o| o.is_lt()))),
            most[0] | most[1] << 16,
        ];
        assert_eq!(got, expected, "{:x?} and {:x?}", a[i], b[i]);
    }
    let (pairs, single) = (c.buffer(&[0u32; 4]), c.buffer(&[0u16; 2]));
    c.run("sums", 1, 64, 0, &[pairs.address, single.address]);
    let half = |v: f32| f16::from_f32(v).to_bits();
    assert_eq!(c.read(pairs), [u32::from(half(8.0)) << 16 | u32::from(half(16.0)); 4]);
    assert_eq!(c.read(single)[0], half(16.0));
}

#[test]
fn numbers_of_8_bits() {
    let c = Corpus::load("half_compare.sm_90");
    let exact = [0.0f32, 1.0, -2.0, 0.875, 448.0, -0.015625, 0.001953125, 96.0];
    let pairs: Vec<[f32; 2]> = values(6, 32, |x| [exact[x as usize % 8], exact[(x >> 8) as usize % 8]]);
    let (e4m3, e5m2, back) = (c.buffer(&[0u16; 32]), c.buffer(&[0u16; 32]), c.buffer(&[[0f32; 2]; 32]));
    let input = c.buffer(&pairs);
    c.run("eight_bits", 1, 32, 0, &[input.address, e4m3.address, e5m2.address, back.address]);
    assert_eq!(c.read(back), pairs, "these numbers are exact in e4m3");
    let table = [(0.0f32, 0x00u8), (1.0, 0x3c), (-2.0, 0xc0), (0.875, 0x3b), (448.0, 0x5f), (96.0, 0x56)];
    for (pair, got) in pairs.iter().zip(c.read(e5m2)) {
        for (value, byte) in pair.iter().zip(got.to_le_bytes()) {
            if let Some((_, expected)) = table.iter().find(|(v, _)| v == value) {
                assert_eq!(byte, *expected, "{value}");
            }
        }
    }
}

#[test]
fn barriers_pipelines_and_tiles() {
    let c = Corpus::load("barriers.sm_90");
    let out = c.buffer(&[0i32; 256]);
    c.run("phases", 1, 128, 0, &[out.address]);
    let mut sums: Vec<i32> = (0..128).collect();
    for _ in 0..5 {
        sums = (0..128).map(|i| sums[i] + sums[(i + 33) % 128]).collect();
    }
    assert_eq!(c.read(out)[..128], sums);

    let tiles: Vec<i32> = values(7, 64 * 9, |x| (x % 1000) as i32);
    c.run("staged", 2, 64, 2 * 64 * 4, &[c.buffer(&tiles).address, out.address, 9]);
    let expected: Vec<i32> = (0..128)
        .map(|i| {
            (0..9).fold(0i32, |sum, tile| sum.wrapping_mul(3).wrapping_add(tiles[tile * 64 + (i + 1) % 64]))
        })
        .collect();
    assert_eq!(c.read(out)[..128], expected);

    c.run("tiles", 1, 256, 0, &[out.address]);
    let expected: Vec<i32> =
        (0..256).map(|i| (i / 64 * 64..i / 64 * 64 + 64).sum::<i32>() + i % 64).collect();
    assert_eq!(c.read(out), expected);

    c.run("neighbours", 8, 32, 0, &[out.address]);
    let expected: Vec<i32> = (0..256).map(|i| ((i / 32) ^ 1) * 10 + i % 32).collect();
    assert_eq!(c.read(out), expected);
}

#[test]
fn arithmetic_on_the_bytes_of_a_word() {
    let c = Corpus::load("bytes.sm_75");
    let a: Vec<u32> = values(8, 64, |x| x as u32);
    let b: Vec<u32> = values(9, 64, |x| (x >> 7) as u32);
    let out = c.buffer(&[0u32; 64 * 7]);
    c.run("bytes", 1, 64, 0, &[c.buffer(&a).address, c.buffer(&b).address, out.address]);
    for (i, got) in c.read(out).chunks(7).enumerate() {
        let bytes = |f: fn(u8, u8) -> u8| {
            let (x, y) = (a[i].to_le_bytes(), b[i].to_le_bytes());
            u32::from_le_bytes(std::array::from_fn(|k| f(x[k], y[k])))
        };
        let difference = bytes(u8::abs_diff);
        let high = |v: u32| (v >> 16) as i16;
        let most =
            (high(a[i]).max(high(b[i])) as u16 as u32) << 16 | (a[i] as i16).max(b[i] as i16) as u16 as u32;
        let expected = [
            difference,
            bytes(|x, y| (x as i8).abs_diff(y as i8)),
            difference.to_le_bytes().iter().map(|d| u32::from(*d)).sum(),
            bytes(u8::saturating_add),
            most,
            bytes(u8::min),
            bytes(|x, y| if x > y { 0xff } else { 0 }),
        ];
        assert_eq!(got, expected, "{:#x} and {:#x}", a[i], b[i]);
    }
}
