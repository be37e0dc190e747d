//! Making connections, and the addresses of sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use super::claims::{Address, Claims};
use super::handshake::{Failure, Handshake, Progress};
use super::network::Network;
use super::raw::{RawStream, Socket};
use super::stream::Stream;
use super::{secret, sys, unix};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};

/// For how long "nobody listens there" may still mean "not yet".
const NOT_YET: Duration = Duration::from_secs(1);

impl Network {
    /// Connects to the first of `addresses` that answers, and proves the secret both ways.
    ///
    /// `local.to` names the rank that must be found there. A refused connection is tried again for a second, or as long as
    /// [`with_patience`](Self::with_patience) says, an overloaded listener until the deadline.
    pub fn connect_tcp(&self, addresses: &[SocketAddr], local: Claims, deadline: Deadline) -> Result<Stream> {
        let addresses: Vec<Address> = addresses.iter().copied().map(Address::Tcp).collect();
        self.connect(&addresses, local, deadline)
    }

    /// Connects to a unix listener of the same user on this host, and proves the secret both ways.
    pub fn connect_unix(&self, path: &Path, local: Claims, deadline: Deadline) -> Result<Stream> {
        self.connect(&[Address::Unix(path.to_owned())], local, deadline)
    }

    fn connect(&self, addresses: &[Address], local: Claims, deadline: Deadline) -> Result<Stream> {
        let not_yet = Deadline::after(self.not_yet.unwrap_or(NOT_YET));
        let mut pauses = Pauses::new();
        loop {
            let mut last = Error::usage("connect", "no address to connect to");
            let mut again = false;
            for (index, address) in addresses.iter().enumerate() {
                // An address that swallows packets must leave time for those after it.
                let share = deadline.remaining() / (addresses.len() - index) as u32;
                match self.attempt(address, local, deadline.min(Deadline::after(share))) {
                    Ok(stream) => return Ok(stream),
                    Err(Attempt::Final(error)) => return Err(error),
                    Err(Attempt::Refused(error)) => (again, last) = (again || !not_yet.expired(), error),
                    Err(Attempt::Busy(error)) => (again, last) = (true, error),
                    Err(Attempt::Unreachable(error)) => {
                        (again, last) = (again || (self.not_yet.is_some() && !not_yet.expired()), error);
                    }
                }
            }
            if !again {
                return Err(last);
            }
            if deadline.expired() {
                return Err(Error::timeout("connect", "deadline passed while connecting").with_source(last));
            }
            std::thread::sleep(pauses.next(deadline.remaining())?);
        }
    }

    fn attempt(
        &self,
        address: &Address,
        local: Claims,
        deadline: Deadline,
    ) -> std::result::Result<Stream, Attempt> {
        let (family, sockaddr) = match address {
            Address::Tcp(ip) => {
                (if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }, SockAddr::ip(*ip))
            }
            Address::Unix(path) => (libc::AF_UNIX, SockAddr::unix(path).map_err(Attempt::Final)?),
        };
        let failed = |error: io::Error| {
            let kind = error.kind();
            let code = error.raw_os_error();
            let error = Error::system("connect", format!("cannot connect to {address}"), error);
            match (kind, code) {
                (io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound, _) => Attempt::Refused(error),
                (io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionReset, _) => Attempt::Busy(error),
                (_, Some(libc::EMFILE | libc::ENFILE | libc::EACCES)) => Attempt::Final(error),
                _ => Attempt::Unreachable(error),
            }
        };
        let socket = Socket::new(family).map_err(&failed)?;
        match sockaddr.connect(&socket) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
                if !sys::wait(socket.fd(), sys::WRITE, deadline).map_err(&failed)? {
                    return Err(failed(io::ErrorKind::TimedOut.into()));
                }
                socket.take_error().map_err(&failed)?;
            }
            Err(error) => return Err(failed(error)),
        }
        if matches!(address, Address::Unix(_)) {
            unix::check_peer(socket.fd()).map_err(Attempt::Final)?;
        }
        let mut handshake = Handshake::client(self.secret.clone(), local).map_err(Attempt::Final)?;
        loop {
            match handshake.drive(&socket) {
                Ok(Progress::Done(peer)) => {
                    return Ok(Stream::new(self, local, peer, Box::new(socket)));
                }
                Ok(Progress::Wants(events)) => {
                    if !sys::wait(socket.fd(), events, deadline).map_err(&failed)? {
                        let silent = format!("{address} accepted the connection and did not answer in time");
                        return Err(Attempt::Busy(Error::timeout("handshake", silent)));
                    }
                }
                Err(Failure::Closed(error)) => {
                    let early = format!("{address} closed the connection before the handshake");
                    return Err(Attempt::Busy(
                        Error::new(ErrorKind::PeerLost, "handshake", early).with_source(error),
                    ));
                }
                Err(Failure::Final(error)) => {
                    let text = format!("{address}: {}", error.message());
                    return Err(Attempt::Final(Error::new(error.kind(), "handshake", text)));
                }
            }
        }
    }
}

/// Whether a failure to connect says that the peer is not there, rather than that this process cannot connect.
pub(crate) fn tells_of_loss(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::PeerLost | ErrorKind::Timeout => true,
        ErrorKind::System => {
            !matches!(error.code(), libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS | libc::EACCES)
        }
        _ => false,
    }
}

/// The pauses between attempts: each twice as long as the one before, up to a limit, and up to twice as long again by chance.
/// Without chance, a thousand ranks that were turned away together would come back together.
struct Pauses {
    shortest: Duration,
}

impl Pauses {
    const FIRST: Duration = Duration::from_millis(2);
    const LIMIT: Duration = Duration::from_millis(200);

    fn new() -> Self {
        Self { shortest: Self::FIRST }
    }

    /// The next pause; the caller gives up when the time that is `left` has passed.
    fn next(&mut self, left: Duration) -> Result<Duration> {
        let [chance] = secret::random_bytes()?;
        let pause = self.shortest + self.shortest * u32::from(chance) / 256;
        self.shortest = (self.shortest * 2).min(Self::LIMIT);
        Ok(pause.min(left))
    }
}

/// How one attempt to connect failed.
enum Attempt {
    Final(Error),
    Refused(Error),
    Busy(Error),
    Unreachable(Error),
}

impl Stream {
    /// The address of this end, if it is a TCP stream: the interface that leads to the peer.
    pub fn local_ip(&self) -> Option<IpAddr> {
        local_address(self.raw.fd()).ok().map(|address| address.ip())
    }
}

/// The address that a TCP socket is bound to.
pub(super) fn local_address(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    // SAFETY: all-zero is a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut size = size_of_val(&storage) as libc::socklen_t;
    // SAFETY: `storage` and `size` live across the call and describe each other.
    sys::check(unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut storage).cast(), &mut size) })?;
    // SAFETY: the kernel filled in an address of the family it states; the storage is large enough and aligned
    // for every family.
    unsafe { decode(&raw const storage.ss_family) }
        .ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "not an IP socket"))
}

/// The IP address at `address`, if its family is one of the two.
///
/// # Safety
/// `address` points to the beginning of a socket address of the family it states, aligned for it.
pub(super) unsafe fn decode(address: *const libc::sa_family_t) -> Option<SocketAddr> {
    // SAFETY: every socket address begins with its family.
    match libc::c_int::from(unsafe { address.read() }) {
        libc::AF_INET => {
            // SAFETY: the caller promises that this is what the family says.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddr::V6(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id)))
        }
        _ => None,
    }
}

/// A socket address as the kernel takes it.
pub(super) enum SockAddr {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
    Unix(libc::sockaddr_un),
}

impl SockAddr {
    pub(super) fn ip(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(v4) => Self::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => Self::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            }),
        }
    }

    pub(super) fn unix(path: &Path) -> Result<Self> {
        // SAFETY: all-zero is a valid sockaddr_un.
        let mut un: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        un.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let bytes = path.as_os_str().as_bytes();
        // The last byte stays zero. An empty or zero-led path would be an abstract name, which has no owner.
        if bytes.is_empty() || bytes.len() >= un.sun_path.len() || bytes.contains(&0) {
            return Err(Error::usage("bind", format!("{} cannot be a socket's path", path.display())));
        }
        for (to, from) in un.sun_path.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        Ok(Self::Unix(un))
    }

    pub(super) fn bind(&self, socket: &Socket) -> io::Result<()> {
        // SAFETY: `parts` describes `self`, which lives across the call.
        sys::check(unsafe { libc::bind(socket.raw(), self.parts().0, self.parts().1) }).map(drop)
    }

    fn connect(&self, socket: &Socket) -> io::Result<()> {
        // SAFETY: `parts` describes `self`, which lives across the call.
        sys::check(unsafe { libc::connect(socket.raw(), self.parts().0, self.parts().1) }).map(drop)
    }

    fn parts(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        let (address, size) = match self {
            Self::V4(a) => ((&raw const *a).cast(), size_of_val(a)),
            Self::V6(a) => ((&raw const *a).cast(), size_of_val(a)),
            Self::Unix(a) => ((&raw const *a).cast(), size_of_val(a)),
        };
        (address, size as libc::socklen_t)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_limit_and_differ_by_chance() {
        let mut all: Vec<Pauses> = (0..200).map(|_| Pauses::new()).collect();
        for shortest in [2, 4, 8, 16, 32, 64, 128, 200, 200].map(Duration::from_millis) {
            let next = |pauses: &mut Pauses| pauses.next(Duration::MAX).unwrap();
            let pauses: Vec<Duration> = all.iter_mut().map(next).collect();
            assert!(pauses.iter().all(|pause| (shortest..shortest * 2).contains(pause)), "{pauses:?}");
            let half = shortest * 3 / 2;
            assert!(pauses.iter().any(|pause| *pause < half) && pauses.iter().any(|pause| *pause > half));
        }
        let left = Duration::from_millis(150);
        assert_eq!(all[0].next(left).unwrap(), left);
    }

    #[test]
    fn a_failure_that_is_this_processes_own_says_nothing_about_the_peer() {
        let system = |code| {
            let error = Error::system("connect", "cannot connect", io::Error::from_raw_os_error(code));
            tells_of_loss(&error)
        };
        for code in [libc::ECONNREFUSED, libc::ENOENT, libc::EHOSTUNREACH, libc::ENETUNREACH] {
            assert!(system(code), "{code}");
        }
        for code in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS, libc::EACCES] {
            assert!(!system(code), "{code}");
        }
        assert!(tells_of_loss(&Error::peer_lost("handshake", 1, "closed")));
        assert!(tells_of_loss(&Error::timeout("handshake", "silent")));
        assert!(!tells_of_loss(&Error::usage("connect", "no address")));
    }
}
