//! Going on without ranks that are lost: a new communicator of those who are left.
//!
//! The control links of the old communicator outlive its abort. The survivors meet over them: they serve as the
//! [`Bootstrap`] of the new one, so nothing from outside is needed. A group that is being made is named by who does *not*
//! belong to it. Whoever learns of another loss meanwhile gives that group up and begins the next smaller one, as all others
//! do when they learn of it.
#![forbid(unsafe_code)]

use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::bootstrap::Bootstrap;
use crate::comm::communicator::Communicator;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::group::control::Address;
use crate::group::links::Links;
use crate::net::Secret;

const OP: &str = "shrink";
/// How long the news of a loss may take on another way.
const NEWS: Duration = Duration::from_millis(500);

/// Makes the communicator of all ranks of `old` that are neither in `without` nor gone.
pub(super) fn shrink(old: &Communicator, without: &[u32], deadline: Deadline) -> Result<Communicator> {
    let group = old.group();
    let control = group.control();
    loop {
        let gone = gone(old, without)?;
        let name = name(&gone, control.begin_group(&gone));
        let survivors = Survivors::new(group.links(), old.size(), old.rank(), &gone, name);
        log::info!("rank {} goes on without {gone:?}, as rank {}", old.rank(), survivors.rank);
        let made = Communicator::new(&survivors, old.context(), old.config().clone(), deadline);
        control.end_group(name);
        match made {
            Err(error) if !deadline.expired() && fewer(old, without, &gone, &error)? => {
                log::info!("another rank is gone: {error}");
            }
            made => return made,
        }
    }
}

/// Whether `error` comes from another rank being gone. The news of that may be behind the error.
fn fewer(old: &Communicator, without: &[u32], gone: &[u32], error: &Error) -> Result<bool> {
    let patience = if error.kind() == ErrorKind::PeerLost { NEWS } else { Duration::ZERO };
    let patience = Deadline::after(patience);
    loop {
        let seen = old.group().control().version();
        if self::gone(old, without)? != gone {
            return Ok(true);
        }
        if !old.group().control().wait(seen, patience) {
            return Ok(false);
        }
    }
}

/// Who does not belong to the new group, in order.
fn gone(old: &Communicator, without: &[u32]) -> Result<Vec<u32>> {
    let mut gone = old.group().control().gone();
    gone.extend(without);
    gone.sort_unstable();
    gone.dedup();
    if let Some(rank) = gone.iter().find(|rank| **rank >= old.size()) {
        return Err(Error::usage(OP, format!("there is no rank {rank}; ranks are 0 to {}", old.size() - 1)));
    }
    if gone.contains(&old.rank()) {
        return Err(Error::usage(OP, format!("rank {} cannot leave out itself", old.rank())));
    }
    // The others gave this rank up and go on without it.
    match old.abort_switch().cause() {
        Some(cause) if cause.kind == ErrorKind::PeerLost && cause.rank == Some(old.rank()) => {
            Err(cause.to_error(OP))
        }
        _ => Ok(gone),
    }
}

fn name(gone: &[u32], attempt: u64) -> u64 {
    let mut hash = Sha256::new();
    gone.iter().for_each(|rank| hash.update(rank.to_le_bytes()));
    hash.update(attempt.to_le_bytes());
    hash.finalize().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Those who are left, as they meet over the links of their old communicator.
#[derive(Debug)]
struct Survivors<'a> {
    links: &'a Links,
    /// Their old ranks, by new rank.
    ranks: Vec<u32>,
    rank: u32,
    gone: &'a [u32],
    group: u64,
}

impl<'a> Survivors<'a> {
    fn new(links: &'a Links, size: u32, me: u32, gone: &'a [u32], group: u64) -> Self {
        let ranks: Vec<u32> = (0..size).filter(|rank| !gone.contains(rank)).collect();
        let rank = ranks.iter().take_while(|rank| **rank < me).count() as u32;
        Self { links, ranks, rank, gone, group }
    }

    fn address(&self, peer: u32, tag: u64) -> Result<Address> {
        match self.ranks.get(peer as usize) {
            Some(peer) => Ok(Address { peer: *peer, group: self.group, tag }),
            None => Err(Error::usage(OP, format!("there is no survivor {peer}"))),
        }
    }

    /// An error about a rank of the old communicator: the caller knows that one's numbers.
    fn check(&self) -> Result<()> {
        let control = self.links.control();
        let missing = control.gone().into_iter().find(|rank| !self.gone.contains(rank));
        missing.map_or(Ok(()), |rank| control.check_peer(OP, rank))
    }
}

impl Bootstrap for Survivors<'_> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.ranks.len() as u32
    }

    fn send(&self, peer: u32, tag: u64, bytes: &[u8], deadline: Deadline) -> Result<()> {
        self.check()?;
        let to = self.address(peer, tag)?;
        self.links.ensure(to.peer, deadline)?;
        self.links.control().send_letter(to, bytes)
    }

    fn recv(&self, peer: u32, tag: u64, deadline: Deadline) -> Result<Vec<u8>> {
        self.links.control().recv_letter(self.address(peer, tag)?, self.gone, deadline)
    }

    fn secret(&self) -> Option<Secret> {
        Some(self.links.secret_of_survivors())
    }
}
