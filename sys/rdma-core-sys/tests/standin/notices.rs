//! Events on their way from the provider to the program: read once, then acknowledged, before what they name can go.
//!
//! As in the library and the kernel: an event that nobody has read goes with the object that it names, and the destruction of the
//! object waits for the acknowledgement of each one that was read.

use std::io;
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdma_core_sys::{ibv_async_event, ibv_context, ibv_event_type as e};

use super::machine::{Machine, machine};

/// How long a destruction waits. The library waits for ever; a test that forgets an acknowledgement should fail instead.
const PATIENCE: Duration = Duration::from_secs(20);

static ACKNOWLEDGED: Condvar = Condvar::new();

/// Takes the next notice that `pop` finds, with its wake-up. `pop` returns the pipe as well. Without one, waits if the descriptor is
/// blocking, or else returns `None` with errno set, as the kernel would.
///
/// Under the lock, so that no destruction comes between the notice and the count of it.
pub(super) fn next_notice<T>(
    mut pop: impl FnMut(&mut Machine) -> ([i32; 2], Option<T>),
) -> Option<(MutexGuard<'static, Machine>, T)> {
    loop {
        let mut machine = machine();
        let (pipe, notice) = pop(&mut machine);
        if let Some(notice) = notice {
            take_wake(pipe);
            return Some((machine, notice));
        }
        drop(machine);
        // SAFETY: the descriptor is open as long as the caller's object, and no pointers are passed.
        let flags = unsafe { libc::fcntl(pipe[0], libc::F_GETFL) };
        if flags & libc::O_NONBLOCK != 0 {
            // SAFETY: the address of this thread's errno is always valid.
            unsafe { *libc::__errno_location() = libc::EAGAIN };
            return None;
        }
        let mut poll = libc::pollfd { fd: pipe[0], events: libc::POLLIN, revents: 0 };
        // SAFETY: one live entry.
        unsafe { libc::poll(&raw mut poll, 1, -1) };
    }
}

/// Waits until `done`. A wait that takes too long counts as a violation.
pub(super) fn acknowledged(
    mut machine: MutexGuard<'static, Machine>,
    done: impl Fn(&mut Machine) -> bool,
) -> MutexGuard<'static, Machine> {
    let until = Instant::now() + PATIENCE;
    while !done(&mut machine) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            machine.violations += 1;
            return machine;
        }
        machine = ACKNOWLEDGED.wait_timeout(machine, left).unwrap_or_else(PoisonError::into_inner).0;
    }
    machine
}

/// Wakes those who destroy something.
pub(super) fn note_acknowledged() {
    ACKNOWLEDGED.notify_all();
}

/// The address of the queue pair or completion queue that `event` names, 0 if it names none.
pub(super) fn object_of(event: &ibv_async_event) -> usize {
    match event.event_type {
        // SAFETY: this kind names a completion queue.
        e::IBV_EVENT_CQ_ERR => unsafe { event.element.cq }.addr(),
        e::IBV_EVENT_QP_FATAL | e::IBV_EVENT_QP_REQ_ERR | e::IBV_EVENT_QP_ACCESS_ERR => {
            // SAFETY: these kinds name a queue pair.
            unsafe { event.element.qp }.addr()
        }
        _ => 0,
    }
}

impl Machine {
    /// Takes back the events that name `object` and that nobody has read.
    pub(super) fn forget_events(&mut self, context: *mut ibv_context, object: usize) {
        let events = self.events.get_mut(&context.addr()).expect("an opened device");
        let before = events.waiting.len();
        events.waiting.retain(|event| object_of(event) != object);
        for _ in events.waiting.len()..before {
            take_wake(events.pipe);
        }
    }

    /// Whether events that name `object` were read and not acknowledged.
    pub(super) fn has_unacknowledged(&self, context: *mut ibv_context, object: usize) -> bool {
        self.events.get(&context.addr()).is_some_and(|events| events.unacknowledged.contains(&object))
    }
}

pub(super) fn wake(pipe: [i32; 2]) {
    // SAFETY: the descriptor is open, and the buffer has one byte.
    let written = unsafe { libc::write(pipe[1], [0_u8].as_ptr().cast(), 1) };
    assert_eq!(written, 1, "{}", io::Error::last_os_error());
}

/// Takes one wake-up from the pipe, in which there is one.
pub(super) fn take_wake(pipe: [i32; 2]) {
    let mut byte = 0_u8;
    // SAFETY: the descriptor is open, and `byte` has room for one byte.
    let read = unsafe { libc::read(pipe[0], (&raw mut byte).cast(), 1) };
    assert_eq!(read, 1, "a wake-up per notice");
}
