//! Takes each frame that a link brings, and does what it asks for.

use std::sync::Arc;

use super::batch::Batch;
use super::credit::Amount;
use super::exposed::Refusal;
use super::handing::Handed;
use super::handlers::{Handler, Handlers};
use super::head::{Head, Operation};
use super::inbox::{Bytes, Item, Offer, Put};
use super::keys;
use super::line::Line;
use super::long::{Long, answer, decode_answer};
use super::mappings::Mapping;
use super::member::Member;
use super::peer::Peer;
use super::reading::Finished;
use super::reads::Reads;
use super::received::Message;
use super::tokens::Token;
use super::transfers::HandedDevice;
use super::wire::{Landing, Sink};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Ordering, lock};
use crate::wire::Reader;

/// Takes the frames of one link.
pub(super) struct Incoming<'a> {
    handlers: &'a Handlers,
    member: &'a Arc<Member>,
    line: &'a Arc<Line>,
    /// Takes messages to callbacks while that keeps their order.
    batch: Option<&'a mut Batch>,
}

impl<'a> Incoming<'a> {
    pub(super) fn new(
        handlers: &'a Handlers,
        member: &'a Arc<Member>,
        line: &'a Arc<Line>,
        mut batch: Option<&'a mut Batch>,
    ) -> Self {
        if let Some(batch) = &mut batch {
            batch.open();
        }
        Self { handlers, member, line, batch }
    }

    /// The link is not read any more in this round.
    pub(super) fn end(mut self) {
        self.close_batch();
    }

    /// Sends the messages that follow to the inbox.
    fn close_batch(&mut self) {
        if let Some(batch) = &mut self.batch {
            batch.close();
        }
    }
    /// A message, with an offer of long data if `offer` is one.
    fn message(&mut self, head: Head, body: &[u8], offer: Option<Offer>) -> Result<()> {
        let member = self.member;
        let limits = &member.hub.limits;
        if body.len() > limits.eager {
            let text = format!("a message of {} bytes is above the limit of {}", body.len(), limits.eager);
            return Err(broken(text));
        }
        let bytes = || Bytes::inline(body).unwrap_or_else(|| Bytes::Buffer(member.hub.copy(body)));
        match self.handlers.get(head.kind) {
            Some(Handler::Callback(_)) => {
                let offer = offer.map(|offer| Box::new((self.line.clone(), offer)));
                if let Some(batch) = &mut self.batch
                    && batch.takes(member, body.len(), limits)
                {
                    batch.add(head.kind, body, offer, || member.hub.copy(body));
                    return Ok(());
                }
                let make = || Item::Message(head.kind, bytes(), offer);
                match member.inbox.put(body.len(), limits, make) {
                    Put::Taken | Put::Over | Put::Closed => {}
                    Put::Wake => member.hub.add_ready(member.clone()),
                    Put::Full => return Err(overrun()),
                }
            }
            Some(Handler::Queue(queue)) => {
                self.close_batch();
                let make = || {
                    let peer = Peer { member: member.clone() };
                    let long = offer.map(|offer| Box::new(Long::new(peer.clone(), self.line.clone(), offer)));
                    Message { peer, kind: head.kind, bytes: bytes(), long }
                };
                match member.inbox.charge(body.len(), limits, || queue.add(make)) {
                    Put::Taken | Put::Wake => member.hub.note_queued(),
                    Put::Full => return Err(overrun()),
                    Put::Over => {}
                    Put::Closed => self.unknown(head.kind, body.len(), offer)?,
                }
            }
            None => self.unknown(head.kind, body.len(), offer)?,
        }
        Ok(())
    }

    /// A message of `bytes` bytes for which nothing is registered.
    fn unknown(&self, kind: u16, bytes: usize, offer: Option<Offer>) -> Result<()> {
        let (member, rank) = (self.member, self.member.rank);
        member.not_kept(bytes);
        if self.line.tell_unknown(kind)? {
            log::warn!("dropped messages of kind {kind} of rank {rank}: nothing is registered for it");
            member.mark_dirty();
        }
        match offer {
            Some(offer) => {
                member.tell(self.line, Operation::LongDone, 0, offer.id, &answer(&offer.token, false))
            }
            None => Ok(()),
        }
    }

    fn long(&mut self, head: Head, body: &[u8]) -> Result<()> {
        let mut r = Reader::new(body);
        let token = Token::decode(&mut r)?;
        if token.generation != self.member.generation {
            return Err(broken("long data with a token of another messenger".into()));
        }
        self.message(head, &body[Token::BYTES..], Some(Offer { id: head.id, token }))
    }

    fn read(&mut self, head: Head, body: &[u8]) -> Result<()> {
        lock(&self.line.serving).add(head, body, self.member.hub.limits.read_depth)?;
        self.member.mark_dirty();
        Ok(())
    }

    /// Something has come for a read, which `take` looks at. If the read has ended, its completion is dispatched, before any later read
    /// can end: another thread may be about to copy that one. The next one can be asked for.
    fn answered(&mut self, take: impl FnOnce(&mut Reads) -> Result<Option<Finished>>) -> Result<()> {
        let mut reads = lock(&self.line.reads);
        if let Some(finished) = take(&mut reads)? {
            self.close_batch();
            self.member.read_ended(self.line, &mut reads, finished);
        }
        self.member.note_room_for_reads(&mut reads);
        self.line.note_transfers(&reads);
        drop(reads);
        self.member.mark_dirty();
        Ok(())
    }

    /// The owner of memory has handed its descriptors over.
    fn mapped(&mut self, head: Head, body: &[u8]) -> Result<()> {
        let take = || self.line.wire().and_then(|wire| wire.take_descriptor());
        let handed = Handed::decode(body)?;
        // In any case: descriptors and frames come in the same order.
        let descriptor = take();
        let place = match handed {
            Handed::Bytes(place) => place,
            Handed::Half => return self.answered(|reads| reads.handed(head.id, None)),
            Handed::Device(place, description) => {
                let memory = take();
                let word = match descriptor.map(|fd| Mapping::open(fd, place)) {
                    Some(Err(error)) if error.kind() == ErrorKind::Remote => return Err(error),
                    opened => opened.and_then(Result::ok),
                };
                let handed =
                    word.zip(memory).map(|(word, descriptor)| HandedDevice { word, descriptor, description });
                return self.answered(|reads| reads.handed(head.id, handed));
            }
        };
        let mapping = match descriptor.map(|fd| Mapping::open(fd, place)) {
            Some(Ok(mapping)) => Some(Arc::new(mapping)),
            Some(Err(error)) if error.kind() == ErrorKind::Remote => return Err(error),
            // This process has no room: the owner sends the data instead.
            Some(Err(error)) => {
                log::debug!("memory of rank {} is not mapped: {error}", self.member.rank);
                None
            }
            None => None,
        };
        self.answered(|reads| reads.mapped(head.id, mapping))
    }

    /// The owner of memory has given its key, or not.
    fn key(&mut self, head: Head, body: &[u8]) -> Result<()> {
        let key = keys::decode(body)?;
        let Some(wire) = self.line.wire() else { return Ok(()) };
        let Some(device) = wire.one_sided() else {
            return Err(broken("a key for a side without a device".into()));
        };
        self.answered(|reads| reads.key(head.id, key, device))
    }

    fn refused(&mut self, head: Head, body: &[u8]) -> Result<()> {
        let refusal =
            body.first().filter(|_| body.len() == 1).and_then(|number| Refusal::from_number(*number));
        let (kind, why) = match refusal {
            Some(Refusal::Forged) => (ErrorKind::Authentication, "the token is not one that it gave away"),
            Some(Refusal::Revoked) => {
                (ErrorKind::Remote, "the memory is not exposed any more: its token was revoked")
            }
            Some(Refusal::Range) => {
                (ErrorKind::InvalidUsage, "the range is past the end of the exposed memory")
            }
            Some(Refusal::Failed) => (ErrorKind::Remote, "its device has failed"),
            Some(Refusal::Cancelled) => (ErrorKind::Aborted, "it was cancelled"),
            None => return Err(broken("a refusal without a reason".into())),
        };
        let rank = self.member.rank;
        let error = Error::new(kind, "read", format!("rank {rank} refused a read: {why}")).with_peer(rank);
        self.answered(|reads| reads.refused(head.id, error))
    }

    fn long_done(&mut self, head: Head, body: &[u8]) -> Result<()> {
        let Some((delivery, mark)) = decode_answer(body) else {
            return Err(broken("an answer to long data that says nothing".into()));
        };
        self.close_batch();
        let mut offers = lock(&self.line.offers);
        let ended = offers.answer(head.id, mark, delivery);
        // Under the lock: whoever ends the peer meanwhile ends the offers before it tells of the end.
        ended.into_iter().for_each(|ended| self.member.deliver(Item::Long(ended)));
        drop(offers);
        self.member.found_room();
        Ok(())
    }
}

impl Sink for Incoming<'_> {
    fn frame(&mut self, head: Head, body: &[u8]) -> Result<()> {
        self.line.check(head)?;
        if self.line.has_left() {
            // Another thread of the peer was sending when it said goodbye: the message is lost with the peer.
            self.line.count();
            return Ok(());
        }
        match head.operation {
            Operation::Message => self.message(head, body, None)?,
            Operation::Long => self.long(head, body)?,
            Operation::Credit => self.member.take_credit(Amount::decode(body)?)?,
            Operation::Read | Operation::Map | Operation::Fetch => self.read(head, body)?,
            Operation::Data => self.answered(|reads| reads.data(head, body))?,
            Operation::Mapped => self.mapped(head, body)?,
            Operation::Key => self.key(head, body)?,
            Operation::Refused => self.refused(head, body)?,
            Operation::Cancel => lock(&self.line.serving).cancel(head.id),
            Operation::LongDone => self.long_done(head, body)?,
            Operation::Goodbye => self.line.left.store(true, Ordering::Release),
            Operation::Unknown => self.member.unknown.add(self.member.rank, head.kind),
        }
        self.line.count();
        Ok(())
    }

    fn begin(&mut self, head: Head) -> Result<()> {
        self.line.check(head)?;
        self.line.count();
        Ok(())
    }

    fn landing(&mut self, head: Head, done: usize) -> Result<Landing> {
        lock(&self.line.reads).landing(head, done)
    }

    fn landed(&mut self, head: Head, bytes: usize) -> Result<()> {
        let mut reads = lock(&self.line.reads);
        let finished = reads.landed(head, bytes)?;
        self.member.note_room_for_reads(&mut reads);
        let Some(finished) = finished else { return Ok(()) };
        self.close_batch();
        self.member.read_ended(self.line, &mut reads, finished);
        drop(reads);
        self.member.mark_dirty();
        Ok(())
    }
}

/// The error for a peer that sends more messages than it has credit for.
#[cold]
fn overrun() -> Error {
    broken("it sent more messages than it has credit for".into())
}

/// The error for a peer that does not keep to the protocol.
pub(super) fn broken(text: String) -> Error {
    Error::new(ErrorKind::Remote, "progress", text)
}
