//! Some ranks of a group, as they meet over its control links in order to make another one.
#![forbid(unsafe_code)]

use sha2::{Digest as _, Sha256};

use super::control::{Address, Attendance, Needs};
use super::links::Links;
use crate::bootstrap::Bootstrap;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::net::Secret;

/// The bootstrap of ranks of an older group, which number themselves anew. Control links outlive an abort, so nothing from
/// outside is needed.
#[derive(Debug)]
pub(crate) struct Subset<'a> {
    links: &'a Links,
    rank: u32,
    needs: Needs,
    step: Step,
    meeting: &'a Attendance<'a>,
    /// Tells this group's messages from those of other groups of the meeting.
    group: u64,
}

/// How a meeting's groups follow each other. The same ranks may make one of each.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// The ranks that meet, also if they have made different calls: they tell each other which.
    Gathering,
    /// The ranks that go on together after it.
    Making,
}

impl<'a> Subset<'a> {
    /// `needs.ranks`, in the order of their new numbers, of which this rank is one. All give the same `step` of the same meeting.
    pub(crate) fn new(links: &'a Links, needs: Needs, meeting: &'a Attendance<'a>, step: Step) -> Self {
        let me = links.rank();
        let rank = needs.ranks.iter().position(|rank| *rank == me).unwrap_or_default() as u32;
        let mut hash = Sha256::new();
        hash.update([step as u8]);
        if let Step::Making = step {
            hash.update(needs.op);
        }
        needs.ranks.iter().for_each(|rank| hash.update(rank.to_le_bytes()));
        let group = hash.finalize().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Self { links, rank, needs, step, meeting, group }
    }

    /// The ranks that must be there for a message between this rank and `peer`. In a gathering, rank 0 hears which rank has gone and tells the
    /// others, so each of them needs rank 0 alone: a rank that has its answer may leave while another one waits for its own.
    fn needs(&self, peer: u32, hears_all: bool) -> Needs {
        let ranks = match (self.step, self.needs.ranks.get(peer as usize)) {
            (Step::Gathering, Some(peer)) if !hears_all => vec![*peer],
            _ => self.needs.ranks.clone(),
        };
        Needs { ranks, ..self.needs.clone() }
    }

    fn address(&self, peer: u32, tag: u64) -> Result<Address> {
        match self.needs.ranks.get(peer as usize) {
            Some(peer) => {
                Ok(Address { peer: *peer, meeting: self.meeting.meeting(), group: self.group, tag })
            }
            None => Err(Error::usage(self.needs.op, format!("there is no rank {peer} in the new group"))),
        }
    }
}

impl Bootstrap for Subset<'_> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.needs.ranks.len() as u32
    }

    fn send(&self, peer: u32, tag: u64, bytes: &[u8], deadline: Deadline) -> Result<()> {
        self.links.control().check_needs(&self.needs(peer, false))?;
        let to = self.address(peer, tag)?;
        self.links.ensure(to.peer, deadline)?;
        self.links.control().send_mail(to, bytes)
    }

    fn recv(&self, peer: u32, tag: u64, deadline: Deadline) -> Result<Vec<u8>> {
        let needs = self.needs(peer, self.rank == 0);
        self.links.control().recv_mail(self.address(peer, tag)?, &needs, deadline)
    }

    fn secret(&self) -> Option<Secret> {
        Some(self.links.secret_of_successors())
    }
}
