//! Splits text into tokens (PTX ISA 4, "Syntax").

use super::diagnostic::{Diagnostic, Position};

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Identifier: `add`, `%r1`, `$L__BB0_2`, `_`.
    Name,
    /// `.word`: directive, modifier or component; the text has no dot.
    Dot,
    /// An integer literal in any base.
    Integer,
    /// A decimal or exact (`0f...`, `0d...`) floating literal.
    Float,
    /// A string; the text has no quotes.
    Text,
    /// Punctuation, one or two characters.
    Mark,
    /// The end of the text.
    End,
}

/// One token and its position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    pub(super) text: &'a str,
    pub(super) at: Position,
}

/// Splits `text`; the last token is always [`Kind::End`].
pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, Diagnostic> {
    let mut lexer = Lexer { text, next: 0, line: 1, line_start: 0 };
    let mut out = Vec::with_capacity(text.len() / 4);
    loop {
        let token = lexer.token()?;
        out.push(token);
        if token.kind == Kind::End {
            return Ok(out);
        }
    }
}

struct Lexer<'a> {
    text: &'a str,
    next: usize,
    line: u32,
    line_start: usize,
}

impl<'a> Lexer<'a> {
    fn token(&mut self) -> Result<Token<'a>, Diagnostic> {
        self.skip_blanks()?;
        let (start, at) = (self.next, self.here());
        let Some(first) = self.peek(0) else {
            return Ok(Token { kind: Kind::End, text: "", at });
        };
        let kind = match first {
            b'.' if self.peek(1).is_some_and(is_word) => {
                self.next += 1;
                self.dot_word();
                return Ok(Token { kind: Kind::Dot, text: &self.text[start + 1..self.next], at });
            }
            b'0'..=b'9' | b'.' => self.number(at)?,
            b'"' => {
                self.string(at)?;
                return Ok(Token { kind: Kind::Text, text: &self.text[start + 1..self.next - 1], at });
            }
            b'%' if !self.peek(1).is_some_and(is_word) => self.mark(at)?,
            _ if is_name_start(first) => {
                self.next += 1;
                self.take_while(is_word);
                Kind::Name
            }
            _ => self.mark(at)?,
        };
        Ok(Token { kind, text: &self.text[start..self.next], at })
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.text.as_bytes().get(self.next + ahead).copied()
    }

    fn here(&self) -> Position {
        let column = u32::try_from(self.next - self.line_start + 1).unwrap_or(u32::MAX);
        Position { line: self.line, column }
    }

    fn take_while(&mut self, keep: impl Fn(u8) -> bool) {
        while self.peek(0).is_some_and(&keep) {
            self.next += 1;
        }
    }

    /// Words after a dot may contain `::` (`.shared::cta`, `.L2::128B`).
    fn dot_word(&mut self) {
        loop {
            self.take_while(is_word);
            let joined = self.peek(0) == Some(b':')
                && self.peek(1) == Some(b':')
                && self.peek(2).is_some_and(|c| c.is_ascii_alphanumeric());
            if !joined {
                return;
            }
            self.next += 2;
        }
    }

    fn skip_blanks(&mut self) -> Result<(), Diagnostic> {
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some(b'\n'), _) => self.newline(),
                (Some(b' ' | b'\t' | b'\r' | 0x0b | 0x0c), _) => self.next += 1,
                (Some(b'/'), Some(b'/')) => self.take_while(|c| c != b'\n'),
                (Some(b'/'), Some(b'*')) => self.block_comment()?,
                _ => return Ok(()),
            }
        }
    }

    fn newline(&mut self) {
        self.next += 1;
        self.line = self.line.saturating_add(1);
        self.line_start = self.next;
    }

    fn block_comment(&mut self) -> Result<(), Diagnostic> {
        let at = self.here();
        self.next += 2;
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some(b'*'), Some(b'/')) => {
                    self.next += 2;
                    return Ok(());
                }
                (Some(b'\n'), _) => self.newline(),
                (Some(_), _) => self.next += 1,
                (None, _) => return Err(at.error("Comment is not closed")),
            }
        }
    }

    fn string(&mut self, at: Position) -> Result<(), Diagnostic> {
        self.next += 1;
        self.take_while(|c| c != b'"' && c != b'\n');
        if self.peek(0) != Some(b'"') {
            return Err(at.error("String is not closed"));
        }
        self.next += 1;
        Ok(())
    }

    fn number(&mut self, at: Position) -> Result<Kind, Diagnostic> {
        let start = self.next;
        let exact = self.peek(0) == Some(b'0') && matches!(self.peek(1), Some(b'f' | b'F' | b'd' | b'D'));
        if exact {
            let digits = if matches!(self.peek(1), Some(b'f' | b'F')) { 8 } else { 16 };
            self.next += 2;
            self.take_while(is_word);
            let text = &self.text[start + 2..self.next];
            if text.len() != digits || !text.bytes().all(|c| c.is_ascii_hexdigit()) {
                return Err(at.error(format!("Exact floating literal needs {digits} hexadecimal digits")));
            }
            return Ok(Kind::Float);
        }
        let prefixed = self.peek(0) == Some(b'0') && matches!(self.peek(1), Some(b'x' | b'X' | b'b' | b'B'));
        self.take_while(|c| c.is_ascii_digit());
        let mut kind = Kind::Integer;
        if !prefixed && self.peek(0) == Some(b'.') {
            kind = Kind::Float;
            self.next += 1;
            self.take_while(|c| c.is_ascii_digit());
        }
        if !prefixed && matches!(self.peek(0), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(self.peek(1), Some(b'+' | b'-')));
            if self.peek(1 + sign).is_some_and(|c| c.is_ascii_digit()) {
                kind = Kind::Float;
                self.next += 1 + sign;
            }
        }
        self.take_while(is_word);
        if self.next == start + 1 && self.text.as_bytes()[start] == b'.' {
            return Err(at.error("Unexpected '.'"));
        }
        Ok(kind)
    }

    fn mark(&mut self, at: Position) -> Result<Kind, Diagnostic> {
        let rest = &self.text[self.next..];
        const DOUBLE: [&str; 8] = ["<<", ">>", "<=", ">=", "==", "!=", "&&", "||"];
        if DOUBLE.iter().any(|mark| rest.starts_with(mark)) {
            self.next += 2;
            return Ok(Kind::Mark);
        }
        match rest.chars().next() {
            Some(c) if "(){}[]<>,;:=+-*/%!~&|^?@".contains(c) => {
                self.next += 1;
                Ok(Kind::Mark)
            }
            Some(c) => Err(at.error(format!("Unexpected character {c:?}"))),
            None => Ok(Kind::End),
        }
    }
}

fn is_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || c == b'_' || c == b'$'
}

fn is_name_start(c: u8) -> bool {
    c.is_ascii_alphabetic() || matches!(c, b'_' | b'$' | b'%')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<&str> {
        tokens(text).expect("lexes").iter().map(|t| t.text).collect()
    }

    #[test]
    fn splits_instructions() {
        assert_eq!(
            texts("@!%p1 ld.v2.u32 {%r1,_}, [%rd1+-8];"),
            [
                "@", "!", "%p1", "ld", "v2", "u32", "{", "%r1", ",", "_", "}", ",", "[", "%rd1", "+", "-",
                "8", "]", ";", ""
            ]
        );
        assert_eq!(texts("mov.u32 %r<3> %tid.x"), ["mov", "u32", "%r", "<", "3", ">", "%tid", "x", ""]);
        assert_eq!(texts("0f3F800000 1.5e-3 0x1F 9.0 7U"), ["0f3F800000", "1.5e-3", "0x1F", "9.0", "7U", ""]);
        assert_eq!(texts("ld.shared::cta.L2::128B"), ["ld", "shared::cta", "L2::128B", ""]);
    }

    #[test]
    fn positions_count_from_one() {
        let all = tokens("// c\n/* a\n b */ add\n  .x").expect("lexes");
        assert_eq!(all[0].at, Position { line: 3, column: 7 });
        assert_eq!(all[1].at, Position { line: 4, column: 3 });
    }

    #[test]
    fn refuses_what_is_no_token() {
        for (text, line, column) in
            [("a\n `", 2, 2), ("/* x", 1, 1), ("\"x\n\"", 1, 1), ("0f12", 1, 1), (" é", 1, 2)]
        {
            let error = tokens(text).expect_err(text);
            assert_eq!((error.line, error.column), (line, column), "{text}");
        }
    }
}
