//! The video instructions on whole words, two halves and four bytes, with every combination of signs.

use super::super::dut::Dut;
use super::integers::{clamp, cut, extend};
use super::table::{Form, check};
use super::values;

type Function = fn(i128, i128) -> i128;

const FUNCTIONS: [(&str, Function); 5] = [
    ("vadd", |a, b| a + b),
    ("vsub", |a, b| a - b),
    ("vabsdiff", |a, b| (a - b).abs()),
    ("vmin", i128::min),
    ("vmax", i128::max),
];

/// The mean, with halves rounded up from zero on and down below it.
const AVERAGE: (&str, Function) = ("vavrg", |a, b| (a + b + i128::from(a + b >= 0)).div_euclid(2));

type Comparison = fn(&i128, &i128) -> bool;

const COMPARISONS: [(&str, Comparison); 6] = [
    ("eq", i128::eq),
    ("ne", i128::ne),
    ("lt", i128::lt),
    ("le", i128::le),
    ("gt", i128::gt),
    ("ge", i128::ge),
];

const SIGNS: [(&str, bool); 2] = [("u32", false), ("s32", true)];

/// The types of a result and two sources: their names, and whether each is signed.
fn types() -> impl Iterator<Item = (String, [bool; 3])> {
    SIGNS
        .into_iter()
        .flat_map(|d| SIGNS.into_iter().flat_map(move |a| SIGNS.map(move |b| (d, a, b))))
        .map(|(d, a, b)| (format!("{}.{}.{}", d.0, a.0, b.0), [d.1, a.1, b.1]))
}

pub(crate) fn video(dut: &Dut) {
    for forms in [words(), parts(), compared_parts()] {
        check(dut, &forms, &values::integers());
    }
}

/// The forms on whole words, with `.sat` and a second operation on `c`.
fn words() -> Vec<Form> {
    let mut forms = Vec::new();
    for (name, function) in FUNCTIONS {
        for (types, [d_signed, a_signed, b_signed]) in types() {
            let exact = move |a, b| function(extend(a, 32, a_signed), extend(b, 32, b_signed));
            for (suffix, sat) in [("", false), (".sat", true)] {
                // An H200 lets unsigned results above 2^32 - 1 wrap, though PTX says that they are clamped.
                let kept = move |a, b| match exact(a, b) {
                    exact if sat && (d_signed || exact < 0) => {
                        extend(clamp(exact, 32, d_signed), 32, d_signed)
                    }
                    exact => exact,
                };
                let first = move |a, b| cut(kept(a, b), 32);
                let larger = larger(name, sat, [d_signed, a_signed, b_signed]);
                let name = format!("{name}.{types}{suffix}");
                forms.push(Form::new(&name, 32, &[32; 2], move |[a, b, _]| first(a, b)));
                forms.push(Form::new(&format!("{name}.add"), 32, &[32; 3], move |[a, b, c]| {
                    cut(i128::from(first(a, b)) + i128::from(c), 32)
                }));
                for (second, largest) in [("min", false), ("max", true)] {
                    let name = format!("{name}.{second}");
                    forms.push(Form::new(&name, 32, &[32; 3], move |[a, b, c]| {
                        let word = first(a, b);
                        if larger(kept(a, b), word, cut(c.into(), 32)) == largest {
                            word
                        } else {
                            cut(c.into(), 32)
                        }
                    }));
                }
            }
        }
    }
    forms
}

/// Whether a result, here whole and cut to 32 bits, counts as larger than `c`. PTX does not say how one that needs more bits is compared. This is
/// what an H200 did with each form and 4,096 triples of operands.
fn larger(name: &str, sat: bool, [d, a, b]: [bool; 3]) -> impl Fn(i128, u64, u64) -> bool + Copy {
    let whole = name == "vabsdiff" || d && name.starts_with("vm");
    let odd = match name {
        "vmin" => !sat && (a || b),
        "vmax" => !sat && a && b,
        _ => true,
    };
    move |kept, word, c| match (whole, d) {
        (true, _) => kept > extend(c, 32, d),
        (false, true) => extend(word, 32, true) > extend(c, 32, true),
        (false, false) => word > c || odd && (word & c) >> 31 == 1,
    }
}

/// The forms on two halves and four bytes, with `.sat` or `.add`.
fn parts() -> Vec<Form> {
    let mut forms = Vec::new();
    for (parts, width) in [(2u32, 16u32), (4, 8)] {
        for (name, function) in FUNCTIONS.into_iter().chain([AVERAGE]) {
            for (types, [d_signed, a_signed, b_signed]) in types() {
                let part = move |a: u64, b: u64, k: u32| {
                    let at = k * width;
                    function(extend(a >> at, width, a_signed), extend(b >> at, width, b_signed))
                };
                for (suffix, sat) in [("", false), (".sat", true)] {
                    let name = format!("{name}{parts}.{types}{suffix}");
                    forms.push(Form::new(&name, 32, &[32; 3], move |[a, b, _]| {
                        (0..parts).fold(0, |word, k| {
                            let value = part(a, b, k);
                            let value = if sat { clamp(value, width, d_signed) } else { cut(value, width) };
                            word | value << (k * width)
                        })
                    }));
                }
                forms.push(Form::new(
                    &format!("{name}{parts}.{types}.add"),
                    32,
                    &[32; 3],
                    move |[a, b, c]| cut((0..parts).map(|k| part(a, b, k)).sum::<i128>() + i128::from(c), 32),
                ));
            }
        }
    }
    forms
}

/// `vset2` and `vset4`: a one in each part where the comparison holds, or `c` and their number.
fn compared_parts() -> Vec<Form> {
    let mut forms = Vec::new();
    for (parts, width) in [(2u32, 16u32), (4, 8)] {
        for (comparison, holds) in COMPARISONS {
            for (a_type, a_signed) in SIGNS {
                for (b_type, b_signed) in SIGNS {
                    let part = move |a: u64, b: u64, k: u32| {
                        let at = k * width;
                        u64::from(holds(&extend(a >> at, width, a_signed), &extend(b >> at, width, b_signed)))
                    };
                    let name = format!("vset{parts}.{a_type}.{b_type}.{comparison}");
                    forms.push(Form::new(&name, 32, &[32; 3], move |[a, b, _]| {
                        (0..parts).fold(0, |word, k| word | part(a, b, k) << (k * width))
                    }));
                    forms.push(Form::new(&format!("{name}.add"), 32, &[32; 3], move |[a, b, c]| {
                        let count: u64 = (0..parts).map(|k| part(a, b, k)).sum();
                        cut(i128::from(count) + i128::from(c), 32)
                    }));
                }
            }
        }
    }
    forms
}
