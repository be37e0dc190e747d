//! The reader's end of a pair for reads, and the memory of the link into which its device reads what has no place elsewhere.

use std::ptr::NonNull;
use std::sync::Arc;

use super::memory::Slots;
use super::nic::{Nic, Place};
use super::reports::{Link, Watch};
use crate::error::{Error, Result};
use crate::message::lent::Lent;
use crate::message::one_sided::{Brought, PIECE, Wanted};
use crate::message::placing;
use crate::rdma::{
    Access, Batch, CompletionChannel, CompletionQueue, Init, QpAddress, QpOptions, QueuePair, ReadyToSend,
};

/// Pieces that one link reads at a time: with [`PIECE`], into 1 MiB of its memory.
pub(super) const PIECES: u32 = 16;

/// An end whose peer is not known.
#[derive(Debug)]
pub(super) struct Unconnected {
    queue_pair: QueuePair<Init>,
    kit: Kit,
}

/// The memory and the completion queue.
#[derive(Debug)]
struct Kit {
    completions: CompletionQueue,
    slots: Arc<Slots>,
    watch: Watch,
    _place: Place,
}

/// A connected end. Pieces come in the order in which they were begun; the one of number `n` is in slot `n % PIECES`.
#[derive(Debug)]
pub(super) struct Reader {
    // The queue pair ends before the memory that it writes to.
    queue_pair: QueuePair<ReadyToSend>,
    kit: Kit,
    batch: Batch,
    lengths: [u32; PIECES as usize],
    /// Of the pieces that are not to come into their slots. Dropped behind the queue pair: what a place belongs to ends then.
    places: [Option<placing::Place>; PIECES as usize],
    /// Numbers of pieces: the next one to begin, the next one to come, the next one to release.
    begun: u64,
    come: u64,
    released: u64,
    /// Pieces that may be on their way.
    depth: u64,
    /// The first failure. Its completion comes once, and whoever goes to sleep may be the one who finds it.
    failure: Option<Error>,
}

impl Unconnected {
    /// An end of `link` on `nic`, whose completions wake `channel`.
    pub(super) fn new(nic: &Arc<Nic>, channel: &CompletionChannel, link: &Link) -> Result<Self> {
        let place = nic.place()?;
        let slots = Arc::new(Slots::new(&nic.domain, &nic.regions, PIECES, PIECE)?);
        let completions = nic.context.completion_queue_with(PIECES, channel)?;
        let options = QpOptions::default().with_max_send(PIECES).with_max_inline(0);
        let new = nic.domain.queue_pair(&options, &completions, &completions)?;
        let watch = link.watch(new.number(), Some(&completions));
        // The peer may do nothing here.
        let queue_pair = new.init(&nic.port, &nic.settings, Access::LOCAL_WRITE)?;
        Ok(Self { queue_pair, kit: Kit { completions, slots, watch, _place: place } })
    }

    pub(super) fn address(&self) -> QpAddress {
        self.queue_pair.address()
    }

    /// Connects it to the owner's end.
    pub(super) fn connect(self, theirs: &QpAddress) -> Result<Reader> {
        let queue_pair = self.queue_pair.connect(theirs)?.ready_to_send()?;
        let depth = u64::from(queue_pair.max_reads()).min(PIECES.into());
        if depth == 0 {
            let text = "the owner's device serves no reads";
            return Err(Error::new(crate::ErrorKind::Unsupported, "read", text));
        }
        let batch = Batch::with_capacity(PIECES as usize);
        let (lengths, places) = ([0; PIECES as usize], [const { None }; PIECES as usize]);
        let (begun, come, released, failure) = (0, 0, 0, None);
        Ok(Reader {
            queue_pair,
            kit: self.kit,
            batch,
            lengths,
            places,
            begun,
            come,
            released,
            depth,
            failure,
        })
    }
}

impl Reader {
    /// Begins what `next` gives while there is room.
    pub(super) fn begin(&mut self, next: &mut dyn FnMut() -> Result<Option<Wanted>>) -> Result<()> {
        while self.begun - self.come < self.depth && self.begun - self.released < PIECES.into() {
            let Some(Wanted { from, place }) = next()? else { break };
            let slot = (self.begun % u64::from(PIECES)) as usize;
            let into = match &place {
                Some(place) => place.range,
                None => self.kit.slots.range(slot as u32, from.len() as usize)?,
            };
            self.batch.read(into, from)?.id(self.begun).signalled();
            (self.lengths[slot], self.places[slot]) = (from.len() as u32, place);
            self.begun += 1;
        }
        self.queue_pair.post(&mut self.batch).map_err(|error| error.error)
    }

    /// Counts what has come. Returns whether there is a piece to take.
    ///
    /// # Errors
    /// The first failure, from then on.
    pub(super) fn poll(&mut self) -> Result<bool> {
        if self.failure.is_none() && self.begun > self.come {
            let (mut failure, mut come) = (None, 0);
            let polled = self.kit.completions.poll(PIECES as usize, |completion| match completion.result {
                Ok(_) => come += 1,
                // The others follow it, flushed.
                Err(error) => failure = failure.or(Some(error)),
            });
            self.come += come;
            self.failure = failure.map(|failure| failure.to_error("read")).or(polled.err());
        }
        match &self.failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(self.come > self.released),
        }
    }

    /// The oldest piece that was not released, if it has come.
    pub(super) fn take(&mut self) -> Result<Option<Brought>> {
        if !self.poll()? {
            return Ok(None);
        }
        let slot = (self.released % u64::from(PIECES)) as usize;
        let (memory, length) = (self.kit.slots.slot(slot as u32), self.lengths[slot] as usize);
        if self.places[slot].take().is_some() {
            return Ok(Some(Brought::Placed(length)));
        }
        let address = NonNull::new(memory.as_ptr()).unwrap_or(NonNull::dangling());
        // SAFETY: the slots live as long as the share in them, which is the owner here. The read into this one has completed, and
        // the next one there is begun only after `release`, before which the caller drops the result (contract of `OneSided`).
        let bytes = unsafe { Lent::new(address, length, true, self.kit.slots.clone()) };
        Ok(Some(Brought::Bytes(bytes)))
    }

    /// The oldest piece was used.
    pub(super) fn release(&mut self) {
        self.released += 1;
    }

    /// Fails if the device has reported that the queue pair did.
    pub(super) fn check(&mut self) {
        if self.failure.is_none() {
            self.failure = self.kit.watch.failure();
        }
    }

    /// Whether any piece has ever come.
    pub(super) fn is_proven(&self) -> bool {
        self.come > 0
    }

    /// Has the next piece that comes wake the channel. True if one has come already, or if the pair has failed: the next
    /// [`take`](Self::take) tells of that.
    pub(super) fn arm(&mut self) -> bool {
        if let Err(error) = self.kit.completions.request_event() {
            self.failure.get_or_insert(error);
        }
        self.poll().unwrap_or(true)
    }

    /// The number of its queue pair.
    #[cfg(all(test, not(loom)))]
    pub(super) fn number(&self) -> u32 {
        self.queue_pair.number()
    }
}
