//! Constant expressions (PTX ISA 4.5): C's integer operators on 64 bits, and floating literals.

use super::ast::Constant;
use super::cursor::Cursor;
use super::diagnostic::{Diagnostic, Position};
use super::lex::{Kind, Token};

/// Parses and evaluates a constant expression.
pub(super) fn expression(c: &mut Cursor<'_>) -> Result<Constant, Diagnostic> {
    let condition = binary(c, 0)?;
    if !c.eat("?") {
        return Ok(condition);
    }
    let at = c.at();
    let then = c.nested(expression)?;
    c.expect(":")?;
    let otherwise = c.nested(expression)?;
    Ok(if bits(condition, at)? != 0 { then } else { otherwise })
}

/// Parses an integer constant expression; the value is a signed 64-bit number.
pub(super) fn integer(c: &mut Cursor<'_>) -> Result<i64, Diagnostic> {
    let at = c.at();
    Ok(bits(expression(c)?, at)?.cast_signed())
}

/// Parses an integer term, as it follows `+` in an address.
pub(super) fn term(c: &mut Cursor<'_>) -> Result<i64, Diagnostic> {
    let at = c.at();
    Ok(bits(binary(c, LEVELS.len() - 1)?, at)?.cast_signed())
}

/// Parses an integer constant expression whose value is not negative.
pub(super) fn natural(c: &mut Cursor<'_>) -> Result<u64, Diagnostic> {
    let at = c.at();
    match expression(c)? {
        Constant::Unsigned(value) => Ok(value),
        Constant::Signed(value) => u64::try_from(value).map_err(|_| at.error("Number is negative")),
        Constant::F32(_) | Constant::F64(_) => Err(at.error("Expected an integer constant")),
    }
}

/// Whether a constant can begin with `token`.
pub(super) fn begins(token: Token<'_>) -> bool {
    match token.kind {
        Kind::Integer | Kind::Float => true,
        Kind::Mark => matches!(token.text, "-" | "+" | "~" | "!" | "("),
        Kind::Name => token.text == "WARP_SZ",
        _ => false,
    }
}

/// Binary operators from the loosest binding to the tightest.
const LEVELS: [&[&str]; 10] = [
    &["||"],
    &["&&"],
    &["|"],
    &["^"],
    &["&"],
    &["==", "!="],
    &["<", "<=", ">", ">="],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "%"],
];

fn binary(c: &mut Cursor<'_>, level: usize) -> Result<Constant, Diagnostic> {
    let Some(operators) = LEVELS.get(level) else {
        return unary(c);
    };
    let mut left = binary(c, level + 1)?;
    loop {
        let token = c.peek();
        if token.kind != Kind::Mark || !operators.contains(&token.text) {
            return Ok(left);
        }
        c.take();
        let right = binary(c, level + 1)?;
        left = apply(token, left, right)?;
    }
}

fn unary(c: &mut Cursor<'_>) -> Result<Constant, Diagnostic> {
    let token = c.peek();
    match (token.kind, token.text) {
        (Kind::Integer, _) => {
            c.take();
            integer_literal(token)
        }
        (Kind::Float, _) => {
            c.take();
            float_literal(token)
        }
        (Kind::Name, "WARP_SZ") => {
            c.take();
            Ok(Constant::Signed(32))
        }
        (Kind::Mark, "(") => {
            c.take();
            // A cast only changes the signedness that the following operators see.
            let cast = match c.peek() {
                Token { kind: Kind::Dot, text: "s64" | "u64", .. } => Some(c.take().text),
                _ => None,
            };
            if let Some(ty) = cast {
                c.expect(")")?;
                let at = c.at();
                let value = bits(c.nested(unary)?, at)?;
                return Ok(if ty == "u64" {
                    Constant::Unsigned(value)
                } else {
                    Constant::Signed(value.cast_signed())
                });
            }
            let value = c.nested(expression)?;
            c.expect(")")?;
            Ok(value)
        }
        (Kind::Mark, "-" | "+" | "~" | "!") => {
            c.take();
            let value = c.nested(unary)?;
            negate(token, value)
        }
        _ => Err(c.unexpected("a constant")),
    }
}

fn negate(operator: Token<'_>, value: Constant) -> Result<Constant, Diagnostic> {
    Ok(match (operator.text, value) {
        ("+", value) => value,
        ("-", Constant::Signed(v)) => Constant::Signed(v.wrapping_neg()),
        ("-", Constant::Unsigned(v)) => Constant::Unsigned(v.wrapping_neg()),
        ("-", Constant::F32(v)) => Constant::F32(v ^ 0x8000_0000),
        ("-", Constant::F64(v)) => Constant::F64(-v),
        ("~", Constant::Unsigned(v)) => Constant::Unsigned(!v),
        ("~", value) => Constant::Signed(!bits(value, operator.at)?.cast_signed()),
        (_, value) => Constant::Signed(i64::from(bits(value, operator.at)? == 0)),
    })
}

fn apply(operator: Token<'_>, left: Constant, right: Constant) -> Result<Constant, Diagnostic> {
    let at = operator.at;
    if let (Constant::F64(a), Constant::F64(b)) = (left, right) {
        return match operator.text {
            "+" => Ok(Constant::F64(a + b)),
            "-" => Ok(Constant::F64(a - b)),
            "*" => Ok(Constant::F64(a * b)),
            "/" => Ok(Constant::F64(a / b)),
            _ => Err(at.error(format!("Operator '{}' takes integer constants", operator.text))),
        };
    }
    let signed = matches!((left, right), (Constant::Signed(_), Constant::Signed(_)));
    let (a, b) = (bits(left, at)?, bits(right, at)?);
    let (sa, sb) = (a.cast_signed(), b.cast_signed());
    let truth = |value: bool| Ok(Constant::Signed(i64::from(value)));
    let shift = u32::try_from(b).unwrap_or(u32::MAX);
    let value = match operator.text {
        "||" => return truth(a != 0 || b != 0),
        "&&" => return truth(a != 0 && b != 0),
        "==" => return truth(a == b),
        "!=" => return truth(a != b),
        "<" => return truth(if signed { sa < sb } else { a < b }),
        "<=" => return truth(if signed { sa <= sb } else { a <= b }),
        ">" => return truth(if signed { sa > sb } else { a > b }),
        ">=" => return truth(if signed { sa >= sb } else { a >= b }),
        "|" => a | b,
        "^" => a ^ b,
        "&" => a & b,
        "+" => a.wrapping_add(b),
        "-" => a.wrapping_sub(b),
        "*" => a.wrapping_mul(b),
        "<<" => a.checked_shl(shift).unwrap_or(0),
        ">>" if matches!(left, Constant::Signed(_)) => (sa >> shift.min(63)).cast_unsigned(),
        ">>" => a.checked_shr(shift).unwrap_or(0),
        _ if b == 0 => return Err(at.error("Division by zero in a constant expression")),
        "/" if signed => sa.wrapping_div(sb).cast_unsigned(),
        "/" => a / b,
        _ if signed => sa.wrapping_rem(sb).cast_unsigned(),
        _ => a % b,
    };
    Ok(if signed { Constant::Signed(value.cast_signed()) } else { Constant::Unsigned(value) })
}

fn bits(value: Constant, at: Position) -> Result<u64, Diagnostic> {
    match value {
        Constant::Signed(v) => Ok(v.cast_unsigned()),
        Constant::Unsigned(v) => Ok(v),
        Constant::F32(_) | Constant::F64(_) => Err(at.error("Expected an integer constant")),
    }
}

fn integer_literal(token: Token<'_>) -> Result<Constant, Diagnostic> {
    let text = token.text;
    let (digits, unsigned) = match text.strip_suffix(['U', 'u']) {
        Some(digits) => (digits, true),
        None => (text, false),
    };
    let lower = digits.to_ascii_lowercase();
    let value = if let Some(hex) = lower.strip_prefix("0x") {
        u64::from_str_radix(hex, 16)
    } else if let Some(binary) = lower.strip_prefix("0b") {
        u64::from_str_radix(binary, 2)
    } else if lower.len() > 1 && lower.starts_with('0') {
        u64::from_str_radix(&lower, 8)
    } else {
        lower.parse()
    };
    let value = value.map_err(|_| token.at.error(format!("'{text}' is not a 64-bit integer")))?;
    match i64::try_from(value) {
        Ok(value) if !unsigned => Ok(Constant::Signed(value)),
        _ => Ok(Constant::Unsigned(value)),
    }
}

fn float_literal(token: Token<'_>) -> Result<Constant, Diagnostic> {
    let text = token.text;
    let bad = || token.at.error(format!("'{text}' is not a floating literal"));
    match text.get(..2) {
        Some("0f" | "0F") => u32::from_str_radix(&text[2..], 16).map(Constant::F32).map_err(|_| bad()),
        Some("0d" | "0D") => {
            u64::from_str_radix(&text[2..], 16).map(|b| Constant::F64(f64::from_bits(b))).map_err(|_| bad())
        }
        _ => text.parse().map(Constant::F64).map_err(|_| bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::lex::tokens;
    use super::*;

    fn value(text: &str) -> Result<Constant, Diagnostic> {
        expression(&mut Cursor::new(tokens(text)?))
    }

    #[test]
    fn evaluates_as_c_does() {
        for (text, want) in [
            ("1 + 2 * 3", 7),
            ("(1 + 2) * 3", 9),
            ("-8 >> 1", -4),
            ("0x10 | 0b11 | 010", 0x1b),
            ("~0", -1),
            ("!5 + !0", 1),
            ("3 < 2 ? 10 : 20", 20),
            ("WARP_SZ - 1", 31),
            ("1 << 40", 1 << 40),
            ("-7 / 2", -3),
            ("-7 % 4", -3),
        ] {
            assert_eq!(value(text), Ok(Constant::Signed(want)), "{text}");
        }
        assert_eq!(value("0xffffffffffffffff"), Ok(Constant::Unsigned(u64::MAX)));
        assert_eq!(value("-1U < 1"), Ok(Constant::Signed(0)));
        assert_eq!(value("0f3F800000"), Ok(Constant::F32(0x3f80_0000)));
        assert_eq!(value("-1.5"), Ok(Constant::F64(-1.5)));
        assert_eq!(value("0d3FF0000000000000"), Ok(Constant::F64(1.0)));
    }

    #[test]
    fn refuses_nonsense() {
        for text in ["1 / 0", "1 % 0", "1.5 & 2.5", "~1.5", "0x", "09", "99999999999999999999", "(1", "1 +"] {
            assert!(value(text).is_err(), "{text}");
        }
        assert!(value(&"(".repeat(5000)).is_err());
        assert!(value(&"-".repeat(5000)).is_err());
    }
}
