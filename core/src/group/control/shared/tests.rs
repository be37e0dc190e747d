//! A rank looks at kernels that were told to leave, without a thread that serves it.

use std::time::Instant;

use super::*;
use crate::outcome::Outcome as _;
use crate::sync::AtomicUsize;

/// Counts how often somebody asks for kernels that gave up.
#[derive(Default)]
struct Asked(AtomicUsize);

impl Waiters for Asked {
    fn dismiss(&self, _: u32) {}

    fn abandoned(&self) -> Option<Option<u32>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// A rank of two that no thread serves.
fn unserved(waiters: Arc<Asked>) -> Arc<Control> {
    unserved_of(2, waiters)
}

fn unserved_of(size: u32, waiters: Arc<dyn Waiters>) -> Arc<Control> {
    let (abort, subscribers) = (Abort::new(), Subscribers::default());
    Control::new(0, size, Member { abort, waiters, subscribers, succeeds: false }, None)
}

/// A kernel that has left, and the rank that it waited for, if it knew it.
struct Gone(Option<u32>);

impl Waiters for Gone {
    fn dismiss(&self, _: u32) {}

    fn abandoned(&self) -> Option<Option<u32>> {
        Some(self.0)
    }
}

/// If it does not know it, or is mistaken, any rank that has left may be the one.
#[test]
fn of_several_ranks_that_have_left_the_one_that_a_kernel_waited_for_is_named() {
    for (awaited, named) in [(Some(3), 3), (Some(1), 1), (Some(2), 1), (None, 1)] {
        let control = unserved_of(4, Arc::new(Gone(awaited)));
        for rank in [1, 3] {
            lock(&control.state).peer_states[rank] = PeerState::Left { at: Instant::now(), told: true };
        }
        control.dismissed.store(true, Ordering::Release);
        let error = control.check("x").unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(named)), "{error}");
    }
}

#[test]
fn kernels_are_looked_at_only_once_some_were_told_to_leave() {
    let waiters = Arc::<Asked>::default();
    let control = unserved(waiters.clone());
    for asked in [0, 1] {
        control.check("x").unwrap();
        assert_eq!(waiters.0.load(Ordering::Relaxed), asked);
        control.dismissed.store(true, Ordering::Release);
    }
}

#[test]
fn kernels_have_failed_if_the_communicator_was_closed_and_they_were_told_to_leave() {
    for (closed, told) in [(false, false), (false, true), (true, false), (true, true)] {
        let control = unserved(Arc::default());
        drop(if closed { control.close() } else { control.leave() });
        control.dismissed.store(told, Ordering::Release);
        assert_eq!(control.outcome("x").is_err(), closed && told, "{closed} {told}");
    }
}
