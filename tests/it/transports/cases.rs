//! Cases that every connection must pass. Both ranks run each case, which leaves nothing outstanding.

use std::sync::Arc;

use aqueduct::ErrorKind;
use aqueduct::channel::InboundSignals;
use aqueduct::comm::{Host2DeviceSemaphore, Registration, Rights, Transport};
use aqueduct::gpu::{Event, GpuBuffer, Stream};
use aqueduct_tests::not_run;

use super::pair::{Kind, LEN, Pair, load, look, memory};
use crate::data::bytes;
use crate::group::{can_lock, soon};

#[track_caller]
fn assert_same(seen: &[u8], expected: &[u8], what: &str) {
    crate::data::assert_same(seen, expected, format_args!("{what}"));
}

/// The data that rank `from` writes in a `round`.
fn data(from: u32, round: usize, len: usize) -> Vec<u8> {
    bytes(from, round as u32, len)
}

pub(super) fn order(pair: &Pair) {
    for round in 0..24 {
        let len = [8, 64, 1000, 4096, 70_000, 1 << 20][round % 6];
        let offset = (round * 4099) % (LEN - len);
        if pair.me() == round as u32 % 2 {
            load(&pair.source, offset, &data(pair.me(), round, len));
            pair.connection.write(&pair.target, offset, &pair.source, offset, len).unwrap();
            pair.semaphore.signal().unwrap();
            // The other rank has read the data before it is written again.
            pair.semaphore.wait(soon()).unwrap();
        } else {
            pair.semaphore.wait(soon()).unwrap();
            assert_same(&look(&pair.inbox, offset, len), &data(pair.peer, round, len), "after the signal");
            pair.semaphore.signal().unwrap();
        }
    }
    pair.connection.flush(soon()).unwrap();
}

pub(super) fn refusals(pair: &Pair) {
    let (connection, target, source) = (&pair.connection, &pair.target, &pair.source);
    let refused = |result: aqueduct::Result<()>, word: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    };
    refused(connection.write(target, LEN - 7, source, 0, 8), "past the end");
    refused(connection.write(target, 0, source, LEN, 1), "past the end");
    refused(connection.write(target, usize::MAX, source, 0, 2), "past the end");
    refused(connection.write(source, 0, source, 0, 8), "own");
    refused(connection.write(target, 0, target, 0, 8), "received");
    let mut counter = 5;
    refused(connection.update_and_sync(target, 12, &mut counter, 6), "multiple of 8");
    refused(connection.update_and_sync(target, LEN - 7, &mut counter, 6), "past the end");
    assert_eq!(counter, 5, "a refused call does not change the counter");
    let other = match pair.transport {
        Transport::CudaIpc => Transport::Ethernet,
        _ => Transport::CudaIpc,
    };
    let elsewhere = memory(&pair.rank, other, pair.source_kind, 64);
    refused(connection.write(target, 0, &elsewhere, 0, 8), "not registered for");
    // A range that begins in the middle of a word: its addresses count, not its offsets.
    let (comm, buffer) = (&pair.rank.comm, pair.rank.buffer(64));
    let all = Registration::new(pair.transport).with_rights(Rights::READ_WRITE | Rights::REMOTE_ATOMIC);
    let range = comm.register_range(&buffer, 4, 60, all).unwrap();
    comm.send_memory(&range, pair.peer, 77).unwrap();
    let theirs = comm.recv_memory(pair.peer, 77).unwrap();
    comm.setup(soon()).unwrap();
    let theirs = theirs.get().unwrap();
    let part = theirs.range(4, 56).unwrap();
    let (mut first, mut second) = (0, 0);
    refused(connection.update_and_sync(&theirs, 0, &mut first, 6), "multiple of 8");
    refused(connection.update_and_sync(&part, 4, &mut first, 6), "multiple of 8");
    connection.update_and_sync(&theirs, 4, &mut first, 6).unwrap();
    connection.update_and_sync(&part, 8, &mut second, 7).unwrap();
    connection.flush(soon()).unwrap();
    pair.rank.barrier();
    let seen = [4, 12].map(|offset| u64::from_ne_bytes(look(&range, offset, 8).try_into().unwrap()));
    assert_eq!((seen, first, second), ([6, 7], 6, 7));
}

pub(super) fn flush(pair: &Pair) {
    for round in 0..2 {
        let mine = data(pair.me(), 100 + round, LEN);
        load(&pair.source, 0, &mine);
        pair.connection.write(&pair.target, 0, &pair.source, 0, LEN).unwrap();
        pair.connection.flush(soon()).unwrap();
        // The source is free: changing it now must not reach the peer.
        load(&pair.source, 0, &vec![0xEE; LEN]);
        pair.rank.barrier();
        assert_same(
            &look(&pair.inbox, 0, LEN),
            &data(pair.peer, 100 + round, LEN),
            "after a flush without a signal",
        );
        pair.rank.barrier();
    }
    let counters = pair.connection.counters();
    pair.connection.flush(soon()).unwrap();
    assert_eq!(pair.connection.counters().flushes, counters.flushes + 1, "a flush without writes is counted");
}

pub(super) fn outstanding(pair: &Pair) {
    const COUNT: usize = 6000;
    const SIZE: usize = 96;
    let mine = data(pair.me(), 200, COUNT * SIZE);
    load(&pair.source, 0, &mine);
    let post = |i: usize| {
        pair.connection.write(&pair.target, i * SIZE, &pair.source, i * SIZE, SIZE).unwrap();
    };
    (0..COUNT / 2).for_each(post);
    {
        let _batch = pair.connection.batch();
        (COUNT / 2..COUNT).for_each(post);
    }
    pair.semaphore.signal().unwrap();
    pair.semaphore.wait(soon()).unwrap();
    assert_same(
        &look(&pair.inbox, 0, COUNT * SIZE),
        &data(pair.peer, 200, COUNT * SIZE),
        "thousands of writes",
    );
    pair.connection.flush(soon()).unwrap();
}

/// A batch needs at most one doorbell and one completion per 16 writes.
pub(super) fn batches(pair: &Pair) {
    // On a busy machine a batch may pause; the bounds are of one that does not.
    assert!((0..10).any(|_| batch(pair)), "none of ten batches kept to the bounds");
    pair.rank.barrier();
}

/// Whether a batch of writes had no more requests, doorbells and completions than one without a pause has.
fn batch(pair: &Pair) -> bool {
    const WRITES: u64 = 16 * 100;
    pair.connection.flush(soon()).unwrap();
    let before = pair.connection.counters();
    {
        let _batch = pair.connection.batch();
        (0..WRITES as usize)
            .for_each(|i| pair.connection.write(&pair.target, i * 8, &pair.source, i * 8, 8).unwrap());
    }
    pair.connection.flush(soon()).unwrap();
    let after = pair.connection.counters();
    let requests = after.requests - before.requests;
    let (doorbells, completions) =
        (after.doorbells - before.doorbells, after.completions - before.completions);
    assert_eq!(after.writes - before.writes, WRITES);
    if !matches!(pair.transport, Transport::Ib(_)) {
        assert_eq!((requests, doorbells, completions), (0, 0, 0));
        return true;
    }
    println!("{requests} requests, {doorbells} doorbells, {completions} completions");
    // Where the last request of a queue pair is unsignalled, a flush adds one that is, and so does the service thread whenever the batch
    // pauses. Each of them completes.
    let added = requests.checked_sub(WRITES).expect("a request for each write");
    assert!(
        (1..=WRITES / 16 + added).contains(&completions),
        "{requests} requests, {completions} completions"
    );
    added <= 4 && (1..=WRITES / 16).contains(&doorbells) && completions <= WRITES / 16
}

pub(super) fn zero_bytes(pair: &Pair) {
    pair.connection.write(&pair.target, LEN, &pair.source, LEN, 0).unwrap();
    pair.connection.write(&pair.target, 0, &pair.source, 3, 0).unwrap();
    pair.connection.flush(soon()).unwrap();
}

pub(super) fn odd_sizes(pair: &Pair) {
    load(&pair.inbox, 0, &vec![0xAA; LEN]);
    load(&pair.source, 0, &data(pair.me(), 300, LEN));
    pair.rank.barrier();
    let sizes = [1, 2, 3, 7, 9, 31, 33, 127, 4095, 4097, 65_535, 65_537, 524_287, 524_289, 1_048_577];
    let places: Vec<(usize, usize)> = sizes
        .iter()
        .scan(1, |at, &size| {
            let place = *at;
            *at += size + 13;
            Some((place, size))
        })
        .collect();
    for &(at, size) in &places {
        pair.connection.write(&pair.target, at, &pair.source, at + 5, size).unwrap();
    }
    pair.semaphore.signal().unwrap();
    pair.semaphore.wait(soon()).unwrap();
    let theirs = data(pair.peer, 300, LEN);
    let mut expected = vec![0xAA; LEN];
    for &(at, size) in &places {
        expected[at..at + size].copy_from_slice(&theirs[at + 5..at + 5 + size]);
    }
    assert_same(&look(&pair.inbox, 0, LEN), &expected, "odd sizes, with untouched gaps between them");
    pair.connection.flush(soon()).unwrap();
}

pub(super) fn both_directions(pair: &Pair) {
    load(&pair.source, 0, &data(pair.me(), 400, LEN));
    pair.rank.barrier();
    for _ in 0..8 {
        pair.connection.write(&pair.target, 0, &pair.source, 0, LEN).unwrap();
    }
    pair.semaphore.signal().unwrap();
    pair.semaphore.wait(soon()).unwrap();
    assert_same(&look(&pair.inbox, 0, LEN), &data(pair.peer, 400, LEN), "while both write");
    pair.connection.flush(soon()).unwrap();
}

/// Signals are one-sided too: they arrive without any call by the peer.
pub(super) fn unawaited(pair: &Pair) {
    const SIGNALS: usize = 1000;
    for (first, rounds) in [(0, 1), (1, 1), (0, 2)] {
        // One rank, the other, then both at once.
        if rounds == 2 || pair.me() == first {
            (0..SIGNALS).for_each(|_| pair.semaphore.signal().unwrap());
            pair.connection.flush(soon()).unwrap();
        }
        pair.rank.barrier();
        if rounds == 2 || pair.me() != first {
            (0..SIGNALS).for_each(|_| pair.semaphore.wait(soon()).unwrap());
            assert!(!pair.semaphore.poll().unwrap());
        }
        pair.rank.barrier();
    }
}

pub(super) fn concurrent(pair: &Pair) {
    const CONNECTIONS: usize = 4;
    let comm = &pair.rank.comm;
    let connections: Vec<_> = (1..=CONNECTIONS as u64)
        .map(|tag| comm.connect(pair.peer, tag, pair.endpoint.clone()).unwrap())
        .collect();
    let semaphores: Vec<_> = connections
        .iter()
        .zip(1..)
        .map(|(connection, tag)| comm.build_host2host_semaphore(connection, tag).unwrap())
        .collect();
    comm.setup(soon()).unwrap();
    load(&pair.source, 0, &data(pair.me(), 500, LEN));
    pair.rank.barrier();
    let (part, theirs) = (LEN / CONNECTIONS, data(pair.peer, 500, LEN));
    std::thread::scope(|scope| {
        for (i, semaphore) in semaphores.iter().enumerate() {
            let (semaphore, start, theirs) = (semaphore.get().unwrap(), i * part, &theirs);
            scope.spawn(move || {
                let connection = semaphore.connection();
                for step in 0..16 {
                    let (at, len) = (start + step * (part / 16), part / 16);
                    connection.write(&pair.target, at, &pair.source, at, len).unwrap();
                    semaphore.signal().unwrap();
                    semaphore.wait(soon()).unwrap();
                    assert_same(&look(&pair.inbox, at, len), &theirs[at..at + len], "one of several");
                }
                connection.flush(soon()).unwrap();
            });
        }
    });
    // Over RDMA an end that is dropped fails the other's last flush.
    pair.rank.barrier();
}

pub(super) fn events(pair: &Pair) {
    let stream = Stream::new(pair.rank.comm.context()).unwrap();
    let event = Event::new(pair.rank.comm.context()).unwrap();
    // The write waits for the stream that produces the data.
    if pair.source_kind == Kind::Device {
        for round in 0..8_u8 {
            stream.fill(pair.source.slice().unwrap(), 40 + round).unwrap();
        }
    } else {
        load(&pair.source, 0, &vec![47; LEN]);
    }
    event.record(&stream).unwrap();
    pair.connection.wait_event(&event).unwrap();
    pair.connection.write(&pair.target, 0, &pair.source, 0, LEN).unwrap();
    // A stream waits until the write has been done.
    let done = Event::new(pair.rank.comm.context()).unwrap();
    pair.connection.record_event(&done).unwrap();
    stream.wait_event(&done).unwrap();
    stream.synchronize(soon()).unwrap();
    pair.rank.barrier();
    assert_same(&look(&pair.inbox, 0, LEN), &vec![47; LEN], "behind an event");
}

pub(super) fn host_to_device(pair: &Pair) {
    let comm = &pair.rank.comm;
    let semaphore = comm.build_host2device_semaphore(&pair.connection, 9).unwrap();
    comm.setup(soon()).unwrap();
    let semaphore = semaphore.get().unwrap();
    let (signals, stream) = (InboundSignals::new(&semaphore).unwrap(), Stream::new(comm.context()).unwrap());
    for round in 0..3 {
        load(&pair.source, 0, &data(pair.me(), 700 + round, 4096));
        pair.rank.barrier();
        // The kernel starts to wait before the signal is sent.
        signals.wait(&stream).unwrap();
        pair.connection.write(&pair.target, 0, &pair.source, 0, 4096).unwrap();
        semaphore.signal().unwrap();
        stream.synchronize(soon()).unwrap();
        assert_same(
            &look(&pair.inbox, 0, 4096),
            &data(pair.peer, 700 + round, 4096),
            "after a signal to a kernel",
        );
        pair.rank.barrier();
    }
    polls(pair, &semaphore, &signals, &stream);
    let counters = semaphore.counters(soon()).unwrap();
    assert_eq!((counters.inbound, counters.expected_inbound, counters.outbound), (4, 4, 4));
}

/// A poll takes a signal that has come, and none before.
fn polls(pair: &Pair, semaphore: &Host2DeviceSemaphore, signals: &InboundSignals, stream: &Stream) {
    let buffer = Arc::new(GpuBuffer::new(pair.rank.comm.context(), 4).unwrap());
    let poll = || {
        let mut taken = [0xff; 4];
        buffer.upload(0, &taken, soon()).unwrap();
        signals.poll(stream, &buffer.slice(..).unwrap()).unwrap();
        stream.synchronize(soon()).unwrap();
        buffer.download(0, &mut taken, soon()).unwrap();
        u32::from_ne_bytes(taken)
    };
    assert_eq!(poll(), 0, "no signal has come");
    pair.rank.barrier();
    semaphore.signal().unwrap();
    let deadline = soon();
    while poll() != 1 {
        assert!(!deadline.expired(), "the signal does not come");
    }
    pair.rank.barrier();
    assert_eq!(poll(), 0, "there was one signal");
}

pub(super) fn far_offsets(pair: &Pair) {
    const LEN: usize = 9 << 30;
    if matches!(pair.transport, Transport::Ib(_)) && !can_lock(3 * LEN) {
        let why = format!("needs {} GiB of memory that can be locked", (3 * LEN) >> 30);
        return not_run("transports: offsets beyond 8 GiB over a NIC", why);
    }
    sparse(pair, LEN);
}

/// Writes near the end of a memory of `len` bytes.
pub(super) fn sparse(pair: &Pair, len: usize) {
    let comm = &pair.rank.comm;
    let inbox = memory(&pair.rank, pair.transport, pair.target_kind, len);
    comm.send_memory(&inbox, pair.peer, 77).unwrap();
    let target = comm.recv_memory(pair.peer, 77).unwrap();
    comm.setup(soon()).unwrap();
    let target = target.get().unwrap();
    assert_eq!(target.len(), len);
    load(&pair.source, 0, &data(pair.me(), 800, 8192));
    for at in [len - 8192, len / 2 + 1, 4095] {
        pair.connection.write(&target, at, &pair.source, 0, 8192).unwrap();
    }
    pair.semaphore.signal().unwrap();
    pair.semaphore.wait(soon()).unwrap();
    for at in [len - 8192, len / 2 + 1, 4095] {
        assert_same(&look(&inbox, at, 8192), &data(pair.peer, 800, 8192), "far away");
    }
    pair.connection.flush(soon()).unwrap();
}

pub(super) fn teardown(pair: &Pair) {
    let comm = &pair.rank.comm;
    let doomed = comm.connect(pair.peer, 50, pair.endpoint.clone()).unwrap();
    comm.setup(soon()).unwrap();
    let connection = doomed.get().unwrap();
    drop(doomed);
    pair.rank.barrier();
    for _ in 0..4 {
        connection.write(&pair.target, 0, &pair.source, 0, LEN - 64).unwrap();
    }
    // Both ranks drop the connection with writes outstanding. Accepted writes are done, and other connections are
    // unaffected. Start only when both have begun: over RDMA a rank does not know that its peer is still writing.
    pair.rank.barrier();
    drop(connection);
    pair.connection.write(&pair.target, LEN - 64, &pair.source, 0, 64).unwrap();
    pair.semaphore.signal().unwrap();
    pair.semaphore.wait(soon()).unwrap();
    pair.connection.flush(soon()).unwrap();
}
