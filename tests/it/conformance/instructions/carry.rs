//! `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc`: results, and the flag they leave, for both values of the flag before.

use super::super::dut::Dut;
use super::table::{Form, Operands, check};
use super::values;

/// Instructions that set the flag to bit 0 of `c`, and that read it into `%y64`.
const SET: &str = "and.b64 %y64, %c64, 1; add.cc.u64 %y64, %y64, -1;";
const READ: &str = "addc.u64 %y64, 0, 0;";

fn cut(value: u64, width: u32) -> u128 {
    u128::from(value) & ((1 << width) - 1)
}

/// The sum and its carry.
fn sum(width: u32, parts: [u128; 3]) -> [u64; 2] {
    let exact: u128 = parts.iter().sum();
    [cut(exact as u64, width) as u64, (exact >> width & 1) as u64]
}

fn form(
    instruction: &str,
    width: u32,
    operands: &str,
    oracle: impl Fn(Operands) -> [u64; 2] + 'static,
) -> Form {
    let widen = if width == 32 { "cvt.u64.u32 %x64, %x32;" } else { "" };
    Form::raw(format!("{SET} {instruction} %x{width}, {operands}; {READ} {widen}"), oracle)
}

pub(crate) fn carry_flag(dut: &Dut) {
    let mut forms = Vec::new();
    for (ty, width, signed) in [("u32", 32, false), ("s32", 32, true), ("u64", 64, false), ("s64", 64, true)]
    {
        let two = format!("%a{width}, %b{width}");
        let add =
            move |[a, b, _]: Operands, flag: u64| sum(width, [cut(a, width), cut(b, width), flag.into()]);
        // Hardware subtracts by adding the complement, with the flag as the carry into it.
        let sub =
            move |[a, b, _]: Operands, flag: u64| sum(width, [cut(a, width), cut(!b, width), flag.into()]);
        forms.push(form(&format!("add.cc.{ty}"), width, &two, move |o| add(o, 0)));
        forms.push(form(&format!("addc.cc.{ty}"), width, &two, move |o| add(o, o[2] & 1)));
        forms.push(form(&format!("sub.cc.{ty}"), width, &two, move |o| sub(o, 1)));
        forms.push(form(&format!("subc.cc.{ty}"), width, &two, move |o| sub(o, o[2] & 1)));
        // Without `.cc` the flag stays.
        forms.push(form(&format!("addc.{ty}"), width, &two, move |o| [add(o, o[2] & 1)[0], o[2] & 1]));
        forms.push(form(&format!("subc.{ty}"), width, &two, move |o| [sub(o, o[2] & 1)[0], o[2] & 1]));
        let three = format!("{two}, %c{width}");
        for hi in [false, true] {
            let mad = move |[a, b, c]: Operands, flag: u64| {
                let product = super::integers::product(a, b, width, signed);
                let half = if hi { product >> width } else { product };
                sum(width, [cut(half as u64, width), cut(c, width), flag.into()])
            };
            let part = if hi { "hi" } else { "lo" };
            forms.push(form(&format!("mad.{part}.cc.{ty}"), width, &three, move |o| mad(o, 0)));
            forms.push(form(&format!("madc.{part}.cc.{ty}"), width, &three, move |o| mad(o, o[2] & 1)));
            forms.push(form(&format!("madc.{part}.{ty}"), width, &three, move |o| {
                [mad(o, o[2] & 1)[0], o[2] & 1]
            }));
        }
    }
    // A chain as a compiler emits it, where a subtraction feeds an addition.
    let chain = "sub.cc.u64 %x64, %a64, %b64; addc.u64 %x64, %c64, 0;";
    forms.push(Form::raw(chain.to_owned(), |[a, b, c]| [c.wrapping_add(u64::from(a >= b)), 0]));
    check(dut, &forms, &values::integers());
}
