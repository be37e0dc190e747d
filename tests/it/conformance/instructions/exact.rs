//! Floating-point arithmetic by exact numbers of any length, rounded once.

use std::cmp::Ordering;

/// A rounding direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Nearest,
    Zero,
    Down,
    Up,
}

pub(super) const MODES: [(&str, Mode); 4] =
    [("rn", Mode::Nearest), ("rz", Mode::Zero), ("rm", Mode::Down), ("rp", Mode::Up)];

/// A format: bits in all, and stored bits of the mantissa.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    pub(super) bits: u32,
    pub(super) mantissa: u32,
}

pub(super) const F16: Format = Format { bits: 16, mantissa: 10 };
pub(super) const BF16: Format = Format { bits: 16, mantissa: 7 };
pub(super) const F32: Format = Format { bits: 32, mantissa: 23 };
pub(super) const F64: Format = Format { bits: 64, mantissa: 52 };

impl Format {
    pub(super) fn sign(self) -> u64 {
        1 << (self.bits - 1)
    }

    pub(super) fn infinity(self) -> u64 {
        self.sign() - (1 << self.mantissa)
    }

    /// The NaN that arithmetic gives.
    pub(super) fn nan(self) -> u64 {
        if self.bits == 64 { 0x7fff_ffff_ffff_ffff } else { self.sign() - 1 }
    }

    pub(super) fn bias(self) -> i32 {
        (1 << (self.bits - self.mantissa - 2)) - 1
    }

    pub(super) fn is_nan(self, bits: u64) -> bool {
        bits & (self.sign() - 1) > self.infinity()
    }

    /// The value of `bits`, which every format's `f64` has.
    pub(super) fn value(self, bits: u64) -> f64 {
        match self {
            F64 => f64::from_bits(bits),
            F32 => f64::from(f32::from_bits(bits as u32)),
            F16 => half::f16::from_bits(bits as u16).to_f64(),
            _ => half::bf16::from_bits(bits as u16).to_f64(),
        }
    }

    /// The number nearest to `value`.
    pub(super) fn nearest(self, value: f64) -> u64 {
        match self {
            F64 => value.to_bits(),
            F32 => (value as f32).to_bits().into(),
            F16 => half::f16::from_f64(value).to_bits().into(),
            _ => half::bf16::from_f64(value).to_bits().into(),
        }
    }

    /// Subnormal numbers become zeros of the same sign.
    pub(super) fn flush(self, bits: u64) -> u64 {
        if bits & (self.sign() - 1) < 1 << self.mantissa { bits & self.sign() } else { bits }
    }

    /// The result of `.sat`: NaN and what is below zero give zero, what is above one gives one.
    pub(super) fn saturate(self, bits: u64) -> u64 {
        let one = (self.bias() as u64) << self.mantissa;
        if self.is_nan(bits) || bits & self.sign() != 0 { 0 } else { bits.min(one) }
    }
}

/// A natural number of any length, least significant word first, without leading zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Natural(Vec<u32>);

impl Natural {
    fn of(mut value: u128) -> Self {
        let mut words = Vec::new();
        while value != 0 {
            words.push(value as u32);
            value >>= 32;
        }
        Self(words)
    }

    fn trimmed(mut self) -> Self {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
        self
    }

    fn length(&self) -> i64 {
        self.0.last().map_or(0, |top| self.0.len() as i64 * 32 - i64::from(top.leading_zeros()))
    }

    fn bit(&self, at: i64) -> bool {
        at >= 0 && self.0.get(at as usize / 32).is_some_and(|word| word >> (at % 32) & 1 != 0)
    }

    fn shifted_left(&self, by: i64) -> Self {
        let (words, bits) = (by as usize / 32, by % 32);
        let mut all = vec![0; words];
        let mut carry = 0u64;
        for word in &self.0 {
            carry |= u64::from(*word) << bits;
            all.push(carry as u32);
            carry >>= 32;
        }
        all.push(carry as u32);
        Self(all).trimmed()
    }

    /// Bits `from` and above, which must fit.
    fn above(&self, from: i64) -> u128 {
        (from.max(0)..self.length()).fold(0, |value, at| value | u128::from(self.bit(at)) << (at - from))
    }

    fn plus(&self, other: &Self) -> Self {
        let mut carry = 0u64;
        let words = (0..=self.0.len().max(other.0.len())).map(|at| {
            let word = |n: &Self| u64::from(n.0.get(at).copied().unwrap_or(0));
            carry += word(self) + word(other);
            let low = carry as u32;
            carry >>= 32;
            low
        });
        Self(words.collect()).trimmed()
    }

    /// `self - other`, which must not be negative.
    fn minus(&self, other: &Self) -> Self {
        let mut borrow = 0i64;
        let words = self.0.iter().enumerate().map(|(at, word)| {
            let difference = i64::from(*word) - i64::from(other.0.get(at).copied().unwrap_or(0)) + borrow;
            borrow = difference >> 32;
            difference as u32
        });
        Self(words.collect()).trimmed()
    }

    fn compared(&self, other: &Self) -> Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }
}

/// A number: `magnitude * 2^exponent`, plus something smaller than its last bit if `more`.
#[derive(Clone, Debug)]
pub(super) struct Exact {
    negative: bool,
    magnitude: Natural,
    exponent: i64,
    more: bool,
}

/// The value of some bits.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Nan,
    Infinity(bool),
    Number(Exact),
}

impl Exact {
    pub(super) fn integer(value: i128) -> Self {
        let magnitude = Natural::of(value.unsigned_abs());
        Self { negative: value < 0, magnitude, exponent: 0, more: false }
    }

    fn is_zero(&self) -> bool {
        self.magnitude.0.is_empty()
    }

    /// The nearest numbers of the format in direction `mode`, as bits. A zero keeps its sign.
    pub(super) fn round(&self, format: Format, mode: Mode) -> u64 {
        let sign = if self.negative { format.sign() } else { 0 };
        if self.is_zero() {
            return sign;
        }
        let (mantissa, bias) = (i64::from(format.mantissa), i64::from(format.bias()));
        let top = self.magnitude.length() - 1 + self.exponent;
        let unit = (top - mantissa).max(1 - bias - mantissa);
        let cut = unit - self.exponent;
        assert!(cut > 0 || !self.more, "a quotient or root has more bits than any format");
        let kept =
            if cut <= 0 { self.magnitude.shifted_left(-cut).above(0) } else { self.magnitude.above(cut) };
        let half = cut > 0 && self.magnitude.bit(cut - 1);
        let rest = self.more || (0..cut - 1).any(|at| self.magnitude.bit(at));
        let up = match mode {
            Mode::Nearest => half && (rest || kept & 1 != 0),
            Mode::Zero => false,
            Mode::Down => self.negative && (half || rest),
            Mode::Up => !self.negative && (half || rest),
        };
        let kept = kept as u64 + u64::from(up);
        let hidden = 1 << mantissa;
        let bits = if kept < hidden {
            kept
        } else {
            (((unit + mantissa + bias) as u64) << mantissa) + (kept - hidden)
        };
        let away = match mode {
            Mode::Nearest => true,
            Mode::Zero => false,
            Mode::Down => self.negative,
            Mode::Up => !self.negative,
        };
        sign | if bits < format.infinity() { bits } else { format.infinity() - u64::from(!away) }
    }

    fn times(&self, other: &Self) -> Self {
        let magnitude = Natural::of(self.magnitude.above(0) * other.magnitude.above(0));
        let exponent = self.exponent + other.exponent;
        Self { negative: self.negative != other.negative, magnitude, exponent, more: false }
    }

    /// The sum. Of an exact zero from numbers of different signs, the sign depends on `mode`.
    fn plus(&self, other: &Self, mode: Mode) -> Self {
        let exponent = self.exponent.min(other.exponent);
        let [a, b] = [self, other].map(|n| n.magnitude.shifted_left(n.exponent - exponent));
        let (negative, magnitude) = if self.negative == other.negative {
            (self.negative, a.plus(&b))
        } else {
            match a.compared(&b) {
                Ordering::Less => (other.negative, b.minus(&a)),
                Ordering::Equal => (mode == Mode::Down, Natural(Vec::new())),
                Ordering::Greater => (self.negative, a.minus(&b)),
            }
        };
        Self { negative, magnitude, exponent, more: false }
    }
}

/// The value of `bits`.
pub(super) fn decode(format: Format, bits: u64) -> Value {
    let negative = bits & format.sign() != 0;
    let magnitude = bits & (format.sign() - 1);
    if magnitude > format.infinity() {
        return Value::Nan;
    }
    if magnitude == format.infinity() {
        return Value::Infinity(negative);
    }
    let (field, fraction) = (magnitude >> format.mantissa, magnitude & ((1 << format.mantissa) - 1));
    let (field, whole) = if field == 0 { (1, fraction) } else { (field, fraction | 1 << format.mantissa) };
    let exponent = field as i64 - i64::from(format.bias()) - i64::from(format.mantissa);
    Value::Number(Exact { negative, magnitude: Natural::of(whole.into()), exponent, more: false })
}

fn infinity(format: Format, negative: bool) -> u64 {
    format.infinity() | if negative { format.sign() } else { 0 }
}

pub(super) fn add(format: Format, a: u64, b: u64, mode: Mode) -> u64 {
    match (decode(format, a), decode(format, b)) {
        (Value::Nan, _) | (_, Value::Nan) => format.nan(),
        (Value::Infinity(a), Value::Infinity(b)) if a != b => format.nan(),
        (Value::Infinity(negative), _) | (_, Value::Infinity(negative)) => infinity(format, negative),
        (Value::Number(a), Value::Number(b)) => a.plus(&b, mode).round(format, mode),
    }
}

pub(super) fn mul(format: Format, a: u64, b: u64, mode: Mode) -> u64 {
    match product(decode(format, a), decode(format, b)) {
        Value::Nan => format.nan(),
        Value::Infinity(negative) => infinity(format, negative),
        Value::Number(number) => number.round(format, mode),
    }
}

fn product(a: Value, b: Value) -> Value {
    match (a, b) {
        (Value::Nan, _) | (_, Value::Nan) => Value::Nan,
        (Value::Infinity(a), Value::Infinity(b)) => Value::Infinity(a != b),
        (Value::Infinity(sign), Value::Number(number)) | (Value::Number(number), Value::Infinity(sign)) => {
            if number.is_zero() {
                Value::Nan
            } else {
                Value::Infinity(sign != number.negative)
            }
        }
        (Value::Number(a), Value::Number(b)) => Value::Number(a.times(&b)),
    }
}

pub(super) fn fma(format: Format, [a, b, c]: [u64; 3], mode: Mode) -> u64 {
    match (product(decode(format, a), decode(format, b)), decode(format, c)) {
        (Value::Nan, _) | (_, Value::Nan) => format.nan(),
        (Value::Infinity(a), Value::Infinity(b)) if a != b => format.nan(),
        (Value::Infinity(negative), _) | (_, Value::Infinity(negative)) => infinity(format, negative),
        (Value::Number(a), Value::Number(b)) => a.plus(&b, mode).round(format, mode),
    }
}

pub(super) fn div(format: Format, a: u64, b: u64, mode: Mode) -> u64 {
    let negative = (a ^ b) & format.sign() != 0;
    match (decode(format, a), decode(format, b)) {
        (Value::Nan, _) | (_, Value::Nan) | (Value::Infinity(_), Value::Infinity(_)) => format.nan(),
        (Value::Infinity(_), _) => infinity(format, negative),
        (_, Value::Infinity(_)) => infinity(format, negative) & format.sign(),
        (Value::Number(a), Value::Number(b)) => match (a.is_zero(), b.is_zero()) {
            (true, true) => format.nan(),
            (true, false) => infinity(format, negative) & format.sign(),
            (false, true) => infinity(format, negative),
            (false, false) => {
                // Both significands with 64 bits, so that the quotient has 63 or 64.
                let whole = |n: &Exact| n.magnitude.above(0) << (64 - n.magnitude.length());
                let (dividend, divisor) = (whole(&a) << 63, whole(&b));
                let magnitude = Natural::of(dividend / divisor);
                let place = |n: &Exact| n.exponent + n.magnitude.length();
                let exponent = place(&a) - place(&b) - 63;
                Exact { negative, magnitude, exponent, more: dividend % divisor != 0 }.round(format, mode)
            }
        },
    }
}

pub(super) fn sqrt(format: Format, a: u64, mode: Mode) -> u64 {
    match decode(format, a) {
        Value::Nan | Value::Infinity(true) => format.nan(),
        Value::Infinity(false) => format.infinity(),
        Value::Number(n) if n.is_zero() => a,
        Value::Number(n) if n.negative => format.nan(),
        Value::Number(n) => {
            // The radicand with 127 or 128 bits and an even exponent.
            let shift = 127 - n.magnitude.length();
            let shift = shift + ((n.exponent - shift) & 1);
            let radicand = n.magnitude.above(0) << shift;
            let root = radicand.isqrt();
            let (magnitude, more) = (Natural::of(root), root * root != radicand);
            Exact { negative: false, magnitude, exponent: (n.exponent - shift) / 2, more }.round(format, mode)
        }
    }
}

/// `a < b`, `a == b` or `a > b`; `None` if one is NaN.
pub(super) fn order(format: Format, a: u64, b: u64) -> Option<Ordering> {
    let number = |bits: u64| {
        let magnitude = i128::from(bits & (format.sign() - 1));
        if bits & format.sign() != 0 { -magnitude } else { magnitude }
    };
    if format.is_nan(a) || format.is_nan(b) { None } else { Some(number(a).cmp(&number(b))) }
}

#[test]
fn the_oracle_agrees_with_the_host_where_the_host_can_do_it() {
    for [a, b, c] in super::values::singles() {
        let [x, y, z] = [a, b, c].map(|bits| f32::from_bits(bits as u32));
        let same = |ours: u64, theirs: f32| {
            assert!(
                ours == u64::from(theirs.to_bits()) || theirs.is_nan() && ours == F32.nan(),
                "{x:e} {y:e} {z:e}: {ours:#x} {theirs:e}"
            );
        };
        same(add(F32, a, b, Mode::Nearest), x + y);
        same(mul(F32, a, b, Mode::Nearest), x * y);
        same(div(F32, a, b, Mode::Nearest), x / y);
        same(sqrt(F32, a, Mode::Nearest), x.sqrt());
        same(fma(F32, [a, b, c], Mode::Nearest), x.mul_add(y, z));
        assert_eq!(order(F32, a, b), x.partial_cmp(&y));
    }
    for [a, b, c] in super::values::doubles() {
        let [x, y, z] = [a, b, c].map(f64::from_bits);
        let same = |ours: u64, theirs: f64| {
            assert!(
                ours == theirs.to_bits() || theirs.is_nan() && F64.is_nan(ours),
                "{x:e} {y:e} {z:e}: {ours:#x}"
            );
        };
        same(div(F64, a, b, Mode::Nearest), x / y);
        same(sqrt(F64, a, Mode::Nearest), x.sqrt());
        same(fma(F64, [a, b, c], Mode::Nearest), x.mul_add(y, z));
    }
}
