//! Refusals, and the side that gets each.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;

use aqueduct::ErrorKind;
use aqueduct::message::{Address, Messenger, Peer, Secret, Sent};

use super::rig::{Log, Rig, SOON, connect, count, numbered, send, settle, until};

/// The sender of a kind that nobody takes learns it, once, and goes on.
pub(super) fn unknown_kinds(rig: &Rig) {
    let [a, b] = rig.pair();
    let seen = Log::of(&b, 1);
    let peer = connect(&a, &b);
    assert_eq!(peer.send(77, b"for nobody").unwrap(), Sent::Done);
    let mut refusal = None;
    until(&[&a, &b], || {
        refusal = peer.send(77, b"for nobody").err();
        refusal.is_some()
    });
    let error = refusal.unwrap();
    assert_eq!((error.kind(), error.peer()), (ErrorKind::Remote, Some(1)), "{error}");
    assert!(error.message().contains("kind 77"), "{error}");
    send(&[&a, &b], &peer, 1, b"goes on");
    until(&[&a, &b], || seen.len() == 1);
    assert!(peer.lost().is_none());
}

/// A sender that does not care what it is told; the link stays, and messages of known kinds come.
pub(super) fn a_flood_of_unknown_kinds(rig: &Rig) {
    let [a, b] = rig.pair();
    let seen = count(&b, 1);
    let peer = connect(&a, &b);
    let mut refused = 0;
    for number in 0..20_000 {
        loop {
            match peer.send(2, &numbered(0, number, 8)) {
                Ok(Sent::Done) => break,
                Ok(Sent::Retry(_)) => settle(&[&a, &b]),
                Err(error) if error.kind() == ErrorKind::Remote => refused += 1,
                Err(error) => panic!("message {number}: {error}"),
            }
        }
    }
    until(&[&a, &b], || match peer.send(1, b"at last") {
        Ok(sent) => sent == Sent::Done,
        Err(error) => panic!("after {refused} refusals: {error}"),
    });
    until(&[&a, &b], || seen.load(Ordering::Acquire) == 1);
}

pub(super) fn over_the_limit(rig: &Rig) {
    let [a, b] = rig.pair();
    let seen = Log::of(&b, 1);
    let peer = connect(&a, &b);
    for length in [8193, 100_000, 4 << 20] {
        let error = peer.send(1, &vec![0; length]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage);
        assert!(error.message().contains("send_long") && error.message().contains("8192"), "{error}");
    }
    send(&[&a, &b], &peer, 1, &[1; 8192]);
    until(&[&a, &b], || seen.len() == 1);
}

pub(super) fn registered_twice(rig: &Rig) {
    let a = rig.messenger(0);
    a.on(1, drop).unwrap();
    let queue = a.queue(65535).unwrap();
    for (kind, error) in [
        (1, a.on(1, drop).unwrap_err()),
        (1, a.queue(1).unwrap_err()),
        (65535, a.on(65535, drop).unwrap_err()),
        (65535, a.queue(65535).unwrap_err()),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidUsage);
        assert!(error.message().contains(&kind.to_string()), "{error}");
    }
    a.on_peer(drop).unwrap();
    assert_eq!(a.on_peer(drop).unwrap_err().kind(), ErrorKind::InvalidUsage);
    assert!(queue.try_recv().is_none());
}

/// The kind of a queue that was dropped can be registered again, as a queue or a callback. Messages that come in between are
/// gone, and their sender is told once.
pub(super) fn registered_again(rig: &Rig) {
    let [a, b] = rig.pair();
    let (peer, marks, both) = (connect(&a, &b), Log::of(&b, 2), [&a, &b]);
    let told_once = |bytes: &[u8]| told_once(&both, &peer, bytes);
    for round in 0..3_u8 {
        let queue = b.queue(1).unwrap();
        let clone = queue.clone();
        let count = if round > 0 {
            told_once(&[round])
        } else {
            send(&both, &peer, 1, &[round]);
            1
        };
        until(&both, || queue.len() == count);
        while let Some(message) = queue.try_recv() {
            assert_eq!(message.bytes(), [round], "what came in between is gone");
        }
        // Another clone still polls.
        drop(queue);
        assert_eq!(b.queue(1).unwrap_err().kind(), ErrorKind::InvalidUsage);
        assert_eq!(b.on(1, drop).unwrap_err().kind(), ErrorKind::InvalidUsage);
        drop(clone);
        send(&both, &peer, 1, b"in between");
        send(&both, &peer, 2, b"behind it");
        until(&both, || marks.len() == usize::from(round) + 1);
    }
    let seen = Log::of(&b, 1);
    let count = told_once(b"to the callback");
    until(&both, || seen.len() == count);
    assert!(seen.take().iter().all(|bytes| bytes == b"to the callback"));
    assert_eq!(b.queue(1).unwrap_err().kind(), ErrorKind::InvalidUsage, "a callback stays");
    assert_eq!(b.on(1, drop).unwrap_err().kind(), ErrorKind::InvalidUsage);
}

/// Sends messages of kind 1 until the sender has been told of one that was dropped, and once more. Returns how many left.
fn told_once(both: &[&Messenger; 2], peer: &Peer, bytes: &[u8]) -> usize {
    let (mut sent, mut told) = (1, None);
    until(both, || {
        match peer.send(1, bytes) {
            Ok(Sent::Done) => sent += 1,
            Ok(Sent::Retry(_)) => {}
            Err(error) => told = Some(error),
        }
        told.is_some()
    });
    let told = told.unwrap();
    assert_eq!((told.kind(), told.peer()), (ErrorKind::Remote, Some(1)), "{told}");
    assert!(told.message().contains("again when its queue has been dropped"), "{told}");
    send(both, peer, 1, bytes);
    sent
}

/// Messages that wait in a queue are gone with it, and their sender is told, also if the kind is registered again at once.
pub(super) fn lost_with_their_queue(rig: &Rig) {
    let [a, b] = rig.pair();
    let (peer, both) = (connect(&a, &b), [&a, &b]);
    for _ in 0..2 {
        let queue = b.queue(1).unwrap();
        (0..3).for_each(|_| send(&both, &peer, 1, b"lost"));
        until(&both, || queue.len() == 3);
        drop(queue);
        let queue = b.queue(1).unwrap();
        let count = told_once(&both, &peer, b"new");
        until(&both, || queue.len() == count);
        assert!(std::iter::from_fn(|| queue.try_recv()).all(|message| message.bytes() == b"new"));
    }
}

pub(super) fn other_secrets(rig: &Rig) {
    let a = rig.messenger(0);
    let others = rig.config().with_secret(Secret::random().unwrap());
    let b = Messenger::new(1, others).unwrap();
    let error = b.connect(a.address(), SOON).unwrap_err();
    assert_eq!((error.kind(), error.peer()), (ErrorKind::Authentication, Some(0)), "{error}");
    // The messenger that refused goes on serving others.
    let c = rig.messenger(2);
    let seen = Log::of(&a, 1);
    send(&[&a, &c], &connect(&c, &a), 1, b"hello");
    until(&[&a, &c], || seen.len() == 1);
}

/// Strangers at the port send garbage, stop in the middle, or say nothing.
pub(super) fn strangers(rig: &Rig) {
    let [a, b] = rig.pair();
    let seen = Log::of(&b, 1);
    let peer = connect(&a, &b);
    let sockets: Vec<SocketAddr> = addresses(b.address());
    assert!(!sockets.is_empty(), "the messenger listens somewhere");
    let mut kept = Vec::new();
    for round in 0..40_usize {
        let mut stream = TcpStream::connect(sockets[round % sockets.len()]).unwrap();
        let noise = aqueduct_tests::paint(round * 37, round);
        // The messenger may have closed the connection already.
        let _ = stream.write_all(&noise);
        if round % 2 == 0 {
            kept.push(stream);
        }
        send(&[&a, &b], &peer, 1, &noise[..noise.len().min(100)]);
    }
    until(&[&a, &b], || seen.len() == 40);
    // A connection that was refused is closed, not forgotten.
    let mut last = TcpStream::connect(sockets[0]).unwrap();
    let _ = last.write_all(&[0xff; 4096]);
    last.set_read_timeout(Some(SOON)).unwrap();
    let mut end = Vec::new();
    match last.read_to_end(&mut end) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
    }
}

/// The TCP sockets in an address: its debug text names them.
pub(super) fn addresses(address: &Address) -> Vec<SocketAddr> {
    let text = format!("{address:?}");
    // As in `[127.0.0.1:4567, [::1]:4567]`.
    let words = text.split([' ', ',']).map(|word| word.trim_end_matches(']'));
    words
        .filter_map(|word| word.parse().or_else(|_| word.get(1..).unwrap_or_default().parse()).ok())
        .collect()
}

pub(super) fn wrong_addresses(rig: &Rig) {
    let [a, b] = rig.pair();
    let error = a.connect(a.address(), SOON).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUsage, "to itself: {error}");
    drop(b);
    // The port of a peer that is gone may be a stranger's by now, who cannot prove the secret: then another peer goes.
    let gone = || {
        let [from, gone] = rig.pair();
        let address = gone.address().clone();
        drop(gone);
        from.connect(&address, SOON).unwrap_err()
    };
    let error = (0..10).map(|_| gone()).find(|error| error.kind() != ErrorKind::Authentication);
    let error = error.expect("not each port has a listener");
    assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}");
    // Every cut and every changed byte of an address is an error, or another address that leads nowhere.
    let bytes = a.address().to_bytes();
    for length in 0..bytes.len() {
        assert!(Address::from_bytes(&bytes[..length]).is_err(), "cut to {length}");
    }
    assert!(Address::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
    for text in ["", "aqueduct-messenger:", "aqueduct-messenger:zz", &a.address().to_string()[1..]] {
        assert!(text.parse::<Address>().is_err(), "{text:?}");
    }
    let same: Address = a.address().to_string().parse().unwrap();
    assert_eq!(&same, a.address());
    settle(&[&a]);
}
