//! The device memory that plans of one communicator may use as scratch, all together.

use std::sync::Arc;

use crate::sync::raw::{AtomicU64, Ordering};

/// A limit, and what of it is taken. Ranks tell each other what is left before they size a plan.
#[derive(Debug)]
pub(crate) struct ScratchBudget {
    limit: u64,
    taken: AtomicU64,
}

/// A part of the budget, which goes back when it is dropped.
#[derive(Debug)]
pub(crate) struct ScratchShare {
    of: Arc<ScratchBudget>,
    bytes: u64,
}

impl ScratchBudget {
    pub(super) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, taken: AtomicU64::new(0) })
    }

    /// Bytes that are taken.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Bytes that are not.
    pub(crate) fn left(&self) -> u64 {
        self.limit.saturating_sub(self.taken())
    }

    /// Takes a part, if there is as much left.
    pub(crate) fn take_within(self: &Arc<Self>, bytes: u64) -> Option<ScratchShare> {
        let grown = |taken: u64| taken.checked_add(bytes).filter(|&taken| taken <= self.limit);
        let took = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown);
        took.is_ok().then(|| ScratchShare { of: Arc::clone(self), bytes })
    }

    /// Takes a part. Does not compare it with the limit: the callers of all ranks have agreed on [`left`](Self::left) before.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> ScratchShare {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        ScratchShare { of: Arc::clone(self), bytes }
    }
}

impl Drop for ScratchShare {
    fn drop(&mut self) {
        self.of.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_can_be_taken_again() {
        let budget = ScratchBudget::new(100);
        let first = budget.take(60);
        assert_eq!((budget.taken(), budget.left()), (60, 40));
        let second = budget.take(60);
        assert_eq!((budget.taken(), budget.left()), (120, 0), "more than there was");
        assert!(budget.take_within(1).is_none());
        drop(first);
        assert_eq!((budget.taken(), budget.left()), (60, 40));
        assert!(budget.take_within(41).is_none() && budget.take_within(u64::MAX).is_none());
        let third = budget.take_within(40).unwrap();
        assert_eq!((budget.taken(), budget.left()), (100, 0));
        drop(third);
        drop(second);
        assert_eq!(budget.left(), 100);
    }
}
