//! Bounds of the host's memory that reads of and into devices' memory may take, with devices that only count.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::device::{DeviceMapping, DeviceMemory, Handle, ReadTarget, Resource, STAGED, Staged, Underway};
use super::exposed::Exposures;
use super::staging::{Next, Staging};
use super::tokens::Token;
use super::transfer::Transfer;
use super::transfers::{Part, Transfers};
use crate::Deadline;
use crate::error::{Error, Result};
use crate::sync::{AtomicUsize, Ordering};

/// Longer than all parts that may be on their way.
const LONG: usize = 100 * STAGED;

/// Memory whose copies end at once.
#[derive(Debug, Default)]
struct Memory {
    /// Parts that were staged.
    staged: AtomicUsize,
}

impl DeviceMemory for Memory {
    fn len(&self) -> usize {
        LONG
    }

    fn prepare(&self) -> Result<Resource> {
        Ok(Arc::new(()))
    }

    fn stage(&self, _: usize, length: usize) -> Result<Option<Box<dyn Staged>>> {
        self.staged.fetch_add(1, Ordering::Relaxed);
        Ok(Some(Box::new(Come(length))))
    }

    fn is_mappable(&self) -> bool {
        false
    }

    fn export(&self) -> Result<Handle> {
        Err(Error::usage("export", "it cannot be mapped"))
    }
}

/// A copy of so many bytes that has ended.
struct Come(usize);

impl Staged for Come {
    fn poll(&mut self) -> Result<Option<Vec<u8>>> {
        Ok(Some(vec![0; self.0]))
    }
}

/// A peer that does not read costs the owner a few parts, however often it is asked for the next bytes.
#[test]
fn few_parts_are_staged_ahead_of_what_is_sent() {
    let (memory, mut staging) = (Memory::default(), Staging::default());
    let ahead = |staging: &mut Staging, sent: usize| {
        for _ in 0..50 {
            let left = (LONG - sent * STAGED) as u64;
            let next = staging.next(&memory, ((sent * STAGED) as u64, left), STAGED).unwrap();
            assert!(matches!(next, Next::Bytes(bytes) if bytes.len() == STAGED));
        }
        memory.staged.load(Ordering::Relaxed) - sent
    };
    for sent in 0..10 {
        let ahead = ahead(&mut staging, sent);
        assert!((2..=3).contains(&ahead), "{ahead} parts are staged, {sent} are sent");
        staging.sent(STAGED as u64);
    }
}

/// Memory that nothing is copied into.
struct Target;

impl ReadTarget for Target {
    fn len(&self) -> usize {
        LONG
    }

    fn prepare(&mut self) -> Result<Option<Resource>> {
        Ok(None)
    }

    fn put(&self, _: usize, _: &[u8]) -> Result<Option<Box<dyn Underway>>> {
        Ok(None)
    }

    fn device(&self) -> Option<usize> {
        Some(0)
    }

    fn map(&self, _: BorrowedFd<'_>, _: &[u8]) -> Result<Arc<dyn DeviceMapping>> {
        Err(Error::usage("map", "it cannot be mapped"))
    }
}

/// Each part has a buffer of its own until the device has taken it, which this one never does.
#[test]
fn a_read_into_a_device_has_few_bytes_on_their_way() {
    let token = Arc::new(Exposures::new(7)).expose(vec![5; 1].into()).unwrap().token();
    let mut transfers = Transfers::default();
    let deadline = Deadline::after(Duration::from_secs(3600));
    let (target, completion) = (Box::new(Target), Box::new(|_| {}));
    transfers.add(Transfer { id: 0, token, offset: 0, deadline, completion, target, place: None });
    let mut parts = Vec::new();
    let mut step = |transfers: &mut Transfers| {
        let mut issue = |_, part: Part| {
            parts.push(part.into);
            parts.len() as u64
        };
        transfers.step(false, &|| Error::usage("read", "revoked"), &mut issue, &mut Vec::new());
        parts.len()
    };
    assert_eq!([step(&mut transfers), step(&mut transfers)], [4, 4]);
    // One that has come waits for the device, and counts as before.
    assert!(transfers.part_ended(0, 1, Ok(vec![0; STAGED])).is_empty());
    assert_eq!(step(&mut transfers), 4);
    assert!(parts.iter().all(|part| part.len() == STAGED));
}

/// Its owner or this side may have been short of descriptors, for instance.
#[test]
fn memory_that_could_not_be_mapped_is_tried_again_after_a_while() {
    let allocation = Arc::new(Exposures::new(7)).expose(vec![5; 1].into()).unwrap();
    let token = Token { shared: true, device: true, ..allocation.token() };
    let (mut transfers, mut id) = (Transfers::default(), 0);
    // Whether a new read asks for the memory's handle.
    let mut asks = |transfers: &mut Transfers| {
        let (target, completion) = (Box::new(Target), Box::new(|_| {}));
        let deadline = Deadline::after(Duration::from_secs(3600));
        id += 1;
        transfers.add(Transfer { id, token, offset: 0, deadline, completion, target, place: None });
        let mut asked = None;
        let mut issue = |_, part: Part| {
            asked.get_or_insert(part.maps);
            1000 * id
        };
        transfers.step(true, &|| Error::usage("read", "revoked"), &mut issue, &mut Vec::new());
        // Data instead of a handle.
        transfers.part_ended(id, 1000 * id, Ok(Vec::new()));
        transfers.give_up(id, Error::usage("read", "on purpose"));
        transfers.settle(None, None, &mut drop);
        asked
    };
    assert_eq!([asks(&mut transfers), asks(&mut transfers)], [Some(true), Some(false)]);
    transfers.age(Duration::from_secs(4));
    assert_eq!(asks(&mut transfers), Some(false));
    transfers.age(Duration::from_secs(2));
    assert_eq!(asks(&mut transfers), Some(true));
}
