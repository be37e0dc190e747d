//! Integer arithmetic, and instructions on bits and bytes.

use super::super::dut::Dut;
use super::table::{Form, Operands, check};
use super::values;

/// The low `width` bits of `value`, extended by their sign if `signed`.
pub(super) fn extend(value: u64, width: u32, signed: bool) -> i128 {
    let low = i128::from(value) & ((1 << width) - 1);
    if signed && low >> (width - 1) != 0 { low - (1 << width) } else { low }
}

/// The low `width` bits of a result.
pub(super) fn cut(value: i128, width: u32) -> u64 {
    (value & ((1 << width) - 1)) as u64
}

/// The whole product, in two's complement.
pub(super) fn product(a: u64, b: u64, width: u32, signed: bool) -> u128 {
    extend(a, width, signed).wrapping_mul(extend(b, width, signed)).cast_unsigned()
}

pub(super) fn clamp(value: i128, width: u32, signed: bool) -> u64 {
    let (least, most) =
        if signed { (-(1 << (width - 1)), (1 << (width - 1)) - 1) } else { (0, (1 << width) - 1) };
    cut(value.clamp(least, most), width)
}

const TYPES: [(&str, u32, bool); 6] = [
    ("u16", 16, false),
    ("s16", 16, true),
    ("u32", 32, false),
    ("s32", 32, true),
    ("u64", 64, false),
    ("s64", 64, true),
];

pub(crate) fn sums_and_quotients(dut: &Dut) {
    let mut forms = Vec::new();
    for (ty, width, signed) in TYPES {
        let mut two = |name: &str, oracle: fn(i128, i128) -> i128| {
            forms.push(Form::new(&format!("{name}.{ty}"), width, &[width; 2], move |[a, b, _]| {
                cut(oracle(extend(a, width, signed), extend(b, width, signed)), width)
            }));
        };
        two("add", |a, b| a + b);
        two("sub", |a, b| a - b);
        two("min", i128::min);
        two("max", i128::max);
        // The result of a division by zero is undefined in PTX; the compiler's sequences give all ones.
        let [a, b] = [format!("%a{width}"), format!("%b{width}")];
        let widen = if width == 64 { String::new() } else { format!("cvt.u64.u{width} %x64, %x{width};") };
        for (name, remainder) in [("div", false), ("rem", true)] {
            let body = format!(
                "{name}.{ty} %x{width}, {a}, {b}; {widen} setp.eq.u{width} %p, {b}, 0; @%p mov.u64 %x64, 0;"
            );
            forms.push(Form::raw(body, move |[a, b, _]| {
                let (a, b) = (extend(a, width, signed), extend(b, width, signed));
                let value = if b == 0 {
                    0
                } else if remainder {
                    a % b
                } else {
                    a / b
                };
                [cut(value, width), 0]
            }));
        }
        if signed {
            forms.push(Form::new(&format!("neg.{ty}"), width, &[width], move |[a, ..]| {
                cut(-extend(a, width, true), width)
            }));
            forms.push(Form::new(&format!("abs.{ty}"), width, &[width], move |[a, ..]| {
                cut(extend(a, width, true).abs(), width)
            }));
        }
        forms.push(Form::new(&format!("sad.{ty}"), width, &[width; 3], move |[a, b, c]| {
            let difference = (extend(a, width, signed) - extend(b, width, signed)).abs();
            cut(difference + extend(c, width, signed), width)
        }));
    }
    for (name, sign) in [("add.sat.s32", 1), ("sub.sat.s32", -1)] {
        forms.push(Form::new(name, 32, &[32, 32], move |[a, b, _]| {
            clamp(extend(a, 32, true) + sign * extend(b, 32, true), 32, true)
        }));
    }
    for name in ["min", "max"] {
        forms.push(Form::new(&format!("{name}.relu.s32"), 32, &[32, 32], move |[a, b, _]| {
            let (a, b) = (extend(a, 32, true), extend(b, 32, true));
            cut(if name == "min" { a.min(b) } else { a.max(b) }.max(0), 32)
        }));
    }
    for (name, op) in
        [("add", (|a, b| a + b) as fn(i128, i128) -> i128), ("min", i128::min), ("max", i128::max)]
    {
        for (ty, signed, relu) in [("u16x2", false, false), ("s16x2", true, false), ("s16x2", true, true)] {
            if relu && name == "add" {
                continue;
            }
            let word = if relu { ".relu" } else { "" };
            forms.push(Form::new(&format!("{name}{word}.{ty}"), 32, &[32, 32], move |[a, b, _]| {
                [0, 16].into_iter().fold(0, |word, shift| {
                    let value = op(extend(a >> shift, 16, signed), extend(b >> shift, 16, signed));
                    word | cut(if relu { value.max(0) } else { value }, 16) << shift
                })
            }));
        }
    }
    check(dut, &forms, &values::integers());
}

pub(crate) fn products(dut: &Dut) {
    let mut forms = Vec::new();
    for (ty, width, signed) in TYPES {
        let hi = move |a, b| cut((product(a, b, width, signed) >> width).cast_signed(), width);
        let lo = move |a, b| cut(product(a, b, width, signed).cast_signed(), width);
        forms.push(Form::new(&format!("mul.lo.{ty}"), width, &[width; 2], move |[a, b, _]| lo(a, b)));
        forms.push(Form::new(&format!("mul.hi.{ty}"), width, &[width; 2], move |[a, b, _]| hi(a, b)));
        let plus = move |a: u64, c: u64| cut(i128::from(a) + i128::from(c), width);
        forms
            .push(Form::new(&format!("mad.lo.{ty}"), width, &[width; 3], move |[a, b, c]| plus(lo(a, b), c)));
        forms
            .push(Form::new(&format!("mad.hi.{ty}"), width, &[width; 3], move |[a, b, c]| plus(hi(a, b), c)));
        if width < 64 {
            let wide = move |a, b| extend(a, width, signed) * extend(b, width, signed);
            let double = 2 * width;
            forms.push(Form::new(&format!("mul.wide.{ty}"), double, &[width; 2], move |[a, b, _]| {
                cut(wide(a, b), double)
            }));
            forms.push(Form::new(
                &format!("mad.wide.{ty}"),
                double,
                &[width, width, double],
                move |[a, b, c]| cut(wide(a, b) + i128::from(c), double),
            ));
        }
    }
    forms.push(Form::new("mad.hi.sat.s32", 32, &[32; 3], |[a, b, c]| {
        clamp(((extend(a, 32, true) * extend(b, 32, true)) >> 32) + extend(c, 32, true), 32, true)
    }));
    forms.push(Form::new("mad24.hi.sat.s32", 32, &[32; 3], |[a, b, c]| {
        clamp(((extend(a, 24, true) * extend(b, 24, true)) >> 16) + extend(c, 32, true), 32, true)
    }));
    for (ty, signed) in [("u32", false), ("s32", true)] {
        let wide = move |a, b| extend(a, 24, signed) * extend(b, 24, signed);
        forms.push(Form::new(&format!("mul24.lo.{ty}"), 32, &[32; 2], move |[a, b, _]| cut(wide(a, b), 32)));
        forms.push(Form::new(&format!("mul24.hi.{ty}"), 32, &[32; 2], move |[a, b, _]| {
            cut(wide(a, b) >> 16, 32)
        }));
        forms.push(Form::new(&format!("mad24.lo.{ty}"), 32, &[32; 3], move |[a, b, c]| {
            cut(wide(a, b) + i128::from(c), 32)
        }));
        forms.push(Form::new(&format!("mad24.hi.{ty}"), 32, &[32; 3], move |[a, b, c]| {
            cut((wide(a, b) >> 16) + i128::from(c), 32)
        }));
        for (other, b_signed) in [("u32", false), ("s32", true)] {
            let dot = move |[a, b, c]: Operands, parts: &[(u32, u32, u32)]| {
                let sum: i128 = parts
                    .iter()
                    .map(|(at, bits, from)| extend(a >> at, *bits, signed) * extend(b >> from, 8, b_signed))
                    .sum();
                cut(sum + i128::from(c), 32)
            };
            let bytes = [(0, 8, 0), (8, 8, 8), (16, 8, 16), (24, 8, 24)];
            forms.push(Form::new(&format!("dp4a.{ty}.{other}"), 32, &[32; 3], move |o| dot(o, &bytes)));
            let (lo, hi) = ([(0, 16, 0), (16, 16, 8)], [(0, 16, 16), (16, 16, 24)]);
            forms.push(Form::new(&format!("dp2a.lo.{ty}.{other}"), 32, &[32; 3], move |o| dot(o, &lo)));
            forms.push(Form::new(&format!("dp2a.hi.{ty}.{other}"), 32, &[32; 3], move |o| dot(o, &hi)));
        }
    }
    check(dut, &forms, &values::integers());
}

/// Bit `at` of the low `width` bits.
fn bit(value: u64, width: u32, at: u64) -> bool {
    at < u64::from(width) && value >> at & 1 != 0
}

/// The number whose bit `at` is `choose(at)`, for each of `width` bits.
fn bits(width: u32, choose: impl Fn(u64) -> bool) -> u64 {
    (0..u64::from(width)).fold(0, |value, at| value | u64::from(choose(at)) << at)
}

fn leading(value: u64, width: u32) -> u64 {
    u64::from((value << (64 - width)).leading_zeros().min(width))
}

pub(crate) fn bits_and_bytes(dut: &Dut) {
    let mut forms = Vec::new();
    for width in [32u32, 64] {
        let low = move |a: u64| cut(i128::from(a), width);
        let one = |name: &str| format!("{name}.b{width}");
        forms.push(Form::new(&one("popc"), 32, &[width], move |[a, ..]| low(a).count_ones().into()));
        forms.push(Form::new(&one("clz"), 32, &[width], move |[a, ..]| leading(low(a), width)));
        forms.push(Form::new(&one("brev"), width, &[width], move |[a, ..]| {
            bits(width, |at| bit(a, width, u64::from(width) - 1 - at))
        }));
        forms.push(Form::new(&one("cnot"), width, &[width], move |[a, ..]| u64::from(low(a) == 0)));
        for (sign, signed) in [("u", false), ("s", true)] {
            let zeros = move |a: u64| {
                let negative = signed && bit(a, width, u64::from(width) - 1);
                leading(if negative { low(!a) } else { low(a) }, width)
            };
            let none = u64::from(u32::MAX);
            forms.push(Form::new(&format!("bfind.{sign}{width}"), 32, &[width], move |[a, ..]| {
                if zeros(a) == u64::from(width) { none } else { u64::from(width) - 1 - zeros(a) }
            }));
            forms.push(Form::new(&format!("bfind.shiftamt.{sign}{width}"), 32, &[width], move |[a, ..]| {
                if zeros(a) == u64::from(width) { none } else { zeros(a) }
            }));
            let field = move |[a, b, c]: Operands| {
                let (pos, len) = (b & 0xff, c & 0xff);
                let top = (pos + len).saturating_sub(1).min(u64::from(width) - 1);
                let sign = signed && len != 0 && bit(a, width, top);
                bits(width, |at| {
                    if at < len && pos + at < u64::from(width) { bit(a, width, pos + at) } else { sign }
                })
            };
            forms.push(if width == 64 {
                // An H200 does not cut longer positions and lengths to 8 bits here, as PTX says and as it does for 32 bits.
                let cut = "and.b32 %b32, %b32, 255; and.b32 %c32, %c32, 255;";
                let body = format!("{cut} bfe.{sign}64 %x64, %a64, %b32, %c32;");
                Form::raw(body, move |operands| [field(operands), 0])
            } else {
                Form::new(&format!("bfe.{sign}{width}"), width, &[width, 32, 32], field)
            });
        }
        for (pos, len) in
            [(0, 0), (0, 8), (5, 11), (28, 8), (31, 1), (32, 4), (60, 9), (0, 64), (0, 255), (255, 3)]
        {
            let body = format!("bfi.b{width} %x{width}, %a{width}, %b{width}, {pos}, {len};");
            let widen = if width == 32 { " cvt.u64.u32 %x64, %x32;" } else { "" };
            forms.push(Form::raw(body + widen, move |[a, b, _]| {
                let inside = |at: u64| at >= pos && at - pos < len;
                [bits(width, |at| if inside(at) { bit(a, width, at - pos) } else { bit(b, width, at) }), 0]
            }));
        }
    }
    shifts(&mut forms);
    for (name, left, wrap) in [
        ("shf.l.clamp", true, false),
        ("shf.l.wrap", true, true),
        ("shf.r.clamp", false, false),
        ("shf.r.wrap", false, true),
    ] {
        forms.push(Form::new(&format!("{name}.b32"), 32, &[32; 3], move |[a, b, c]| {
            let pair = u128::from(b & 0xffff_ffff) << 32 | u128::from(a & 0xffff_ffff);
            let amount = if wrap { c & 31 } else { (c & 0xffff_ffff).min(32) };
            let shifted = if left { pair << amount >> 32 } else { pair >> amount };
            shifted as u64 & 0xffff_ffff
        }));
    }
    for table in [0u64, 0x01, 0x80, 0x96, 0xe8, 0x1b, 0xca, 0xff] {
        let body = format!("lop3.b32 %x32, %a32, %b32, %c32, {table}; cvt.u64.u32 %x64, %x32;");
        forms.push(Form::raw(body, move |[a, b, c]| {
            [bits(32, |at| table >> ((a >> at & 1) << 2 | (b >> at & 1) << 1 | c >> at & 1) & 1 != 0), 0]
        }));
    }
    for mode in ["", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"] {
        forms.push(Form::new(&format!("prmt.b32{mode}"), 32, &[32; 3], move |[a, b, c]| {
            let source = (b & 0xffff_ffff) << 32 | a & 0xffff_ffff;
            let s = c & 3;
            (0..4).fold(0, |word, k| {
                let choice = match mode {
                    "" => c >> (4 * k) & 15,
                    ".f4e" => s + k,
                    ".b4e" => (8 + s - k) & 7,
                    ".rc8" => s,
                    ".ecl" => k.max(s),
                    ".ecr" => k.min(s),
                    _ => (s & 1) * 2 + (k & 1),
                };
                let byte = source >> (8 * (choice & 7)) & 0xff;
                let byte = if mode.is_empty() && choice & 8 != 0 { (byte >> 7) * 0xff } else { byte };
                word | byte << (8 * k)
            })
        }));
    }
    for (mode, wrap) in [("clamp", false), ("wrap", true)] {
        let limit = move |v: u64| if wrap { v & 31 } else { (v & 0xffff_ffff).min(32) };
        forms.push(Form::new(&format!("bmsk.{mode}.b32"), 32, &[32; 2], move |[a, b, _]| {
            bits(32, |at| at >= limit(a) && at - limit(a) < limit(b))
        }));
        for (sign, signed) in [("u", false), ("s", true)] {
            forms.push(Form::new(
                &format!("szext.{mode}.{sign}32"),
                32,
                &[32; 2],
                move |[a, b, _]| match limit(b) {
                    0 => 0,
                    width => cut(extend(a, width as u32, signed), 32),
                },
            ));
        }
    }
    check(dut, &forms, &values::integers());
}

fn shifts(forms: &mut Vec<Form>) {
    for width in [16u32, 32, 64] {
        forms.push(Form::new(&format!("shl.b{width}"), width, &[width, 32], move |[a, b, _]| {
            let amount = b & 0xffff_ffff;
            if amount >= u64::from(width) { 0 } else { cut(i128::from(a << amount), width) }
        }));
        for (sign, signed) in [("b", false), ("u", false), ("s", true)] {
            forms.push(Form::new(&format!("shr.{sign}{width}"), width, &[width, 32], move |[a, b, _]| {
                let amount = (b & 0xffff_ffff).min(127);
                cut(extend(a, width, signed) >> amount, width)
            }));
        }
    }
}
