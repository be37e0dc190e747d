//! `setp` and `set` with every comparison of every type.

use std::cmp::Ordering;

use super::super::dut::Dut;
use super::exact::{self, BF16, F16, F32, F64, Format};
use super::table::{Form, check};
use super::values;

/// Whether a comparison holds for operands in this order.
type Test = fn(Option<Ordering>) -> bool;

/// Comparisons, as functions of an order that NaN does not have.
const COMPARISONS: [(&str, Test); 14] = [
    ("eq", |o| o == Some(Ordering::Equal)),
    ("ne", |o| o.is_some_and(Ordering::is_ne)),
    ("lt", |o| o.is_some_and(Ordering::is_lt)),
    ("le", |o| o.is_some_and(Ordering::is_le)),
    ("gt", |o| o.is_some_and(Ordering::is_gt)),
    ("ge", |o| o.is_some_and(Ordering::is_ge)),
    ("equ", |o| o.is_none_or(Ordering::is_eq)),
    ("neu", |o| o.is_none_or(Ordering::is_ne)),
    ("ltu", |o| o.is_none_or(Ordering::is_lt)),
    ("leu", |o| o.is_none_or(Ordering::is_le)),
    ("gtu", |o| o.is_none_or(Ordering::is_gt)),
    ("geu", |o| o.is_none_or(Ordering::is_ge)),
    ("num", |o| o.is_some()),
    ("nan", |o| o.is_none()),
];

/// Other names of comparisons of unsigned numbers.
const UNSIGNED: [(&str, Test); 4] = [
    ("lo", |o| o.is_some_and(Ordering::is_lt)),
    ("ls", |o| o.is_some_and(Ordering::is_le)),
    ("hi", |o| o.is_some_and(Ordering::is_gt)),
    ("hs", |o| o.is_some_and(Ordering::is_ge)),
];

/// Both results of `setp`, and the results of `set` as a mask and as a number.
fn scalar(
    forms: &mut Vec<Form>,
    name: &str,
    ty: &str,
    width: u32,
    holds: impl Fn(u64, u64) -> bool + Clone + 'static,
) {
    let operands = format!("%a{width}, %b{width}");
    let test = holds.clone();
    forms.push(Form::raw(
        format!("setp.{name}.{ty} %p|%q, {operands}; selp.u64 %x64, 1, 0, %p; selp.u64 %y64, 1, 0, %q;"),
        move |[a, b, _]| [test(a, b).into(), (!test(a, b)).into()],
    ));
    for (result, bits, truth) in
        [("u32", 32, 0xffff_ffff), ("s32", 32, 0xffff_ffff), ("f32", 32, 0x3f80_0000), ("f16", 16, 0x3c00)]
    {
        let test = holds.clone();
        forms.push(Form::new(&format!("set.{name}.{result}.{ty}"), bits, &[width; 2], move |[a, b, _]| {
            u64::from(test(a, b)) * truth
        }));
    }
}

fn floats(dut: &Dut, format: Format, ty: &str, operands: &[[u64; 3]]) {
    let mask = if format.bits == 64 { u64::MAX } else { (1 << format.bits) - 1 };
    let mut forms = Vec::new();
    for (name, test) in COMPARISONS {
        for ftz in [false, true] {
            if ftz && !matches!(format, F32 | F16) {
                continue;
            }
            let word = if ftz { ".ftz" } else { "" };
            let flushed = move |bits: u64| if ftz { format.flush(bits & mask) } else { bits & mask };
            let holds = move |a: u64, b: u64| test(exact::order(format, flushed(a), flushed(b)));
            if format.bits == 16 {
                sixteen(&mut forms, name, word, ty, holds);
            } else {
                scalar(&mut forms, &format!("{name}{word}"), ty, format.bits, holds);
            }
        }
    }
    check(dut, &forms, operands);
}

/// The forms of 16-bit floats and of their pairs, which have other results.
fn sixteen(
    forms: &mut Vec<Form>,
    name: &str,
    word: &str,
    ty: &str,
    holds: impl Fn(u64, u64) -> bool + Copy + 'static,
) {
    let one = if ty == "f16" { 0x3c00 } else { 0x3f80 };
    let form = format!("{name}{word}");
    forms.push(Form::raw(
        format!("setp.{form}.{ty} %p, %a16, %b16; selp.u64 %x64, 1, 0, %p;"),
        move |[a, b, _]| [holds(a, b).into(), 0],
    ));
    forms.push(Form::new(&format!("set.{form}.{ty}.{ty}"), 16, &[16; 2], move |[a, b, _]| {
        u64::from(holds(a, b)) * one
    }));
    for (result, bits) in [("u16", 16), ("s16", 16), ("u32", 32), ("s32", 32)] {
        forms.push(Form::new(&format!("set.{form}.{result}.{ty}"), bits, &[16; 2], move |[a, b, _]| {
            u64::from(holds(a, b)) * (u64::MAX >> (64 - bits))
        }));
    }
    let both = move |a: u64, b: u64| [holds(a, b), holds(a >> 16, b >> 16)].map(u64::from);
    let packed = move |[low, high]: [u64; 2], truth: u64| (low * truth) | ((high * truth) << 16);
    forms.push(Form::raw(
        format!("setp.{form}.{ty}x2 %p|%q, %a32, %b32; selp.u64 %x64, 1, 0, %p; selp.u64 %y64, 1, 0, %q;"),
        move |[a, b, _]| both(a, b),
    ));
    forms.push(Form::new(&format!("set.{form}.{ty}x2.{ty}x2"), 32, &[32; 2], move |[a, b, _]| {
        packed(both(a, b), one)
    }));
    for result in ["u32", "s32"] {
        forms.push(Form::new(&format!("set.{form}.{result}.{ty}x2"), 32, &[32; 2], move |[a, b, _]| {
            packed(both(a, b), 0xffff)
        }));
    }
}

pub(crate) fn comparisons(dut: &Dut) {
    let mut forms = Vec::new();
    for width in [16u32, 32, 64] {
        let cut = move |v: u64| if width == 64 { v } else { v & ((1 << width) - 1) };
        for (name, test) in &COMPARISONS[..6] {
            let unsigned = move |a, b| test(Some(cut(a).cmp(&cut(b))));
            let signed = move |a: u64, b: u64| {
                let extend = |v: u64| (v << (64 - width)).cast_signed();
                test(Some(extend(a).cmp(&extend(b))))
            };
            scalar(&mut forms, name, &format!("u{width}"), width, unsigned);
            scalar(&mut forms, name, &format!("s{width}"), width, signed);
            if matches!(*name, "eq" | "ne") {
                scalar(&mut forms, name, &format!("b{width}"), width, unsigned);
            }
        }
        for (name, test) in UNSIGNED {
            let unsigned = move |a, b| test(Some(cut(a).cmp(&cut(b))));
            scalar(&mut forms, name, &format!("u{width}"), width, unsigned);
        }
    }
    combined(&mut forms);
    check(dut, &forms, &values::integers());
    floats(dut, F32, "f32", &values::singles());
    floats(dut, F64, "f64", &values::doubles());
    floats(dut, F16, "f16", &values::halves());
    floats(dut, BF16, "bf16", &values::halves());
    brain_floats(dut);
}

/// `set` with results of type `bf16`, in modules of their own.
fn brain_floats(dut: &Dut) {
    let result = |holds: bool| u64::from(holds) * 0x3f80;
    let form = |name: &str, ty: &str, bits: u32, oracle: fn(u64, u64) -> bool| {
        Form::new(&format!("set.{name}.bf16.{ty}"), 16, &[bits; 2], move |[a, b, _]| result(oracle(a, b)))
    };
    let integers = [
        form("gt", "u16", 16, |a, b| a as u16 > b as u16),
        form("le", "s16", 16, |a, b| a as i16 <= b as i16),
        form("lt", "u32", 32, |a, b| (a as u32) < b as u32),
        form("ge", "s32", 32, |a, b| a as i32 >= b as i32),
        form("lo", "u64", 64, |a, b| a < b),
        form("gt", "s64", 64, |a, b| a.cast_signed() > b.cast_signed()),
        form("eq", "b16", 16, |a, b| a as u16 == b as u16),
        form("ne", "b32", 32, |a, b| a as u32 != b as u32),
        form("eq", "b64", 64, |a, b| a == b),
    ];
    check(dut, &integers, &values::integers());
    for (format, ty, operands) in [(F32, "f32", values::singles()), (F64, "f64", values::doubles())] {
        let mask = u64::MAX >> (64 - format.bits);
        let forms = COMPARISONS.map(|(name, test)| {
            Form::new(&format!("set.{name}.bf16.{ty}"), 16, &[format.bits; 2], move |[a, b, _]| {
                result(test(exact::order(format, a & mask, b & mask)))
            })
        });
        check(dut, &forms, &operands);
    }
}

/// `setp` and `set` that combine the comparison, and its complement, with bit 0 of `c` or its complement.
fn combined(forms: &mut Vec<Form>) {
    type Operator = fn(bool, bool) -> bool;
    const OPERATORS: [(&str, Operator); 3] =
        [("and", |a, b| a & b), ("or", |a, b| a | b), ("xor", |a, b| a ^ b)];
    let third = "and.b32 %n, %c32, 1; setp.ne.u32 %p, %n, 0;";
    for (name, operator) in OPERATORS {
        for (sign, negated) in [("", false), ("!", true)] {
            let both = move |[a, b, c]: [u64; 3]| {
                let (less, third) = ((a as u32) < b as u32, (c & 1 != 0) != negated);
                [operator(less, third), operator(!less, third)].map(u64::from)
            };
            forms.push(Form::raw(
                format!(
                    "{third} setp.lt.{name}.u32 %p|%q, %a32, %b32, {sign}%p; \
                     selp.u64 %x64, 1, 0, %p; selp.u64 %y64, 1, 0, %q;"
                ),
                both,
            ));
            forms.push(Form::raw(
                format!("{third} set.lt.{name}.s32.u32 %x32, %a32, %b32, {sign}%p; cvt.u64.u32 %x64, %x32;"),
                move |operands| [both(operands)[0] * 0xffff_ffff, 0],
            ));
        }
    }
}
