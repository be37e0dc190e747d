//! Reads that the reader's device brings to their places in shared memory.

use super::falling_back::config;
use super::reading::{Both, bytes};
use super::*;
use crate::error::{Error, ErrorKind};
use crate::message::one_sided::{PIECE, PLACED};
use crate::message::shared::Holder;
use crate::message::{Exposed, Read, SharedMemory, Target, Token};
use crate::rdma::Status;
use crate::sync::{Mutex, lock};

/// Longer than what one read has under way, so that it goes on when some of it has come.
const LONG: usize = 5 * PLACED + 77;
const GUARD: u8 = 0xa5;

type Ends = Arc<Mutex<Vec<(usize, Result<()>)>>>;

fn read(
    both: &Both,
    token: &Token,
    offset: usize,
    into: impl Into<Target>,
    ends: &Ends,
    number: usize,
) -> Read {
    let ends = ends.clone();
    let done = move |outcome| lock(&ends).push((number, outcome));
    both.peer.read_into(token, offset as u64, into, 10 * SOON, done).unwrap().posted().unwrap()
}

/// Polls until so many reads have ended; the owner, too, if it is `with_owner`.
#[track_caller]
fn until(both: &Both, ends: &Ends, ended: usize, with_owner: bool) -> Vec<(usize, Result<()>)> {
    let deadline = Deadline::after(SOON);
    while lock(ends).len() < ended {
        if with_owner {
            both.owner.poll().unwrap();
        }
        both.reader.poll().unwrap();
        std::thread::yield_now();
        assert!(!deadline.expired(), "{} of {ended} reads have ended", lock(ends).len());
    }
    std::mem::take(&mut *lock(ends))
}

/// A reader that has the key of exposed memory of [`LONG`] bytes: both sides, the memory and its exposure, the number of the pair, and a target.
fn ready() -> (Both, Arc<Vec<u8>>, Exposed, u32, SharedMemory) {
    let (both, memory) = (Both::new(), bytes(LONG));
    let exposed = both.exposed(&memory);
    let pair = both.pair().unwrap();
    (both, memory, exposed, pair, guarded(LONG))
}

fn guarded(length: usize) -> SharedMemory {
    let memory = SharedMemory::allocate(length).unwrap();
    memory.fill(GUARD);
    memory
}

fn all(memory: &SharedMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

/// A few large requests in place of many pieces, the owner makes no progress, and no byte beside the place is written.
#[test]
fn the_device_reads_to_the_place_itself() {
    let both = Both::new();
    let memory = bytes(LONG + 9);
    let exposed = both.exposed(&memory);
    let pair = both.pair().unwrap();
    let ends = Ends::default();
    let (target, registered) = (guarded(LONG + 2000), both.reader.registrations());
    for (offset, at, length) in
        [(0, 0, PIECE), (3, 1001, PLACED), (9, 5, PLACED + 1), (1, 999, LONG), (8, 2000, LONG), (7, 3, 0)]
    {
        target.fill(GUARD);
        let before = standin::counts(pair).requests;
        read(&both, &exposed.token(), offset, target.part(at, length).unwrap(), &ends, 1);
        until(&both, &ends, 1, length == 0).remove(0).1.unwrap();
        let requests = standin::counts(pair).requests - before;
        assert_eq!(requests, length.div_ceil(PLACED) as u64, "{length} bytes");
        let mut expected = vec![GUARD; target.len()];
        expected[at..at + length].copy_from_slice(&memory[offset..offset + length]);
        assert!(all(&target) == expected, "{length} bytes at {at}");
    }
    assert_eq!(both.reader.registrations() - registered, 1, "the target is registered once");
}

/// The key comes when the first part is asked for, and the others wait for it.
#[test]
fn the_first_read_of_a_token_goes_to_its_place_too() {
    let both = Both::new();
    drop(both.exposed(&bytes(PIECE)));
    let memory = bytes(LONG);
    let exposed = both.owner.expose(memory.clone()).unwrap();
    let (ends, target) = (Ends::default(), guarded(LONG));
    let before = standin::counts(both.pair().unwrap()).requests;
    read(&both, &exposed.token(), 0, &target, &ends, 1);
    until(&both, &ends, 1, true).remove(0).1.unwrap();
    assert!(all(&target) == *memory);
    assert_eq!(standin::counts(both.pair().unwrap()).requests - before, LONG.div_ceil(PLACED) as u64);
}

/// The completion channel wakes it when something has come.
#[test]
fn the_reader_may_sleep_while_its_device_reads() {
    let (both, memory, exposed, pair, target) = ready();
    let ends = Ends::default();
    standin::hold(pair);
    read(&both, &exposed.token(), 0, &target, &ends, 1);
    both.settle();
    assert_eq!([both.reader.poll().unwrap(), both.owner.poll().unwrap()], [0, 0], "nothing is to be done");
    standin::release(pair);
    while lock(&ends).is_empty() {
        both.reader.wait(SOON).unwrap();
        both.reader.poll().unwrap();
    }
    lock(&ends).remove(0).1.unwrap();
    assert!(all(&target) == *memory);
}

/// As one whose link has failed, about which it says nothing.
#[test]
fn a_read_that_was_given_up_ends_although_the_device_hangs() {
    let (both, memory, exposed, pair, target) = ready();
    let (ends, other) = (Ends::default(), guarded(PIECE));
    standin::hold(pair);
    let given_up = read(&both, &exposed.token(), 0, &target, &ends, 1);
    read(&both, &exposed.token(), 7, &other, &ends, 2);
    both.settle();
    assert!(given_up.cancel());
    let outcomes = until(&both, &ends, 2, true);
    assert_eq!(outcomes[0].1.as_ref().unwrap_err().kind(), ErrorKind::Aborted);
    assert!(outcomes[1].1.is_ok() && all(&other) == memory[7..][..PIECE], "the owner has sent it");
    assert!(!standin::exists(pair) && all(&target).iter().all(|byte| *byte == GUARD));
    drop(both.exposed(&memory));
    read(&both, &exposed.token(), 0, &target, &ends, 3);
    until(&both, &ends, 1, true).remove(0).1.unwrap();
    assert!(all(&target) == *memory);
}

/// The device does not even destroy the queue pair: it writes nothing behind the end of the read all the same.
#[test]
fn a_read_that_was_given_up_ends_although_its_queue_pair_stays() {
    let (both, memory, exposed, pair, target) = ready();
    let ends = Ends::default();
    standin::hold(pair);
    let given_up = read(&both, &exposed.token(), 0, &target, &ends, 1);
    both.settle();
    standin::refuse("ibv_destroy_qp", libc::EBUSY);
    assert!(given_up.cancel());
    let ended = until(&both, &ends, 1, true).remove(0).1;
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Aborted);
    assert!(standin::not_called() == 0 && standin::exists(pair));
    standin::release(pair);
    standin::settle();
    assert!(all(&target).iter().all(|byte| *byte == GUARD), "the device writes to memory of the program");
    drop(both.exposed(&memory));
    assert!(both.pair().is_some_and(|number| number != pair), "the link goes on");
    // The stand-in keeps the queue pair, and with it everything that it was made of.
    std::mem::forget(both);
}

/// Targets that are too short to be worth a registration, and others among them.
#[test]
fn short_reads_are_copied_and_all_end_in_order() {
    let both = Both::new();
    let memory = bytes(2 * PLACED);
    let exposed = both.exposed(&memory);
    let (ends, registered) = (Ends::default(), both.reader.registrations());
    let lengths = [PIECE - 1, 2 * PIECE, 1, PLACED + 5, 100, PIECE];
    let targets: Vec<_> = lengths.iter().map(|length| guarded(*length)).collect();
    for (number, target) in targets.iter().enumerate() {
        read(&both, &exposed.token(), number, target, &ends, number);
    }
    for (at, (number, outcome)) in until(&both, &ends, lengths.len(), false).into_iter().enumerate() {
        outcome.unwrap();
        assert_eq!(at, number, "completions come in the order of the calls");
        assert!(all(&targets[number]) == memory[number..][..lengths[number]], "read {number}");
    }
    assert_eq!(both.reader.registrations() - registered, 3);
}

/// Whoever is told that a read has ended may use the memory again.
#[test]
fn a_read_that_is_given_up_ends_when_the_device_writes_no_more() {
    let (both, memory, exposed, pair, target) = ready();
    let ends = Ends::default();
    standin::hold(pair);
    let given_up = read(&both, &exposed.token(), 0, &target, &ends, 1);
    let late = both.peer.read_into(&exposed.token(), 0, guarded(PLACED), Duration::from_millis(200), {
        let ends = ends.clone();
        move |outcome| lock(&ends).push((2, outcome))
    });
    late.unwrap().posted().unwrap();
    both.settle();
    assert!(given_up.cancel() && !given_up.cancel());
    // Until the other one is too late, whose parts have long been under way, also on a busy machine.
    let soon = Deadline::after(Duration::from_millis(220));
    while !soon.expired() {
        both.settle();
    }
    assert!(lock(&ends).is_empty(), "the device may still write");
    standin::release(pair);
    let mut ended = until(&both, &ends, 2, false);
    let after = all(&target);
    ended.sort_by_key(|(number, _)| *number);
    let kinds = ended.iter().map(|(_, outcome)| outcome.as_ref().unwrap_err().kind());
    assert_eq!(kinds.collect::<Vec<_>>(), [ErrorKind::Aborted, ErrorKind::Timeout]);
    both.settle();
    assert!(all(&target) == after, "nothing comes behind the end");
    assert!(after.contains(&GUARD), "the rest of the read was not asked for");
    read(&both, &exposed.token(), 0, &target, &ends, 3);
    until(&both, &ends, 1, false).remove(0).1.unwrap();
    assert!(all(&target) == *memory && both.pair() == Some(pair));
}

/// The owner says so, and later reads have a new pair.
#[test]
fn memory_that_is_revoked_is_an_error_and_nothing_comes_behind_it() {
    let (both, memory, exposed, pair, target) = ready();
    let ends = Ends::default();
    standin::hold(pair);
    read(&both, &exposed.token(), 0, &target, &ends, 1);
    both.settle();
    exposed.revoke();
    standin::release(pair);
    let error: Error = until(&both, &ends, 1, true).remove(0).1.unwrap_err();
    assert!(error.kind() == ErrorKind::Remote && error.message().contains("revoked"), "{error}");
    target.fill(GUARD);
    both.settle();
    assert!(all(&target).iter().all(|byte| *byte == GUARD));
    let next = both.exposed(&memory);
    read(&both, &next.token(), 0, &target, &ends, 2);
    until(&both, &ends, 1, false).remove(0).1.unwrap();
    assert!(all(&target) == *memory && both.pair() != Some(pair));
}

/// Some of it had come: the owner sends all of the parts that had not come whole.
#[test]
fn a_pair_that_fails_in_the_middle_is_made_up_for() {
    let both = Both::new();
    let memory = bytes(LONG);
    let exposed = both.exposed(&memory);
    let ends = Ends::default();
    for round in 0..4 {
        let pair = both.pair().unwrap();
        let target = guarded(LONG);
        standin::hold(pair);
        read(&both, &exposed.token(), 0, &target, &ends, round);
        both.settle();
        standin::release(pair);
        if round % 2 == 0 {
            both.reader.poll().unwrap();
        }
        standin::fail_next(pair, rdma_core_sys::ibv_wc_status(Status::RETRIES_EXCEEDED.0));
        until(&both, &ends, 1, true).remove(0).1.unwrap();
        assert!(all(&target) == *memory, "round {round}");
        drop(both.exposed(&memory));
        let again = both.read(&exposed.token(), 0, PIECE, 0);
        assert!(both.until(1, true)[0].1.is_ok());
        drop(again);
    }
}

#[test]
fn a_peer_that_goes_away_ends_the_read_and_nothing_comes_behind_it() {
    let (both, _memory, exposed, pair, target) = ready();
    let ends = Ends::default();
    standin::hold(pair);
    read(&both, &exposed.token(), 0, &target, &ends, 1);
    both.settle();
    let Both { reader, owner, .. } = both;
    owner.close(SOON).unwrap();
    let began = std::time::Instant::now();
    while lock(&ends).is_empty() {
        reader.poll().unwrap();
        assert!(began.elapsed() < SOON);
    }
    let error = lock(&ends).remove(0).1.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
    assert!(began.elapsed() < Duration::from_millis(900), "nobody waits for a device that has ended");
    assert!(!standin::exists(pair) && all(&target).iter().all(|byte| *byte == GUARD));
}

/// Too little memory may be locked: the data takes the way of other reads.
#[test]
fn memory_that_cannot_be_registered_is_copied_to() {
    let (both, memory, exposed, pair, target) = ready();
    let ends = Ends::default();
    let before = standin::counts(pair).requests;
    standin::refuse("ibv_reg_mr", libc::ENOMEM);
    read(&both, &exposed.token(), 0, &target, &ends, 1);
    assert_eq!(standin::not_called(), 0);
    until(&both, &ends, 1, false).remove(0).1.unwrap();
    assert!(all(&target) == *memory);
    assert_eq!(standin::counts(both.pair().unwrap()).requests - before, LONG.div_ceil(PIECE) as u64);
}

/// A refusal costs the registrations of others nothing, and is not asked for again at once.
#[test]
fn a_refused_registration_leaves_others_alone() {
    let both = Both::new();
    let memory = bytes(LONG);
    let exposed = both.exposed(&memory);
    let (ends, targets) = (Ends::default(), [guarded(LONG), guarded(LONG)]);
    let registered = both.reader.registrations();
    let read = |which: usize| {
        read(&both, &exposed.token(), 0, &targets[which], &ends, 1);
        until(&both, &ends, 1, false).remove(0).1.unwrap();
        assert!(all(&targets[which]) == *memory);
        both.reader.registrations() - registered
    };
    assert_eq!(read(0), 1);
    let began = std::time::Instant::now();
    standin::refuse("ibv_reg_mr", libc::ENOMEM);
    assert_eq!((read(1), standin::not_called()), (1, 0));
    let again = read(1);
    assert!(again == 1 || began.elapsed() > Duration::from_millis(900));
    assert_eq!(read(0), again, "the other target is registered still");
}

/// All of the memory would have to be locked.
#[test]
fn a_small_part_of_a_lot_of_memory_is_copied_to() {
    let both = Both::new();
    let memory = bytes(LONG);
    let exposed = both.exposed(&memory);
    let (ends, registered) = (Ends::default(), both.reader.registrations());
    let lot = SharedMemory::allocate((1 << 30) + 1).unwrap();
    read(&both, &exposed.token(), 0, lot.part(5, LONG).unwrap(), &ends, 1);
    until(&both, &ends, 1, false).remove(0).1.unwrap();
    let mut got = vec![0; LONG];
    lot.read(5, &mut got).unwrap();
    assert!(got == *memory && both.reader.registrations() == registered);
}

/// Others need the place among the registrations that are kept.
#[test]
fn a_registration_lasts_as_long_as_what_is_on_its_way() {
    let (both, memory, exposed, pair, target) = ready();
    let ends = Ends::default();
    standin::hold(pair);
    read(&both, &exposed.token(), 0, &target, &ends, 1);
    both.settle();
    let nic = both.reader.core.nic.clone().unwrap();
    Holder::forget(&*nic.regions, target.allocation());
    standin::release(pair);
    until(&both, &ends, 1, false).remove(0).1.unwrap();
    assert!(all(&target) == *memory && both.pair() == Some(pair));
}

#[test]
fn devices_without_windows_read_to_the_place_too() {
    let windowless =
        || config("null0").with_verbs_library(Verbs::from_table(standin::without_windows(), "plain"));
    let both = Both::with(windowless(), windowless());
    let memory = bytes(LONG);
    let exposed = both.exposed(&memory);
    let (ends, target) = (Ends::default(), guarded(LONG));
    let before = standin::counts(both.pair().unwrap()).requests;
    read(&both, &exposed.token(), 0, &target, &ends, 1);
    until(&both, &ends, 1, false).remove(0).1.unwrap();
    assert!(all(&target) == *memory);
    assert_eq!(standin::counts(both.pair().unwrap()).requests - before, LONG.div_ceil(PLACED) as u64);
}

/// The target's memory is kept until the device has ended with it, and its registration ends with it.
#[test]
fn a_target_that_is_dropped_lives_as_long_as_its_read() {
    let both = Both::new();
    let memory = bytes(LONG);
    let exposed = both.exposed(&memory);
    let (ends, nic) = (Ends::default(), both.reader.core.nic.clone().unwrap());
    let before = standin::regions(nic.domain.address());
    standin::hold(both.pair().unwrap());
    read(&both, &exposed.token(), 0, guarded(LONG), &ends, 1);
    both.settle();
    assert_eq!(standin::regions(nic.domain.address()), before + 1);
    standin::release(both.pair().unwrap());
    until(&both, &ends, 1, false).remove(0).1.unwrap();
    assert_eq!(standin::regions(nic.domain.address()), before);
}

/// Memory can be read into and shown to peers at once: it has one registration.
#[test]
fn a_target_may_be_exposed_as_well() {
    let both = Both::with(config("null0"), config("null0"));
    let memory = bytes(LONG);
    let exposed = both.exposed(&memory);
    let (ends, target, registered) = (Ends::default(), guarded(LONG), both.reader.registrations());
    read(&both, &exposed.token(), 0, &target, &ends, 1);
    until(&both, &ends, 1, false).remove(0).1.unwrap();
    let shown = both.reader.expose(&target).unwrap();
    let back = both.owner.connect(both.reader.address(), SOON).unwrap();
    let copy = guarded(LONG);
    let sent = Ends::default();
    let log = sent.clone();
    let done = move |outcome| lock(&log).push((2, outcome));
    back.read_into(&shown.token(), 0, &copy, 10 * SOON, done).unwrap().posted().unwrap();
    until(&both, &sent, 1, true).remove(0).1.unwrap();
    assert!(all(&copy) == *memory);
    // And of the owner's link to it nothing but what all links have.
    assert!(both.reader.registrations() - registered <= 2);
}
