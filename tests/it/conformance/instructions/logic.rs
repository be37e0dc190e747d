//! `and`, `or`, `xor` and `not`, on words and on predicates, `selp` and `slct`, and `testp`.

use super::super::dut::Dut;
use super::exact::{F32, F64, Format};
use super::table::{Form, check};
use super::values;

type Logic = fn(u64, u64) -> u64;

const OPERATIONS: [(&str, Logic); 3] = [("and", |a, b| a & b), ("or", |a, b| a | b), ("xor", |a, b| a ^ b)];

/// Puts bit 0 of `a` and of `b` into `%p` and `%q`.
const PREDICATES: &str =
    "and.b32 %x32, %a32, 1; setp.ne.u32 %p, %x32, 0; and.b32 %y32, %b32, 1; setp.ne.u32 %q, %y32, 0;";

pub(crate) fn logic(dut: &Dut) {
    let mut forms = Vec::new();
    for width in [16u32, 32, 64] {
        let mask = u64::MAX >> (64 - width);
        for (name, operation) in OPERATIONS {
            forms.push(Form::new(&format!("{name}.b{width}"), width, &[width; 2], move |[a, b, _]| {
                operation(a, b) & mask
            }));
        }
        forms.push(Form::new(&format!("not.b{width}"), width, &[width], move |[a, ..]| !a & mask));
    }
    // `cnot.b32` and `cnot.b64` are among the instructions on bits.
    forms.push(Form::new("cnot.b16", 16, &[16], |[a, ..]| u64::from(a & 0xffff == 0)));
    for (name, operation) in OPERATIONS {
        let body = format!("{PREDICATES} {name}.pred %p, %p, %q; selp.u64 %x64, 1, 0, %p;");
        forms.push(Form::raw(body, move |[a, b, _]| [operation(a, b) & 1, 0]));
    }
    let body = format!("{PREDICATES} not.pred %q, %p; selp.u64 %x64, 1, 0, %q;");
    forms.push(Form::raw(body, |[a, ..]| [!a & 1, 0]));
    check(dut, &forms, &values::integers());
}

/// The types that `selp` and `slct` have, with their widths.
const SELECTED: [(&str, u32); 11] = [
    ("b16", 16),
    ("u16", 16),
    ("s16", 16),
    ("b32", 32),
    ("u32", 32),
    ("s32", 32),
    ("f32", 32),
    ("b64", 64),
    ("u64", 64),
    ("s64", 64),
    ("f64", 64),
];

pub(crate) fn selections(dut: &Dut) {
    let (mut by_integers, mut by_floats) = (Vec::new(), Vec::new());
    for (ty, width) in SELECTED {
        let choose =
            move |first: bool, a: u64, b: u64| (if first { a } else { b }) & (u64::MAX >> (64 - width));
        let widen = if width < 64 { format!("cvt.u64.u{width} %x64, %x{width};") } else { String::new() };
        let body = format!(
            "and.b32 %n, %c32, 1; setp.ne.u32 %p, %n, 0; selp.{ty} %x{width}, %a{width}, %b{width}, %p; {widen}"
        );
        by_integers.push(Form::raw(body, move |[a, b, c]| [choose(c & 1 != 0, a, b), 0]));
        by_integers.push(Form::new(
            &format!("slct.{ty}.s32"),
            width,
            &[width, width, 32],
            move |[a, b, c]| choose(c & 0x8000_0000 == 0, a, b),
        ));
        for (word, ftz) in [("", false), (".ftz", true)] {
            let name = format!("slct{word}.{ty}.f32");
            by_floats.push(Form::new(&name, width, &[width, width, 32], move |[a, b, c]| {
                let c = if ftz { F32.flush(c) } else { c };
                // NaN chooses `b`, and -0 is not below zero.
                let negative = c & F32.sign() != 0 && c != F32.sign();
                choose(!negative && !F32.is_nan(c), a, b)
            }));
        }
    }
    check(dut, &by_integers, &values::integers());
    check(dut, &by_floats, &values::singles());
}

/// A property of the exponent field, which is zero, all ones or between, and of the fraction.
type Property = fn(Field, bool) -> bool;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Zero,
    Between,
    Ones,
}

/// The properties that `testp` knows, given the exponent and whether the fraction is not zero.
const PROPERTIES: [(&str, Property); 6] = [
    ("finite", |field, _| field != Field::Ones),
    ("infinite", |field, fraction| field == Field::Ones && !fraction),
    ("number", |field, fraction| field != Field::Ones || !fraction),
    ("notanumber", |field, fraction| field == Field::Ones && fraction),
    // PTX ISA: zeros are considered normal.
    ("normal", |field, fraction| field == Field::Between || field == Field::Zero && !fraction),
    ("subnormal", |field, fraction| field == Field::Zero && fraction),
];

pub(crate) fn properties_of_floats(dut: &Dut) {
    for (format, operands) in [(F32, values::singles()), (F64, values::doubles())] {
        let mut forms = Vec::new();
        for (name, property) in PROPERTIES {
            let width = format.bits;
            let body = format!("testp.{name}.f{width} %p, %a{width}; selp.u64 %x64, 1, 0, %p;");
            forms.push(Form::raw(body, move |[a, ..]| {
                let (field, fraction) = fields(format, a);
                [property(field, fraction).into(), 0]
            }));
        }
        check(dut, &forms, &operands);
    }
}

fn fields(format: Format, bits: u64) -> (Field, bool) {
    let exponent = bits & format.infinity();
    let field = if exponent == 0 {
        Field::Zero
    } else if exponent == format.infinity() {
        Field::Ones
    } else {
        Field::Between
    };
    (field, bits & ((1 << format.mantissa) - 1) != 0)
}
