//! vector_add.cu, floating.cu, half_math.cu, bf16_math.cu.

use half::{bf16, f16};

use super::rig::Corpus;
use super::values;

fn float(x: u64) -> f32 {
    (x % 20001) as f32 / 64.0 - 156.0
}

#[test]
fn vectors() {
    let c = Corpus::load("vector_add.sm_75");
    let (a, b) = (values(1, 1000, float), values(2, 1000, float));
    let (pa, pb, out) = (c.buffer(&a).address, c.buffer(&b), c.buffer(&[0f32; 1000]));
    c.run("vector_add", 8, 128, 0, &[pa, pb.address, out.address, 999]);
    let got = c.read(out);
    assert!((0..999).all(|i| got[i] == a[i] + b[i]) && got[999] == 0.0);
    c.run("vector_add4", 2, 128, 0, &[pa, pb.address, out.address, 250]);
    let got = c.read(out);
    assert!((0..1000).all(|i| got[i] == a[i] + b[i]));
    c.run("saxpy", 3, 64, 0, &[u64::from(1.5f32.to_bits()), pa, pb.address, 1000]);
    assert!(c.read(pb).iter().enumerate().all(|(i, got)| *got == a[i].mul_add(1.5, b[i])));
}

#[test]
fn doubles() {
    let c = Corpus::load("floating.sm_75");
    let a: Vec<f64> = values(3, 32, |x| f64::from(float(x)) / 3.0);
    let b: Vec<f64> = values(4, 32, |x| f64::from(float(x)) / 7.0 + 0.01);
    let out = c.buffer(&[0f64; 256]);
    c.run("doubles", 1, 32, 0, &[c.buffer(&a).address, c.buffer(&b).address, out.address]);
    for (i, got) in c.read(out).chunks(8).enumerate() {
        let (x, y) = (a[i], b[i]);
        let want = [
            x + y,
            x.mul_add(y, -1.0),
            x.mul_add(y, 0.5),
            x / y,
            x.abs().sqrt(),
            x.min(y) + x.max(-y),
            x.floor() + y.ceil() + x.trunc() + y.round_ties_even(),
        ];
        assert_eq!(got[..7], want, "{x} {y}");
        let exp = if x < y { x.exp() } else { -x };
        assert!((got[7] - exp).abs() <= 2e-16 * 4.0 * exp.abs(), "{} {exp}", got[7]);
    }
}

#[test]
fn rounding_and_approximations() {
    let c = Corpus::load("floating.sm_75");
    let a: Vec<f32> = values(5, 32, |x| (x % 4096) as f32 / 511.0 + 0.01);
    let out = c.buffer(&[0f32; 12 * 32]);
    c.run("transcendental", 1, 32, 0, &[c.buffer(&a).address, out.address]);
    for (i, got) in c.read(out).chunks(12).enumerate() {
        let x = a[i];
        let want = [
            x.exp(),
            x.ln(),
            1.0 / x.sqrt(),
            x.sqrt(),
            x.sin() + x.cos(),
            1.0 / x,
            1.0 / x,
            x / (x + 3.0),
            x.exp2(),
            1.0 / x,
            x.tanh(),
            x.powf(1.7),
        ];
        // These are sequences of instructions. The error of each approximation has a conformance test, also for GPUs.
        for (n, (got, want)) in got.iter().zip(want).enumerate() {
            assert!((got - want).abs() <= 4e-6 * want.abs().max(1.0), "o[{n}] of {x}: {got}, not {want}");
        }
    }
    let b: Vec<f32> = values(6, 32, float);
    let out = c.buffer(&[0f32; 6 * 32]);
    c.run("rounding", 1, 32, 0, &[c.buffer(&a).address, c.buffer(&b).address, out.address]);
    for (i, got) in c.read(out).chunks(6).enumerate() {
        let (x, y) = (a[i], b[i]);
        // Sum and product are exact in double precision, so they show on which side of them each result lies.
        let (sum, product) = (f64::from(x) + f64::from(y), f64::from(x) * f64::from(y));
        assert!(f64::from(got[0]).abs() <= sum.abs() && f64::from(got[1]) >= product);
        assert!(f64::from(got[2]) <= product + f64::from(x));
        assert_eq!((got[3], got[4]), (x / y, x.sqrt()));
        assert_eq!(got[5], x.clamp(0.0, 1.0) + x.min(y) + x.max(0.0) + y.floor());
    }
}

#[test]
fn sines_of_large_arguments_use_the_table_in_memory() {
    let c = Corpus::load("floating.sm_75");
    let a: Vec<f32> = values(7, 64, |x| (x % 1_000_000) as f32 * 7.3);
    let out = c.buffer(&[0f32; 64]);
    c.run("precise_sine", 1, 64, 0, &[c.buffer(&a).address, out.address]);
    for (x, got) in a.iter().zip(c.read(out)) {
        assert!((f64::from(got) - f64::from(*x).sin()).abs() < 3e-7, "{x}: {got}");
    }
}

#[test]
fn halves() {
    for file in ["half_math.sm_75", "half_math.sm_90"] {
        let c = Corpus::load(file);
        let (a, b) = (
            values(8, 64, |x| f16::from_f32(float(x) / 16.0)),
            values(9, 64, |x| f16::from_f32(float(x) / 9.0)),
        );
        let out = c.buffer(&[f16::ZERO; 256]);
        c.run("half_ops", 1, 64, 0, &[c.buffer(&a).address, c.buffer(&b).address, out.address, 64]);
        for (i, got) in c.read(out).chunks(4).enumerate() {
            let (x, y) = (a[i].to_f64(), b[i].to_f64());
            let round = |v: f64| f16::from_f64(v).to_f64();
            let (sum, product, difference) = (round(x + y), round(x * y), round(x - y));
            let want = [
                sum,
                product.max(difference),
                round(x * y + sum).min(1.5),
                if x < y { -x } else { round(y * 0.25) },
            ];
            assert_eq!(got.iter().map(|v| v.to_f64()).collect::<Vec<_>>(), want, "{file} {x} {y}");
        }
    }
}

#[test]
fn brain_floats() {
    let c = Corpus::load("bf16_math.sm_90");
    let (a, b) =
        (values(10, 64, |x| bf16::from_f32(float(x))), values(11, 64, |x| bf16::from_f32(float(x) / 3.0)));
    let out = c.buffer(&[bf16::ZERO; 192]);
    c.run("bf16_ops", 1, 64, 0, &[c.buffer(&a).address, c.buffer(&b).address, out.address, 64]);
    for (i, got) in c.read(out).chunks(3).enumerate() {
        let (x, y) = (a[i].to_f32(), b[i].to_f32());
        let want = [bf16::from_f32(x + y), bf16::from_f32(x * y), bf16::from_f32(x.mul_add(3.0, y))];
        assert_eq!(got, want, "{x} {y}");
    }
}
