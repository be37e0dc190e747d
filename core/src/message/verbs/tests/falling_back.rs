//! Messengers of which one cannot use its device.

use super::*;
use crate::env::Selection;
use crate::message::{Messenger, MessengerConfig, Secret, Sent};
use crate::sync::{Mutex, lock};

pub(super) fn config(devices: &str) -> MessengerConfig {
    let interfaces = Selection { names: Some("lo".into()), ..Selection::default() };
    let config =
        MessengerConfig::default().with_secret(Secret::from_bytes([9; 32])).with_interfaces(interfaces);
    config.with_shared_memory(false).with_verbs(true).with_ib_devices(devices).with_verbs_library(verbs())
}

/// Connects, sends one message each way, and says what carries them.
fn carrier(from: MessengerConfig, to: MessengerConfig) -> &'static str {
    let [from, to] = [(0, from), (1, to)].map(|(rank, config)| Messenger::new(rank, config).unwrap());
    let seen = Arc::new(Mutex::new(0));
    for messenger in [&from, &to] {
        let seen = seen.clone();
        messenger
            .on(5, move |message| {
                assert_eq!(message.bytes(), b"hello");
                *lock(&seen) += 1;
            })
            .unwrap();
    }
    let there = from.connect(to.address(), SOON).unwrap();
    let back = to.connect(from.address(), SOON).unwrap();
    assert_eq!(there.send(5, b"hello").unwrap(), Sent::Done);
    assert_eq!(back.send(5, b"hello").unwrap(), Sent::Done);
    let deadline = Deadline::after(SOON);
    while *lock(&seen) < 2 {
        from.poll().unwrap();
        to.poll().unwrap();
        assert!(!deadline.expired());
    }
    match [there, back].map(|peer| peer.transport()) {
        [one, other] if one == other => one,
        _ => "something else at each end",
    }
}

#[test]
fn a_side_that_cannot_falls_back_to_tcp() {
    assert_eq!(carrier(config("null0"), config("null0")), "verbs");
    assert_eq!(carrier(config("null0"), config("null0").with_verbs(false)), "tcp");
    assert_eq!(carrier(config("null0").with_verbs(false), config("null0")), "tcp");
    assert_eq!(carrier(config("null0"), config("dark0")), "tcp", "no active port");
    assert_eq!(carrier(config("no_such_device"), config("null0")), "tcp");
    // RoCE and InfiniBand: the one that is asked finds out.
    assert_eq!(carrier(config("null0"), config("null1")), "tcp");
    let without = Verbs::from_table(standin::without_devices(), "stand-in");
    assert_eq!(carrier(config("null0"), config("").with_verbs_library(without)), "tcp");
}

/// The one that asks finds out, after the other one has connected its queue pair.
#[test]
fn a_queue_pair_that_the_asking_side_cannot_connect_falls_back_to_tcp() {
    // The messenger that dials runs on this thread, the one that answers does not.
    let [from, to] = [0, 1].map(|rank| Messenger::new(rank, config("null0")).unwrap());
    // Its first move is to the state init; the second one fails.
    standin::refuse_after("ibv_modify_qp", 1, libc::EINVAL);
    let peer = from.connect(to.address(), SOON).unwrap();
    assert_eq!(standin::not_called(), 0);
    assert!(peer.member.lines().iter().all(|line| line.name == "tcp"));
    let queue = to.queue(5).unwrap();
    assert_eq!(peer.send(5, b"over tcp").unwrap(), Sent::Done);
    let deadline = Deadline::after(SOON);
    loop {
        from.poll().unwrap();
        to.poll().unwrap();
        if let Some(message) = queue.try_recv() {
            assert_eq!(message.bytes(), b"over tcp");
            break;
        }
        assert!(!deadline.expired());
    }
}
