//! Kinds of messages that a peer has nothing registered for, until a send of this side has told so.
#![forbid(unsafe_code)]

use crate::error::{Error, ErrorKind, Result};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// The most kinds that are kept.
const MOST: usize = 64;

/// Those of one peer that were not reported yet.
#[derive(Debug, Default)]
pub(super) struct UnknownKinds {
    kinds: Mutex<Vec<u16>>,
    /// Whether there are any, so that sends take no lock. Written with them locked.
    any: AtomicBool,
}

impl UnknownKinds {
    /// The peer, of `rank`, has nothing registered for `kind`.
    pub(super) fn add(&self, rank: u32, kind: u16) {
        let mut kinds = lock(&self.kinds);
        if kinds.len() >= MOST || kinds.contains(&kind) {
            return;
        }
        kinds.push(kind);
        self.any.store(true, Ordering::Release);
        drop(kinds);
        log::warn!("rank {rank} has nothing registered for messages of kind {kind}");
    }

    /// An error once after the peer has refused a message of `kind`.
    #[inline]
    pub(super) fn check(&self, op: &'static str, rank: u32, kind: u16) -> Result<()> {
        if self.any.load(Ordering::Relaxed) { self.report(op, rank, kind) } else { Ok(()) }
    }

    #[cold]
    fn report(&self, op: &'static str, rank: u32, kind: u16) -> Result<()> {
        let mut kinds = lock(&self.kinds);
        let Some(index) = kinds.iter().position(|known| *known == kind) else { return Ok(()) };
        kinds.swap_remove(index);
        self.any.store(!kinds.is_empty(), Ordering::Release);
        let text = format!(
            "rank {rank} had nothing registered for kind {kind} and dropped an earlier message: register it there with `on` or \
             `queue` before the messenger's first progress, and again when its queue has been dropped"
        );
        Err(Error::new(ErrorKind::Remote, op, text).with_peer(rank))
    }
}
