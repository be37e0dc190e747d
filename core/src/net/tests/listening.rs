//! Where listeners can be, and what they tell.

use super::*;

/// The side of a connection that closes first keeps its port for a minute.
#[test]
fn a_port_can_be_listened_on_again_while_its_connections_are_being_closed() {
    let address = std::net::TcpListener::bind((LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let listen = || network().listen_tcp_at(address, claims(0, Claims::ANY));
    let mut listener = listen().unwrap();
    let client = std::thread::spawn(move || network().connect_tcp(&[address], claims(1, 0), soon()).unwrap());
    drop(listener.accept(soon()).unwrap());
    drop(client.join().unwrap());
    assert_eq!(listen().unwrap_err().code(), libc::EADDRINUSE, "somebody listens there");
    drop(listener);
    listen().unwrap();
}
