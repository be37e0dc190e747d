//! Keeps ranks in step during a check, also when one of them has to stop early.
//!
//! Each rank sends any number of steps to others and, at the end of a check, one verdict to every other. A rank that
//! gives up sends its verdict early: a rank that waits for a step from it finds the verdict instead and gives up, too.
//! All ranks are therefore in step again when the next check begins, however the last one ended.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use aqueduct::Deadline;
use serde::{Deserialize, Serialize};

use crate::job::Rank;

/// Result of a check on one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Verdict {
    /// All was right. The text says what was checked.
    Passed(String),
    /// The check cannot run here. The text says why.
    NotRun(String),
    /// The text says what was wrong.
    Failed(String),
}

#[derive(Debug, Serialize, Deserialize)]
enum Message {
    /// The sender has reached this step. False if it cannot go on.
    Step(bool),
    Verdict(Verdict),
}

const TAG: u64 = 0x5e1f;

/// This rank's side of the exchange.
pub(super) struct Lockstep<'a> {
    rank: &'a Rank,
    /// Verdicts that arrived in place of a step, by rank.
    early: RefCell<Vec<Option<Verdict>>>,
}

impl<'a> Lockstep<'a> {
    pub(super) fn new(rank: &'a Rank) -> Self {
        Self { rank, early: RefCell::new(vec![None; rank.bootstrap.size() as usize]) }
    }

    /// Waits until each of `peers` reaches its step with this rank.
    pub(super) fn step(&self, peers: &[u32]) -> Result<()> {
        self.agree(peers, true).map(drop)
    }

    /// Like [`step`](Self::step), and tells the peers whether this rank can go on. Returns whether all can.
    pub(super) fn agree(&self, peers: &[u32], mine: bool) -> Result<bool> {
        for &peer in peers {
            self.send(peer, &Message::Step(mine))?;
        }
        let mut all = mine;
        for &peer in peers {
            if self.early.borrow()[peer as usize].is_some() {
                bail!("rank {peer} has given up");
            }
            match self.recv(peer)? {
                Message::Step(theirs) => all &= theirs,
                Message::Verdict(verdict) => {
                    self.early.borrow_mut()[peer as usize] = Some(verdict);
                    bail!("rank {peer} has given up");
                }
            }
        }
        Ok(all)
    }

    /// Ends a check and returns the verdicts of all ranks, in rank order. Every rank hears this one's, also if another was
    /// lost: otherwise it would take this rank for lost, too.
    pub(super) fn verdicts(&self, mine: Verdict) -> Result<Vec<Verdict>> {
        let (me, size) = (self.rank.bootstrap.rank(), self.rank.bootstrap.size());
        let others = || (0..size).filter(|&peer| peer != me);
        let message = Message::Verdict(mine.clone());
        let sent: Vec<Result<()>> = others().map(|peer| self.send(peer, &message)).collect();
        sent.into_iter().collect::<Result<()>>()?;
        (0..size).map(|rank| if rank == me { Ok(mine.clone()) } else { self.verdict_of(rank) }).collect()
    }

    fn verdict_of(&self, peer: u32) -> Result<Verdict> {
        if let Some(verdict) = self.early.borrow_mut()[peer as usize].take() {
            return Ok(verdict);
        }
        loop {
            // Skip steps that this rank did not wait for because it gave up.
            if let Message::Verdict(verdict) = self.recv(peer)? {
                return Ok(verdict);
            }
        }
    }

    fn send(&self, peer: u32, message: &Message) -> Result<()> {
        Ok(self.rank.bootstrap.send(peer, TAG, &serde_json::to_vec(message)?, self.rank.deadline())?)
    }

    fn recv(&self, peer: u32) -> Result<Message> {
        // A peer that gives up does so at a deadline of its own, which may be a whole timeout away.
        let deadline = Deadline::after(2 * self.rank.timeout + Duration::from_secs(1));
        let bytes = self.rank.bootstrap.recv(peer, TAG, deadline)?;
        serde_json::from_slice(&bytes).with_context(|| format!("rank {peer} sent a message that this program does not understand; do all ranks run the same version?"))
    }
}
