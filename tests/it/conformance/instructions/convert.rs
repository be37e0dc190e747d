//! `cvt` between integers and floats, in every direction of rounding, with `.sat`, `.ftz` and `.relu`.

use super::super::dut::Dut;
use super::exact::{BF16, Exact, F16, F32, F64, Format, MODES, Mode, Value, decode};
use super::table::{Form, check};
use super::values;

const FLOATS: [(&str, Format); 4] = [("f16", F16), ("bf16", BF16), ("f32", F32), ("f64", F64)];
const INTEGERS: [(&str, u32, bool); 8] = [
    ("u8", 8, false),
    ("s8", 8, true),
    ("u16", 16, false),
    ("s16", 16, true),
    ("u32", 32, false),
    ("s32", 32, true),
    ("u64", 64, false),
    ("s64", 64, true),
];

fn mask(bits: u32) -> u64 {
    if bits == 64 { u64::MAX } else { (1 << bits) - 1 }
}

fn integer(value: u64, width: u32, signed: bool) -> i128 {
    let low = i128::from(value & mask(width));
    if signed && low >> (width - 1) != 0 { low - (1 << width) } else { low }
}

fn range(width: u32, signed: bool) -> (i128, i128) {
    if signed { (-(1 << (width - 1)), (1 << (width - 1)) - 1) } else { (0, (1 << width) - 1) }
}

/// `cvt` from `%a` of `from` bits to `%x64`. A result narrower than its register is extended by its type.
fn form(instruction: &str, to: u32, from: u32, oracle: impl Fn(u64) -> u64 + 'static) -> Form {
    let register = to.max(16);
    Form::new(instruction, register, &[from.max(16)], move |[a, ..]| oracle(a) & mask(register))
}

/// The bits of a number after conversion to `format`.
fn round(value: &Value, format: Format, mode: Mode) -> u64 {
    match value {
        Value::Nan => format.nan(),
        Value::Infinity(negative) => format.infinity() | if *negative { format.sign() } else { 0 },
        Value::Number(number) => number.round(format, mode),
    }
}

pub(crate) fn conversions(dut: &Dut) {
    between_integers(dut);
    from_integers(dut);
    for (ty, format) in FLOATS {
        let operands = match ty {
            "f32" => values::singles(),
            "f64" => values::doubles(),
            _ => values::halves(),
        };
        to_integers(dut, ty, format, &operands);
        between_floats(dut, ty, format, &operands);
        if format != BF16 {
            within_a_float(dut, ty, format, &operands);
        }
    }
}

/// ptxas takes no registers of 16 bits for conversions between `bf16` and 8 bits.
fn eight_bits_of_bf16(format: Format, width: u32) -> bool {
    format == BF16 && width == 8
}

fn between_integers(dut: &Dut) {
    let mut forms = Vec::new();
    for (to, width, signed) in INTEGERS {
        for (from, source, source_signed) in INTEGERS {
            forms.push(form(&format!("cvt.{to}.{from}"), width, source, move |a| {
                integer(integer(a, source, source_signed) as u64, width, signed) as u64
            }));
            let (least, most) = range(width, signed);
            let (low, high) = range(source, source_signed);
            if least > low || most < high {
                forms.push(form(&format!("cvt.sat.{to}.{from}"), width, source, move |a| {
                    integer(a, source, source_signed).clamp(least, most) as u64
                }));
            }
        }
    }
    check(dut, &forms, &values::integers());
}

fn from_integers(dut: &Dut) {
    let mut forms = Vec::new();
    for (to, format) in FLOATS {
        for (from, source, signed) in INTEGERS {
            if eight_bits_of_bf16(format, source) {
                continue;
            }
            for (round, mode) in MODES {
                for sat in if format == BF16 { &[false][..] } else { &[false, true] } {
                    let word = if *sat { ".sat" } else { "" };
                    forms.push(form(
                        &format!("cvt.{round}{word}.{to}.{from}"),
                        format.bits,
                        source,
                        move |a| {
                            let bits = Exact::integer(integer(a, source, signed)).round(format, mode);
                            if *sat { format.saturate(bits) } else { bits }
                        },
                    ));
                }
            }
        }
    }
    check(dut, &forms, &values::integers());
}

fn to_integers(dut: &Dut, ty: &str, format: Format, operands: &[[u64; 3]]) {
    let mut forms = Vec::new();
    for (to, width, signed) in INTEGERS {
        if eight_bits_of_bf16(format, width) {
            continue;
        }
        for (round, mode) in
            [("rni", Mode::Nearest), ("rzi", Mode::Zero), ("rmi", Mode::Down), ("rpi", Mode::Up)]
        {
            // Results are clamped with and without `.sat`.
            for word in ["", ".ftz", ".sat", ".ftz.sat"] {
                let ftz = word.contains("ftz");
                if ftz && format != F32 || word.contains("sat") && format == BF16 {
                    continue;
                }
                forms.push(form(&format!("cvt.{round}{word}.{to}.{ty}"), width, format.bits, move |a| {
                    let bits = a & mask(format.bits);
                    let bits = if ftz { format.flush(bits) } else { bits };
                    if format.is_nan(bits) {
                        // PTX ISA: zero, or the top bit alone if a type has 64 bits.
                        let long = format == F64 || width == 64;
                        return if long { integer(1 << (width - 1), width, signed) as u64 } else { 0 };
                    }
                    let (least, most) = range(width, signed);
                    whole(format, bits, mode).clamp(least, most) as u64
                }));
            }
        }
    }
    check(dut, &forms, operands);
}

/// The integral number next to a value; one beyond 2^100 stands for all larger ones.
fn whole(format: Format, bits: u64, mode: Mode) -> i128 {
    integral(format.value(bits), mode) as i128
}

fn integral(value: f64, mode: Mode) -> f64 {
    match mode {
        Mode::Nearest => value.round_ties_even(),
        Mode::Zero => value.trunc(),
        Mode::Down => value.floor(),
        Mode::Up => value.ceil(),
    }
}

/// Conversions of a type to itself, which round to integral numbers, flush or saturate.
fn within_a_float(dut: &Dut, ty: &str, format: Format, operands: &[[u64; 3]]) {
    let mut forms = Vec::new();
    let roundings =
        [(".rni", Mode::Nearest), (".rzi", Mode::Zero), (".rmi", Mode::Down), (".rpi", Mode::Up)].map(Some);
    for rounding in roundings.into_iter().chain([None]) {
        for words in ["", ".ftz", ".sat", ".ftz.sat"] {
            let (ftz, sat) = (words.contains("ftz"), words.contains("sat"));
            if ftz && format != F32 {
                continue;
            }
            let round = rounding.map_or("", |(word, _)| word);
            let one = form(&format!("cvt{round}{words}.{ty}.{ty}"), format.bits, format.bits, move |a| {
                let bits = a & mask(format.bits);
                let bits = if ftz { format.flush(bits) } else { bits };
                let bits = match rounding {
                    Some((_, mode)) if !format.is_nan(bits) => {
                        format.nearest(integral(format.value(bits), mode))
                    }
                    _ => bits,
                };
                if sat { format.saturate(bits) } else { bits }
            });
            forms.push(one.any_nan(format));
        }
    }
    check(dut, &forms, operands);
}

fn between_floats(dut: &Dut, ty: &str, format: Format, operands: &[[u64; 3]]) {
    let mut forms = Vec::new();
    for (to, target) in FLOATS {
        let widens = target.bits > format.bits;
        if target == format || target.bits == format.bits {
            continue;
        }
        let modes: &[(&str, Mode)] = if widens { &[("", Mode::Nearest)] } else { &MODES };
        for (name, mode) in modes.iter().copied() {
            let dotted = if widens { String::new() } else { format!(".{name}") };
            for words in ["", ".ftz", ".sat", ".ftz.sat", ".relu"] {
                let single = format == F32 || target == F32;
                // Only conversions with f32 flush, and only those from f32 to 16 bits have `.relu`. bf16 has no `.sat`.
                let exists = match words {
                    ".ftz" | ".ftz.sat" => {
                        single && ![format, target].contains(&BF16) && (format != F32 || target.bits != 16)
                    }
                    ".sat" => target != BF16 && format != BF16,
                    ".relu" => {
                        format == F32 && target.bits == 16 && matches!(mode, Mode::Nearest | Mode::Zero)
                    }
                    _ => true,
                };
                // bf16 converts from f32 to nearest or towards zero, and from f64 not at all.
                let pair = [format, target].contains(&BF16);
                if !exists
                    || pair && !(format == F32 || widens)
                    || pair && matches!(mode, Mode::Down | Mode::Up)
                {
                    continue;
                }
                if pair && [format, target].contains(&F64) {
                    continue;
                }
                if format == F32 && target == F16 && matches!(mode, Mode::Down | Mode::Up) && words == ".relu"
                {
                    continue;
                }
                let one =
                    form(&format!("cvt{dotted}{words}.{to}.{ty}"), target.bits, format.bits, move |a| {
                        let bits = a & mask(format.bits);
                        let bits =
                            if words.contains("ftz") && format == F32 { format.flush(bits) } else { bits };
                        let bits = if format == BF16 && target == F32 {
                            // All bits of a NaN are kept.
                            bits << 16
                        } else {
                            round(&decode(format, bits), target, mode)
                        };
                        let bits =
                            if words.contains("ftz") && target == F32 { target.flush(bits) } else { bits };
                        match words {
                            ".sat" | ".ftz.sat" => target.saturate(bits),
                            ".relu" if !target.is_nan(bits) && bits & target.sign() != 0 => 0,
                            _ => bits,
                        }
                    });
                // Hardware keeps parts of the payload of an f64.
                forms.push(if target == F64 || format == F64 { one.any_nan(target) } else { one });
            }
        }
    }
    if format == F32 {
        for (to, target) in [("f16x2", F16), ("bf16x2", BF16)] {
            for (name, mode) in &MODES[..2] {
                for (word, relu) in [("", false), (".relu", true)] {
                    let one = move |bits: u64| {
                        let bits = round(&decode(F32, bits & 0xffff_ffff), target, *mode);
                        let negative = bits & target.sign() != 0 && !target.is_nan(bits);
                        if relu && negative { 0 } else { bits }
                    };
                    let name = format!("cvt.{name}{word}.{to}.f32");
                    forms.push(Form::new(&name, 32, &[32, 32], move |[a, b, _]| one(a) << 16 | one(b)));
                }
            }
        }
    }
    check(dut, &forms, operands);
}
