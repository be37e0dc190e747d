//! A user thread that waits for a connection receives by itself, which saves waking two threads for one message.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use super::super::outbox::Outbox;
use super::Duplex;
use crate::deadline::{Backoff, Deadline};
use crate::net::{Interest, Next};

/// For how long a waiting thread sleeps in the kernel before it looks around.
const SLICE: Duration = Duration::from_millis(20);

impl Duplex {
    /// Waits a while for something to arrive, receiving it.
    pub(in super::super) fn assist(&self, backoff: &mut Backoff, deadline: Deadline) {
        let (Some(socket), registration) = (self.socket.get(), &self.registration) else {
            return backoff.pause(deadline);
        };
        // The first turn sends what is left, too.
        let ignore = || registration.watch(socket.fd(), Interest::default());
        if self.failure.has_failed() || !self.readers.begin(&self.outbox, ignore) {
            return backoff.pause(deadline);
        }
        let mut spin = self.spin.begin();
        let mut until = None;
        let mut expired = || until.get_or_insert_with(|| deadline.min(Deadline::after(SLICE))).expired();
        let waits = loop {
            let (next, received, spent) = self.turn(true);
            drop(spent);
            // The service thread may just have received what the caller waits for.
            let progress = self.readers.have_missed() || received;
            match (next, progress) {
                (Next::Wait(_), false) if spin.again() => {}
                (Next::Wait(interest), false) if !expired() => wait(socket.fd(), interest, deadline),
                (Next::Again, false) if !expired() => std::thread::yield_now(),
                (Next::Wait(_), _) => break true,
                (Next::Told(_) | Next::Again | Next::Done, _) => break false,
            }
        };
        self.spin.learn(&spin);
        if self.readers.end(&self.outbox, waits, Outbox::is_empty, |outbox, read| self.watch(outbox, read)) {
            registration.nudge();
        }
    }
}

/// Sleeps until `fd` is ready, or `deadline`; not for longer than [`SLICE`].
fn wait(fd: BorrowedFd<'_>, interest: Interest, deadline: Deadline) {
    let events = if interest.write { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    // SAFETY: one pollfd that lives across the call. Whatever it returns, the caller looks again.
    unsafe { libc::poll(&mut poll, 1, deadline.poll_ms().min(SLICE.as_millis() as i32)) };
}
