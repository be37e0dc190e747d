//! Errors that point into PTX text.

use std::fmt;

/// Where something stands in the text; both count from 1, columns in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    /// Line, from 1; 0 where the text as a whole is meant.
    pub line: u32,
    /// Byte within the line, from 1.
    pub column: u32,
}

impl Position {
    /// An error at this place.
    pub(crate) fn error(self, message: impl Into<String>) -> Diagnostic {
        Diagnostic { line: self.line, column: self.column, message: message.into(), further: Vec::new() }
    }
}

/// Why a module was refused, in the form of a line of the JIT log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Line, from 1.
    pub line: u32,
    /// Byte within the line, from 1.
    pub column: u32,
    /// One sentence.
    pub message: String,
    /// Errors found after the first one, in order.
    pub further: Vec<Diagnostic>,
}

/// How many errors one compilation reports; more are of no use to anybody.
const LIMIT: usize = 20;

impl Diagnostic {
    /// Makes one diagnostic of many, the earliest first; `None` when there are none.
    pub(crate) fn join(mut all: Vec<Diagnostic>) -> Option<Diagnostic> {
        if all.is_empty() {
            return None;
        }
        all.truncate(LIMIT);
        let mut first = all.remove(0);
        first.further.extend(all);
        Some(first)
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Diagnostic { line, column, message, further } = self;
        write!(f, "ptxas application ptx input, line {line}, column {column}; error   : {message}")?;
        for other in further {
            write!(f, "\n{other}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostic {}
