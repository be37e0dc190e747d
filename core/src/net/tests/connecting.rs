//! How connecting goes on where an address does not answer, or turns everybody away.

use super::*;
use crate::fault::{NetAction, NetFault, Rules};

#[test]
fn an_address_that_does_not_answer_leaves_time_for_the_next() {
    let silent = std::net::TcpListener::bind((LOCALHOST, 0)).unwrap();
    let (mut listener, good) = listen(&network());
    let addresses = [silent.local_addr().unwrap(), good];
    let client =
        std::thread::spawn(move || network().connect_tcp(&addresses, claims(1, 0), millis(3000)).unwrap());
    listener.accept(soon()).unwrap();
    client.join().unwrap();
}

#[test]
fn a_listener_that_turns_everybody_away_is_asked_less_and_less_often() {
    let busy = std::net::TcpListener::bind((LOCALHOST, 0)).unwrap();
    let address = busy.local_addr().unwrap();
    let client = std::thread::spawn(move || network().connect_tcp(&[address], claims(1, 0), millis(400)));
    // The pauses are 2 ms at first and twice as long each time: eight attempts, and fewer on a slow machine.
    let mut attempts = 0;
    busy.set_nonblocking(true).unwrap();
    while !client.is_finished() {
        match busy.accept() {
            Ok(_closed) => attempts += 1,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    let error = client.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!((1..=12).contains(&attempts), "{attempts} attempts");
}

#[test]
fn rules_change_streams_if_there_are_any_for_the_network() {
    let rule = NetFault::new(NetAction::Drop);
    for (net, fails) in [(vec![], false), (vec![rule], true)] {
        let rules = Rules { net, ..Rules::default() };
        let (_server, mut client) = pair(&network().with_faults(Some(&rules)));
        assert_eq!(client.send(1, b"", soon()).is_err(), fails);
    }
}
