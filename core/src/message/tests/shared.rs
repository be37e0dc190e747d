//! Reads of shared memory: mapped over rings, through the owner over TCP. What a program sees is the same.

use super::*;
use crate::sync::{AtomicBool, Ordering};

fn over_rings() -> bool {
    module_path!().contains("tests_over_rings")
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 7 + n / 251) as u8).collect()
}

fn shared(bytes: &[u8]) -> SharedMemory {
    let memory = SharedMemory::allocate(bytes.len()).unwrap();
    memory.write(0, bytes).unwrap();
    memory
}

/// How many mappings `a` has of its peer's memory.
fn mappings(peer: &Peer) -> usize {
    lock(&peer.member.sender("test").unwrap().reads).mappings()
}

/// Ends threads that make progress, also if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Makes progress and dispatches until `stop`. Yields in between: both sides have to run in turns on few processors.
fn serve(messenger: &Messenger, dispatch: bool, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        messenger.progress().unwrap();
        if dispatch {
            messenger.dispatch(usize::MAX);
        }
        std::thread::yield_now();
    }
}

/// Reads all of it once, so that it is mapped if it can be.
fn warm(a: &Messenger, b: &Messenger, peer: &Peer, token: &Token) {
    let seen = Seen::new();
    peer.read(token, 0, vec![0; token.len() as usize], SOON, seen.adder()).unwrap().posted().unwrap();
    until(&[a, b], || seen.len() == 1);
    seen.take().pop().unwrap().unwrap();
    assert_eq!(mappings(peer), usize::from(over_rings()));
}

#[test]
fn any_part_is_read_in_order_and_without_the_owner_over_rings() {
    let (a, b) = (messenger(0), messenger(1));
    let bytes = pattern(3 << 20);
    let exposed = b.expose(shared(&bytes)).unwrap();
    let (token, peer) = (exposed.token(), a.connect(b.address(), SOON).unwrap());
    warm(&a, &b, &peer, &token);
    let mut ranges = vec![(0, 0), (0, 1), (5, 4095), (6, 4097), (0, bytes.len()), (bytes.len(), 0)];
    ranges.extend([(1, (512 << 10) - 1), (2, (1 << 20) + 3), (bytes.len() - 9, 9), (7, 3_000_000)]);
    ranges.extend((0..400).map(|n| (n * 6007, n * 13 % 6000)));
    let seen = Seen::new();
    for (index, (offset, length)) in ranges.iter().copied().enumerate() {
        let add = seen.adder();
        let done = move |outcome: Result<Vec<u8>>| add((index, outcome.unwrap()));
        peer.read(&token, offset as u64, vec![0; length], SOON, done).unwrap().posted().unwrap();
    }
    let polled: &[&Messenger] = if over_rings() { &[&a] } else { &[&a, &b] };
    until(polled, || seen.len() == ranges.len());
    for (at, (index, read)) in seen.take().into_iter().enumerate() {
        let (offset, length) = ranges[index];
        assert!(at == index && read == bytes[offset..offset + length], "{length} bytes at {offset}");
    }
}

/// Of every kind, from shared memory and into it; what is beside the target stays as it is.
#[test]
fn reads_go_into_shared_memory_too() {
    let (a, b) = (messenger(0), messenger(1));
    let bytes = pattern(1_500_000);
    let exposed = [b.expose(shared(&bytes)).unwrap(), b.expose(bytes.clone()).unwrap()];
    let peer = a.connect(b.address(), SOON).unwrap();
    let target = shared(&vec![0xa5; 1_600_000]);
    for round in 0..3 {
        for (offset, length) in [(0, 1_500_000), (7, 1), (9, 0), (5, 65_536), (1, 700_001)] {
            for (kind, exposed) in exposed.iter().enumerate() {
                target.fill(0xa5);
                let (seen, place) = (Seen::new(), target.part(round + 33, length).unwrap());
                peer.read_into(&exposed.token(), offset, place, SOON, seen.adder())
                    .unwrap()
                    .posted()
                    .unwrap();
                // Once the memory is mapped, its owner need not run.
                let mapped = over_rings() && kind == 0 && round > 0 && length > 0;
                let all = [&a, &b];
                until(if mapped { &all[..1] } else { &all }, || seen.len() == 1);
                seen.take().remove(0).unwrap();
                let mut expected = vec![0xa5; target.len()];
                expected[round + 33..][..length].copy_from_slice(&bytes[offset as usize..][..length]);
                let mut got = vec![0; target.len()];
                target.read(0, &mut got).unwrap();
                assert!(got == expected, "{length} bytes at {offset} of kind {kind}");
            }
        }
    }
    for (offset, length) in [(0, 1_600_001), (1_600_000, 1), (usize::MAX, 1), (1, usize::MAX)] {
        assert_eq!(target.part(offset, length).unwrap_err().kind(), ErrorKind::InvalidUsage);
    }
    let error = peer.read_into(&exposed[0].token(), 0, &target, SOON, drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUsage, "longer than the memory: {error}");
}

/// Also where the memory is mapped still.
#[test]
fn memory_that_was_revoked_is_not_read_into_shared_memory() {
    let (a, b) = (messenger(0), messenger(1));
    let exposed = b.expose(shared(&pattern(200_000))).unwrap();
    let (token, peer) = (exposed.token(), a.connect(b.address(), SOON).unwrap());
    warm(&a, &b, &peer, &token);
    drop(exposed);
    let seen = Seen::new();
    let target = SharedMemory::allocate(200_000).unwrap();
    peer.read_into(&token, 0, &target, SOON, seen.adder()).unwrap().posted().unwrap();
    until(&[&a, &b], || seen.len() == 1);
    let error = seen.take().remove(0).unwrap_err();
    assert!(error.kind() == ErrorKind::Remote && error.message().contains("revoked"), "{error}");
}

#[test]
fn reads_of_all_kinds_of_memory_end_in_the_order_of_the_calls() {
    let (a, b) = (messenger(0), messenger(1));
    let bytes = pattern(700_000);
    let memory = shared(&bytes);
    let exposed =
        [b.expose(&memory).unwrap(), b.expose(bytes.clone()).unwrap(), b.expose(shared(&bytes)).unwrap()];
    let peer = a.connect(b.address(), SOON).unwrap();
    let seen = Seen::new();
    // From several threads: some of them copy while others dispatch and receive.
    let stop = AtomicBool::new(false);
    let mut state = 1_u64;
    std::thread::scope(|scope| {
        let ends = Stop(&stop);
        for messenger in [&a, &b] {
            scope.spawn(|| serve(messenger, false, &stop));
        }
        for index in 0..600 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let kind = (state >> 40) as usize % 3;
            // Ordinary memory goes through the ring a piece at a time.
            let length =
                [0, 100, 20_000, if kind == 1 { 60_000 } else { 600_000 }][(state >> 50) as usize % 4];
            let add = seen.adder();
            let done = move |outcome: Result<Vec<u8>>| add((index, length, outcome.unwrap()));
            peer.read(&exposed[kind].token(), 7, vec![0; length], SOON, done).unwrap().posted().unwrap();
        }
        until(&[&a], || {
            std::thread::yield_now();
            seen.len() == 600
        });
        drop(ends);
    });
    for (at, (index, length, read)) in seen.take().into_iter().enumerate() {
        assert_eq!(at, index, "completions come in the order of the calls");
        assert!(read == bytes[7..7 + length], "read {index} of {length} bytes");
    }
}

#[test]
fn a_token_that_was_not_given_away_reads_nothing_that_is_mapped() {
    let (a, b) = (messenger(0), messenger(1));
    let exposed = b.expose(shared(&pattern(100))).unwrap();
    let (token, peer) = (exposed.token(), a.connect(b.address(), SOON).unwrap());
    warm(&a, &b, &peer, &token);
    let seen = Seen::new();
    let mut changed = 0;
    for at in 8..Token::BYTES {
        for bit in 0..8 {
            let mut bytes = token.to_bytes();
            bytes[at] ^= 1 << bit;
            let forged = Token::from_bytes(&bytes).unwrap();
            let add = seen.adder();
            let done = move |outcome: Result<Vec<u8>>| add(((16..24).contains(&at), outcome));
            changed += usize::from(peer.read(&forged, 0, vec![0; 8], SOON, done).is_ok());
        }
    }
    until(&[&a, &b], || seen.len() == changed);
    for (is_length, outcome) in seen.take() {
        // The length in a token tells its holder something, and its owner nothing.
        let kind = outcome.map_err(|error| error.kind());
        let refused = matches!(kind, Err(ErrorKind::Authentication | ErrorKind::Remote));
        assert!(refused || (is_length && kind == Ok(pattern(8))), "{kind:?}");
    }
    // A token that says more than there is reads nothing past the end.
    let longer = Token { length: 1 << 20, ..token };
    let longest = Token { length: u64::MAX, ..token };
    for (token, offset) in [(&longer, 50), (&longest, 50), (&longest, u64::MAX - 4095)] {
        // The first read is within the memory, which may be mapped for this token from then on.
        peer.read(token, 0, vec![0; 8], SOON, seen_kind(&seen)).unwrap().posted().unwrap();
        peer.read(token, offset, vec![0; 100], SOON, seen_kind(&seen)).unwrap().posted().unwrap();
        until(&[&a, &b], || seen.len() == 2);
        let outcomes = seen.take().into_iter().map(|(_, outcome)| outcome.map_err(|error| error.kind()));
        assert_eq!(outcomes.collect::<Vec<_>>(), [Ok(pattern(8)), Err(ErrorKind::InvalidUsage)]);
    }
    assert!(peer.lost().is_none());
}

fn seen_kind(seen: &Seen<(bool, Result<Vec<u8>>)>) -> impl FnOnce(Result<Vec<u8>>) + Send + Sync + 'static {
    let add = seen.adder();
    move |outcome| add((false, outcome))
}

#[test]
fn revoked_memory_is_not_read_and_soon_not_mapped() {
    let (a, b) = (messenger(0), messenger(1));
    let bytes = pattern(24 << 20);
    let memory = shared(&bytes);
    let (first, second) = (b.expose(&memory).unwrap(), b.expose(&memory).unwrap());
    let (token, peer) = (first.token(), a.connect(b.address(), SOON).unwrap());
    warm(&a, &b, &peer, &token);
    let seen = Seen::new();
    // Some of it is copied, then it is revoked.
    peer.read(&token, 0, vec![0; 24 << 20], SOON, seen.adder()).unwrap().posted().unwrap();
    a.poll().unwrap();
    b.poll().unwrap();
    assert_eq!(seen.len(), 0, "a large read takes several rounds");
    first.revoke();
    peer.read(&token, 0, vec![0; 10], SOON, seen.adder()).unwrap().posted().unwrap();
    until(&[&a, &b], || seen.len() == 2);
    assert_eq!(kinds(seen.take()), [Err(ErrorKind::Remote), Err(ErrorKind::Remote)]);
    until(&[&a, &b], || mappings(&peer) == 0);
    // The same memory under another token.
    peer.read(&second.token(), 5, vec![0; 10], SOON, seen.adder()).unwrap().posted().unwrap();
    until(&[&a, &b], || seen.len() == 1);
    assert_eq!(kinds(seen.take()), [Ok(bytes[5..15].to_vec())]);
}

#[test]
fn mapped_reads_end_early_by_their_deadline_or_when_they_are_cancelled() {
    let (a, b) = (messenger(0), messenger(1));
    let exposed = b.expose(SharedMemory::allocate(64 << 20).unwrap()).unwrap();
    let (token, peer) = (exposed.token(), a.connect(b.address(), SOON).unwrap());
    let seen = Seen::new();
    let read = |name, length, deadline| {
        let add = seen.adder();
        let done = move |outcome: Result<Vec<u8>>| add((name, outcome.map(|bytes| bytes.len())));
        peer.read(&token, 0, vec![0; length], deadline, done).unwrap().posted().unwrap()
    };
    read("warm", 10, SOON);
    until(&[&a, &b], || seen.len() == 1);
    seen.take();
    let large = read("large", 64 << 20, SOON);
    read("late", 10, Duration::ZERO);
    let waiting = read("waiting", 10, SOON);
    read("last", 10, SOON);
    a.poll().unwrap();
    b.poll().unwrap();
    assert!(waiting.cancel() && !waiting.cancel());
    assert!(large.cancel() && !large.cancel());
    until(&[&a, &b], || seen.len() == 4);
    let mut ended: Vec<_> = seen
        .take()
        .into_iter()
        .map(|(name, outcome)| (name, outcome.map_err(|error| error.kind())))
        .collect();
    ended.sort_by_key(|(name, _)| *name);
    let aborted = Err(ErrorKind::Aborted);
    // An owner that answers may be faster than the look at the deadline.
    let late = if over_rings() { Err(ErrorKind::Timeout) } else { ended[2].1 };
    assert_eq!(ended, [("large", aborted), ("last", Ok(10)), ("late", late), ("waiting", aborted)]);
    if over_rings() {
        // With the mapping there and nothing else to do, too.
        read("late", 10, Duration::ZERO);
        until(&[&a], || seen.len() == 1);
        assert_eq!(seen.take().pop().unwrap().1.unwrap_err().kind(), ErrorKind::Timeout);
    }
}

/// Nothing wakes a thread for memory that is still to be copied, so it must not sleep.
#[test]
fn whoever_sleeps_copies_first() {
    let (a, b) = (messenger(0), messenger(1));
    let bytes = pattern(64 << 20);
    let exposed = b.expose(shared(&bytes)).unwrap();
    let (token, peer) = (exposed.token(), a.connect(b.address(), SOON).unwrap());
    a.start_thread().unwrap();
    b.start_thread().unwrap();
    for _ in 0..3 {
        let seen = Seen::new();
        peer.read(&token, 0, vec![0; 64 << 20], SOON, seen.adder()).unwrap().posted().unwrap();
        let start = Instant::now();
        while seen.len() == 0 {
            assert!(start.elapsed() < SOON, "not in time");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(seen.take().pop().unwrap().unwrap() == bytes);
    }
}

#[test]
fn messages_pass_while_memory_is_copied() {
    let (a, b) = (messenger(0), messenger(1));
    let exposed = b.expose(SharedMemory::allocate(64 << 20).unwrap()).unwrap();
    let (token, queue, seen) = (exposed.token(), a.queue(1).unwrap(), Seen::new());
    let (peer, back) = (a.connect(b.address(), SOON).unwrap(), b.connect(a.address(), SOON).unwrap());
    peer.read(&token, 0, vec![0; 10], SOON, seen.adder()).unwrap().posted().unwrap();
    until(&[&a, &b], || seen.len() == 1);
    peer.read(&token, 0, vec![0; 64 << 20], SOON, seen.adder()).unwrap().posted().unwrap();
    assert_eq!(back.send(1, b"short").unwrap(), Sent::Done);
    until(&[&a, &b], || !queue.is_empty());
    assert_eq!(seen.len(), 1, "the message did not wait for the whole read");
    until(&[&a, &b], || seen.len() == 2);
}

/// Each exposure has a value of its own, with which its memory is filled before it and which is overwritten after it. Whoever reads
/// with its token gets that value alone, or is refused.
#[test]
fn data_of_a_revoked_token_is_never_taken_for_good() {
    const LENGTH: usize = 300_000;
    let (a, b) = (messenger(0), messenger(1));
    let (peer, memory) = (a.connect(b.address(), SOON).unwrap(), SharedMemory::allocate(LENGTH).unwrap());
    let current: Mutex<Option<(Token, u8)>> = Mutex::new(None);
    let (stop, good, refused) = (AtomicBool::new(false), Seen::new(), Seen::new());
    std::thread::scope(|scope| {
        let ends = Stop(&stop);
        for messenger in [&a, &b] {
            scope.spawn(|| serve(messenger, true, &stop));
        }
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                    let Some((token, value)) = *lock(&current) else { continue };
                    let (good, refused, ended) = (good.adder(), refused.adder(), Seen::new());
                    let add = ended.adder();
                    let done = move |outcome: Result<Vec<u8>>| {
                        add(());
                        match outcome {
                            Ok(bytes) => good(bytes.iter().all(|byte| *byte == value)),
                            Err(error) => refused(error.kind()),
                        }
                    };
                    peer.read(&token, 0, vec![0; LENGTH], SOON, done).unwrap().posted().unwrap();
                    let start = Instant::now();
                    while ended.len() == 0 {
                        assert!(start.elapsed() < SOON, "a read does not end");
                        if stop.load(Ordering::Relaxed) {
                            // The thread that stops the others makes progress itself.
                            return;
                        }
                        std::thread::yield_now();
                    }
                }
            });
        }
        let start = Instant::now();
        let mut round = 0_u32;
        // Until both have happened often, which depends on the machine.
        while round < 300 || good.len() < 50 || refused.len() < 10 {
            let value = (round % 100) as u8 * 2 + 1;
            memory.fill(value);
            let exposed = b.expose(&memory).unwrap();
            *lock(&current) = Some((exposed.token(), value));
            std::thread::sleep(Duration::from_micros(u64::from(round % 16) * 100));
            // On a busy machine no read is as quick as that: one token in eight lives until a read has ended well.
            let (before, since) = (good.len(), Instant::now());
            while round % 8 == 7 && good.len() == before && since.elapsed() < Duration::from_secs(1) {
                std::thread::yield_now();
            }
            exposed.revoke();
            memory.fill(value + 1);
            round += 1;
            if start.elapsed() > SOON {
                break;
            }
        }
        drop(ends);
        assert!(good.len() > 0 && refused.len() > 0, "{} and {}", good.len(), refused.len());
        until(&[&a, &b], || scope_is_quiet(&peer));
    });
    assert!(good.take().into_iter().all(|good| good), "a read was reported good that has other bytes");
    assert!(refused.take().into_iter().all(|kind| kind == ErrorKind::Remote));
}

/// Whether no reads are under way.
fn scope_is_quiet(peer: &Peer) -> bool {
    lock(&peer.member.sender("test").unwrap().reads).is_empty()
}

/// Thousands of pieces of memory: all can be read, and neither descriptors nor mappings grow without end.
#[test]
fn thousands_of_exposures_take_bounded_descriptors_and_mappings() {
    const COUNT: usize = 3000;
    let (a, b) = (messenger(0), messenger(1));
    let peer = a.connect(b.address(), SOON).unwrap();
    let all: Vec<(Exposed, SharedMemory)> = (0..COUNT)
        .map(|number| {
            let memory = shared(&(number as u32).to_le_bytes());
            (b.expose(&memory).unwrap(), memory)
        })
        .collect();
    let mappable = all.iter().filter(|(_, memory)| memory.is_mappable()).count() as u64;
    let limit = crate::descriptors::limit();
    assert!(mappable > 0 && mappable <= limit / 4, "{mappable} of {limit} descriptors");
    let seen = Seen::new();
    for chunk in all.chunks(500) {
        for (exposed, _) in chunk {
            peer.read(&exposed.token(), 0, vec![0; 4], SOON, seen.adder()).unwrap().posted().unwrap();
        }
        until(&[&a, &b], || lock(&peer.member.sender("test").unwrap().reads).is_empty());
        assert!(mappings(&peer) <= 64);
    }
    until(&[&a, &b], || seen.len() == COUNT);
    let numbers = seen
        .take()
        .into_iter()
        .map(|bytes: Result<Vec<u8>>| u32::from_le_bytes(bytes.unwrap().try_into().unwrap()) as usize);
    assert!(numbers.eq(0..COUNT));
}

/// Long data that is shared memory is mapped, too.
#[test]
fn long_data_may_be_shared_memory() {
    let (a, b) = (messenger(0), messenger(1));
    let (bytes, peer) = (pattern(2 << 20), a.connect(b.address(), SOON).unwrap());
    let (offers, sent, read) = (b.queue(1).unwrap(), Seen::new(), Seen::new());
    assert!(peer.send_long(1, b"", shared(&bytes), SOON, sent.adder()).unwrap().is_posted());
    until(&[&a, &b], || offers.len() == 1);
    let long = offers.try_recv().unwrap().long().unwrap();
    long.read(vec![0; long.len()], SOON, read.adder()).unwrap().posted().unwrap();
    let error = long.read(vec![0; long.len()], SOON, |_| panic!("it was read twice")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUsage);
    until(&[&a, &b], || sent.len() == 1 && read.len() == 1);
    assert!(read.take().pop().unwrap().unwrap() == bytes);
    assert_eq!(kinds(sent.take()), [Ok(Delivery::Delivered)]);
}
