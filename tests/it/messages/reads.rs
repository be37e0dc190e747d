//! Remote reads by token.

use std::sync::Arc;
use std::time::Duration;

use aqueduct::message::{Messenger, Peer, Token};
use aqueduct::{ErrorKind, Result};
use aqueduct_tests::paint;

use super::rig::{Log, Pollers, Rig, SOON, connect, send, until};

/// Starts a read that logs its number and what became of it.
fn read(peer: &Peer, token: &Token, (offset, length): (u64, usize), number: usize, log: &Outcomes) {
    let log = log.clone();
    peer.read(token, offset, vec![0; length], SOON, move |outcome| log.add((number, outcome)))
        .unwrap()
        .posted()
        .unwrap();
}

type Outcomes = Log<(usize, Result<Vec<u8>>)>;

/// Sizes around everything at which a backend may change its way, at odd offsets, thousands of them, in order.
pub(super) fn any_part_in_order(rig: &Rig) {
    let [a, b] = rig.pair();
    let bytes = paint(2 << 20, 5);
    let exposed = b.expose(bytes.clone()).unwrap();
    let (peer, log) = (connect(&a, &b), Log::new());
    let sizes = [0, 1, 56, 4095, 4096, 16 << 10, 512 << 10, 1 << 20];
    let mut ranges = vec![(0, bytes.len()), (bytes.len() as u64, 0)];
    ranges.extend((0..400).map(|n: usize| (n as u64 * 2621, (sizes[n % 8] + n % 3) / (1 + n / 16))));
    for (number, range) in ranges.iter().enumerate() {
        read(&peer, &exposed.token(), *range, number, &log);
    }
    until(&[&a, &b], || log.len() == ranges.len());
    for ((at, (number, outcome)), (offset, length)) in log.take().into_iter().enumerate().zip(ranges) {
        assert_eq!(number, at, "completions come in the order of the calls");
        assert!(outcome.unwrap() == bytes[offset as usize..][..length], "{length} bytes at {offset}");
    }
}

/// Forged, changed, revoked and foreign tokens, and ranges past the end. The reads around them succeed.
pub(super) fn what_may_not_be_read(rig: &Rig) {
    let [a, b] = rig.pair();
    let exposed = b.expose(paint(100, 1)).unwrap();
    let (token, peer, log) = (exposed.token(), connect(&a, &b), Log::new());
    for (offset, length) in [(0, 101), (100, 1), (101, 0), (u64::MAX, 1), (u64::MAX, 0)] {
        let error = peer.read(&token, offset, vec![0; length], SOON, |_| panic!("it completed")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
    }
    let own = a.expose(paint(100, 1)).unwrap().token();
    let error = peer.read(&own, 0, vec![0; 1], SOON, |_| panic!("it completed")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
    // Every byte of the wire form changed, one at a time. Some are refused at once, the others by the owner.
    let (mut asked, good) = (0, token.to_bytes());
    for at in 0..Token::BYTES {
        let mut bytes = good;
        bytes[at] ^= 0x40;
        let forged = Token::from_bytes(&bytes).unwrap();
        let log = log.clone();
        let done = move |outcome: Result<Vec<u8>>| log.add((at, outcome));
        asked += usize::from(peer.read(&forged, 0, vec![0; 100], SOON, done).is_ok());
    }
    until(&[&a, &b], || log.len() == asked);
    for (at, outcome) in log.take() {
        // The length in a token is what its holder believes; the owner knows better.
        assert!((16..24).contains(&at) || outcome.is_err(), "byte {at} of the token does not matter");
    }
    // A token that says more than there is opens no more.
    let mut longer = good;
    longer[16] += 1;
    let longer = Token::from_bytes(&longer).unwrap();
    assert_eq!(longer.len(), 101);
    for (number, range) in [(0, 101), (100, 1), (0, 100)].into_iter().enumerate() {
        read(&peer, &longer, range, number, &log);
    }
    until(&[&a, &b], || log.len() == 3);
    let outcomes: Vec<_> =
        log.take().into_iter().map(|(_, outcome)| outcome.map_err(|error| error.kind())).collect();
    let refused = || Err(ErrorKind::InvalidUsage);
    assert_eq!(outcomes, [refused(), refused(), Ok(paint(100, 1))]);
    exposed.revoke();
    read(&peer, &token, (0, 100), 0, &log);
    let next = b.expose(paint(100, 2)).unwrap();
    read(&peer, &next.token(), (0, 100), 1, &log);
    until(&[&a, &b], || log.len() == 2);
    let outcomes: Vec<_> =
        log.take().into_iter().map(|(_, outcome)| outcome.map_err(|error| error.kind())).collect();
    assert_eq!(outcomes, [Err(ErrorKind::Remote), Ok(paint(100, 2))]);
    assert!(peer.lost().is_none());
}

/// Tokens of an earlier generation are refused, whoever holds them.
pub(super) fn stale_tokens(rig: &Rig) {
    let a = rig.messenger(0);
    let mut old = Vec::<Token>::new();
    for _ in 0..3 {
        let b = rig.messenger(1);
        let (exposed, peer, log) = (b.expose(paint(10, 1)).unwrap(), connect(&a, &b), Log::new());
        read(&peer, &exposed.token(), (0, 10), 0, &log);
        until(&[&a, &b], || log.len() == 1);
        for stale in &old {
            let error = peer.read(stale, 0, vec![0; 10], SOON, |_| panic!("it completed")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
        }
        old.push(exposed.token());
    }
}

/// Of reads that are cancelled, late, or whose owner leaves, each completes once, and messages go on meanwhile.
pub(super) fn each_ends_once(rig: &Rig) {
    let [a, b] = rig.pair();
    let exposed = b.expose(vec![7_u8; 4 << 20]).unwrap();
    let (peer, log, seen) = (connect(&a, &b), Log::new(), Log::of(&b, 1));
    for number in 0..60 {
        let (into, deadline) = (log.clone(), if number % 3 == 1 { Duration::ZERO } else { SOON });
        let done = move |outcome: Result<Vec<u8>>| into.add((number, outcome.map(|bytes| bytes.len())));
        let started =
            peer.read(&exposed.token(), 0, vec![0; 4 << 20], deadline, done).unwrap().posted().unwrap();
        if number % 3 == 2 {
            assert!(started.cancel());
            assert!(!started.cancel(), "it has ended");
        }
        if number == 30 {
            send(&[&a, &b], &peer, 1, b"between");
        }
    }
    until(&[&a, &b], || log.len() >= 45 && seen.len() == 1);
    drop(b);
    until(&[&a], || log.len() == 60);
    super::rig::settle(&[&a]);
    a.poll().unwrap();
    let mut outcomes = log.take();
    outcomes.sort_by_key(|(number, _)| *number);
    assert!(outcomes.iter().map(|(number, _)| *number).eq(0..60), "once each");
    for (number, outcome) in outcomes {
        match outcome.map_err(|error| error.kind()) {
            Ok(length) => assert!(number % 3 != 2 && length == 4 << 20, "read {number}"),
            Err(ErrorKind::PeerLost) => assert_eq!(number % 3, 0, "read {number}"),
            Err(kind) => {
                assert_eq!(kind, [ErrorKind::PeerLost, ErrorKind::Timeout, ErrorKind::Aborted][number % 3])
            }
        }
    }
}

/// Reads that end early cost nothing later: the owner serves neither those that it was asked for nor the others.
pub(super) fn those_given_up_bring_nothing(rig: &Rig) {
    const LENGTH: usize = 8 << 20;
    let [a, b] = rig.pair();
    let exposed = b.expose(vec![7_u8; LENGTH]).unwrap();
    let (peer, token, log) = (connect(&a, &b), exposed.token(), Log::new());
    until(&[&a, &b], || a.poll().unwrap() + b.poll().unwrap() == 0);
    // More than the owner is asked for at a time.
    for number in 0..200 {
        let (into, deadline) = (log.clone(), if number % 2 == 0 { Duration::ZERO } else { SOON });
        let started =
            peer.read(&token, 0, vec![0; LENGTH], deadline, move |outcome| into.add(outcome.map(drop)));
        assert!(number % 2 == 0 || started.unwrap().posted().unwrap().cancel());
    }
    until(&[&a], || log.len() == 200);
    assert!(log.take().into_iter().all(|outcome| outcome.is_err()));
    let into = log.clone();
    peer.read(&token, 0, vec![0; 1], SOON, move |outcome| into.add(outcome.map(drop)))
        .unwrap()
        .posted()
        .unwrap();
    // Only those in which something moves: a device may be late.
    let mut rounds = 0;
    until(&[], || {
        rounds += usize::from(a.poll().unwrap() + b.poll().unwrap() > 0);
        log.len() == 1
    });
    // All of them would take more than 500.
    assert!(log.take().remove(0).is_ok() && rounds < 60, "{rounds} rounds");
}

/// Both sides read from each other from several threads, with messages in between.
pub(super) fn both_ways_from_many_threads(rig: &Rig) {
    let all = rig.pair().map(Arc::new);
    let bytes = paint(1 << 20, 9);
    let exposed: Vec<_> = all.iter().map(|messenger| messenger.expose(bytes.clone()).unwrap()).collect();
    let seen = Log::of(&all[0], 1);
    let peers = [connect(&all[1], &all[0]), connect(&all[0], &all[1])];
    let pollers: Vec<Pollers> =
        all.iter().map(|messenger: &Arc<Messenger>| Pollers::start(messenger, 1)).collect();
    let log: Log<bool> = Log::new();
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let (peer, token) = (&peers[thread % 2], exposed[thread % 2].token());
            let (bytes, log, to) = (&bytes, &log, &peers[0]);
            scope.spawn(move || {
                for n in 0..50_usize {
                    let (offset, length) = (n * 911 + thread, n * 4001);
                    let (expected, into) = (bytes[offset..offset + length].to_vec(), log.clone());
                    let done = move |outcome: Result<Vec<u8>>| into.add(outcome.unwrap() == expected);
                    peer.read(&token, offset as u64, vec![0; length], SOON, done).unwrap().posted().unwrap();
                    to.send_within(1, &[thread as u8, n as u8], SOON).unwrap();
                }
            });
        }
    });
    until(&[], || log.len() == 200 && seen.len() == 200);
    drop(pollers);
    assert!(log.take().into_iter().all(|right| right));
}

/// Reads of memory whose key the first one brings; the owner `b` rests meanwhile. Then it revokes the token, and says so.
pub(super) fn without_the_owner(a: &Messenger, b: &Messenger) {
    let (bytes, log) = (paint(3 << 20, 5), Log::new());
    let (exposed, peer) = (b.expose(bytes.clone()).unwrap(), connect(a, b));
    let token = exposed.token();
    read(&peer, &token, (0, bytes.len()), 0, &log);
    until(&[a, b], || log.len() == 1);
    for (number, length) in [1, 100, 4096, 65_537, 1 << 20, (3 << 20) - 5].into_iter().enumerate() {
        read(&peer, &token, (5, length), 1 + number, &log);
    }
    until(&[a], || log.len() == 7);
    for (number, outcome) in log.take().into_iter().skip(1) {
        let read = outcome.unwrap();
        assert!(read[..] == bytes[5..5 + read.len()], "read {number}");
    }
    exposed.revoke();
    read(&peer, &token, (0, 100), 0, &log);
    until(&[a, b], || log.len() == 1);
    assert_eq!(log.take().remove(0).1.unwrap_err().kind(), ErrorKind::Remote);
    let next = b.expose(bytes.clone()).unwrap();
    read(&peer, &next.token(), (0, bytes.len()), 0, &log);
    until(&[a, b], || log.len() == 1);
    assert!(log.take().remove(0).1.unwrap() == bytes);
    assert!(peer.lost().is_none());
}
