//! memory_spaces.cu, parameters.cu, histogram.cu, scan.cu, matmul.cu, reduction.cu.

use super::rig::Corpus;
use super::values;

#[test]
fn initialised_variables() {
    let c = Corpus::load("memory_spaces.sm_75");
    let (f, u) = (c.buffer(&[0f32; 32]), c.buffer(&[0u64; 32]));
    let (s, d) = (c.buffer(&[0i32; 32]), c.buffer(&[0f64; 32]));
    c.run("globals", 1, 32, 0, &[f.address, u.address, s.address, d.address]);
    let weights = [0.5f32, -1.25, 2.0, 3.5, 0.0, 1e-7, 1e30, -0.0];
    let table = [1u64, 1 << 40, u64::MAX, 0];
    let bytes = [1u64, 2, 3, 4, 255];
    let doubles = [std::f64::consts::PI, -1e-300];
    let entries = [(-3, 2.5, *b"left\0\0"), (9, -7.125, *b"right\0")];
    let (f, u, s, d) = (c.read(f), c.read(u), c.read(s), c.read(d));
    let mut tickets: Vec<i32> = Vec::new();
    for t in 0..32 {
        assert_eq!(f[t].to_bits(), (weights[t & 7] * 0.0).to_bits());
        assert_eq!(u[t], table[t & 3].wrapping_add(bytes[t % 5]).wrapping_add(table[1]));
        let (small, big, text) = entries[t & 1];
        tickets.push(s[t] - small - i32::from(text[t % 4]));
        assert_eq!(d[t], doubles[t & 1] + big);
    }
    tickets.sort_unstable();
    assert_eq!(tickets, (41..73).collect::<Vec<i32>>());
}

#[test]
fn local_arrays_and_generic_addresses() {
    let c = Corpus::load("memory_spaces.sm_75");
    let input: Vec<i32> = values(1, 100, |x| (x % 5000) as i32);
    let out = c.buffer(&[0i32; 32]);
    let source = c.buffer(&input);
    c.run("local_array", 1, 32, 0, &[source.address, out.address, 100]);
    for (t, got) in c.read(out).into_iter().enumerate() {
        let mut stack: Vec<i32> = (0..32).map(|i| input[(i * 7 + t) % 100]).collect();
        stack.sort_unstable();
        assert_eq!(got, stack[(input[t] & 31) as usize]);
    }
    for which in 0..3 {
        c.run("generic", 1, 32, 0, &[source.address, out.address, which]);
        for (t, got) in c.read(out).into_iter().enumerate() {
            let mine = [1, 2, 3, t as i32];
            let want = match which {
                0 => input[t ^ 1] + 1000,
                1 => mine[t & 3] + 1 + 2000,
                _ => input[0] + 4000,
            };
            assert_eq!(got, want, "{which} {t}");
        }
    }
}

#[test]
fn addresses_of_parameters() {
    let c = Corpus::load("parameters.sm_75");
    let out = c.buffer(&[0u32; 64]);
    let (first, scale, rows) = (1000u32, 7u32, [11u32, 22, 33, 44, 55, 66]);
    let pair = |n: usize| u64::from(rows[n]) | u64::from(rows[n + 1]) << 32;
    // The structure is the last parameter: four consecutive words of eight bytes.
    let table = [u64::from(scale), pair(0), pair(2), pair(4)];
    c.run("picked", 2, 32, 0, &[&[u64::from(first), out.address], &table[..]].concat());
    for (i, got) in c.read(out).into_iter().enumerate() {
        let local = [first, 1, 2, 3, 4, i as u32];
        let second = if i % 2 == 1 { local[(i + 1) % 6] * (scale + 1) } else { rows[(i + 1) % 6] * scale };
        assert_eq!(got, first + rows[i % 6] * scale + second, "{i}");
    }
}

#[test]
fn histogram_and_atomics() {
    let c = Corpus::load("histogram.sm_75");
    let bytes: Vec<u8> = values(2, 5001, |x| (x % 251) as u8);
    let bins = c.buffer(&[0u32; 256]);
    c.run("histogram", 3, 128, 0, &[c.buffer(&bytes).address, bins.address, 5001]);
    let mut want = vec![0u32; 256];
    bytes.iter().for_each(|b| want[usize::from(*b)] += 1);
    assert_eq!(c.read(bins), want);

    let start: [u32; 18] =
        [0, 0, 0, u32::MAX, 0, 0, u32::MAX, 0, i32::MIN as u32, i32::MAX as u32, 0, 0, 0, 0, 0, 0, 0, 0];
    let (counters, old) = (c.buffer(&start), c.buffer(&[0u32; 64]));
    c.run("atomics", 2, 32, 0, &[counters.address, old.address]);
    let got = c.read(counters);
    let xor = (0..64).fold(0, |a, b| a ^ b);
    let wide = |n: usize| u64::from(got[n]) | u64::from(got[n + 1]) << 32;
    // 64 increments modulo 10. Decrements start at 0 and wrap to 9 first.
    assert_eq!((got[0], got[1]), (4, 6));
    assert!(got[2] < 64);
    assert_eq!((got[3], got[4], got[5], got[6]), (0, u32::MAX, xor, 0));
    assert_eq!((got[8], got[9] as i32), (58, -58));
    assert_eq!((wide(10), wide(12)), ((63 * 64 / 2) << 20, 63 << 33));
    assert_eq!((f32::from_bits(got[14]), f64::from_bits(wide(16))), (32.0, 16.0));
}

#[test]
fn scans() {
    let c = Corpus::load("scan.sm_75");
    let input: Vec<i32> = values(3, 256, |x| (x % 100) as i32 - 50);
    let out = c.buffer(&[0i32; 256]);
    c.run("scan_block", 1, 256, 0, &[c.buffer(&input).address, out.address, 200]);
    let sum = |end: usize| input[..=end].iter().sum::<i32>();
    assert!(c.read(out).iter().enumerate().all(|(i, got)| *got == if i < 200 { sum(i) } else { 0 }));

    let wide: Vec<i64> = values(4, 96, |x| x as i64);
    let out = c.buffer(&[0i64; 96]);
    c.run("scan_warp", 1, 96, 0, &[c.buffer(&wide).address, out.address]);
    for (i, got) in c.read(out).into_iter().enumerate() {
        assert_eq!(got, wide[i / 32 * 32..=i].iter().fold(0i64, |a, b| a.wrapping_add(*b)));
    }
}

#[test]
fn matrix_product() {
    let c = Corpus::load("matmul.sm_75");
    let n = 37;
    let (a, b) = (values(5, n * n, |x| (x % 9) as f32 - 4.0), values(6, n * n, |x| (x % 7) as f32));
    let out = c.buffer(&vec![0f32; n * n]);
    let parameters = [c.buffer(&a).address, c.buffer(&b).address, out.address, n as u64];
    c.run2("matmul", (3, 3), (16, 16), &parameters);
    for (i, got) in c.read(out).into_iter().enumerate() {
        // The values are small integers, so every order of summation is exact.
        let want: f32 = (0..n).map(|k| a[i / n * n + k] * b[k * n + i % n]).sum();
        assert_eq!(got, want, "{i}");
    }
}

#[test]
fn reductions_with_and_without_line_information() {
    for file in ["reduction.sm_75", "reduction.sm_75-lineinfo"] {
        let c = Corpus::load(file);
        let numbers: Vec<f32> = values(7, 3000, |x| (x % 64) as f32);
        let sum = c.buffer(&[0f32]);
        c.run("reduce_sum", 3, 160, 0, &[c.buffer(&numbers).address, sum.address, 3000]);
        assert_eq!(c.read(sum), [numbers.iter().sum::<f32>()]);

        let numbers: Vec<i32> = values(8, 1000, |x| x as i32);
        let max = c.buffer(&[i32::MIN]);
        c.run("reduce_max", 2, 128, 4 * 128, &[c.buffer(&numbers).address, max.address, 1000]);
        assert_eq!(c.read(max), [*numbers.iter().max().expect("some")]);
    }
}
