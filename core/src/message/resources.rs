//! What memory of devices needs, kept as long as the messenger, and looked after where no lock is held.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::device::Resource;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// The resources of one messenger.
#[derive(Default)]
pub(super) struct Resources {
    all: Mutex<Vec<Resource>>,
    /// One of them may have something to drop, so that idle rounds take no lock.
    due: AtomicBool,
}

impl Resources {
    /// Keeps a resource for as long as the messenger lives.
    pub(super) fn keep(&self, resource: Resource) {
        let mut all = lock(&self.all);
        if !all.iter().any(|known| Arc::ptr_eq(known, &resource)) {
            all.push(resource);
        }
    }

    /// Copies of a device have ended: the next dispatch drops what they used.
    pub(super) fn note(&self) {
        self.due.store(true, Ordering::Release);
    }

    /// Called about once a second: has the next dispatch drop what copies used of which nobody has asked whether they have ended, and
    /// have memory unmapped whose device was at work when it was let go of.
    pub(super) fn look(&self) {
        if self.have_leftovers() {
            self.note();
        }
    }

    /// Whether something is left that [`reap`](Self::reap) drops, now or later.
    pub(super) fn have_leftovers(&self) -> bool {
        lock(&self.all).iter().any(|resource| resource.has_leftovers())
    }

    /// Whether [`reap`](Self::reap) may have something to do.
    #[inline]
    pub(super) fn are_due(&self) -> bool {
        self.due.load(Ordering::Relaxed)
    }

    /// Drops what no device uses any more. Runs code of the user's, so the caller holds no lock.
    pub(super) fn reap(&self) {
        // What ends after this is noted again.
        if !self.are_due() || !self.due.swap(false, Ordering::AcqRel) {
            return;
        }
        // Without the lock: what is dropped may expose memory.
        let all = lock(&self.all).clone();
        all.iter().for_each(|resource| resource.reap());
    }
}
