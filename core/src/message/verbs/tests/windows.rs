//! Registrations that are kept, and the windows by which one exposure of registered memory is shown to one peer.

use super::super::copies::LONGEST;
use super::super::regions::MAX_REGIONS;
use super::falling_back::config;
use super::reading::{Both, bytes, failure};
use super::*;
use crate::error::ErrorKind;
use crate::message::one_sided::PIECE;
use crate::message::{Delivery, Exposed, Message, MessengerConfig, SharedMemory, Token};
use crate::sync::{AtomicUsize, Ordering};

/// Reads all of `token`, by the device if `by_device`, and with the owner's help in any case.
#[track_caller]
fn read(both: &Both, token: &Token, by_device: bool) -> Vec<u8> {
    both.read(token, 0, token.len() as usize, 0);
    let read = both.until(1, true).remove(0).1.unwrap();
    assert!(!by_device || both.pair().is_some(), "the device reads nothing");
    read
}

/// Registrations of the owner since the last call with the same `before`.
fn registered(both: &Both, before: &mut u64) -> u64 {
    let now = both.owner.registrations();
    now - std::mem::replace(before, now)
}

/// The number of the owner's end of the pair.
fn owners_end(both: &Both) -> u32 {
    standin::peer_of(both.pair().unwrap())
}

/// The same memory, exposed again and again: it is registered once, and each token ends for itself.
#[test]
fn shared_memory_is_registered_once_for_all_exposures() {
    let both = Both::new();
    let memory = SharedMemory::allocate(3 * PIECE).unwrap();
    let mut before = both.owner.registrations();
    let mut pair = None;
    for round in 0..100 {
        memory.fill(round);
        let exposed = both.owner.expose(&memory).unwrap();
        assert!(read(&both, &exposed.token(), true).iter().all(|byte| *byte == round), "round {round}");
        assert!(pair.is_none() || pair == both.pair(), "a revocation costs no pair");
        pair = both.pair();
    }
    assert_eq!(registered(&both, &mut before), 1);
    // Two tokens at a time: the end of one is not that of the other.
    let [one, other] = [(); 2].map(|()| both.owner.expose(&memory).unwrap());
    let tokens = [one.token(), other.token()];
    tokens.iter().for_each(|token| drop(read(&both, token, true)));
    drop(one);
    assert_eq!(read(&both, &tokens[1], true).len(), 3 * PIECE);
    both.read(&tokens[0], 0, PIECE, 0);
    assert_eq!(failure(both.until(1, true)).0, ErrorKind::Remote);
    assert_eq!(registered(&both, &mut before), 0);
}

/// Freed and allocated again at the same address: another allocation, with a registration of its own, and none of the earlier one.
#[test]
fn memory_at_the_same_address_is_registered_anew() {
    let both = Both::new();
    let mut before = both.owner.registrations();
    let (mut addresses, mut again) = (Vec::new(), 0);
    for round in 0..20 {
        let memory = SharedMemory::allocate(5 * PIECE).unwrap();
        again += usize::from(addresses.contains(&memory.as_ptr()));
        addresses.push(memory.as_ptr());
        memory.fill(round);
        let exposed = both.owner.expose(&memory).unwrap();
        assert!(read(&both, &exposed.token(), true).iter().all(|byte| *byte == round), "round {round}");
        assert_eq!(registered(&both, &mut before), 1);
        let held = both.registered_by_owner();
        drop((exposed, memory));
        both.owner.poll().unwrap();
        assert_eq!(both.registered_by_owner(), held - 1, "it ends with the allocation");
    }
    assert!(again > 0, "the system has used an address again");
}

/// Short memory of the program is copied: each time other memory, of another length.
#[test]
fn short_memory_of_any_length_is_not_registered() {
    let both = Both::new();
    let mut before = both.owner.registrations();
    let mut count = 0;
    for round in 0..300 {
        let memory = bytes(PIECE + round * 3001);
        let exposed = both.owner.expose(memory.clone()).unwrap();
        assert!(read(&both, &exposed.token(), true) == *memory, "round {round}");
        count += registered(&both, &mut before);
        drop(exposed);
        assert_eq!(Arc::strong_count(&memory), 1, "a copy keeps nothing of the program's");
    }
    assert!(count <= 3, "{count} registrations: one for each length of places");
    let long = both.owner.expose(bytes(LONGEST + 1)).unwrap();
    read(&both, &long.token(), true);
    assert_eq!(registered(&both, &mut before), 1, "longer memory is worth one");
}

/// More than there are places for, and more allocations than registrations are kept: all is read all the same.
#[test]
fn what_is_kept_is_bounded() {
    let both = Both::new();
    let start = both.registered_by_owner();
    let many: Vec<(Arc<Vec<u8>>, Exposed)> = (0..100)
        .map(|n| {
            let memory = bytes(PIECE + n);
            (memory.clone(), both.owner.expose(memory).unwrap())
        })
        .collect();
    for (memory, exposed) in &many {
        assert!(read(&both, &exposed.token(), true) == **memory);
    }
    drop(many);
    let held = both.registered_by_owner();
    assert!(held - start <= 44 + 2, "places stay, and the memory of the pair: {}", held - start);
    let kept: Vec<SharedMemory> = (0..MAX_REGIONS + 10)
        .map(|n| {
            let memory = SharedMemory::allocate(PIECE).unwrap();
            memory.fill(n as u8);
            let exposed = both.owner.expose(&memory).unwrap();
            assert!(read(&both, &exposed.token(), true).iter().all(|byte| *byte == n as u8));
            memory
        })
        .collect();
    // Evicted ones whose memory still lives are among those; the free windows hold none.
    assert_eq!(both.registered_by_owner() - held, MAX_REGIONS);
    drop(kept);
    assert_eq!(both.registered_by_owner(), held);
}

/// More exposures at a time than windows for one peer: the memory is registered for the rest.
#[test]
fn without_a_free_window_memory_is_registered() {
    let both = Both::new();
    let memory = SharedMemory::allocate(PIECE).unwrap();
    memory.fill(3);
    let mut before = both.owner.registrations();
    let exposed: Vec<Exposed> = (0..1030).map(|_| both.owner.expose(&memory).unwrap()).collect();
    for exposed in &exposed {
        assert!(read(&both, &exposed.token(), true).iter().all(|byte| *byte == 3));
    }
    assert_eq!(registered(&both, &mut before), 1 + 1030 - 1024);
}

/// Devices, or calls of them, that cannot: each exposure is registered, as before windows were used.
#[test]
fn without_windows_each_exposure_is_registered() {
    let old = config("null0").with_verbs_library(Verbs::from_table(standin::without_windows(), "old"));
    let both = Both::with(config("null0"), old);
    let mut before = both.owner.registrations();
    let memory = bytes(2 * PIECE);
    for _ in 0..5 {
        let exposed = both.owner.expose(memory.clone()).unwrap();
        assert!(read(&both, &exposed.token(), true) == *memory);
        let token = exposed.token();
        drop(exposed);
        both.read(&token, 0, PIECE, 0);
        assert_eq!(failure(both.until(1, true)).0, ErrorKind::Remote);
    }
    assert_eq!(registered(&both, &mut before), 5);
    let both = Both::new();
    standin::refuse("ibv_alloc_mw", libc::ENOMEM);
    let exposed = both.exposed(&memory);
    let pair = both.pair();
    assert!(standin::not_called() == 0 && pair.is_some());
    assert!(read(&both, &exposed.token(), true) == *memory);
    assert_eq!(both.pair(), pair, "it costs no pair");
}

/// A device that does not invalidate a window in time loses the pair before the revocation returns.
#[test]
fn a_window_that_is_not_invalidated_ends_the_pair() {
    let both = Both::new();
    let memory = bytes(2 * PIECE);
    let exposed = both.exposed(&memory);
    let (token, owners_end) = (exposed.token(), owners_end(&both));
    standin::hold(owners_end);
    exposed.revoke();
    assert!(!standin::exists(owners_end), "it is gone when the revocation returns");
    both.read(&token, 0, PIECE, 0);
    assert_eq!(failure(both.until(1, true)).0, ErrorKind::Remote);
    assert!(both.pair().is_none());
    let next = both.exposed(&memory);
    assert!(read(&both, &next.token(), true) == *memory);
}

/// On a machine where each look at the device takes long, as where many threads want to run.
#[test]
fn a_window_is_waited_for_no_longer_when_time_passes_quickly() {
    fn slow(number: u32) {
        standin::once_empty(number, move || {
            std::thread::sleep(Duration::from_millis(5));
            slow(number);
        });
    }
    let both = Both::new();
    let exposed = both.exposed(&bytes(2 * PIECE));
    let owners_end = owners_end(&both);
    standin::hold(owners_end);
    slow(owners_end);
    let start = std::time::Instant::now();
    exposed.revoke();
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert!(!standin::exists(owners_end));
}

/// Each time has held up the owner; so it stays at a few, whatever the number of pairs.
#[test]
fn a_device_that_is_late_again_and_again_is_asked_for_no_more_windows() {
    let both = Both::new();
    let memory = bytes(2 * PIECE);
    for _ in 0..3 {
        let exposed = both.exposed(&memory);
        read(&both, &exposed.token(), true);
        let owners_end = owners_end(&both);
        standin::hold(owners_end);
        exposed.revoke();
        assert!(!standin::exists(owners_end));
        // The reader finds out, and makes a new pair for the next.
        both.read(&both.owner.expose(memory.clone()).unwrap().token(), 0, PIECE, 0);
        both.until(1, true);
    }
    let mut before = both.owner.registrations();
    for _ in 0..3 {
        let exposed = both.exposed(&memory);
        assert!(read(&both, &exposed.token(), true) == *memory);
    }
    assert_eq!(registered(&both, &mut before), 3);
}

/// As where too little memory may be locked.
#[test]
fn registrations_that_are_kept_make_room_for_others() {
    let both = Both::new();
    let shared = SharedMemory::allocate(PIECE).unwrap();
    drop(both.owner.expose(&shared).map(|exposed| read(&both, &exposed.token(), true)).unwrap());
    let held = both.registered_by_owner();
    let memory = bytes(LONGEST + 1);
    standin::refuse("ibv_reg_mr", libc::ENOMEM);
    let exposed = both.exposed(&memory);
    assert!(standin::not_called() == 0 && read(&both, &exposed.token(), true) == *memory);
    assert_eq!(both.registered_by_owner(), held, "one for the other");
    let again = both.owner.expose(&shared).unwrap();
    assert_eq!(read(&both, &again.token(), true).len(), PIECE);
}

/// A refusal for another reason, which no room would change.
#[test]
fn registrations_that_are_kept_stay_if_they_are_not_in_the_way() {
    let both = Both::new();
    let shared = SharedMemory::allocate(PIECE).unwrap();
    drop(both.owner.expose(&shared).map(|exposed| read(&both, &exposed.token(), true)).unwrap());
    let (held, mut before) = (both.registered_by_owner(), both.owner.registrations());
    standin::refuse("ibv_reg_mr", libc::EFAULT);
    drop(both.exposed(&bytes(LONGEST + 1)));
    assert_eq!((standin::not_called(), registered(&both, &mut before)), (0, 0), "it is not tried again");
    assert_eq!(both.registered_by_owner(), held, "nothing has ended");
}

/// As many messages as there are of memory that the device refuses, it is asked once in a while, and other memory keeps its registration.
#[test]
fn an_allocation_that_was_refused_costs_no_call_for_each_exposure() {
    let both = Both::new();
    let [kept, refused] = [(); 2].map(|()| SharedMemory::allocate(PIECE).unwrap());
    drop(both.owner.expose(&kept).map(|exposed| read(&both, &exposed.token(), true)).unwrap());
    let mut before = both.owner.registrations();
    // Once for all peers and once for this one, each of which asks whether there is room when nothing is kept.
    (0..3).for_each(|_| standin::refuse("ibv_reg_mr", libc::ENOMEM));
    for round in 0..10 {
        let exposed = both.owner.expose(&refused).unwrap();
        read(&both, &exposed.token(), false);
        assert_eq!((standin::not_called(), registered(&both, &mut before)), (0, 0), "round {round}");
    }
    drop(both.owner.expose(&kept).map(|exposed| read(&both, &exposed.token(), true)).unwrap());
    assert_eq!(registered(&both, &mut before), 1);
    drop(both.owner.expose(&refused).map(|exposed| read(&both, &exposed.token(), true)).unwrap());
    assert_eq!(registered(&both, &mut before), 0, "what was kept stays");
    std::thread::sleep(Duration::from_millis(1100));
    drop(both.owner.expose(&refused).map(|exposed| read(&both, &exposed.token(), true)).unwrap());
    assert_eq!(registered(&both, &mut before), 1, "a failure is not for ever");
}

/// A link that ends takes its windows with it; what was exposed goes on, and is freed later.
#[test]
fn windows_end_with_their_link() {
    let both = Both::new();
    let shared = SharedMemory::allocate(PIECE).unwrap();
    let exposed = both.owner.expose(&shared).unwrap();
    read(&both, &exposed.token(), true);
    let owners_end = owners_end(&both);
    let Both { reader, owner, .. } = both;
    drop(reader);
    let deadline = Deadline::after(SOON);
    while standin::exists(owners_end) {
        owner.poll().unwrap();
        assert!(!deadline.expired(), "the owner's end stays");
    }
    drop(exposed);
    drop(shared);
}

/// Sends `count` messages with long data of changing lengths, one after the other, from a messenger of `sender`; how many registrations it
/// makes for them.
fn registrations_of_long_messages(sender: MessengerConfig, count: usize) -> u64 {
    let both = Both::with(sender, config("null0"));
    let right = Arc::new(AtomicUsize::new(0));
    let seen = right.clone();
    let read = move |mut message: Message| {
        let (long, seen) = (message.long().unwrap(), seen.clone());
        let byte = message.bytes()[0];
        let check = move |read: Result<Vec<u8>>| {
            seen.fetch_add(usize::from(read.unwrap().iter().all(|b| *b == byte)), Ordering::Relaxed);
        };
        long.read(vec![!byte; long.len()], 10 * SOON, check).unwrap().posted().unwrap();
    };
    both.owner.on(9, read).unwrap();
    let before = both.reader.registrations();
    for number in 0..count {
        let data = vec![number as u8; PIECE + number * 7919 % (3 * PIECE)];
        let delivered = Arc::new(AtomicUsize::new(0));
        let done = delivered.clone();
        let ended = move |outcome: Result<Delivery>| {
            done.store(1 + usize::from(outcome.unwrap() != Delivery::Delivered), Ordering::Relaxed);
        };
        assert!(both.peer.send_long(9, &[number as u8], data, 10 * SOON, ended).unwrap().is_posted());
        let deadline = Deadline::after(SOON);
        while delivered.load(Ordering::Relaxed) == 0 {
            both.settle();
            assert!(!deadline.expired(), "message {number}");
        }
        assert_eq!(delivered.load(Ordering::Relaxed), 1);
    }
    assert_eq!(right.load(Ordering::Relaxed), count, "every byte is right");
    both.reader.registrations() - before
}

#[test]
fn messages_with_long_data_register_once_for_each_length_of_places() {
    let old = config("null0").with_verbs_library(Verbs::from_table(standin::without_windows(), "old"));
    assert_eq!(registrations_of_long_messages(old, 300), 300, "without windows, each of them");
    assert_eq!(registrations_of_long_messages(config("null0"), 300), 2);
}
