//! The surroundings of a warp during its turn, and the results of turns and instructions.

use super::barrier::Barriers;
use super::grid::{Grid, Place};
use super::memory::Access;
use super::rare::Harmless;
use crate::check::Chance;

/// The state of the block that a warp uses during its turn.
#[derive(Debug)]
pub(super) struct Context<'a, 'v> {
    pub(super) grid: &'a Grid,
    pub(super) place: &'a Place,
    pub(super) barriers: &'a mut Barriers,
    pub(super) access: &'a mut Access<'v>,
    pub(super) harmless: &'a Harmless,
}

impl Context<'_, '_> {
    /// The choices that the memory model leaves open, if they are made.
    pub(super) fn chance(&self) -> Option<&Chance> {
        self.grid.launch().check.as_ref()?.chance()
    }
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The warp made progress; it may be able to continue.
    Progress,
    /// The warp can continue, but nothing has changed: it has paused in a loop that waits.
    Idle,
    /// All lanes wait, and the turn changed nothing.
    Waiting,
    /// All lanes have exited.
    Exited,
}

/// Where the lanes that executed an instruction continue.
pub(super) enum Flow {
    /// At the next instruction.
    Next,
    /// The lanes of the mask at the next instruction; the other active lanes stay at this one.
    Some(u32),
    /// At the program counters that the instruction has set.
    Placed,
    /// At the next instruction, but not in this turn.
    Rest,
}
