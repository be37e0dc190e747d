//! `setp`, `set` and `slct` with every comparison of every type.

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
    if width > 16 {
        let test = holds.clone();
        forms.push(Form::new(&format!("set.{name}.u32.{ty}"), 32, &[width; 2], move |[a, b, _]| {
            u64::from(test(a, b)) * 0xffff_ffff
        }));
        forms.push(Form::new(&format!("set.{name}.f32.{ty}"), 32, &[width; 2], move |[a, b, _]| {
            u64::from(holds(a, b)) * 0x3f80_0000
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
    forms.push(Form::new(&format!("set.{form}.u32.{ty}"), 32, &[16; 2], move |[a, b, _]| {
        u64::from(holds(a, b)) * 0xffff_ffff
    }));
    let both = move |a: u64, b: u64| [holds(a, b), holds(a >> 16, b >> 16)].map(u64::from);
    let packed = move |[low, high]: [u64; 2], truth: u64| (low * truth) | ((high * truth) << 16);
    forms.push(Form::raw(
        format!("setp.{form}.{ty}x2 %p|%q, %a32, %b32; selp.u64 %x64, 1, 0, %p; selp.u64 %y64, 1, 0, %q;"),
        move |[a, b, _]| both(a, b),
    ));
    forms.push(Form::new(&format!("set.{form}.{ty}x2.{ty}x2"), 32, &[32; 2], move |[a, b, _]| {
        packed(both(a, b), one)
    }));
    forms.push(Form::new(&format!("set.{form}.u32.{ty}x2"), 32, &[32; 2], move |[a, b, _]| {
        packed(both(a, b), 0xffff)
    }));
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
        }
    }
    forms.push(Form::new(
        "slct.u64.s32",
        64,
        &[64, 64, 32],
        |[a, b, c]| if c & 0x8000_0000 == 0 { a } else { b },
    ));
    check(dut, &forms, &values::integers());
    floats(dut, F32, "f32", &values::singles());
    floats(dut, F64, "f64", &values::doubles());
    floats(dut, F16, "f16", &values::halves());
    floats(dut, BF16, "bf16", &values::halves());
}
