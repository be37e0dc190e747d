//! Messages of every size up to the limit.

use aqueduct::ErrorKind;
use aqueduct::message::{MAX_EAGER, Messenger, Sent};
use aqueduct_tests::paint;

use super::rig::{Log, Rig, connect, send, until};

/// Sizes at which something changes in some backend, and their neighbours: what is kept in place (56), a cell of a ring and
/// several of them, one plain send, a batch, a page, powers of two.
fn sizes(limit: usize) -> Vec<usize> {
    let mut at = vec![56, 512 - 16, 512, 16 << 10, (16 << 10) - 16, 4096, 64 << 10, 32 << 10, limit];
    at.extend((0..17).map(|power| 1 << power));
    at.extend([2, 3, 9, 73, 146].map(|cells| 56 * cells));
    let mut sizes: Vec<usize> = at.into_iter().flat_map(|size| size.saturating_sub(1)..=size + 1).collect();
    sizes.retain(|size| *size <= limit);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Sends each size alone, then all of them in one burst.
fn all_sizes(a: &Messenger, b: &Messenger, limit: usize) {
    let seen = Log::of(b, 1);
    let peer = connect(a, b);
    assert_eq!(peer.eager_limit(), limit);
    let sizes = sizes(limit);
    for &size in &sizes {
        send(&[a, b], &peer, 1, &paint(size, size));
        until(&[a, b], || seen.len() == 1);
        assert_eq!(seen.take(), [paint(size, size)], "{size} bytes alone");
    }
    for &size in &sizes {
        // The receiver takes messages in, and with that gives credit, but dispatches none.
        while peer.send(1, &paint(size, size + 1)).unwrap() != Sent::Done {
            a.poll().unwrap();
            b.progress().unwrap();
        }
        b.progress().unwrap();
    }
    until(&[a, b], || seen.len() == sizes.len());
    for (bytes, size) in seen.take().into_iter().zip(sizes) {
        assert!(bytes == paint(size, size + 1), "{size} bytes in a burst came as {}", bytes.len());
    }
}

pub(super) fn around_every_threshold(rig: &Rig) {
    let [a, b] = rig.pair();
    all_sizes(&a, &b, 8 << 10);
}

pub(super) fn the_longest_limit(rig: &Rig) {
    let config = rig.config().with_eager_limit(MAX_EAGER);
    let [a, b] = [0, 1].map(|rank| Messenger::new(rank, config.clone()).unwrap());
    all_sizes(&a, &b, MAX_EAGER);
}

pub(super) fn zero_bytes(rig: &Rig) {
    let [a, b] = rig.pair();
    let seen = Log::of(&b, 1);
    let peer = connect(&a, &b);
    for n in 0..3000_usize {
        // Every third has a byte, so that one that is lost or doubled shows.
        let byte = [n as u8];
        send(&[&a, &b], &peer, 1, if n % 3 == 0 { &byte } else { &[] });
    }
    until(&[&a, &b], || seen.len() == 3000);
    for (n, bytes) in seen.take().into_iter().enumerate() {
        assert_eq!(bytes, if n % 3 == 0 { vec![n as u8] } else { vec![] }, "message {n}");
    }
}

/// Two that have other limits use the smaller one, in both directions.
pub(super) fn the_smaller_limit_holds(rig: &Rig) {
    for limits in [[1, 8192], [8192, 1], [100, 65536], [57, 56]] {
        let [a, b] = [0, 1]
            .map(|rank| Messenger::new(rank, rig.config().with_eager_limit(limits[rank as usize])).unwrap());
        let (seen, least) = ([Log::of(&a, 1), Log::of(&b, 1)], limits[0].min(limits[1]));
        let peers = [connect(&b, &a), connect(&a, &b)];
        for (peer, seen) in peers.iter().zip(&seen) {
            assert_eq!(peer.eager_limit(), least);
            assert_eq!(peer.send(1, &paint(least, 1)).unwrap(), Sent::Done);
            let error = peer.send(1, &paint(least + 1, 1)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
            until(&[&a, &b], || seen.len() == 1);
            assert_eq!(seen.take(), [paint(least, 1)]);
        }
    }
}
