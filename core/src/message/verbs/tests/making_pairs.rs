//! Pairs for reads, without messengers: when another one is made, and when no more are.

use super::super::pairs::{MAX_FAILURES, Pairs};
use super::nic::MAX_READERS;
use super::*;
use crate::error::{Error, ErrorKind};
use crate::message::lent::Lent;
use crate::message::one_sided::OneSided;
use crate::rdma::MemoryRegion;

fn pairs_on(nic: &Arc<Nic>) -> Pairs {
    let channel = nic.context.completion_channel().unwrap();
    let completions = nic.context.completion_queue_with(1, &channel).unwrap();
    Pairs::new(nic.clone(), &completions, &channel, &nic.reports.link(), true)
}

fn join(reader: &Pairs, owner: &Pairs) {
    let mine = reader.prepare().unwrap().expect("it is not connected");
    reader.connect(&owner.admit(&mine).unwrap()).unwrap();
}

/// Reads all of `memory`, which fits a piece.
fn read(reader: &Pairs, memory: &MemoryRegion) -> Result<Vec<u8>> {
    let memory = memory.remote();
    let mut next = Some(memory.range(0, memory.len())?);
    reader.begin(&mut || Ok(next.take().map(wanted)))?;
    let deadline = Deadline::after(SOON);
    loop {
        if let Some(piece) = reader.take()? {
            let bytes = piece.brought.bytes().to_vec();
            let pair = piece.pair;
            drop(piece);
            reader.release(pair);
            return Ok(bytes);
        }
        assert!(!deadline.expired(), "nothing has come");
    }
}

fn kind<T>(outcome: Result<T>) -> Option<ErrorKind> {
    outcome.err().as_ref().map(Error::kind)
}

/// Whoever revokes memory that is being read costs the reader a pair, and no more: only pairs that never bring anything are given up.
#[test]
fn pairs_are_made_again_as_long_as_they_bring_something() {
    let [reader, owner] = [(); 2].map(|()| pairs_on(&nic("null0")));
    let revoked = || {
        let region = owner.register(&Lent::of(body(64))).unwrap();
        let gone = region.remote();
        drop(region);
        gone
    };
    let refused = |gone: crate::rdma::RemoteRegion| {
        let mut next = Some(gone.range(0, 64).unwrap());
        let begun = reader.begin(&mut || Ok(next.take().map(wanted)));
        let deadline = Deadline::after(SOON);
        begun.and_then(|()| {
            while reader.take()?.is_none() {
                assert!(!deadline.expired(), "the owner's device refuses nothing");
            }
            Ok(())
        })
    };
    let region = owner.register(&Lent::of(body(1000))).unwrap();
    for _ in 0..2 * MAX_FAILURES {
        assert!(reader.is_able(), "each pair has brought something");
        join(&reader, &owner);
        assert_eq!(read(&reader, &region).unwrap(), body(1000));
        refused(revoked()).unwrap_err();
        assert!(!reader.is_connected());
    }
    let fails = |count| {
        for _ in 0..count {
            assert!(reader.is_able());
            join(&reader, &owner);
            refused(revoked()).unwrap_err();
        }
    };
    fails(MAX_FAILURES - 1);
    join(&reader, &owner);
    assert_eq!(read(&reader, &region).unwrap(), body(1000));
    refused(revoked()).unwrap_err();
    // Those before count no more.
    fails(MAX_FAILURES);
    assert!(!reader.is_able(), "{MAX_FAILURES} pairs have brought nothing");
}

/// Calls that the device refuses within a moment say nothing of the next one.
#[test]
fn a_shortage_that_passes_does_not_end_reads_by_the_device() {
    // The last one behind its own move to init and the three of the owner.
    for (function, calls) in
        [("ibv_reg_mr", 0), ("ibv_create_qp", 0), ("ibv_modify_qp", 0), ("ibv_modify_qp", 4)]
    {
        let [reader, owner] = [(); 2].map(|()| pairs_on(&nic("null0")));
        for round in 0..MAX_FAILURES as usize {
            // The owner ends its earlier one first.
            let calls = calls + usize::from(calls > 0 && round > 0);
            standin::refuse_after(function, calls, libc::ENOMEM);
            let mine = reader.prepare();
            let connected = mine.and_then(|mine| reader.connect(&owner.admit(&mine.unwrap())?));
            assert_eq!(kind(connected), Some(ErrorKind::Verbs), "{function}");
        }
        assert!(standin::not_called() == 0 && !reader.is_able(), "{function}: it is not tried all the time");
        let deadline = Deadline::after(Duration::from_secs(10));
        while !reader.is_able() {
            assert!(!deadline.expired(), "{function}: it is never tried again");
            std::thread::sleep(Duration::from_millis(1));
        }
        join(&reader, &owner);
        assert!(reader.is_able());
        let region = owner.register(&Lent::of(body(1000))).unwrap();
        assert_eq!(read(&reader, &region).unwrap(), body(1000));
    }
}

/// Nothing is made for a link that has ended, by whichever thread comes late.
#[test]
fn a_link_that_has_ended_makes_no_pair() {
    let [reader, owner] = [(); 2].map(|()| pairs_on(&nic("null0")));
    join(&reader, &owner);
    reader.close();
    assert!(!reader.is_connected());
    assert_eq!(kind(reader.prepare()), Some(ErrorKind::PeerLost));
    assert_eq!(kind(reader.take()), Some(ErrorKind::PeerLost));
}

/// Each link that reads by the device holds memory, so there are only so many; one that ends makes room for another.
#[test]
fn a_link_without_a_place_gets_one_later() {
    let nic = nic("null0");
    let mut readers: Vec<Pairs> = (0..MAX_READERS).map(|_| pairs_on(&nic)).collect();
    readers.iter().for_each(|reader| assert!(reader.prepare().unwrap().is_some()));
    let late = pairs_on(&nic);
    for _ in 0..2 * MAX_FAILURES {
        assert_eq!(kind(late.prepare()), Some(ErrorKind::Exhausted));
    }
    assert!(late.is_able(), "a place may become free");
    readers[0].close();
    assert!(late.prepare().unwrap().is_some());
    let other = pairs_on(&nic);
    assert_eq!(kind(other.prepare()), Some(ErrorKind::Exhausted));
    drop(readers.pop());
    assert!(other.prepare().unwrap().is_some());
}

/// Memory that stays exposed keeps what its peers have of it, and with it their ends, unless those have ended.
#[test]
fn another_pair_ends_what_the_one_before_shows() {
    let [reader, owner] = [(); 2].map(|()| pairs_on(&nic("null0")));
    join(&reader, &owner);
    let stock = owner.stock(&Lent::of(body(64)), None).unwrap().unwrap();
    let (_, rights) = owner.show((0, 0), &stock).unwrap().expect("there is room for a window");
    assert!(!rights.is_closed());
    reader.abandon();
    join(&reader, &owner);
    assert!(rights.is_closed());
}
