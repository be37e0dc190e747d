//! Reads into devices that are refused, given up, or lose their peer: each ends once.

use super::*;

#[test]
fn what_may_not_be_read_is_refused_by_the_side_that_knows() {
    let context = context(0);
    for wire in WIRES {
        let pair = pair(wire);
        let exposed = pair.owner.expose(buffer(&context, &bytes(1000, 6))).unwrap();
        let into = Arc::new(GpuBuffer::new(&context, 1000).unwrap());
        let past = pair.peer.read_into(&exposed.token(), 1, &into, SOON, |_| panic!("it was refused"));
        assert_eq!(kind(past), Some(ErrorKind::InvalidUsage));
        // A token that says more than there is, and one with another secret; each in a mapping and in data.
        let change = |at: usize, bit: u8| {
            let mut bytes = exposed.token().to_bytes();
            bytes[at] ^= bit;
            crate::message::Token::from_bytes(&bytes).unwrap()
        };
        let all =
            [(change(18, 1), 1000, ErrorKind::InvalidUsage), (change(30, 1), 0, ErrorKind::Authentication)];
        for (token, offset, expected) in all {
            let outcome = Log::<Option<ErrorKind>>::default();
            let told = outcome.clone();
            pair.peer
                .read_into(&token, offset, &into, SOON, move |ended| lock(&told).push(kind(ended)))
                .unwrap()
                .posted()
                .unwrap();
            pair.until(|| !lock(&outcome).is_empty());
            assert_eq!(*lock(&outcome), [Some(expected)], "{wire:?} {token:?}");
        }
        pair.read_into(&exposed, 0, &into).unwrap();
        // Without bytes, and with no right to any.
        let nothing = || into.slice(..0).unwrap();
        for (token, expected) in [(exposed.token(), None), (change(30, 1), Some(ErrorKind::Authentication))] {
            let outcome = Log::<Option<ErrorKind>>::default();
            let told = outcome.clone();
            pair.peer
                .read_into(&token, 0, nothing(), SOON, move |ended| lock(&told).push(kind(ended)))
                .unwrap()
                .posted()
                .unwrap();
            pair.until(|| !lock(&outcome).is_empty());
            assert_eq!(*lock(&outcome), [expected], "{wire:?}");
        }
    }
}

/// Each read ends once: done, cancelled, too late or lost with the peer; then nothing writes into its memory any more.
#[test]
fn each_read_ends_once() {
    let context = context(0);
    for wire in WIRES {
        let pair = pair(wire);
        let exposed = pair.owner.expose(buffer(&context, &bytes(4 << 20, 7))).unwrap();
        let log = Log::<(usize, Option<ErrorKind>)>::default();
        // One that nobody serves in time.
        let late = Log::<Option<ErrorKind>>::default();
        let done = {
            let late = late.clone();
            move |ended| lock(&late).push(kind(ended))
        };
        let buffer_of_late = Arc::new(GpuBuffer::new(&context, 4 << 20).unwrap());
        let _late = pair
            .peer
            .read_into(&exposed.token(), 0, &buffer_of_late, Duration::ZERO, done)
            .unwrap()
            .posted()
            .unwrap();
        let start = Instant::now();
        while lock(&late).is_empty() {
            pair.reader.poll().unwrap();
            assert!(start.elapsed() < SOON, "{wire:?}: the deadline is not looked at");
        }
        assert_eq!(*lock(&late), [Some(ErrorKind::Timeout)], "{wire:?}");
        let into: Vec<Arc<GpuBuffer>> =
            (0..30).map(|_| Arc::new(GpuBuffer::new(&context, 4 << 20).unwrap())).collect();
        let mut reads = Vec::new();
        for (number, buffer) in into.iter().enumerate() {
            let log = log.clone();
            let deadline = if number % 3 == 1 { Duration::ZERO } else { SOON };
            let done = move |ended| lock(&log).push((number, kind(ended)));
            reads.push(
                pair.peer.read_into(&exposed.token(), 0, buffer, deadline, done).unwrap().posted().unwrap(),
            );
            pair.reader.progress().unwrap();
            pair.owner.progress().unwrap();
        }
        let cancelled: Vec<usize> = (0..30).step_by(3).filter(|number| reads[*number].cancel()).collect();
        assert!(!cancelled.is_empty() && cancelled.iter().all(|number| !reads[*number].cancel()));
        pair.until(|| lock(&log).len() >= 15);
        drop(pair.owner);
        let start = Instant::now();
        while lock(&log).len() < 30 {
            pair.reader.poll().unwrap();
            assert!(start.elapsed() < SOON, "{:?}", lock(&log));
        }
        (0..100).for_each(|_| drop(pair.reader.poll()));
        assert_eq!(lock(&late).len(), 1, "{wire:?}");
        let mut seen = lock(&log).clone();
        seen.sort_unstable_by_key(|(number, _)| *number);
        assert!(seen.iter().map(|(number, _)| *number).eq(0..30), "{wire:?}");
        for (number, ended) in seen {
            let right = match number {
                _ if cancelled.contains(&number) => ended == Some(ErrorKind::Aborted),
                // Deadlines are looked at now and then.
                _ if number % 3 == 1 => {
                    matches!(ended, None | Some(ErrorKind::Timeout | ErrorKind::PeerLost))
                }
                _ => matches!(ended, None | Some(ErrorKind::PeerLost)),
            };
            assert!(right, "{wire:?}: read {number} ended with {ended:?}");
            if ended.is_none() {
                assert!(contents(&into[number]) == bytes(4 << 20, 7), "{wire:?} {number}");
            }
        }
        // All staging memory is free again.
        let pool = Pool::of(&context).unwrap();
        let start = Instant::now();
        while std::iter::from_fn(|| pool.block()).collect::<Vec<_>>().len() < 8 {
            assert!(start.elapsed() < SOON, "blocks are lost");
        }
    }
}
