//! Going on without ranks that are lost: a new communicator of those who are left.
//!
//! The members are agreed first ([`membership`](crate::group::membership)); then the members make the communicator over the
//! control links of the old one. A rank returns it once it knows that every member has it. Until then a loss begins all anew
//! with the next generation.
#![forbid(unsafe_code)]

use std::time::Duration;

use crate::bootstrap::Bootstrap as _;
use crate::comm::communicator::Communicator;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::group::control::{Needs, Outcome};
use crate::group::membership::Ranks;
use crate::group::subset::{Step, Subset};

const OP: &str = "shrink";
/// How long the news of a loss may take on another way.
const NEWS: Duration = Duration::from_millis(500);

impl Communicator {
    /// A new communicator of the ranks that are left: without those that are lost, those that have left, and those in
    /// `without`. Collective among them: each calls it, with the same `without`. They keep their order and are numbered from
    /// 0 again. Nothing but the control links is needed, which outlive an abort; it works without one, too, and what was made
    /// by this communicator goes on working. It belongs to this one: make it anew, and drop the old.
    ///
    /// Of the ranks of one job at most one group goes on, whatever breaks (`docs/membership.md`): more than half of this
    /// communicator, or half of it with its lowest rank. Ranks that left in good order, processes that a rank of their host has
    /// seen end, and the ranks `without`, if they can be reached, count neither way; silent ones do. A communicator can be
    /// shrunk once; to go on after another loss, shrink the one that was made.
    ///
    /// In the same context, all memory that this rank allocated can be used again. Where ranks share memory by file descriptors
    /// or fabric handles, as [`GpuBuffer`](crate::gpu::GpuBuffer) does wherever it can, a lost rank does no harm to the others'
    /// memory; for legacy handles the driver does not promise that.
    ///
    /// A loss during the call begins it anew with those who are left. If it comes last of all, some ranks may end with a
    /// communicator that tells of the loss at once, and others with an error; the former can shrink that one again.
    ///
    /// # Errors
    /// `Timeout`, naming a rank that did not call it before `deadline`; `PeerLost` with this rank's own number, for good, if it
    /// reaches too few others, or the others agreed on a group without it; `InvalidUsage` for a `without` with ranks that do not
    /// exist, or this one, or that differs from another rank's where neither of the two leaves out the other (where one does, at most one
    /// side goes on, and it may be small), and for a communicator that was shrunk before, also by another
    /// thread meanwhile; `Stopped` for one that was closed; as for [`new`](Self::new).
    pub fn shrink(&self, without: &[u32], deadline: impl Into<Deadline>) -> Result<Self> {
        if self.group().forked() {
            return Err(Error::usage("shrink", "a communicator does not survive fork"));
        }
        let deadline = deadline.into();
        let _shrinking = self.asked.shrink_turn(deadline)?;
        shrink(self, without, deadline)
    }
}

/// Makes the communicator of all ranks of `old` that go on, without the ranks `without`.
fn shrink(old: &Communicator, without: &[u32], deadline: Deadline) -> Result<Communicator> {
    let without = check(old, without)?;
    let links = old.group().links();
    let control = links.control();
    // Of the last generation, which another member may have completed.
    let mut made = None;
    loop {
        let (generation, members) = match links.agree(&without, deadline)? {
            Outcome::Agreed { generation, members } => (generation, members),
            Outcome::Completed => match made {
                Some((generation, next)) if control.complete_generation(generation) => {
                    return Ok(go_on(next));
                }
                _ => return Err(Error::peer_lost(OP, old.rank(), "the others went on without this process")),
            },
        };
        let ranks: Vec<u32> = members.into_iter().collect();
        log::info!("rank {} goes on with {ranks:?}, generation {generation}", old.rank());
        let needs = Needs { op: OP, ranks, generation: Some(generation) };
        let meeting = control.meet_for(generation);
        let subset = Subset::new(links, needs, &meeting, Step::Making);
        let error = match Communicator::make(&subset, old.context(), old.config().clone(), true, deadline) {
            Ok(next) => match met(&subset, deadline) {
                Ok(()) if control.complete_generation(generation) => return Ok(go_on(next)),
                barrier => {
                    made = Some((generation, next));
                    barrier.err()
                }
            },
            Err(error) => Some(error),
        };
        if let Some(error) = error {
            if deadline.expired() || !is_superseded(old, generation, &error) {
                return Err(error);
            }
            log::info!("another rank is gone: {error}");
        }
    }
}

/// All members have made the communicator.
fn met(subset: &Subset<'_>, deadline: Deadline) -> Result<()> {
    let met = subset.barrier(deadline);
    #[cfg(all(test, not(loom)))]
    tests::met();
    met
}

fn go_on(next: Communicator) -> Communicator {
    next.group().control().activate();
    next
}

/// The ranks `without`, which must exist, and not be this one.
fn check(old: &Communicator, without: &[u32]) -> Result<Ranks> {
    if let Some(rank) = without.iter().find(|rank| **rank >= old.size()) {
        return Err(Error::usage(OP, format!("there is no rank {rank}; ranks are 0 to {}", old.size() - 1)));
    }
    if without.contains(&old.rank()) {
        return Err(Error::usage(OP, format!("rank {} cannot leave out itself", old.rank())));
    }
    Ok(without.iter().copied().collect())
}

/// Whether `error` comes from another member being gone. The news of that may be behind the error.
fn is_superseded(old: &Communicator, generation: u64, error: &Error) -> bool {
    let control = old.group().control();
    let patience = if error.kind() == ErrorKind::PeerLost { NEWS } else { Duration::ZERO };
    let patience = Deadline::after(patience);
    loop {
        let seen = control.version();
        if control.is_superseded(generation) {
            return true;
        }
        if !control.wait(seen, patience) {
            return false;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
