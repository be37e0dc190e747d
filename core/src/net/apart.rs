//! Addresses at which no other test listens.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;

use super::random_bytes;

/// An address of the loopback interface, one of four million at random, so that no other test can get a port which its user has given
/// up: they listen at 127.0.0.1. The kernel delivers all of 127.0.0.0/8 to this host (RFC 1122, section 3.2.1.3).
pub(crate) fn apart() -> IpAddr {
    let [high, middle, low] = random_bytes().expect("the system has random bytes");
    IpAddr::V4(Ipv4Addr::new(127, 0x80 | high & 0x3f, middle, low))
}

/// An address at which nobody listens, and where nobody will but those whom the caller tells.
pub(crate) fn free() -> SocketAddr {
    let listener = TcpListener::bind((apart(), 0)).unwrap();
    // A child that another test has forked may hold a copy of the socket until it calls exec.
    // SAFETY: no pointers are passed, and `listener` is open.
    unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
    listener.local_addr().unwrap()
}
