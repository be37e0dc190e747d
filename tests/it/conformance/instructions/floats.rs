//! Floating-point arithmetic in every direction of rounding, with `.ftz`, `.sat` and `.relu`.

use super::super::dut::Dut;
use super::exact::{self, BF16, F16, F32, F64, Format, MODES, Mode};
use super::table::{Form, Operands, check};
use super::values;

/// Modifiers of operands and results besides rounding.
#[derive(Clone, Copy, Debug, Default)]
struct Extra {
    ftz: bool,
    sat: bool,
    relu: bool,
}

impl Extra {
    fn before(self, format: Format, bits: u64) -> u64 {
        if self.ftz { format.flush(bits) } else { bits }
    }

    /// `truncated` is the result rounded towards zero: a number below the normal ones becomes zero even if it was rounded up
    /// to the least of them.
    fn after(self, format: Format, bits: u64, truncated: u64) -> u64 {
        let tiny = self.ftz && format.flush(truncated) & (format.sign() - 1) == 0;
        let bits = if tiny { bits & format.sign() } else { self.before(format, bits) };
        if self.sat {
            format.saturate(bits)
        } else if self.relu && !format.is_nan(bits) && bits & format.sign() != 0 {
            0
        } else {
            bits
        }
    }
}

/// `neg` of the operand of a subtraction.
fn negated(format: Format, bits: u64) -> u64 {
    bits ^ format.sign()
}

/// Rounding as written, where none stands for `.rn`.
fn roundings(name: &str) -> impl Iterator<Item = (String, Mode)> {
    let default = matches!(name, "add" | "sub" | "mul").then(|| (String::new(), Mode::Nearest));
    MODES.into_iter().map(|(word, mode)| (format!(".{word}"), mode)).chain(default)
}

type Function = fn(Format, [u64; 3], Mode) -> u64;

const ADD: Function = |f, [a, b, _], mode| exact::add(f, a, b, mode);
const SUB: Function = |f, [a, b, _], mode| exact::add(f, a, negated(f, b), mode);
const MUL: Function = |f, [a, b, _], mode| exact::mul(f, a, b, mode);
const FMA: Function = exact::fma;
/// `mad` on floats is `fma`.
const ARITHMETIC: [(&str, usize, Function); 5] =
    [("add", 2, ADD), ("sub", 2, SUB), ("mul", 2, MUL), ("fma", 3, FMA), ("mad", 3, FMA)];
const DIV: Function = |f, [a, b, _], mode| exact::div(f, a, b, mode);
const RCP: Function = |f, [a, ..], mode| exact::div(f, one(f), a, mode);
const SQRT: Function = |f, [a, ..], mode| exact::sqrt(f, a, mode);

fn one(format: Format) -> u64 {
    match format {
        F16 => 0x3c00,
        BF16 => 0x3f80,
        F32 => 0x3f80_0000,
        _ => 0x3ff0_0000_0000_0000,
    }
}

/// One form on scalars.
fn scalar(
    instruction: &str,
    format: Format,
    sources: usize,
    extra: Extra,
    mode: Mode,
    function: Function,
) -> Form {
    let mask = if format.bits == 64 { u64::MAX } else { (1 << format.bits) - 1 };
    let form = Form::new(instruction, format.bits, &vec![format.bits; sources], move |operands: Operands| {
        let operands = operands.map(|bits| extra.before(format, bits & mask));
        extra.after(format, function(format, operands, mode), function(format, operands, Mode::Zero))
    });
    if format == F64 { form.any_nan(format) } else { form }
}

/// One form on pairs of halves.
fn pair(instruction: &str, format: Format, sources: usize, extra: Extra, function: Function) -> Form {
    Form::new(instruction, 32, &vec![32; sources], move |operands: Operands| {
        [0, 16].into_iter().fold(0, |word, shift| {
            let operands = operands.map(|bits| extra.before(format, bits >> shift & 0xffff));
            let rounded = |mode| function(format, operands, mode);
            word | extra.after(format, rounded(Mode::Nearest), rounded(Mode::Zero)) << shift
        })
    })
}

pub(crate) fn singles(dut: &Dut) {
    let mut forms = Vec::new();
    for (name, sources, function) in ARITHMETIC {
        for (round, mode) in roundings(name) {
            for (ftz, sat) in [(false, false), (true, false), (false, true), (true, true)] {
                let words = [if ftz { ".ftz" } else { "" }, if sat { ".sat" } else { "" }].concat();
                let extra = Extra { ftz, sat, relu: false };
                forms.push(scalar(&format!("{name}{round}{words}.f32"), F32, sources, extra, mode, function));
            }
        }
    }
    extremes(
        &mut forms,
        F32,
        "f32",
        &[
            "",
            ".ftz",
            ".NaN",
            ".ftz.NaN",
            ".xorsign.abs",
            ".NaN.xorsign.abs",
            ".ftz.xorsign.abs",
            ".ftz.NaN.xorsign.abs",
        ],
    );
    signs(&mut forms, F32, "f32");
    check(dut, &forms, &values::singles());
}

pub(crate) fn doubles(dut: &Dut) {
    let mut forms = Vec::new();
    let none = Extra::default();
    for (name, sources, function) in ARITHMETIC {
        for (round, mode) in roundings(name) {
            forms.push(scalar(&format!("{name}{round}.f64"), F64, sources, none, mode, function));
        }
    }
    extremes(&mut forms, F64, "f64", &[""]);
    signs(&mut forms, F64, "f64");
    check(dut, &forms, &values::doubles());
}

pub(crate) fn quotients_and_roots(dut: &Dut) {
    for (format, ty, operands) in [(F32, "f32", values::singles()), (F64, "f64", values::doubles())] {
        let mut forms = Vec::new();
        for (name, sources, function) in [("div", 2, DIV), ("rcp", 1, RCP), ("sqrt", 1, SQRT)] {
            for (round, mode) in MODES {
                for ftz in [false, true] {
                    if ftz && format == F64 {
                        continue;
                    }
                    let word = if ftz { ".ftz" } else { "" };
                    let extra = Extra { ftz, ..Extra::default() };
                    forms.push(scalar(
                        &format!("{name}.{round}{word}.{ty}"),
                        format,
                        sources,
                        extra,
                        mode,
                        function,
                    ));
                }
            }
        }
        check(dut, &forms, &operands);
    }
}

pub(crate) fn sixteen_bit_floats(dut: &Dut) {
    let mut forms = Vec::new();
    for (format, ty) in [(F16, "f16"), (BF16, "bf16")] {
        let words: &[&str] = if format == F16 { &["", ".ftz", ".sat", ".ftz.sat"] } else { &[""] };
        for (name, sources, function) in [("add", 2, ADD), ("sub", 2, SUB), ("mul", 2, MUL), ("fma", 3, FMA)]
        {
            let relu: &[&str] = match (name, format) {
                ("fma", F16) => &[".relu", ".ftz.relu"],
                ("fma", _) => &[".relu"],
                _ => &[],
            };
            for words in words.iter().chain(relu) {
                let has = |word| words.contains(word);
                let extra = Extra { ftz: has("ftz"), sat: has("sat"), relu: has("relu") };
                for round in if name == "fma" { &[".rn"][..] } else { &[".rn", ""] } {
                    let name = format!("{name}{round}{words}.{ty}");
                    forms.push(scalar(&name, format, sources, extra, Mode::Nearest, function));
                    forms.push(pair(&format!("{name}x2"), format, sources, extra, function));
                }
            }
        }
        let words: &[&str] = &["", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs"];
        extremes(&mut forms, format, ty, words);
        if format == F16 {
            let words = &[".ftz", ".ftz.NaN", ".ftz.xorsign.abs", ".ftz.NaN.xorsign.abs"];
            extremes(&mut forms, format, ty, words);
        }
        signs(&mut forms, format, ty);
    }
    check(dut, &forms, &values::halves());
}

/// `min` and `max`.
fn extremes(forms: &mut Vec<Form>, format: Format, ty: &str, words: &[&'static str]) {
    const MIN: Function = |f, [a, b, _], _| extreme(f, a, b, true);
    const MAX: Function = |f, [a, b, _], _| extreme(f, a, b, false);
    for (name, function) in [("min", MIN), ("max", MAX)] {
        for words in words {
            let ftz = words.contains("ftz");
            let (nan, xorsign) = (words.contains("NaN"), words.contains("xorsign"));
            let mask = if format.bits == 64 { u64::MAX } else { (1 << format.bits) - 1 };
            let one = move |a: u64, b: u64| {
                let [a, b] = [a, b].map(|bits| if ftz { format.flush(bits & mask) } else { bits & mask });
                let sign = (a ^ b) & format.sign();
                if nan && (format.is_nan(a) || format.is_nan(b)) {
                    return format.nan();
                }
                let [x, y] = [a, b].map(|bits| if xorsign { bits & !format.sign() } else { bits });
                let value = function(format, [x, y, 0], Mode::Nearest);
                if xorsign && !format.is_nan(value) { value & !format.sign() | sign } else { value }
            };
            let name = format!("{name}{words}.{ty}");
            let form = Form::new(&name, format.bits, &[format.bits; 2], move |[a, b, _]| one(a, b));
            if format.bits == 16 {
                forms.push(Form::new(&format!("{name}x2"), 32, &[32; 2], move |[a, b, _]| {
                    one(a >> 16, b >> 16) << 16 | one(a, b)
                }));
            }
            forms.push(if format == F64 { form.any_nan(format) } else { form });
        }
    }
}

/// The lesser or the greater number: -0 is less than +0, and a number is preferred to NaN.
fn extreme(format: Format, a: u64, b: u64, least: bool) -> u64 {
    match (format.is_nan(a), format.is_nan(b)) {
        (true, true) => format.nan(),
        (true, false) => b,
        (false, true) => a,
        (false, false) => {
            let order = exact::order(format, a, b).expect("numbers");
            let first = order.then((a & format.sign() == 0).cmp(&(b & format.sign() == 0))).is_le();
            if first == least { a } else { b }
        }
    }
}

/// `neg` and `abs`, of numbers: what they do to NaN is undefined. `copysign` where it exists.
fn signs(forms: &mut Vec<Form>, format: Format, ty: &str) {
    let (bits, mask) = (format.bits, if format.bits == 64 { u64::MAX } else { (1 << format.bits) - 1 });
    for (name, abs) in [("neg", false), ("abs", true)] {
        let words: &[&str] = if matches!(format, F32 | F16) { &["", ".ftz"] } else { &[""] };
        for words in words {
            let ftz = !words.is_empty();
            let one = move |a: u64| {
                let a = if ftz { format.flush(a & mask) } else { a & mask };
                if abs { a & !format.sign() } else { a ^ format.sign() }
            };
            let right = move |a: u64, got: u64| format.is_nan(a & mask) || got & mask == one(a);
            let name = format!("{name}{words}.{ty}");
            forms.push(
                Form::new(&name, bits, &[bits], move |[a, ..]| one(a))
                    .near(move |[a, ..], got| right(a, got)),
            );
            if bits == 16 {
                forms.push(
                    Form::new(&format!("{name}x2"), 32, &[32], move |[a, ..]| one(a >> 16) << 16 | one(a))
                        .near(move |[a, ..], got| right(a, got) && right(a >> 16, got >> 16)),
                );
            }
        }
    }
    if bits >= 32 {
        forms.push(Form::new(&format!("copysign.{ty}"), bits, &[bits; 2], move |[a, b, _]| {
            a & format.sign() | b & (format.sign() - 1)
        }));
    }
}
