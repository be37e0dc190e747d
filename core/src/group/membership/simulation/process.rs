//! A process of a simulated job, the communicators that it has, and what it says.

use std::collections::BTreeMap;

use super::Time;
use crate::group::membership::agreement::Membership;
use crate::group::membership::message::Envelope;
use crate::group::membership::quorum::Ranks;

/// Identifies one communicator: the generation and the members (ranks of the job) of each of its predecessors and of
/// itself.
pub(super) type Name = Vec<(u64, Ranks)>;

/// One communicator at one process.
pub(super) struct Communicator {
    pub(super) name: Name,
    /// Its ranks, as ranks of the job.
    pub(super) ranks: Vec<u32>,
    pub(super) membership: Membership,
    /// When its caller began to shrink it, while it does, and until when.
    pub(super) calling: Option<(Time, Time)>,
    /// The next communicator, which is being made of this generation, and who has it.
    pub(super) making: Option<(u64, usize)>,
    /// The ranks that said they have the next communicator, by its generation.
    pub(super) ready: BTreeMap<u64, Ranks>,
    pub(super) failed: bool,
}

pub(super) struct Process {
    pub(super) alive: bool,
    pub(super) left: bool,
    pub(super) communicators: Vec<Communicator>,
    /// The communicator that its user has.
    pub(super) current: usize,
    /// Communicators that `shrink` returned.
    pub(super) returned: Vec<(Name, Time)>,
    /// The ranks that it has given up, and whose loss its user knows of.
    pub(super) cut: Ranks,
    pub(super) call_at: Option<Time>,
}

#[derive(Clone, Debug)]
pub(super) enum Word {
    Membership(Envelope),
    /// The sender has the next communicator of this generation.
    Ready(u64),
    Bye,
    /// The end of the stream of a process that died.
    End,
    /// The end of the stream from a process that gave the receiver up.
    Cut,
}

#[derive(Debug)]
pub(super) enum Event {
    Tick(u32),
    Deliver { from: u32, to: u32, name: Name, word: Word },
    Break { from: u32, to: u32 },
    Silent { at: u32, of: u32 },
    Die(u32),
    Leave(u32),
}
