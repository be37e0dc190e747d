//! Reads from a peer's exposed memory, on the side that asks: in the order of the calls, each ended exactly once.
//!
//! The owner answers the reads of a link in the order in which they were asked for, so only the oldest can have data on its way.
//!
//! Memory that is mapped is not asked for: the reader copies it when the read is the oldest. The first read of memory that can be
//! mapped asks for that, and those behind it wait for the answer. What this side's device reads is at the front of the queue, too
//! ([`Fetches`]). So all reads end in the order of the calls, whatever way each takes.

use std::sync::Arc;

use super::fetches::{Fetches, Step};
use super::head::{Head, Operation};
use super::keys::Key;
use super::mappings::{Copying, Mapping, Mappings};
use super::one_sided::OneSided;
use super::reading::{Completion, Finished, Queue, Reading, Way, broken, oldest};
use super::tokens::Token;
use super::transfers::Transfers;
use super::untold::Ended;
use super::wire::Landing;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::wire::Writer;

/// The reads of one link.
#[derive(Default)]
pub(super) struct Reads {
    /// Number of the next one. Frames have the lower half, which starts over: few are under way at a time.
    pub(super) next: u64,
    pub(super) queue: Queue,
    /// How many at the front of the queue the owner has been asked for.
    pub(super) asked: usize,
    /// The last of these was asked for a mapping. Nothing behind it has been asked for.
    pub(super) waits_for_mapping: bool,
    /// A thread copies for the oldest read, and has taken the place for its bytes.
    copying: bool,
    /// Whether the link can carry descriptors.
    pub(super) maps: bool,
    mappings: Mappings,
    /// Whether the link has devices that can read.
    pub(super) fetches: bool,
    fetched: Fetches,
    /// Reads into the memory of devices, of which parts are in the queue.
    pub(super) transfers: Transfers,
    /// Where data of the oldest read lands. Only the thread that pulls touches it, so that memory into which the system
    /// receives is not freed meanwhile.
    landing: Option<Vec<u8>>,
    /// No deadline is earlier than this.
    due: Option<Deadline>,
    /// Why there are no reads any more.
    pub(super) ended: Option<Error>,
    /// A read was refused because there were so many.
    refused_at: Option<usize>,
}

impl Reads {
    /// The reads of a link that can carry descriptors if `maps`, and has devices that can read if `fetches`.
    pub(super) fn new(maps: bool, fetches: bool) -> Self {
        Self { maps, fetches, ..Self::default() }
    }

    /// Queues a read of `into.len()` bytes; returns its number. The caller has asked whether there is [room](Self::has_room).
    pub(super) fn add(
        &mut self,
        (token, offset): (Token, u64),
        into: Vec<u8>,
        deadline: Deadline,
        completion: Completion,
    ) -> u64 {
        let id = self.begin(deadline);
        let way = Way::new(
            self.maps && token.shared && !token.device,
            self.fetches && !token.device && !into.is_empty(),
        );
        self.queue.push_back(Reading {
            id,
            token,
            offset,
            length: into.len(),
            into,
            placing: None,
            got: 0,
            begun: 0,
            way,
            deadline,
            transfer: None,
            completion: Some(completion),
        });
        id
    }

    /// Whether a read can be added to at most `most`. If not, [`found_room`](Self::found_room) tells when one can; an error if the peer is gone.
    pub(super) fn has_room(&mut self, most: usize) -> Result<bool> {
        if let Some(error) = &self.ended {
            return Err(error.clone().of("read"));
        }
        let is_full = self.is_full(most);
        if is_full {
            self.refused_at = Some(most);
        }
        Ok(!is_full)
    }

    /// Whether there is room for a read that was refused, once for each time.
    #[inline]
    pub(super) fn found_room(&mut self) -> bool {
        self.refused_at.is_some_and(|most| !self.is_full(most)) && self.refused_at.take().is_some()
    }

    fn is_full(&self, most: usize) -> bool {
        // Parts of reads into devices are bounded on their own. They are told from reads only where that matters.
        let reads = || self.queue.iter().filter(|reading| reading.transfer.is_none()).count();
        let room = most.saturating_sub(self.transfers.len());
        self.queue.len() >= room && reads() >= room
    }

    /// The number of a new read with a deadline.
    pub(super) fn begin(&mut self, deadline: Deadline) -> u64 {
        let id = self.next;
        self.next += 1;
        self.due = Some(self.due.map_or(deadline, |due| due.min(deadline)));
        id
    }

    /// Asks for reads that were not asked for yet, at most `depth` at a time, and no more than `window` bytes unless it is one read, with `push`,
    /// until that has no room. True if all that may be asked for have been.
    pub(super) fn ask(
        &mut self,
        (depth, window): (usize, usize),
        device: Option<&dyn OneSided>,
        mut push: impl FnMut(Operation, u32, &[u8]) -> Result<bool>,
    ) -> Result<bool> {
        let mut bytes: usize = self.queue.iter().take(self.asked).map(|reading| reading.length).sum();
        while self.asked < depth && !self.waits_for_mapping && !self.fetched.waits_for_key() {
            let Some(reading) = self.queue.get_mut(self.asked + self.fetched.count()) else { break };
            bytes = bytes.saturating_add(reading.length);
            if self.asked > 0 && bytes > window {
                break;
            }
            reading.find(&mut self.mappings);
            let pair = self.fetched.choose(reading, device);
            reading.provide();
            let operation = match reading.way {
                // Answered when all before it are.
                Way::Data | Way::Shared if self.fetched.count() > 0 => break,
                Way::Data => Operation::Read,
                Way::Shared => Operation::Map,
                // Copied when it is the oldest.
                Way::Mapped(_) => break,
                Way::Open => Operation::Fetch,
                // Read when nothing before it is to be answered.
                Way::Fetched(_) if self.asked > 0 => break,
                Way::Fetched(_) => {
                    self.fetched.add();
                    continue;
                }
            };
            let mut w = Writer::new();
            w.raw(&reading.token.to_bytes());
            w.u64(reading.offset + reading.got as u64).u64((reading.length - reading.got) as u64);
            let pair = pair.flatten();
            pair.iter().for_each(|pair| pair.encode(&mut w));
            if !push(operation, reading.id as u32, w.as_bytes())? {
                return Ok(false);
            }
            if operation == Operation::Fetch {
                self.fetched.ask(reading, pair.is_some());
                break;
            }
            self.asked += 1;
            self.waits_for_mapping = operation == Operation::Map;
        }
        Ok(true)
    }

    /// The owner's answer to a request for a key.
    pub(super) fn key(
        &mut self,
        id: u32,
        key: Option<Key>,
        device: &dyn OneSided,
    ) -> Result<Option<Finished>> {
        self.fetched.answered(id, key, device).map(|()| None)
    }

    /// Whether the device reads.
    pub(super) fn is_fetching(&self) -> bool {
        self.fetched.count() > 0
    }

    /// Whether there are reads that were not asked for.
    pub(super) fn has_unasked(&self) -> bool {
        self.queue.len() > self.asked + self.fetched.count()
    }

    /// Has the device read, and takes the next piece that it has brought; [`fetched`](Self::fetched) must follow then.
    pub(super) fn fetch(&mut self, device: &dyn OneSided) -> Step {
        self.fetched.step(&mut self.queue, device, self.transfers.hang())
    }

    /// `length` bytes of the oldest read have been copied to `into`. Returns the read if it has ended.
    pub(super) fn fetched(&mut self, length: usize, into: Vec<u8>) -> Option<Finished> {
        let finished = self.fetched.land(&mut self.queue, length, into);
        self.shrink();
        finished
    }

    /// The owner has handed over the memory of the oldest read, and it is mapped; `None` if this process could not.
    pub(super) fn mapped(&mut self, id: u32, mapping: Option<Arc<Mapping>>) -> Result<Option<Finished>> {
        let asked_for = self.waits_for_mapping && self.asked == 1;
        let reading = oldest(&mut self.queue, self.asked, id)?;
        if !asked_for || reading.got > 0 || reading.token.device {
            return Err(broken(format!("memory for read {id}, which waits for data")));
        }
        (self.asked, self.waits_for_mapping) = (0, false);
        reading.way = match mapping {
            Some(mapping) => {
                let end = reading.offset.checked_add(reading.length as u64);
                if end.is_none_or(|end| end > mapping.len()) {
                    return Err(broken(format!("{} bytes of memory for read {id}", mapping.len())));
                }
                if self.ended.is_none() {
                    self.mappings.add(reading.token, mapping.clone());
                }
                Way::Mapped(mapping)
            }
            None => Way::Data,
        };
        if reading.completion.is_none() {
            self.queue.pop_front();
        }
        Ok(None)
    }

    /// Whether [`begin_copy`](Self::begin_copy) has something to copy.
    pub(super) fn can_copy(&mut self) -> bool {
        self.copyable().is_some()
    }

    /// The oldest read, if it is to be copied and nobody does so.
    fn copyable(&mut self) -> Option<(&mut Reading, Arc<Mapping>)> {
        if self.copying || self.asked > 0 || self.ended.is_some() {
            return None;
        }
        let reading = self.queue.front_mut()?;
        reading.find(&mut self.mappings);
        match &reading.way {
            // One that is too late is ended by whoever looks at deadlines.
            Way::Mapped(mapping) if !reading.deadline.expired() => {
                let mapping = mapping.clone();
                Some((reading, mapping))
            }
            _ => None,
        }
    }

    /// Takes the oldest read to copy for it, if it is mapped; [`end_copy`](Self::end_copy) must follow.
    pub(super) fn begin_copy(&mut self) -> Option<Copying> {
        let (reading, mapping) = self.copyable()?;
        let (into, placing) = (std::mem::take(&mut reading.into), reading.placing.clone());
        let length = if placing.is_some() { reading.length } else { into.len() };
        let copying = Copying { mapping, into, placing, offset: reading.offset, length, got: reading.got };
        self.copying = true;
        Some(copying)
    }

    /// Takes a copy back, of which the latest piece is valid, or not because the memory was revoked. Returns the read if it has
    /// ended.
    pub(super) fn end_copy(
        &mut self,
        copy: Copying,
        valid: Result<bool>,
        revoked: impl FnOnce() -> Error,
    ) -> Option<Finished> {
        self.copying = false;
        // It is still the oldest: what is copied for stays in the queue even if it is cancelled.
        let reading = self.queue.front_mut()?;
        let valid = match valid {
            Ok(true) => Ok(()),
            Ok(false) => Err(revoked()),
            Err(error) => Err(error),
        };
        if valid.is_ok() && copy.got < reading.length && reading.completion.is_some() {
            (reading.into, reading.got) = (copy.into, copy.got);
            return None;
        }
        self.queue.pop_front()?.end(valid.map(|()| copy.into))
    }

    /// Whether nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.transfers.is_empty()
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn mappings(&self) -> usize {
        self.mappings.len() + self.transfers.mappings()
    }

    /// Unmaps memory that is not exposed any more.
    pub(super) fn sweep(&mut self) {
        self.mappings.sweep();
        self.transfers.sweep();
    }

    /// When to look at the deadlines; `None` if there are none.
    pub(super) fn next_deadline(&self) -> Option<Deadline> {
        let is_open = |reading: &Reading| reading.completion.is_some() && reading.transfer.is_none();
        self.due.filter(|_| self.transfers.deadline().is_some() || self.queue.iter().any(is_open))
    }

    /// Where the data of `head` goes that is still to come, `done` bytes having landed.
    pub(super) fn landing(&mut self, head: Head, done: usize) -> Result<Landing> {
        let rest = head.length as usize - done;
        let reading = oldest(&mut self.queue, self.asked, head.id)?;
        if rest > reading.length - reading.got {
            return Err(broken(format!("read {} got more bytes than it asked for", head.id)));
        }
        if self.landing.is_none() && reading.completion.is_some() {
            // An owner that was asked to hand its memory over may send the data instead.
            reading.way = Way::Data;
            reading.provide();
            self.landing = Some(std::mem::take(&mut reading.into));
        }
        Ok(match &mut self.landing {
            // Within the buffer: `got + rest` is at most `length`, which is the buffer's.
            Some(into) => Landing::Memory(into[reading.got..].as_mut_ptr()),
            None => Landing::Nowhere,
        })
    }

    /// `bytes` more have landed. Returns the read if it has all of its bytes.
    pub(super) fn landed(&mut self, head: Head, bytes: usize) -> Result<Option<Finished>> {
        let reading = oldest(&mut self.queue, self.asked, head.id)?;
        reading.got += bytes;
        if reading.got < reading.length {
            // Only an owner that never gets on sends frames without data.
            return if head.length == 0 {
                Err(broken(format!("read {} got no bytes", head.id)))
            } else {
                Ok(None)
            };
        }
        let into = self.landing.take();
        Ok(self.pop().and_then(|mut reading| {
            let bytes = into.unwrap_or_else(|| std::mem::take(&mut reading.into));
            reading.end(Ok(bytes))
        }))
    }

    /// A whole data frame.
    pub(super) fn data(&mut self, head: Head, body: &[u8]) -> Result<Option<Finished>> {
        if let Landing::Memory(_) = self.landing(head, 0)?
            && let (Some(into), Some(reading)) = (&mut self.landing, self.queue.front())
        {
            into[reading.got..reading.got + body.len()].copy_from_slice(body);
        }
        self.landed(head, body.len())
    }

    /// The owner does not serve the oldest read, because of `why`.
    pub(super) fn refused(&mut self, id: u32, why: Error) -> Result<Option<Finished>> {
        oldest(&mut self.queue, self.asked, id)?;
        self.landing = None;
        let reading = self.pop();
        Ok(reading.and_then(|reading| reading.end(Err(why))))
    }

    /// Gives up read `id`, if it has not ended. True besides if the owner has been asked for it.
    pub(super) fn cancel(&mut self, id: u64, why: Error) -> Option<(Finished, bool)> {
        let index = self.queue.iter().position(|reading| reading.id == id)?;
        let completion = self.queue[index].completion.take()?;
        let transfer = self.queue[index].transfer;
        let asked = index < self.asked;
        if asked {
            // Its place in the order stays, until the owner has answered.
            self.queue[index].into = Vec::new();
        } else if index < self.fetched.count() {
            self.fetched.cancel(&mut self.queue, index);
        } else if index > 0 || !self.copying {
            self.queue.remove(index);
        }
        Some((Finished { id, completion, outcome: Err(why), transfer, target: None }, asked))
    }

    /// The reads whose deadline has passed; of each whether the owner has been asked for it.
    pub(super) fn expire(&mut self) -> Vec<(u64, Finished, bool)> {
        if self.due.is_none_or(|due| !due.expired()) {
            return Vec::new();
        }
        let is_open = |reading: &&Reading| reading.completion.is_some() && reading.transfer.is_none();
        let open = || self.queue.iter().filter(is_open);
        let late: Vec<u64> =
            open().filter(|reading| reading.deadline.expired()).map(|reading| reading.id).collect();
        let due = open().filter(|reading| !late.contains(&reading.id)).map(|reading| reading.deadline);
        self.due = due.chain(self.transfers.deadline()).min();
        let end = |id| self.cancel(id, late_error()).map(|(finished, asked)| (id, finished, asked));
        late.into_iter().filter_map(end).collect()
    }

    /// Ends all of them because of `why`. The place of data that is landing stays: its owner is the thread that pulls.
    pub(super) fn fail(&mut self, why: &Error) -> Ended {
        self.ended = Some(why.clone());
        self.mappings.clear();
        self.fetched.clear();
        (self.asked, self.waits_for_mapping) = (0, false);
        Ended { queue: std::mem::take(&mut self.queue), transfers: self.transfers.fail(), why: why.clone() }
    }

    /// Gives up the place of data that was landing. Nobody pulls any more.
    pub(super) fn take_landing(&mut self) -> Option<Vec<u8>> {
        self.landing.take()
    }

    fn pop(&mut self) -> Option<Reading> {
        self.asked -= 1;
        self.waits_for_mapping &= self.asked > 0;
        let reading = self.queue.pop_front();
        self.shrink();
        reading
    }

    /// Keeps little for an idle peer.
    fn shrink(&mut self) {
        if self.queue.is_empty() && self.queue.capacity() > 64 {
            self.queue = Queue::new();
        }
    }
}

pub(super) fn late_error() -> Error {
    Error::timeout("read", "the deadline of a read passed before its data came")
}

impl std::fmt::Debug for Reads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reads").field("queue", &self.queue.len()).field("asked", &self.asked).finish()
    }
}
