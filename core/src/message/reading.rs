//! One read from a peer's exposed memory.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use super::device::ReadTarget;
use super::mappings::{Mapping, Mappings};
use super::placing::Placing;
use super::tokens::Token;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::rdma::RemoteRegion;

/// Told how a read ended; with the bytes if all came.
pub(super) type Completion = Box<dyn FnOnce(Result<Vec<u8>>) + Send>;

/// A read that has ended, before its completion has run.
pub(super) struct Finished {
    pub(super) id: u64,
    pub(super) completion: Completion,
    pub(super) outcome: Result<Vec<u8>>,
    /// The read into a device that it is a part of.
    pub(super) transfer: Option<u64>,
    /// The memory into which it went, unless that was a vector, and its place: dropped before the completion runs, with no lock held.
    pub(super) target: Option<(Box<dyn ReadTarget>, Option<Placing>)>,
}

/// A read under way.
pub(super) struct Reading {
    pub(super) id: u64,
    pub(super) token: Token,
    pub(super) offset: u64,
    /// The place for the bytes; moves to `landing` with the first of them.
    pub(super) into: Vec<u8>,
    /// The place of the program's for the bytes, if they are brought there; then `into` is empty.
    pub(super) placing: Option<Arc<Placing>>,
    pub(super) length: usize,
    pub(super) got: usize,
    /// Bytes that the device has been asked for.
    pub(super) begun: usize,
    pub(super) way: Way,
    pub(super) deadline: Deadline,
    /// The read into a device that this is a part of.
    pub(super) transfer: Option<u64>,
    /// `None` once it was told early: cancelled, or too late.
    pub(super) completion: Option<Completion>,
}

/// How a read gets its bytes.
#[derive(Clone, Debug)]
pub(super) enum Way {
    /// The owner sends them.
    Data,
    /// This side copies them once the memory is mapped.
    Shared,
    Mapped(Arc<Mapping>),
    /// This side's device may read them; it is not chosen yet.
    Open,
    /// This side's device reads them.
    Fetched(RemoteRegion),
}

impl Way {
    /// The way of a new read, of memory that can be mapped if `maps`, or that the device may read if `fetches`.
    pub(super) fn new(maps: bool, fetches: bool) -> Self {
        match (maps, fetches) {
            (true, _) => Self::Shared,
            (false, true) => Self::Open,
            (false, false) => Self::Data,
        }
    }
}

/// The reads of one link, in the order of the calls.
pub(super) type Queue = VecDeque<Reading>;

impl Reading {
    /// Ends it; `None` if it was told early.
    pub(super) fn end(self, outcome: Result<Vec<u8>>) -> Option<Finished> {
        let Self { id, transfer, completion, .. } = self;
        completion.map(|completion| Finished { id, completion, outcome, transfer, target: None })
    }

    /// Makes a place for the bytes, unless they are brought to one of the program's.
    pub(super) fn provide(&mut self) {
        let by_device = matches!(self.way, Way::Open | Way::Fetched(_));
        let by_processor = matches!(self.way, Way::Shared | Way::Mapped(_));
        let fits = |placing: &Placing| if placing.is_registered() { by_device } else { by_processor };
        if self.placing.take_if(|placing| !fits(placing)).is_some() {
            self.into = vec![0; self.length];
        }
    }

    /// Looks whether the memory is mapped. A range that is not within it is for the owner to refuse: only the range of the read for which the
    /// memory was mapped has been checked, and what a token says of its length proves nothing.
    pub(super) fn find(&mut self, mappings: &mut Mappings) {
        if matches!(self.way, Way::Shared)
            && let Some(mapping) = mappings.get(&self.token)
            && let Some(end) = self.offset.checked_add(self.length as u64)
            && end <= mapping.len()
        {
            self.way = Way::Mapped(mapping);
        }
    }
}

/// The read to which data comes, which must be `id`.
pub(super) fn oldest(queue: &mut Queue, asked: usize, id: u32) -> Result<&mut Reading> {
    let reading = queue.front_mut().filter(|reading| asked > 0 && reading.id as u32 == id);
    reading.ok_or_else(|| broken(format!("an answer to read {id}, which is not the next one to be answered")))
}

/// The error for a peer that does not keep to the protocol.
pub(super) fn broken(text: String) -> Error {
    Error::new(ErrorKind::Remote, "progress", text)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::message::SharedMemory;
    use crate::message::exposed::Exposures;

    /// Otherwise the bytes would come to a vector first, and be copied once more.
    #[test]
    fn mapped_memory_is_copied_to_its_place_in_shared_memory() {
        let token = Arc::new(Exposures::new(7)).expose(vec![5; 1].into()).unwrap().token();
        let memory = SharedMemory::allocate(10).unwrap();
        let provided = |way: Way| {
            let placing = Some(Arc::new(Placing::shared(&memory, 0)));
            let (into, completion) = (Vec::new(), Some(Box::new(drop) as Completion));
            let deadline = Deadline::after(Duration::from_secs(3600));
            let mut reading = Reading {
                id: 0,
                token,
                offset: 0,
                into,
                placing,
                length: 10,
                got: 0,
                begun: 0,
                way,
                deadline,
                transfer: None,
                completion,
            };
            reading.provide();
            (reading.placing.is_some(), reading.into.len())
        };
        assert_eq!(provided(Way::Shared), (true, 0));
        assert_eq!([provided(Way::Data), provided(Way::Open)], [(false, 10), (false, 10)]);
    }
}
