//! The context of a running check: group, peers, and the list of what was wrong.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use anyhow::Result;
use aqueduct::Deadline;
use aqueduct::comm::Transport;
use aqueduct::gpu::{GpuBuffer, Stream};
use aqueduct::plan::{Element, Reduction};

use super::group::{Group, Pair};
use super::lockstep::{Lockstep, Verdict};
use crate::job::Rank;
use crate::perf::data::Call;

/// Value of bytes that no operation may write.
pub(super) const CANARY: u8 = 0xA5;

/// Number of complaints shown per check; the rest are only counted.
const SHOWN: usize = 3;

/// Options for all checks.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Manner {
    /// Fewer sizes of each kind, and not every pair of ranks
    #[arg(long)]
    pub(super) quick: bool,
    /// Damage what every check reads back: each check that compares data must fail
    #[arg(long, hide = true)]
    pub(super) spoil: bool,
}

/// The outcome of a check that did not end with an error.
#[derive(Debug)]
pub(super) enum Ran {
    All(String),
    Not(String),
}

impl Ran {
    /// The check ran; `what` describes it.
    pub(super) fn all(what: impl Into<String>) -> Self {
        Self::All(what.into())
    }

    /// The check cannot run here; `why` gives the reason.
    pub(super) fn not(why: impl Into<String>) -> Self {
        Self::Not(why.into())
    }
}

/// One check on this rank.
///
/// Wrong data is a complaint: the check goes on, so that ranks stay in step. An error ends the check.
pub(super) struct Check<'a> {
    pub(super) rank: &'a Rank,
    pub(super) group: &'a Group,
    pub(super) quick: bool,
    spoil: bool,
    lockstep: &'a Lockstep<'a>,
    complaints: RefCell<Vec<String>>,
}

impl<'a> Check<'a> {
    pub(super) fn new(
        rank: &'a Rank,
        group: &'a Group,
        Manner { quick, spoil }: Manner,
        lockstep: &'a Lockstep<'a>,
    ) -> Self {
        Self { rank, group, quick, spoil, lockstep, complaints: RefCell::default() }
    }

    /// The verdict from the outcome of the check and its complaints.
    pub(super) fn verdict(&self, ended: Result<Ran>) -> Verdict {
        let mut wrong = self.complaints.take();
        let hidden = wrong.len().saturating_sub(SHOWN);
        wrong.truncate(SHOWN);
        if hidden > 0 {
            wrong.push(format!("and {hidden} more"));
        }
        match ended {
            Err(error) => wrong.push(format!("{error:#}")),
            Ok(Ran::All(what)) if wrong.is_empty() => return Verdict::Passed(what),
            Ok(Ran::Not(why)) if wrong.is_empty() => return Verdict::NotRun(why),
            Ok(_) => {}
        }
        Verdict::Failed(wrong.join("; "))
    }

    pub(super) fn me(&self) -> u32 {
        self.rank.bootstrap.rank()
    }

    pub(super) fn size(&self) -> u32 {
        self.rank.bootstrap.size()
    }

    pub(super) fn deadline(&self) -> Deadline {
        self.rank.deadline()
    }

    /// Waits until the partner of `pair` reaches this step.
    pub(super) fn step(&self, pair: &Pair) -> Result<()> {
        self.step_with(pair.peer)
    }

    /// Waits until rank `peer` reaches this step.
    pub(super) fn step_with(&self, peer: u32) -> Result<()> {
        self.lockstep.step(&[peer])
    }

    /// Waits for all ranks and returns whether all of them can go on.
    pub(super) fn agree(&self, mine: bool) -> Result<bool> {
        let others: Vec<u32> = (0..self.size()).filter(|&rank| rank != self.me()).collect();
        self.lockstep.agree(&others, mine)
    }

    /// Runs `check` with each partner of this rank. `what` describes it for the row.
    pub(super) fn each_pair(
        &self,
        what: impl fmt::Display,
        check: impl Fn(&Pair) -> Result<()>,
    ) -> Result<Ran> {
        if self.group.pairs.is_empty() {
            return Ok(Ran::not("needs a second rank whose device this one reaches"));
        }
        self.group.pairs.iter().try_for_each(check)?;
        Ok(Ran::all(what.to_string()))
    }

    /// Runs `check` with each partner that `transport` connects to. `what` describes it for the row.
    pub(super) fn each_partner(
        &self,
        transport: Transport,
        what: impl fmt::Display,
        check: impl Fn(u32) -> Result<()>,
    ) -> Result<Ran> {
        if transport == Transport::CudaIpc {
            return self.each_pair(what, |pair| check(pair.peer));
        }
        if self.group.partners.is_empty() {
            return Ok(Ran::not("needs a second rank"));
        }
        self.group.partners.iter().try_for_each(|&peer| check(peer))?;
        Ok(Ran::all(what.to_string()))
    }

    pub(super) fn buffer(&self, len: usize) -> Result<Arc<GpuBuffer>> {
        Ok(Arc::new(GpuBuffer::new(&self.rank.context, len)?))
    }

    /// Waits for the work on `stream`.
    pub(super) fn done(&self, stream: &Stream) -> Result<()> {
        stream.synchronize(self.deadline())?;
        // A stream is idle after a kernel that gave up, too.
        Ok(self.group.comm.check()?)
    }

    pub(super) fn load(&self, buffer: &GpuBuffer, data: &[u8]) -> Result<()> {
        Ok(buffer.upload(0, data, self.deadline())?)
    }

    pub(super) fn contents(&self, buffer: &GpuBuffer) -> Result<Vec<u8>> {
        let mut seen = vec![0; buffer.len()];
        buffer.download(0, &mut seen, self.deadline())?;
        Ok(self.read_back(seen))
    }

    /// Passes data read back to the comparison; with `--spoil` flips a bit of its first byte.
    pub(super) fn read_back(&self, mut seen: Vec<u8>) -> Vec<u8> {
        if self.spoil
            && let Some(first) = seen.first_mut()
        {
            *first ^= 0x10;
        }
        seen
    }

    /// Adds a complaint.
    pub(super) fn complain(&self, what: String) {
        self.complaints.borrow_mut().push(what);
    }

    /// Complains unless `right`.
    pub(super) fn expect(&self, right: bool, what: impl fmt::Display) {
        if !right {
            self.complain(what.to_string());
        }
    }

    /// Complains unless both are equal, with the place and number of differing bytes.
    pub(super) fn same(&self, seen: &[u8], expected: &[u8], what: impl fmt::Display) {
        if let Some(difference) = difference(seen, expected) {
            self.complain(format!("{what}: {difference}"));
        }
    }
}

/// `len` bytes that depend on rank, iteration and offset.
pub(super) fn paint(rank: u32, iteration: u32, len: usize) -> Vec<u8> {
    let words = Call {
        ty: Element::I32,
        op: Reduction::Sum,
        ranks: 1,
        iteration,
        count: len.div_ceil(Element::I32.bytes()),
    };
    let mut bytes = words.input(rank);
    bytes.truncate(len);
    bytes
}

/// `len` canaries with `data` at `start`.
pub(super) fn framed(len: usize, start: usize, data: &[u8]) -> Vec<u8> {
    let mut canvas = vec![CANARY; len];
    canvas[start..start + data.len()].copy_from_slice(data);
    canvas
}

fn difference(seen: &[u8], expected: &[u8]) -> Option<String> {
    if seen.len() != expected.len() {
        return Some(format!("{} bytes instead of {}", seen.len(), expected.len()));
    }
    let wrong: Vec<usize> = (0..seen.len()).filter(|&i| seen[i] != expected[i]).collect();
    let &first = wrong.first()?;
    let shown = first..(first + 8).min(seen.len());
    Some(format!(
        "{} of {} bytes differ, from byte {first}: {:02x?} instead of {:02x?}",
        wrong.len(),
        seen.len(),
        &seen[shown.clone()],
        &expected[shown]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_data_differs_by_rank_iteration_and_offset() {
        let mine = paint(0, 0, 4095);
        let alike = |other: &[u8]| mine.iter().zip(other).filter(|(a, b)| a == b).count();
        assert_eq!(mine.len(), 4095);
        assert!(alike(&paint(1, 0, 4095)) < 64 && alike(&paint(0, 1, 4095)) < 64 && alike(&mine[1..]) < 64);
    }

    #[test]
    fn a_wrong_byte_and_a_missing_byte_are_found() {
        let right = framed(64, 8, &paint(0, 0, 16));
        assert_eq!(difference(&right, &right), None);
        let mut seen = right.clone();
        seen[63] ^= 1;
        assert_eq!(
            difference(&seen, &right).as_deref(),
            Some("1 of 64 bytes differ, from byte 63: [a4] instead of [a5]")
        );
        assert_eq!(difference(&seen[..63], &right).as_deref(), Some("63 bytes instead of 64"));
    }
}
