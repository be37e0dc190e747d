//! Cases for reads: where they take effect among the other operations of their connection, and how many there may be.

use aqueduct::comm::Transport;

use super::pair::{LEN, Pair, load, look};
use crate::data::{assert_same, bytes};
use crate::group::soon;

pub(super) fn bytes_of_the_peer(pair: &Pair) {
    load(&pair.inbox, 0, &bytes(pair.me(), 600, LEN));
    pair.rank.barrier();
    pair.connection.read(&pair.source, 10, &pair.target, 20, 100_000).unwrap();
    pair.connection.flush(soon()).unwrap();
    assert_same(
        &look(&pair.source, 10, 100_000),
        &bytes(pair.peer, 600, LEN)[20..100_020],
        format_args!("a read"),
    );
    // Everything at once, in both directions.
    pair.connection.read(&pair.source, 0, &pair.target, 0, LEN).unwrap();
    pair.connection.flush(soon()).unwrap();
    assert_same(&look(&pair.source, 0, LEN), &bytes(pair.peer, 600, LEN), format_args!("a large read"));
    pair.rank.barrier();
}

/// Each operation reads and overwrites what earlier ones wrote, at both ends, without a flush in between.
pub(super) fn in_order_with_writes(pair: &Pair) {
    for (round, len) in (0..).zip([8, 500, 5000, LEN / 4]) {
        let [first, second, back] = [0, 1, 2].map(|part| part * (LEN / 4));
        let [old, new] = [0, 1].map(|which| bytes(pair.me(), 620 + 2 * round + which, len));
        load(&pair.source, first, &old);
        load(&pair.source, second, &new);
        load(&pair.source, back, &vec![0xEE; len]);
        pair.rank.barrier();
        let (connection, here, there) = (&pair.connection, &pair.source, &pair.target);
        connection.write(there, 0, here, first, len).unwrap();
        connection.read(here, back, there, 0, len).unwrap();
        connection.write(there, 0, here, second, len).unwrap();
        connection.read(here, first, there, 0, len).unwrap();
        // Sends the bytes of the first read back to the peer.
        connection.write(there, LEN / 2, here, back, len).unwrap();
        connection.flush(soon()).unwrap();
        assert_same(&look(here, back, len), &old, format_args!("{len} bytes, read between two writes"));
        assert_same(&look(here, first, len), &new, format_args!("{len} bytes, read behind both"));
        pair.rank.barrier();
        let theirs = bytes(pair.peer, 620 + 2 * round, len);
        assert_same(&look(&pair.inbox, LEN / 2, len), &theirs, format_args!("{len} bytes, read and written"));
        pair.rank.barrier();
    }
}

/// The peer overwrites its memory as soon as a signal behind the read tells it to.
pub(super) fn before_a_signal(pair: &Pair) {
    const PART: usize = 1 << 20;
    for round in 0..4 {
        load(&pair.inbox, 0, &bytes(pair.me(), 640 + round, PART));
        pair.rank.barrier();
        pair.connection.read(&pair.source, 0, &pair.target, 0, PART).unwrap();
        pair.semaphore.signal().unwrap();
        pair.semaphore.wait(soon()).unwrap();
        load(&pair.inbox, 0, &vec![0xDD; PART]);
        pair.connection.flush(soon()).unwrap();
        let (seen, expected) = (look(&pair.source, 0, PART), bytes(pair.peer, 640 + round, PART));
        assert_same(&seen, &expected, format_args!("read before the signal of round {round}"));
        pair.rank.barrier();
    }
}

/// Over Ethernet more than a connection asks for at one time, of small parts and then of large ones.
pub(super) fn many_outstanding(pair: &Pair) {
    const SMALL: usize = 2000;
    // Each is three parts over Ethernet, and costs the race detector seconds elsewhere.
    let large = if pair.transport == Transport::Ethernet { 30 } else { 4 };
    load(&pair.inbox, 0, &bytes(pair.me(), 650, LEN));
    pair.rank.barrier();
    let theirs = bytes(pair.peer, 650, LEN);
    for part in 0..SMALL {
        pair.connection.read(&pair.source, part * 8, &pair.target, (SMALL - 1 - part) * 8, 8).unwrap();
    }
    pair.connection.flush(soon()).unwrap();
    let expected: Vec<u8> = theirs[..SMALL * 8].rchunks(8).flatten().copied().collect();
    assert_same(&look(&pair.source, 0, SMALL * 8), &expected, format_args!("small reads"));
    for part in 0..large {
        pair.connection.read(&pair.source, part, &pair.target, 2 * part, LEN / 2).unwrap();
    }
    pair.connection.flush(soon()).unwrap();
    let (last, half) = (large - 1, LEN / 2);
    assert_same(
        &look(&pair.source, last, half),
        &theirs[2 * last..2 * last + half],
        format_args!("the last of the large reads"),
    );
    pair.rank.barrier();
}
