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
                let first = move |a, b| match exact(a, b) {
                    exact if sat && (d_signed || exact < 0) => clamp(exact, 32, d_signed),
                    exact => cut(exact, 32),
                };
                let name = format!("{name}.{types}{suffix}");
                forms.push(Form::new(&name, 32, &[32; 2], move |[a, b, _]| first(a, b)));
                forms.push(Form::new(&format!("{name}.add"), 32, &[32; 3], move |[a, b, c]| {
                    cut(i128::from(first(a, b)) + i128::from(c), 32)
                }));
                // PTX does not say how an intermediate result beyond 32 bits is compared.
                let fits = sat || name.starts_with("vm") && d_signed == a_signed && d_signed == b_signed;
                for (second, choose) in [("min", i128::min as Function), ("max", i128::max)] {
                    if fits {
                        let name = format!("{name}.{second}");
                        forms.push(Form::new(&name, 32, &[32; 3], move |[a, b, c]| {
                            cut(choose(extend(first(a, b), 32, d_signed), extend(c, 32, d_signed)), 32)
                        }));
                    }
                }
            }
        }
    }
    forms
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
