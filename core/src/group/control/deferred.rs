//! Values whose drop may block, on their way to a thread that may wait: service threads must not, because waiting kernels
//! rely on them.
#![forbid(unsafe_code)]

use crate::group::subscriber::Deferred;
use crate::service_thread;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// Values that the service thread has released and another thread is to drop.
#[derive(Default)]
pub(super) struct Released {
    values: Mutex<Vec<Deferred>>,
    /// There may be some. Set with the list locked.
    untidy: AtomicBool,
}

impl Released {
    /// Keeps `values` until a call of the user's drops them.
    pub(super) fn keep(&self, values: impl IntoIterator<Item = Deferred>) {
        let mut kept = lock(&self.values);
        kept.extend(values);
        if !kept.is_empty() {
            self.untidy.store(true, Ordering::Release);
        }
    }

    /// Drops what was kept; on a service thread, nothing. One load while nothing is kept.
    #[inline]
    pub(super) fn drop_all(&self) {
        if self.untidy.load(Ordering::Acquire) {
            self.tidy();
        }
    }

    #[cold]
    fn tidy(&self) {
        if service_thread::is_current() {
            return;
        }
        let values = {
            let mut kept = lock(&self.values);
            self.untidy.store(false, Ordering::Release);
            std::mem::take(&mut *kept)
        };
        drop(values);
    }
}
