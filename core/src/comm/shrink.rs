//! Going on without ranks that are lost: a new communicator of those who are left.
//!
//! Who they are is agreed first ([`membership`](crate::group::membership)); then the members make the communicator over the
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
use crate::group::subset::Subset;

const OP: &str = "shrink";
/// How long the news of a loss may take on another way.
const NEWS: Duration = Duration::from_millis(500);

/// Makes the communicator of all ranks of `old` that go on, without the ranks `without`.
pub(super) fn shrink(old: &Communicator, without: &[u32], deadline: Deadline) -> Result<Communicator> {
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
        let subset = Subset::new(links, needs, generation);
        let error = match Communicator::make(&subset, old.context(), old.config().clone(), true, deadline) {
            Ok(next) => match subset.barrier(deadline) {
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
