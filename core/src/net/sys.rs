//! The few system calls that `std` does not offer: poll, epoll, eventfd.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::deadline::Deadline;

/// Readiness to read, as poll and epoll spell it.
pub(crate) const READ: u32 = libc::EPOLLIN as u32;
/// Readiness to write.
pub(crate) const WRITE: u32 = libc::EPOLLOUT as u32;

/// Whether a call failed because this process or host has no descriptors or socket memory left: a state that passes, and
/// no fault of a peer.
pub(super) fn exhausted(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM | libc::ETOOMANYREFS)
    )
}

/// How long to leave alone what failed for that reason. No event tells when there are descriptors again.
pub(super) const REST: Duration = Duration::from_millis(100);

/// Turns -1 into the `errno`.
pub(super) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Takes ownership of a descriptor that a system call has just returned.
pub(super) fn owned(result: libc::c_int) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: the call succeeded, so `fd` is open and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Waits until `fd` is ready for `events` (or broken); false if the deadline came first.
pub(super) fn wait(fd: BorrowedFd<'_>, events: u32, deadline: Deadline) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: events as libc::c_short, revents: 0 };
    loop {
        // SAFETY: one pollfd that lives across the call.
        match check(unsafe { libc::poll(&mut poll, 1, deadline.poll_ms()) }) {
            Ok(0) if deadline.expired() => return Ok(false),
            Ok(0) => {}
            Ok(_) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until `fd` is readable (or broken); false if the deadline came first.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, deadline: Deadline) -> io::Result<bool> {
    wait(fd, READ, deadline)
}

/// Whether the other end of the socket `fd` sends nothing more: it was shut down there, closed or broken. Nothing is read.
pub(crate) fn has_hung_up(fd: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one pollfd that lives across the call, which does not wait.
    let found = unsafe { libc::poll(&raw mut poll, 1, 0) };
    found > 0 && poll.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}

/// Number of bytes that can be read from the socket `fd` now.
pub(super) fn arrived(fd: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int, which lives across the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut bytes) })?;
    Ok(bytes as usize)
}

/// An epoll instance; its entries are level-triggered and known by a number.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers are passed.
        owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Self)
    }

    pub(crate) fn add(&self, fd: BorrowedFd<'_>, events: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, events, token)
    }

    pub(crate) fn modify(&self, fd: BorrowedFd<'_>, events: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, events, token)
    }

    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    /// Appends (token, events) of what is ready; none if `timeout_ms` passed or a signal came. -1: no timeout.
    pub(crate) fn wait(&self, timeout_ms: i32, ready: &mut Vec<(u64, u32)>) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: the array lives across the call and its length is passed with it.
        let count = unsafe {
            libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), events.len() as libc::c_int, timeout_ms)
        };
        match check(count) {
            Ok(count) => ready.extend(events[..count as usize].iter().map(|e| ({ e.u64 }, { e.events }))),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn control(&self, op: libc::c_int, fd: BorrowedFd<'_>, events: u32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: both descriptors are open for the call, and `event` lives across it.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op, fd.as_raw_fd(), &mut event) }).map(drop)
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A counter that makes a waiting epoll return.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers are passed.
        owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }).map(Self)
    }

    /// Makes it readable. Cannot fail in a way that matters: a full counter is readable already.
    pub(crate) fn notify(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight bytes that live across the call.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Makes it unreadable again.
    pub(crate) fn clear(&self) {
        let mut count = [0_u8; 8];
        // SAFETY: eight bytes that live across the call.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Runs `waits` in a thread that hears a hundred signals meanwhile, and then `end`.
    fn with_signals<T: Send>(waits: impl FnOnce() -> T + Send, end: impl FnOnce()) -> T {
        extern "C" fn ignore(_: libc::c_int) {}
        let handler: extern "C" fn(libc::c_int) = ignore;
        // SAFETY: the handler lives as long as the process and does nothing.
        unsafe { libc::signal(libc::SIGWINCH, handler as libc::sighandler_t) };
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // SAFETY: no arguments, cannot fail.
                tell.send(unsafe { libc::pthread_self() }).unwrap();
                waits()
            });
            let id = told.recv().unwrap();
            for _ in 0..100 {
                std::thread::sleep(Duration::from_millis(1));
                if thread.is_finished() {
                    break;
                }
                // SAFETY: the thread is not joined before the loop ends.
                assert_eq!(unsafe { libc::pthread_kill(id, libc::SIGWINCH) }, 0);
            }
            end();
            thread.join().unwrap()
        })
    }

    #[test]
    fn a_signal_does_not_end_a_wait() {
        let (reader, mut writer) = UnixStream::pair().unwrap();
        let late = Deadline::after(Duration::from_secs(60));
        let ready = with_signals(|| wait(reader.as_fd(), READ, late), || writer.write_all(b"x").unwrap());
        assert!(ready.unwrap());
    }

    #[test]
    fn a_socket_hangs_up_with_its_sending_side() {
        let end_of = |how| {
            let (one, two) = UnixStream::pair().unwrap();
            (&two).write_all(b"unread").unwrap();
            assert!(!has_hung_up(one.as_fd()));
            two.shutdown(how).unwrap();
            has_hung_up(one.as_fd())
        };
        assert_eq!([Shutdown::Read, Shutdown::Write, Shutdown::Both].map(end_of), [false, true, true]);
    }

    #[test]
    fn a_signal_at_an_epoll_is_no_error() {
        let epoll = Epoll::new().unwrap();
        let mut ready = Vec::new();
        with_signals(|| epoll.wait(60_000, &mut ready), || {}).unwrap();
        assert!(ready.is_empty());
    }

    #[test]
    fn an_epoll_that_is_none_is_an_error() {
        let (no_epoll, _peer) = UnixStream::pair().unwrap();
        let failed = Epoll(no_epoll.into()).wait(0, &mut Vec::new()).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(libc::EINVAL));
    }
}
