//! Pairs for reads that fail at odd moments, that peers misuse, and that nobody needs.

use super::super::nic::MAX_READERS;
use super::reading::{Both, bytes, failure};
use super::refused::{connect, devices, read};
use super::*;
use crate::error::ErrorKind;
use crate::message::exposed::Exposures;
use crate::message::keys::Key;
use crate::message::lent::Lent;
use crate::message::offers::{Delivery, Offers};
use crate::message::one_sided::{OneSided, PIECE};
use crate::rdma::MemoryRegion;
use crate::sync::lock;

/// Begins a read of eight bytes, which the held pair does not end: the owner's memory, and the pair's number.
fn begun(reader: &dyn OneSided, owner: &dyn OneSided) -> (MemoryRegion, u32) {
    let region = owner.register(&Lent::of(body(100))).unwrap();
    connect(reader, owner);
    let pair = reader.number().unwrap();
    standin::hold(pair);
    let mut left = Some(region.remote().range(0, 8).unwrap());
    reader.begin(&mut || Ok(left.take().map(wanted))).unwrap();
    (region, pair)
}

/// Who goes to sleep takes the completion of the failure. The read must not wait for another.
#[test]
fn a_failure_that_is_found_on_the_way_to_sleep_is_told() {
    let [one, two] = pair();
    let (reader, owner) = (devices(&one), devices(&two));
    let (region, pair) = begun(reader, owner);
    while one.arm().unwrap() {}
    drop(region);
    standin::release(pair);
    standin::settle();
    for _ in 0..3 {
        assert!(one.arm().unwrap(), "a failure is something to look at");
    }
    assert!(reader.take().is_err() && !reader.is_connected());
}

/// An owner connects again what is connected.
#[test]
fn an_end_that_nobody_asked_for_changes_nothing() {
    let [one, two] = pair();
    let (reader, owner) = (devices(&one), devices(&two));
    let (region, pair) = begun(reader, owner);
    let other = two.one_sided().unwrap().prepare().unwrap().unwrap();
    assert_eq!(reader.connect(&other).unwrap_err().kind(), ErrorKind::Remote);
    assert_eq!(reader.number(), Some(pair));
    // A piece of a pair that is gone.
    reader.release(0);
    standin::release(pair);
    standin::settle();
    let piece = reader.take().unwrap().expect("the piece was not released");
    assert_eq!(piece.brought.bytes(), &body(100)[..8]);
    reader.release(piece.pair);
    assert_eq!(read(reader, &region.remote()).unwrap(), body(100)[..8]);
}

/// The same from an owner that answers a request which came with no end of a pair.
#[test]
fn an_answer_with_an_end_that_nobody_asked_for_breaks_the_link() {
    let both = Both::new();
    let memory = bytes(PIECE);
    let _first = both.exposed(&memory);
    let pair = both.pair().unwrap();
    let second = both.owner.expose(memory.clone()).unwrap();
    both.read(&second.token(), 0, PIECE, 1);
    let line = both.peer.member.lines()[0].clone();
    let wire = line.wire().unwrap();
    let [one, two] = super::pair();
    let theirs = devices(&one).prepare().unwrap();
    let region = devices(&two).register(&Lent::of(body(100))).unwrap().remote();
    let answered = lock(&line.reads).key(1, Some(Key { region, pair: theirs }), wire.one_sided().unwrap());
    assert_eq!(answered.err().map(|error| error.kind()), Some(ErrorKind::Remote));
    assert_eq!(both.pair(), Some(pair));
}

/// The request went without an end of a pair, because there was a pair.
#[test]
fn a_pair_that_fails_while_a_key_is_asked_for_takes_no_key_away() {
    let both = Both::new();
    let (memory, other) = (bytes(PIECE), bytes(2 * PIECE));
    let first = both.exposed(&memory);
    let second = both.owner.expose(other.clone()).unwrap();
    let pair = both.pair().unwrap();
    standin::hold(pair);
    both.read(&first.token(), 0, PIECE, 1);
    both.reader.poll().unwrap();
    both.read(&second.token(), 0, PIECE, 2);
    drop(first);
    standin::release(pair);
    let deadline = Deadline::after(SOON);
    while both.pair().is_some() {
        both.reader.poll().unwrap();
        assert!(!deadline.expired(), "its pair is refused");
    }
    let outcomes = both.until(2, true);
    assert!(outcomes[0].1.is_err() && outcomes[1].1.as_ref().unwrap() == &other[..PIECE]);
    both.read(&second.token(), 3, PIECE, 3);
    assert!(both.until(1, true)[0].1.as_ref().unwrap() == &other[3..PIECE + 3]);
    both.read(&second.token(), 9, PIECE, 4);
    assert!(both.until(1, false)[0].1.as_ref().unwrap() == &other[9..PIECE + 9], "its owner does nothing");
}

#[test]
fn a_link_that_was_closed_makes_no_end() {
    let [one, two] = pair();
    let offered = devices(&one).prepare().unwrap().unwrap();
    two.close(true);
    assert_eq!(devices(&two).admit(&offered).unwrap_err().kind(), ErrorKind::PeerLost);
    assert_eq!(devices(&two).prepare().unwrap_err().kind(), ErrorKind::PeerLost);
}

/// Whoever is given no key needs no memory to read to.
#[test]
fn a_refused_key_costs_no_place() {
    let both = Both::new();
    let memory = bytes(PIECE);
    let exposed = both.owner.expose(memory.clone()).unwrap();
    let nic = both.reader.core.nic.clone().unwrap();
    let _others: Vec<_> = (1..MAX_READERS).map(|_| nic.place().unwrap()).collect();
    let mut forged = exposed.token();
    forged.secret[3] ^= 1;
    both.read(&forged, 0, PIECE, 1);
    assert!(nic.place().is_err(), "it is taken while the key is asked for");
    assert_eq!(failure(both.until(1, true)).0, ErrorKind::Authentication);
    drop(nic.place().expect("the last place is free again"));
    drop(both.exposed(&memory));
    assert!(both.pair().is_some());
}

/// Long data that has ended stays registered until its locks are free, and no longer than its memory is held.
#[test]
fn long_data_that_has_ended_takes_its_registration_along() {
    let [one, two] = pair();
    let (reader, owner) = (devices(&one), devices(&two));
    connect(reader, owner);
    let (table, memory) = (Arc::new(Exposures::new(7)), bytes(100));
    let exposed = table.expose(memory.clone().into()).unwrap();
    let token = exposed.token();
    let region = table.key(&token, 0, 100, |bytes| owner.register(bytes)).unwrap().unwrap();
    let mut offers = Offers::default();
    offers.add(exposed, Deadline::after(SOON), Box::new(|_| {}));
    let ended = offers.answer(0, token.mark(), Delivery::Delivered).unwrap();
    assert!(table.lend(&token, 0, 1).is_err(), "nobody gets it any more");
    assert_eq!(read(reader, &region).unwrap(), memory[..8]);
    drop(ended);
    assert!(read(reader, &region).is_err());
    assert_eq!(Arc::strong_count(&memory), 1);
}

/// A registration that fails once is tried again, and its reader asks again.
#[test]
fn a_key_that_could_not_be_given_is_asked_for_again() {
    let both = Both::new();
    let memory = bytes(2 * PIECE);
    let exposed = both.owner.expose(memory.clone()).unwrap();
    both.read(&exposed.token(), 0, PIECE, 1);
    // For a copy, and of the memory itself.
    (0..2).for_each(|_| standin::refuse("ibv_reg_mr", libc::ENOMEM));
    assert!(both.until(1, true)[0].1.is_ok());
    assert_eq!((standin::not_called(), both.pair()), (0, None));
    std::thread::sleep(Duration::from_millis(1100));
    for round in 0..200 {
        both.read(&exposed.token(), round, PIECE, round);
        assert!(both.until(1, true)[0].1.as_ref().unwrap() == &memory[round..PIECE + round]);
    }
    assert!(both.pair().is_some());
}

/// Much memory, of which more and more is sent: when it is enough, the device reads the rest.
#[test]
fn much_memory_is_read_by_the_device_once_much_of_it_was_sent() {
    let both = Both::new();
    let exposed = both.owner.expose(vec![0; (1 << 30) + 1]).unwrap();
    let token = exposed.token();
    let read = |length, round| {
        both.read(&token, round, length, round);
        assert!(both.until(1, true)[0].1.as_ref().unwrap().iter().all(|byte| *byte == 0));
    };
    (0..10).for_each(|round| read(PIECE, round));
    assert_eq!(both.pair(), None, "10 pieces are no eighth");
    read(1 << 27, 0);
    // By then the reader asks again.
    (0..100).for_each(|round| read(1, round));
    assert!(both.pair().is_some());
}
