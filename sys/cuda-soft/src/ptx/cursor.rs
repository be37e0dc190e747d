//! The position in the token stream, and the basic steps of the parser.

use super::ast::Name;
use super::diagnostic::{Diagnostic, Position};
use super::lex::{Kind, Token};

/// Maximum nesting of braces, parentheses and lists. The parser recurses once per level, so the limit keeps hostile
/// text from overflowing the stack.
pub(super) const DEPTH: u32 = 100;

/// Reads tokens from left to right.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    tokens: Vec<Token<'a>>,
    next: usize,
    depth: u32,
}

impl<'a> Cursor<'a> {
    /// Starts at the first token. `tokens` ends with [`Kind::End`].
    pub(super) fn new(tokens: Vec<Token<'a>>) -> Self {
        Self { tokens, next: 0, depth: 0 }
    }

    pub(super) fn peek(&self) -> Token<'a> {
        self.peek_at(0)
    }

    /// The token `ahead` places after the next one. The end token repeats.
    pub(super) fn peek_at(&self, ahead: usize) -> Token<'a> {
        self.tokens[(self.next + ahead).min(self.tokens.len() - 1)]
    }

    pub(super) fn at(&self) -> Position {
        self.peek().at
    }

    pub(super) fn take(&mut self) -> Token<'a> {
        let token = self.peek();
        self.next = (self.next + 1).min(self.tokens.len() - 1);
        token
    }

    /// Whether the next token is this punctuation.
    pub(super) fn sees(&self, mark: &str) -> bool {
        let token = self.peek();
        token.kind == Kind::Mark && token.text == mark
    }

    /// Takes this punctuation if it is next.
    pub(super) fn eat(&mut self, mark: &str) -> bool {
        let seen = self.sees(mark);
        if seen {
            self.take();
        }
        seen
    }

    /// Takes this punctuation. If another token is next, the error names it.
    pub(super) fn expect(&mut self, mark: &str) -> Result<Position, Diagnostic> {
        let at = self.at();
        if self.eat(mark) { Ok(at) } else { Err(self.unexpected(&format!("'{mark}'"))) }
    }

    /// Takes `.word` if it is next.
    pub(super) fn eat_dot(&mut self, word: &str) -> bool {
        let token = self.peek();
        let seen = token.kind == Kind::Dot && token.text == word;
        if seen {
            self.take();
        }
        seen
    }

    pub(super) fn name(&mut self, what: &str) -> Result<Name, Diagnostic> {
        self.word(Kind::Name, what)
    }

    pub(super) fn dot(&mut self, what: &str) -> Result<Name, Diagnostic> {
        self.word(Kind::Dot, what)
    }

    fn word(&mut self, kind: Kind, what: &str) -> Result<Name, Diagnostic> {
        if self.peek().kind != kind {
            return Err(self.unexpected(what));
        }
        let token = self.take();
        Ok(Name { text: token.text.to_owned(), at: token.at })
    }

    /// An error that names the next token and the expected one.
    pub(super) fn unexpected(&self, wanted: &str) -> Diagnostic {
        let token = self.peek();
        let found = match token.kind {
            Kind::End => "end of text".to_owned(),
            Kind::Dot => format!("'.{}'", token.text),
            Kind::Text => format!("\"{}\"", token.text),
            _ => format!("'{}'", token.text),
        };
        token.at.error(format!("Parsing error near {found}: expected {wanted}"))
    }

    /// Runs `inner` one nesting level deeper.
    pub(super) fn nested<T>(
        &mut self,
        inner: impl FnOnce(&mut Self) -> Result<T, Diagnostic>,
    ) -> Result<T, Diagnostic> {
        if self.depth == DEPTH {
            return Err(self.at().error(format!("Nested more than {DEPTH} levels deep")));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    /// Parses `item {, item}`.
    pub(super) fn separated<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, Diagnostic>,
    ) -> Result<Vec<T>, Diagnostic> {
        let mut all = vec![item(self)?];
        while self.eat(",") {
            all.push(item(self)?);
        }
        Ok(all)
    }

    /// Skips to this punctuation, or to the end of the text or of a scope.
    pub(super) fn skip_to(&mut self, mark: &str) {
        let mut open = 0u32;
        while self.peek().kind != Kind::End && !(open == 0 && (self.sees(mark) || self.sees("}"))) {
            match self.take() {
                Token { kind: Kind::Mark, text: "{", .. } => open += 1,
                Token { kind: Kind::Mark, text: "}", .. } => open -= 1,
                _ => {}
            }
        }
    }

    /// After an error, skips to the position behind the next `;`, or before the `}` that closes the enclosing scope.
    /// Returns false if the braces do not match; parsing on would then only produce follow-up errors.
    pub(super) fn recover(&mut self) -> bool {
        let mut open = 0u32;
        loop {
            let token = self.peek();
            match (token.kind, token.text) {
                (Kind::End, _) => return false,
                (Kind::Mark, "{") => open += 1,
                (Kind::Mark, "}") if open == 0 => return true,
                (Kind::Mark, "}") => open -= 1,
                _ => {}
            }
            self.take();
            if token.kind == Kind::Mark && token.text == ";" {
                return open == 0;
            }
        }
    }
}
