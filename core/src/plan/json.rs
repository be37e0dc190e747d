//! A strict reader of JSON (RFC 8259), as a tree.
//!
//! It refuses duplicate keys, numbers that are not integers, too much depth and too many members, and says line and column.
//! The tree holds a small multiple of the text, whatever the text is.

use std::borrow::Cow;
use std::fmt::Write;

/// Deepest nesting. A plan needs 11.
const DEPTH: u32 = 32;
/// Most members of one object. A plan's objects have at most 11.
const MEMBERS: usize = 64;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Null,
    Bool(bool),
    Integer(u64),
    /// An integer below zero; plans have none, so its value does not matter.
    Negative,
    String(Cow<'a, str>),
    Array(Box<[Value<'a>]>),
    Object(Box<[(Cow<'a, str>, Value<'a>)]>),
}

impl Value<'_> {
    /// Kind of this value, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Integer(_) => "a number",
            Self::Negative => "a negative number",
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
            Self::Object(_) => "an object",
        }
    }
}

/// Parses all of `text`. An error says line and column.
pub(super) fn parse(text: &str) -> Result<Value<'_>, String> {
    let mut parser = Parser { text, at: 0 };
    let value = parser.value(DEPTH).and_then(|value| {
        parser.spaces();
        if parser.at == text.len() {
            Ok(value)
        } else {
            Err("the end of the file expected after the value".into())
        }
    });
    value.map_err(|reason: Cow<'_, str>| {
        let before = &text.as_bytes()[..parser.at.min(text.len())];
        let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|&&byte| byte != b'\n').count() + 1;
        format!("line {line}, column {column}: {reason}")
    })
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

type Parsed<T> = Result<T, Cow<'static, str>>;

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn spaces(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Skips spaces and then `byte`, if it comes next.
    fn skip(&mut self, byte: u8) -> bool {
        self.spaces();
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self, depth: u32) -> Parsed<Value<'a>> {
        self.spaces();
        match self.peek() {
            Some(b'{' | b'[') if depth == 0 => Err(format!("nested deeper than {DEPTH} levels").into()),
            Some(b'{') => self.object(depth - 1),
            Some(b'[') => self.array(depth - 1),
            Some(b'"') => self.string().map(Value::String),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => self.word(),
            None => Err("the file ends where a value is expected".into()),
        }
    }

    fn word(&mut self) -> Parsed<Value<'a>> {
        for (word, value) in
            [("true", Value::Bool(true)), ("false", Value::Bool(false)), ("null", Value::Null)]
        {
            if self.text[self.at..].starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err("a value expected: an object, array, string, number, true, false or null".into())
    }

    fn number(&mut self) -> Parsed<Value<'a>> {
        let start = self.at;
        let negative = self.peek() == Some(b'-');
        self.at += usize::from(negative);
        let first = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        let digits = &self.text[first..self.at];
        if matches!(self.peek(), Some(b'.' | b'e' | b'E')) {
            return Err("only whole numbers without exponent are allowed".into());
        }
        if digits.is_empty() || (digits.len() > 1 && digits.starts_with('0')) {
            self.at = start;
            return Err("not a number".into());
        }
        let value = digits.parse().map_err(|_| {
            self.at = start;
            Cow::from("the number is larger than 18446744073709551615")
        })?;
        Ok(if negative && value != 0 { Value::Negative } else { Value::Integer(value) })
    }

    fn array(&mut self, depth: u32) -> Parsed<Value<'a>> {
        self.at += 1;
        let mut items = Vec::new();
        if !self.skip(b']') {
            loop {
                items.push(self.value(depth)?);
                if self.skip(b']') {
                    break;
                }
                if !self.skip(b',') {
                    return Err("`,` or `]` expected".into());
                }
            }
        }
        Ok(Value::Array(items.into_boxed_slice()))
    }

    fn object(&mut self, depth: u32) -> Parsed<Value<'a>> {
        self.at += 1;
        let mut members: Vec<(Cow<'a, str>, Value<'a>)> = Vec::new();
        if !self.skip(b'}') {
            loop {
                self.spaces();
                if self.peek() != Some(b'"') {
                    return Err("a key in quotes expected".into());
                }
                let start = self.at;
                let key = self.string()?;
                if members.iter().any(|(other, _)| *other == key) {
                    self.at = start;
                    return Err(format!("the key {key:?} occurs twice").into());
                }
                if members.len() == MEMBERS {
                    return Err(format!("an object with more than {MEMBERS} keys").into());
                }
                if !self.skip(b':') {
                    return Err("`:` expected".into());
                }
                members.push((key, self.value(depth)?));
                if self.skip(b'}') {
                    break;
                }
                if !self.skip(b',') {
                    return Err("`,` or `}` expected".into());
                }
            }
        }
        Ok(Value::Object(members.into_boxed_slice()))
    }

    /// A string without escapes is borrowed from the text.
    fn string(&mut self) -> Parsed<Cow<'a, str>> {
        self.at += 1;
        let start = self.at;
        let mut owned: Option<String> = None;
        loop {
            let rest = &self.text[self.at..];
            let Some(length) = rest.find(|c: char| c == '"' || c == '\\' || c < ' ') else {
                self.at = self.text.len();
                return Err("the file ends within a string".into());
            };
            let plain = &rest[..length];
            self.at += length;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(match owned {
                        Some(mut text) => {
                            text.push_str(plain);
                            Cow::Owned(text)
                        }
                        None => Cow::Borrowed(&self.text[start..self.at - 1]),
                    });
                }
                Some(b'\\') => {
                    let text = owned.get_or_insert_default();
                    text.push_str(plain);
                    self.at += 1;
                    let escaped = self.escape()?;
                    owned.get_or_insert_default().push(escaped);
                }
                _ => return Err("a control character within a string; write it as \\u00XX".into()),
            }
        }
    }

    fn escape(&mut self) -> Parsed<char> {
        let byte = self.peek().ok_or("the file ends within a string")?;
        self.at += 1;
        Ok(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let high = self.hex()?;
                let code = if (0xd800..0xdc00).contains(&high) && self.text[self.at..].starts_with("\\u") {
                    self.at += 2;
                    let low = self.hex()?;
                    if !(0xdc00..0xe000).contains(&low) {
                        return Err("half of a surrogate pair".into());
                    }
                    0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00)
                } else {
                    high
                };
                char::from_u32(code).ok_or("half of a surrogate pair")?
            }
            _ => return Err("unknown escape".into()),
        })
    }

    fn hex(&mut self) -> Parsed<u32> {
        let digits =
            self.text.as_bytes().get(self.at..self.at + 4).ok_or("four hexadecimal digits expected")?;
        let code =
            digits.iter().try_fold(0, |code, &digit| Some(code * 16 + char::from(digit).to_digit(16)?));
        self.at += 4;
        code.ok_or("four hexadecimal digits expected".into())
    }
}

/// Appends `text` as a JSON string.
pub(super) fn quote(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => {
                // Writing into a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_kind_of_value() {
        let Value::Array(values) = parse(
            " [null, true,false, 0, -7, 18446744073709551615, \"a\\u00e9\\ud83d\\ude00\\n\", {\"k\":[]}]",
        )
        .unwrap() else {
            panic!("an array")
        };
        let expected = [
            Value::Null,
            Value::Bool(true),
            Value::Bool(false),
            Value::Integer(0),
            Value::Negative,
            Value::Integer(u64::MAX),
            Value::String("a\u{e9}\u{1f600}\n".into()),
            Value::Object(Box::new([("k".into(), Value::Array(Box::new([])))])),
        ];
        assert_eq!(*values, expected);
    }

    #[test]
    fn quoted_text_reads_back() {
        let text = "a\"b\\c\n\u{1}\u{e9}/\u{1f600}";
        let mut quoted = String::new();
        quote(&mut quoted, text);
        assert_eq!(parse(&quoted).unwrap(), Value::String(text.into()));
    }

    #[test]
    fn refuses_with_a_place() {
        let deep = "[".repeat(33);
        let many = format!("{{{}}}", (0..65).map(|k| format!("\"{k}\":0")).collect::<Vec<_>>().join(","));
        let cases = [
            ("", "line 1, column 1: the file ends where a value is expected"),
            ("{\n \"a\": 1,\n \"a\": 2}", "line 3, column 2: the key \"a\" occurs twice"),
            ("[1.5]", "line 1, column 3: only whole numbers"),
            ("[1e3]", "column 3: only whole numbers"),
            ("01", "column 1: not a number"),
            ("-", "column 1: not a number"),
            ("18446744073709551616", "column 1: the number is larger"),
            ("[1 2]", "column 4: `,` or `]` expected"),
            ("{\"a\" 1}", "column 6: `:` expected"),
            ("{a:1}", "column 2: a key in quotes"),
            ("[1,]", "column 4: a value expected"),
            ("{\"a\":1,}", "column 8: a key in quotes"),
            ("1 1", "column 3: the end of the file"),
            ("\"\\ud800\"", "half of a surrogate pair"),
            ("\"\\ud800\\u0041\"", "half of a surrogate pair"),
            ("\"\\u00g0\"", "four hexadecimal digits"),
            ("\"\\u00", "four hexadecimal digits"),
            ("\"\\x\"", "unknown escape"),
            ("\"a\nb\"", "control character"),
            ("\"abc", "the file ends within a string"),
            ("nul", "a value expected"),
            (&deep, "column 33: nested deeper than 32 levels"),
            (&many, "more than 64 keys"),
        ];
        for (text, expected) in cases {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        // A digit of several bytes does not cut the text within a character.
        assert!(parse("\"\\u00\u{e9}\u{e9}\"").is_err());
    }
}
