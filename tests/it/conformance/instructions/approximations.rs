//! Approximations, compared with `f64` functions of the host: the largest errors that PTX ISA 9.0 documents, and the results
//! of its tables for zeros, infinities and NaN.
//!
//! A software device and an H200 give other bits within these errors.

use std::f64::consts::PI;

use super::super::dut::Dut;
use super::exact::{BF16, F16, F32, F64, Format};
use super::table::{Form, check};
use super::values;

/// How far a result may be from the exact one.
#[derive(Clone, Copy, Debug)]
enum Error {
    /// So many units in the last place of the exact result.
    Ulps(f64),
    Absolute(f64),
    Relative(f64),
    /// PTX documents no error.
    Any,
}

/// A function of one operand, on `f32`.
struct Row {
    name: &'static str,
    function: fn(f64) -> f64,
    /// The error for an operand.
    error: fn(f64) -> Error,
    /// More operands, in these ranges.
    ranges: &'static [(f32, f32)],
}

const TURN: f32 = std::f32::consts::TAU;

const ROWS: [Row; 7] = [
    Row { name: "rcp", function: f64::recip, error: |_| Error::Ulps(1.0), ranges: &[] },
    Row {
        name: "sqrt",
        function: f64::sqrt,
        error: |_| Error::Relative(2f64.powi(-23)),
        ranges: &[(0.5, 4.0)],
    },
    Row {
        name: "rsqrt",
        function: |a| a.sqrt().recip(),
        error: |_| Error::Relative((-22.9f64).exp2()),
        ranges: &[(0.5, 4.0)],
    },
    Row { name: "sin", function: f64::sin, error: angle, ranges: &[(-TURN, TURN), (-314.0, 314.0)] },
    Row { name: "cos", function: f64::cos, error: angle, ranges: &[(-TURN, TURN), (-314.0, 314.0)] },
    Row {
        name: "lg2",
        function: f64::log2,
        error: |a| {
            let error = 2f64.powi(-22);
            if 0.5 < a && a < 2.0 { Error::Absolute(error) } else { Error::Relative(error) }
        },
        ranges: &[(0.4, 2.1), (0.999, 1.001)],
    },
    // The error is two units from the rounded result, which is half of one from the exact result.
    Row {
        name: "ex2",
        function: f64::exp2,
        error: |_| Error::Ulps(2.5),
        ranges: &[(-151.0, 129.0), (-127.0, -125.0)],
    },
];

/// The error of `sin` and `cos`.
fn angle(a: f64) -> Error {
    if a.abs() <= 2.0 * PI {
        Error::Absolute((-20.5f64).exp2())
    } else if a.abs() <= 100.0 * PI {
        Error::Absolute((-14.7f64).exp2())
    } else {
        Error::Any
    }
}

/// Whether `got` is a result that PTX allows for an exact one. `special`: the operand is a zero, an infinity or NaN, so that
/// the result is one of a table.
fn allowed(format: Format, got: u64, exact: f64, error: Error, special: bool, ftz: bool) -> bool {
    if exact.is_nan() {
        return format.is_nan(got);
    }
    if special || exact.is_infinite() {
        return got == format.nearest(exact);
    }
    // An infinity stands for the number behind the largest one.
    let limit = (1.0 + f64::from(format.bias())).exp2();
    let exact = exact.clamp(-limit, limit);
    let least = (1.0 - f64::from(format.bias())).exp2();
    let ulp = exact.abs().max(least).log2().floor().exp2() * (-f64::from(format.mantissa)).exp2();
    let error = match error {
        Error::Ulps(count) => count * ulp,
        Error::Absolute(error) => error,
        Error::Relative(error) => error * exact.abs(),
        Error::Any => return true,
    };
    if ftz && got & (format.sign() - 1) == 0 && exact.abs() - error < least {
        return (got != 0) == exact.is_sign_negative();
    }
    if format.is_nan(got) || ftz && got != format.flush(got) {
        return false;
    }
    (format.value(got).clamp(-limit, limit) - exact).abs() <= error
}

fn special(value: f64) -> bool {
    value == 0.0 || !value.is_finite()
}

/// `name` on one `f32`.
fn single(name: &str, ftz: bool, function: fn(f64) -> f64, error: fn(f64) -> Error) -> Form {
    let operand = move |a: u64| {
        let a = a & 0xffff_ffff;
        F32.value(if ftz { F32.flush(a) } else { a })
    };
    let word = if ftz { ".ftz" } else { "" };
    Form::new(&format!("{name}.approx{word}.f32"), 32, &[32], move |[a, ..]| {
        F32.nearest(function(operand(a)))
    })
    .near(move |[a, ..], got| {
        let a = operand(a);
        allowed(F32, got, function(a), error(a), special(a), ftz)
    })
}

pub(crate) fn approximations(dut: &Dut) {
    for row in ROWS {
        let forms = [false, true].map(|ftz| single(row.name, ftz, row.function, row.error));
        let mut operands = values::singles();
        for (low, high) in row.ranges {
            operands.extend(values::between(*low, *high, 4000));
        }
        check(dut, &forms, &operands);
    }
    let tanh = single("tanh", false, f64::tanh, |_| Error::Relative(2f64.powi(-11)));
    let operands = [values::singles(), values::between(-10.0, 10.0, 4000)].concat();
    check(dut, &[tanh], &operands);
    quotients(dut);
}

/// `div.approx` and `div.full`.
fn quotients(dut: &Dut) {
    let mut forms = Vec::new();
    for (kind, ftz) in [("approx", false), ("approx", true), ("full", false), ("full", true)] {
        let operands = move |[a, b]: [u64; 2]| {
            [a, b].map(|bits| {
                let bits = bits & 0xffff_ffff;
                F32.value(if ftz { F32.flush(bits) } else { bits })
            })
        };
        let word = if ftz { ".ftz" } else { "" };
        let form = Form::new(&format!("div.{kind}{word}.f32"), 32, &[32; 2], move |[a, b, _]| {
            let [a, b] = operands([a, b]);
            F32.nearest(a / b)
        });
        forms.push(form.near(move |[a, b, _], got| {
            let [a, b] = operands([a, b]);
            let special = special(a) || special(b);
            let within = |error| allowed(F32, got, a / b, error, special, ftz);
            if kind == "full" || special && !b.is_finite() {
                return within(Error::Ulps(2.0));
            }
            let large = b.abs() > 126f64.exp2();
            // PTX: the reciprocal of a large number is taken for zero. Without `.ftz` ptxas may scale it instead.
            let unscaled = large && allowed(F32, got, a * 0f64.copysign(b), Error::Any, true, ftz);
            match (large, ftz) {
                (true, true) => unscaled,
                (true, false) => {
                    unscaled || within(Error::Ulps(2.0)) || within(Error::Relative(2f64.powi(-20)))
                }
                // PTX says nothing of subnormal divisors.
                (false, _) if b.abs() < (-126f64).exp2() => within(Error::Any),
                (false, _) => within(Error::Ulps(2.0)),
            }
        }));
    }
    let mut operands = values::singles();
    let large: Vec<_> =
        values::singles().into_iter().map(|[a, b, c]| [a, b & 0x80ff_ffff | 0x7e80_0000, c]).collect();
    operands.extend(large);
    check(dut, &forms, &operands);
}

/// `ex2` and `tanh` on 16-bit floats and their pairs, for all of them.
pub(crate) fn approximate_halves(dut: &Dut) {
    type Function = fn(f64) -> f64;
    let rows: [(&str, &str, Format, Function, Error); 4] = [
        ("ex2.approx", "f16", F16, f64::exp2, Error::Relative((-9.9f64).exp2())),
        ("ex2.approx.ftz", "bf16", BF16, f64::exp2, Error::Relative(2f64.powi(-7))),
        ("tanh.approx", "f16", F16, f64::tanh, Error::Absolute((-10.987f64).exp2())),
        // PTX says 2^-8; an H200 is off by 2^-7.97 at two of the values, 0x3f3f and its negative.
        ("tanh.approx", "bf16", BF16, f64::tanh, Error::Absolute(1.03 * 2f64.powi(-8))),
    ];
    let mut forms = Vec::new();
    for (name, ty, format, function, error) in rows {
        let ftz = name.contains("ftz");
        let operand = move |bits: u64| {
            let bits = bits & 0xffff;
            format.value(if ftz { format.flush(bits) } else { bits })
        };
        let nearest = move |bits: u64| format.nearest(function(operand(bits)));
        let near = move |bits: u64, got: u64| {
            let (a, got) = (operand(bits), got & 0xffff);
            // A relative error cannot be kept among subnormal numbers; one unit is left to them.
            let least = (1.0 - f64::from(format.bias())).exp2();
            let tiny = matches!(error, Error::Relative(_)) && function(a).abs() < least && !ftz;
            let error = if tiny { Error::Ulps(1.0) } else { error };
            allowed(format, got, function(a), error, special(a), ftz)
        };
        forms.push(
            Form::new(&format!("{name}.{ty}"), 16, &[16], move |[a, ..]| nearest(a))
                .near(move |[a, ..], got| got <= 0xffff && near(a, got)),
        );
        forms.push(
            Form::new(&format!("{name}.{ty}x2"), 32, &[32], move |[a, ..]| {
                nearest(a >> 16) << 16 | nearest(a)
            })
            .near(move |[a, ..], got| near(a, got) && near(a >> 16, got >> 16)),
        );
    }
    check(dut, &forms, &values::all_halves());
}

/// The approximations of `f64`. Those with `.ftz` have only the upper word of the operand and of the result, and one NaN. PTX
/// documents no error; of 20 bits of mantissa, this allows 19.
pub(crate) fn gross_approximations(dut: &Dut) {
    type Function = fn(f64) -> f64;
    let mut forms = Vec::new();
    for (name, function) in [("rcp", f64::recip as Function), ("rsqrt", |a| a.sqrt().recip())] {
        let operand = |a: u64| F64.value(F64.flush(a & 0xffff_ffff_0000_0000));
        forms.push(
            Form::new(&format!("{name}.approx.ftz.f64"), 64, &[64], move |[a, ..]| {
                F64.flush(function(operand(a)).to_bits())
            })
            .near(move |[a, ..], got| {
                let a = operand(a);
                if function(a).is_nan() {
                    return got == 0x7fff_ffff_0000_0000;
                }
                let error = Error::Relative(2f64.powi(-19));
                got as u32 == 0 && allowed(F64, got, function(a), error, special(a), true)
            }),
        );
    }
    let function: Function = |a| a.sqrt().recip();
    forms.push(
        Form::new("rsqrt.approx.f64", 64, &[64], move |[a, ..]| function(F64.value(a)).to_bits()).near(
            move |[a, ..], got| {
                let a = F64.value(a);
                allowed(F64, got, function(a), Error::Ulps(2.0), special(a), false)
            },
        ),
    );
    check(dut, &forms, &values::doubles());
}
