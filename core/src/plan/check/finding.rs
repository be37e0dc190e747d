//! Findings of a check.

use std::fmt;

use super::ir::Buffer;
use super::position::Position;

/// Most findings of one check.
pub(super) const MOST: usize = 32;

/// Something wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Kind of the mistake.
    pub kind: FindingKind,
    /// The operation, if it is one operation's mistake.
    pub position: Option<Position>,
    /// The chunk that it is about.
    pub chunk: Option<Location>,
    /// One sentence: the mistake, and the remedy.
    pub message: String,
}

/// A chunk of a rank's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// Whose.
    pub rank: u32,
    /// Which buffer.
    pub buffer: Buffer,
    /// Which chunk.
    pub chunk: u32,
}

/// Kinds of mistakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// A setting or a count does not fit the collective or the machine.
    Settings,
    /// A chunk, rank, block, channel or semaphore does not exist.
    Bounds,
    /// Operands do not go together.
    Operands,
    /// Signals and waits, or releases and acquires, are not equally many.
    Pairing,
    /// Blocks wait for each other for ever.
    Deadlock,
    /// Two accesses of one chunk in no defined order.
    Race,
    /// Memory is used again while another call may still use it.
    Reuse,
    /// The output is not what the collective promises.
    Result,
    /// The plan is too large to be checked.
    Limit,
}

impl FindingKind {
    /// A lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Settings => "settings",
            Self::Bounds => "bounds",
            Self::Operands => "operands",
            Self::Pairing => "pairing",
            Self::Deadlock => "deadlock",
            Self::Race => "race",
            Self::Reuse => "reuse",
            Self::Result => "result",
            Self::Limit => "limit",
        }
    }
}

impl Finding {
    pub(super) fn new(
        kind: FindingKind,
        position: impl Into<Option<Position>>,
        message: impl Into<String>,
    ) -> Self {
        Self { kind, position: position.into(), chunk: None, message: message.into() }
    }

    pub(super) fn about(self, chunk: Location) -> Self {
        Self { chunk: Some(chunk), ..self }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.kind.name())?;
        if let Some(position) = &self.position {
            write!(f, "{position}: ")?;
        }
        if let Some(chunk) = &self.chunk {
            write!(f, "{chunk}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buffer = match self.buffer {
            Buffer::Input => "input",
            Buffer::Output => "output",
            Buffer::Scratch => "scratch",
        };
        write!(f, "{buffer} chunk {} of rank {}", self.chunk, self.rank)
    }
}
