//! How often memory is registered with an RDMA device: not once for each message or read. On a NIC, registered pages are the ones that
//! were there at that time, so that a registration that outlives its memory brings old bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use aqueduct::message::{Delivery, Memory, Message, Messenger, Peer, SharedMemory};

use super::rig::{Log, SOON, connect, until};

/// Soft-RoCE in an emulated machine takes its time.
fn count() -> usize {
    if std::env::var_os("AQUEDUCT_IB_DEVICES").is_some() { 400 } else { 10_000 }
}

fn length(number: usize) -> usize {
    (64 << 10) + number * 7919 % (48 << 10)
}

/// Reads of changing parts of one piece, and long messages of changing lengths, half of them in vectors and half in memory of the
/// library that is used again.
pub(super) fn of_changing_lengths(a: &Messenger, b: &Messenger) {
    let (peer, right) = (connect(a, b), Arc::new(AtomicUsize::new(0)));
    let seen = right.clone();
    b.on(1, move |mut message: Message| {
        let (long, seen) = (message.long().expect("an offer"), seen.clone());
        let byte = message.bytes()[0];
        let length = usize::from_le_bytes(message.bytes()[1..9].try_into().unwrap());
        let check = move |read: aqueduct::Result<Vec<u8>>| {
            let read = read.unwrap();
            let expected = read.len() == length && read.iter().all(|b| *b == byte);
            seen.fetch_add(usize::from(expected), Ordering::Relaxed);
        };
        long.read(vec![!byte; length], SOON, check).unwrap().posted().unwrap();
    })
    .unwrap();
    let pool = SharedMemory::allocate(1 << 20).unwrap();
    let send = |number: usize| send(&peer, &pool, number, [a, b]);
    (0..20).for_each(send);
    let before = a.registrations() + b.registrations();
    let half = count() / 2;
    (20..half).for_each(send);
    let exposed = a.expose(&pool).unwrap();
    let (reader, log) = (connect(b, a), Log::new());
    for number in 0..half {
        let (offset, into) = (number % 1000, vec![0; length(number)]);
        let into_log = log.clone();
        reader
            .read(&exposed.token(), offset as u64, into, SOON, move |read| into_log.add(read.is_ok()))
            .unwrap()
            .posted()
            .unwrap();
        until(&[a, b], || log.len() + 8 > number);
    }
    until(&[a, b], || log.len() == half);
    assert!(log.take().into_iter().all(|read| read));
    assert_eq!(right.load(Ordering::Relaxed), half, "every byte is right");
    let more = a.registrations() + b.registrations() - before;
    assert!(more <= 4, "{more} registrations for {} messages and reads", count());
}

/// Sends message `number` and waits until it is delivered.
fn send(peer: &Peer, pool: &SharedMemory, number: usize, all: [&Messenger; 2]) {
    let (length, byte) = (length(number), number as u8);
    let data: Memory = if number.is_multiple_of(2) {
        pool.fill(byte);
        pool.into()
    } else {
        vec![byte; length].into()
    };
    let head = [&[byte][..], &length.to_le_bytes()].concat();
    let delivered = Log::new();
    until(&all, || {
        let (log, data) = (delivered.clone(), data.clone());
        peer.send_long(1, &head, data, SOON, move |outcome| log.add(outcome.unwrap())).unwrap().is_posted()
    });
    until(&all, || delivered.len() == 1);
    assert_eq!(delivered.take(), [Delivery::Delivered]);
}

/// Memory of the library and of the program that is freed and allocated again, mostly at the same address.
pub(super) fn at_the_same_address(a: &Messenger, b: &Messenger) {
    let (peer, log) = (connect(a, b), Log::new());
    let (mut addresses, mut again) = (Vec::new(), 0);
    for round in 0..40_u8 {
        let (memory, address): (Memory, usize) = match round % 3 {
            0 => {
                let memory = SharedMemory::allocate(300_000).unwrap();
                memory.fill(round);
                (memory.clone().into(), memory.as_ptr().addr())
            }
            // Longer than what is copied, and so long that the allocator maps it: it goes back to the system when it is freed.
            1 => {
                let memory = vec![round; 40 << 20];
                let address = memory.as_ptr().addr();
                (memory.into(), address)
            }
            _ => {
                let memory = vec![round; 500_000];
                let address = memory.as_ptr().addr();
                (memory.into(), address)
            }
        };
        again += usize::from(addresses.contains(&address));
        addresses.push(address);
        let exposed = b.expose(memory).unwrap();
        for offset in [0, 100_000] {
            let log = log.clone();
            peer.read(&exposed.token(), offset, vec![!round; 200_000], SOON, move |read| log.add(read))
                .unwrap()
                .posted()
                .unwrap();
        }
        until(&[a, b], || log.len() == 2);
        for read in log.take() {
            assert!(read.unwrap().iter().all(|byte| *byte == round), "round {round}");
        }
    }
    assert!(again > 10, "only {again} pieces at an address used before");
}
