//! Addresses at which no other test listens.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

use crate::sync::{Mutex, lock};

/// An address of the loopback interface that belongs to the caller alone, so that no other test can get a port which it has
/// given up: they listen at 127.0.0.1. The kernel delivers all of 127.0.0.0/8 to this host (RFC 1122, section 3.2.1.3).
pub(crate) fn apart() -> IpAddr {
    static TAKEN: Mutex<u8> = Mutex::new(0);
    let mut taken = lock(&TAKEN);
    *taken += 1;
    assert!(*taken < 255, "each address is given once");
    let [.., high, low] = std::process::id().to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(127, high | 0x80, low, *taken))
}

/// An address at which nobody listens, and where nobody will but those whom the caller tells.
pub(crate) fn free() -> SocketAddr {
    TcpListener::bind((apart(), 0)).unwrap().local_addr().unwrap()
}
