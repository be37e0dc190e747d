//! Notices a host that vanished, and never takes a slow process for one.
//!
//! A process that dies closes its sockets. A host that loses power or its network says nothing: on an idle connection the
//! system's keepalive finds that out, and while bytes are unacknowledged, unanswered retransmissions and window probes do. A
//! receiver that reads nothing for hours, even one that is stopped, is no loss: its system answers. For that reason not
//! `TCP_USER_TIMEOUT`: it counts the time for which a window is closed, too, although the probes are answered.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::net::RawStream;
use crate::sync::{Mutex, lock};

/// So many probes of a closed window without an answer are no accident.
const PROBES: u8 = 2;

#[derive(Debug)]
pub(in crate::message) struct Liveness {
    timeout: Option<Duration>,
    /// Since when every look has found that the host does not answer.
    silent: Mutex<Option<Instant>>,
}

impl Liveness {
    /// Has the system look after `raw` while it is idle.
    pub(in crate::message) fn new(raw: &dyn RawStream, timeout: Option<Duration>) -> Self {
        if let Some(timeout) = timeout {
            let [idle, interval, probes] = keepalive(timeout);
            for (level, name, value) in [
                (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
                (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle),
                (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, interval),
                (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, probes),
            ] {
                set(raw, level, name, value);
            }
        }
        Self { timeout, silent: Mutex::default() }
    }

    /// An error if the host has not answered for too long.
    pub(in crate::message) fn check(&self, raw: &dyn RawStream) -> Result<()> {
        let Some(timeout) = self.timeout else { return Ok(()) };
        let answers = info(raw).is_none_or(|info| {
            let unanswered = info.tcpi_unacked > 0 && info.tcpi_retransmits > 0;
            !unanswered && info.tcpi_probes < PROBES
        });
        self.judge(answers, timeout, Instant::now())
    }

    fn judge(&self, answers: bool, timeout: Duration, now: Instant) -> Result<()> {
        let mut silent = lock(&self.silent);
        if answers {
            *silent = None;
            return Ok(());
        }
        let since = now.saturating_duration_since(*silent.get_or_insert(now));
        if since < timeout {
            return Ok(());
        }
        let text = format!("its host has not answered for {since:.0?}");
        Err(Error::new(ErrorKind::PeerLost, "progress", text))
    }
}

/// After how many idle seconds the system asks for a sign of life, how far the probes are apart, and how many go unanswered until the host
/// counts as lost: after `timeout` in all, in the whole seconds that the system takes, two at least (tcp(7)).
fn keepalive(timeout: Duration) -> [libc::c_int; 3] {
    let whole =
        timeout.saturating_add(Duration::from_nanos(999_999_999)).as_secs().clamp(2, 30_000) as libc::c_int;
    let (interval, probes) = ((whole / 3).max(1), if whole > 2 { 2 } else { 1 });
    [whole - probes * interval, interval, probes]
}

/// The kernel's `TCP_INFO` of a socket; `None` for one that is not TCP.
fn info(raw: &dyn RawStream) -> Option<libc::tcp_info> {
    // SAFETY: all-zero is a valid tcp_info.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut size = size_of_val(&info) as libc::socklen_t;
    let fd = raw.fd().as_raw_fd();
    // SAFETY: `info` and `size` live across the call and describe each other.
    let got = unsafe {
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut size)
    };
    (got == 0).then_some(info)
}

fn set(raw: &dyn RawStream, level: libc::c_int, name: libc::c_int, value: libc::c_int) {
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `value` lives across the call and its size is passed with it.
    let set = unsafe { libc::setsockopt(raw.fd().as_raw_fd(), level, name, (&raw const value).cast(), size) };
    if set < 0 {
        log::debug!("cannot set option {name} of a socket: {}", std::io::Error::last_os_error());
    }
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use std::io::{self, Read, Write};
    use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use super::*;

    #[test]
    fn only_silence_without_a_break_is_a_loss() {
        let liveness = Liveness { timeout: None, silent: Mutex::default() };
        let (start, timeout) = (Instant::now(), Duration::from_secs(10));
        let look = |answers, seconds| liveness.judge(answers, timeout, start + Duration::from_secs(seconds));
        look(false, 0).unwrap();
        look(false, 9).unwrap();
        look(true, 9).unwrap();
        look(false, 11).unwrap();
        look(false, 20).unwrap();
        let error = look(false, 21).unwrap_err();
        assert!(error.kind() == ErrorKind::PeerLost && error.message().contains("10s"), "{error}");
    }

    #[derive(Debug)]
    pub(in crate::message::tcp) struct Socket(pub(in crate::message::tcp) TcpStream);

    impl RawStream for Socket {
        fn read(&self, into: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
            (&self.0).read(into)
        }

        fn write(&self, from: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
            (&self.0).write(from)
        }

        fn shutdown(&self, _: bool) -> io::Result<()> {
            self.0.shutdown(Shutdown::Both)
        }

        fn fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    fn option(socket: &Socket, level: libc::c_int, name: libc::c_int) -> libc::c_int {
        let (mut value, mut size) = (-1, size_of::<libc::c_int>() as libc::socklen_t);
        let fd = socket.fd().as_raw_fd();
        // SAFETY: `value` and `size` live across the call and describe each other.
        let got = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut size) };
        assert_eq!(got, 0);
        value
    }

    /// Nothing else notices on a link on which nobody sends.
    #[test]
    fn the_system_asks_an_idle_host_for_signs_of_life() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let connect = || Socket(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let [looked_after, left_alone] = [(); 2].map(|()| connect());
        Liveness::new(&looked_after, Some(Duration::from_secs(10)));
        Liveness::new(&left_alone, None);
        let is_on = |socket| option(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE) != 0;
        assert!(is_on(&looked_after) && !is_on(&left_alone));
        let tcp = |name| option(&looked_after, libc::IPPROTO_TCP, name);
        // Idle for 4 s, and then two probes, each 3 s before it counts as unanswered.
        assert_eq!([libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT].map(tcp), [4, 3, 2]);
    }

    #[test]
    fn idle_hosts_have_as_long_as_was_said() {
        for (timeout, seconds) in [(0, 2), (2000, 2), (2001, 3), (5000, 5), (10_000, 10), (11_000, 11)] {
            let [idle, interval, probes] = keepalive(Duration::from_millis(timeout));
            assert!(idle > 0 && interval > 0 && probes > 0);
            assert_eq!(idle + interval * probes, seconds, "{timeout} ms");
        }
        // The system takes no more than 32,767 of each.
        assert!(keepalive(Duration::MAX).iter().all(|value| *value < 1 << 15));
    }
}
