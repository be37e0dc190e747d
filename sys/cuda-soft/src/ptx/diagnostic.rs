//! Errors that point into PTX text.

use std::fmt;

/// A position in the text. Lines and columns count from 1; columns count bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    /// Line, from 1; 0 if an error concerns the whole text.
    pub line: u32,
    /// Byte within the line, from 1.
    pub column: u32,
}

impl Position {
    /// Creates an error at this position.
    pub(crate) fn error(self, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            line: self.line,
            column: self.column,
            message: message.into(),
            further: Vec::new(),
            unsupported_version: false,
        }
    }
}

/// The reason why a module was refused. `Display` prints it as a line of the JIT log.
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
    /// Whether the text needs a newer PTX ISA than this device knows, for which the driver has an error code of its
    /// own.
    pub unsupported_version: bool,
}

/// Maximum number of errors that one compilation reports.
const LIMIT: usize = 20;

impl Diagnostic {
    /// Joins many diagnostics into one, the earliest first; `None` if there are none.
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
        let Diagnostic { line, column, message, further, .. } = self;
        write!(f, "ptxas application ptx input, line {line}, column {column}; error   : {message}")?;
        for other in further {
            write!(f, "\n{other}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostic {}
