//! Messengers that close while a queue pair is just being connected.

use super::falling_back::config;
use super::*;
use crate::message::Messenger;
use crate::message::credit::Amount;
use crate::message::hello::{CONNECTED, Hearing, Hello, Verdict};
use crate::net::{Claims, purpose};

const ME: Hello = Hello {
    rank: 1,
    generation: 6,
    meant: 0,
    eager: 8 << 10,
    read_depth: 1,
    ring: 0,
    verbs: 0,
    life: 0,
    inbox: Amount { messages: 1, bytes: 8 << 10 },
    verdict: Verdict::Taken,
};

/// Rank 1, which `messenger` has answered with a queue pair, and which has connected its own and not said so yet.
fn connecting(messenger: &Messenger) -> (Box<dyn RawStream>, VerbsLink) {
    let network = messenger.core.network.clone();
    let claims = Claims { purpose: purpose::MESSAGES, scope: 0, from: 1, to: 0 };
    let raw = network.connect_tcp(&messenger.address().ips, claims, SOON.into()).unwrap().into_raw();
    let draft = Draft::new(&nic("null0"), 8 << 10).unwrap();
    let hello = Hello { meant: messenger.address().generation, ..ME };
    assert!(hello.send(&*raw, None, Some(draft.offer())));
    let mut hearing = Hearing::new();
    let heard = loop {
        assert!(wait_readable(raw.fd(), Deadline::after(SOON)).unwrap());
        if let Some(heard) = hearing.hear(&*raw).unwrap() {
            break heard;
        }
    };
    (raw, draft.connect(&heard.offer.unwrap()).unwrap())
}

#[test]
fn a_goodbye_is_said_over_a_queue_pair_that_the_other_side_has_connected_already() {
    let messenger = Messenger::new(0, config("null0")).unwrap();
    let (raw, link) = connecting(&messenger);
    std::thread::scope(|scope| {
        let closes = scope.spawn(|| messenger.close(SOON));
        // It has time to close too early.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(raw.write(&[CONNECTED], &[]).unwrap_or(0), 1);
        let (wire, mut kept) = (VerbsWire::new(raw, link, None), Kept::default());
        pull(&wire, &mut kept, 1);
        assert_eq!(kept.frames[0].0.operation, Operation::Goodbye);
        closes.join().unwrap().unwrap();
    });
}

/// One that never says whether its queue pair is connected holds up the closing until the deadline, or until it ends.
#[test]
fn closing_waits_for_a_connection_no_longer_than_it_may() {
    for ends in [false, true] {
        let messenger = Messenger::new(0, config("null0")).unwrap();
        let connecting = connecting(&messenger);
        let kept = (!ends).then_some(connecting);
        // Only the connection's end, or else the deadline, ends this in time.
        messenger.close(if ends { HOUR } else { Duration::from_millis(100) }).unwrap();
        drop(kept);
    }
}
