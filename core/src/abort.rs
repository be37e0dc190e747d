//! How one failure reaches every waiter: threads of this process, and kernels that spin on a word.
//!
//! An [`Abort`] is shared by everything that belongs to one communicator. The first cause wins and is what every
//! waiter reports; later ones are dropped. A host wait is woken through [`AbortListener`]; a kernel sees the
//! [`AbortWord`] in pinned host memory, which it reads after about a thousand spins and rarely after. A kernel
//! that leaves early writes a record of what it waited for, which [`AbortRecordCell`] reads.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Mutex, OnceLock, lock, raw};
use crate::wire::printable;

/// Why a communicator was aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AbortCause {
    /// The kind of failure: [`ErrorKind::PeerLost`] for a lost peer, [`ErrorKind::Aborted`] for a call to abort.
    pub kind: ErrorKind,
    /// The rank that failed or asked for the abort, if one is known.
    pub rank: Option<u32>,
    /// The reason, worded so that it can follow "because".
    pub reason: String,
}

impl AbortCause {
    /// Rank `rank` was lost.
    pub(crate) fn peer_lost(rank: u32, reason: impl Into<String>) -> Self {
        Self { kind: ErrorKind::PeerLost, rank: Some(rank), reason: reason.into() }
    }

    /// Rank `rank` asked for the abort.
    pub(crate) fn requested(rank: u32, reason: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Aborted, rank: Some(rank), reason: reason.into() }
    }

    /// The error that operation `op` returns.
    pub(crate) fn to_error(&self, op: &'static str) -> Error {
        match (self.kind, self.rank) {
            (ErrorKind::PeerLost, Some(rank)) => Error::peer_lost(op, rank, printable(&self.reason)),
            (kind, Some(rank)) => {
                let text = format!("aborted by rank {rank}: {}", printable(&self.reason));
                Error::new(kind, op, text).with_peer(rank)
            }
            (kind, None) => Error::new(kind, op, format!("aborted: {}", printable(&self.reason))),
        }
    }
}

/// Wakes its own waiters when an abort happens.
pub(crate) trait AbortListener: Send + Sync {
    /// Called once, on the thread that aborted; must not block.
    fn aborted(&self, cause: &AbortCause);
}

/// A one-way switch with a cause. Cheap to clone; clones share the switch.
#[derive(Clone, Default)]
pub(crate) struct Abort {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    cause: OnceLock<AbortCause>,
    outlets: Mutex<Outlets>,
}

#[derive(Default)]
struct Outlets {
    words: Vec<AbortWord>,
    listeners: Vec<Weak<dyn AbortListener>>,
}

impl Abort {
    /// A switch that is off.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Switches it on: raises every attached word, then calls every listener. Returns false, and keeps the first
    /// cause, if it was on already.
    pub(crate) fn abort(&self, cause: AbortCause) -> bool {
        if self.shared.cause.set(cause).is_err() {
            return false;
        }
        let Some(cause) = self.shared.cause.get() else { return false };
        log::debug!("abort raised: {} (rank {:?})", printable(&cause.reason), cause.rank);
        let listeners = {
            let outlets = lock(&self.shared.outlets);
            outlets.words.iter().for_each(AbortWord::raise);
            outlets.listeners.clone()
        };
        // Outside the lock: a listener may call `attach` or `listen`, or drop its own objects.
        listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener.aborted(cause));
        true
    }

    /// The first cause, once there is one.
    #[inline]
    pub(crate) fn cause(&self) -> Option<&AbortCause> {
        self.shared.cause.get()
    }

    /// Whether it is on. One load; cheap enough for a spin loop.
    pub(crate) fn is_aborted(&self) -> bool {
        self.cause().is_some()
    }

    /// `Ok` while it is off, otherwise the error of `op`.
    #[inline]
    pub(crate) fn check(&self, op: &'static str) -> Result<()> {
        match self.cause() {
            None => Ok(()),
            Some(cause) => Err(cause.to_error(op)),
        }
    }

    /// Raises `word` when the switch goes on; at once if it is on already.
    pub(crate) fn attach(&self, word: AbortWord) {
        let mut outlets = lock(&self.shared.outlets);
        // Under the lock: either `abort` finds the word in the list, or its cause is visible here.
        if self.is_aborted() {
            word.raise();
        }
        outlets.words.push(word);
    }

    /// Calls `listener` when the switch goes on; at once if it is on already.
    pub(crate) fn listen(&self, listener: &Arc<dyn AbortListener>) {
        {
            let mut outlets = lock(&self.shared.outlets);
            outlets.listeners.retain(|known| known.strong_count() > 0);
            if !self.is_aborted() {
                outlets.listeners.push(Arc::downgrade(listener));
                return;
            }
        }
        if let Some(cause) = self.cause() {
            listener.aborted(cause);
        }
    }
}

impl fmt::Debug for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Abort").field("cause", &self.cause()).finish_non_exhaustive()
    }
}

/// The word that kernels poll: 0 means run, anything else means leave. It lies in pinned host memory.
#[derive(Clone)]
pub struct AbortWord {
    word: NonNull<u32>,
    _memory: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the word is only accessed atomically, and `_memory`, which keeps it mapped, is itself `Send + Sync`.
unsafe impl Send for AbortWord {}
// SAFETY: as above: all access through a shared reference is atomic.
unsafe impl Sync for AbortWord {}

impl AbortWord {
    /// Wraps the word at `word`; `memory` keeps it mapped.
    ///
    /// # Safety
    /// `word` is aligned to 4 bytes, lies in memory that stays mapped while `memory` lives, and is accessed by
    /// this process only atomically.
    pub unsafe fn from_ptr(word: NonNull<u32>, memory: Arc<dyn Any + Send + Sync>) -> Self {
        Self { word, _memory: memory }
    }

    /// Tells every kernel that polls the word to leave.
    pub fn raise(&self) {
        // Release, so that a kernel that sees the word also sees what the host wrote before it.
        self.atomic().store(1, raw::Ordering::Release); // SYNC abort.word
    }

    /// Whether kernels are told to leave.
    pub fn is_raised(&self) -> bool {
        self.atomic().load(raw::Ordering::Acquire) != 0
    }

    fn atomic(&self) -> &raw::AtomicU32 {
        // SAFETY: valid and aligned for as long as `_memory` lives, by the contract of `from_ptr`.
        unsafe { raw::AtomicU32::from_ptr(self.word.as_ptr()) }
    }
}

impl fmt::Debug for AbortWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AbortWord({})", u8::from(self.is_raised()))
    }
}

/// A record `R` in pinned host memory that a leaving kernel fills once, announced by its leading state word.
///
/// `R` is the device ABI's abort record: `repr(C)`, its first field the `u32` state, 0 while nothing is written.
/// The one kernel thread that may write it fills the rest and publishes the final state with release.
pub struct AbortRecordCell<R: Copy> {
    record: NonNull<R>,
    _memory: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the record is plain data (`Copy`) read atomically or volatile; `_memory` is `Send + Sync`.
unsafe impl<R: Copy + Send> Send for AbortRecordCell<R> {}
// SAFETY: as above; reads through a shared reference change nothing.
unsafe impl<R: Copy + Send> Sync for AbortRecordCell<R> {}

impl<R: Copy> AbortRecordCell<R> {
    /// Wraps the record at `record`; `memory` keeps it mapped.
    ///
    /// # Safety
    /// `record` is aligned for `R` and to 4 bytes, starts with a `u32` state word, is valid `R` for every bit
    /// pattern, lies in memory that stays mapped while `memory` lives, and is written by kernels only.
    pub unsafe fn from_ptr(record: NonNull<R>, memory: Arc<dyn Any + Send + Sync>) -> Self {
        const { assert!(size_of::<R>() >= 4 && align_of::<R>() >= 4) };
        Self { record, _memory: memory }
    }

    /// The record once its state is `complete`; the same record every time after that.
    pub fn read(&self, complete: u32) -> Option<R> {
        // SAFETY: valid and aligned for as long as `_memory` lives, by the contract of `from_ptr`.
        let state = unsafe { raw::AtomicU32::from_ptr(self.record.as_ptr().cast()) };
        if state.load(raw::Ordering::Acquire) != complete {
            return None; // SYNC abort.record
        }
        // SAFETY: as above; the writer released the state after its last store, so nobody writes any more.
        Some(unsafe { self.record.as_ptr().read_volatile() })
    }
}

impl<R: Copy> fmt::Debug for AbortRecordCell<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortRecordCell").field("record", &self.record).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

#[cfg(all(test, loom))]
mod models;
