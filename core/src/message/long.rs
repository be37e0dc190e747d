//! Long data: a message that carries a token, and the receiver's read of what it stands for.

use std::sync::Arc;

use super::device::Target;
use super::head::Operation;
use super::inbox::Offer;
use super::line::Line;
use super::offers::Delivery;
use super::peer::Peer;
use super::read::Read;
use super::sent::Begun;
use super::tokens::Token;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::sync::{Mutex, lock};

/// In the body of an answer: the data was read.
const DELIVERED: u8 = 0;
/// In the body of an answer: it was not.
const REFUSED: u8 = 1;

/// The body of the answer to the offer of `token`. It names the token, because the offer's number comes again after 2^32 others: without
/// that, an answer that comes after the deadline could end another message.
pub(super) fn answer(token: &Token, delivered: bool) -> [u8; 1 + Token::MARK] {
    let mut body = [if delivered { DELIVERED } else { REFUSED }; 1 + Token::MARK];
    body[1..].copy_from_slice(&token.mark());
    body
}

/// The counterpart of [`answer`]: what became of the data, and the token's mark. `None` for other bytes.
pub(super) fn decode_answer(body: &[u8]) -> Option<(Delivery, [u8; Token::MARK])> {
    let (outcome, mark) = body.split_first()?;
    let delivery = match *outcome {
        DELIVERED => Delivery::Delivered,
        REFUSED => Delivery::Refused,
        _ => return None,
    };
    Some((delivery, mark.try_into().ok()?))
}

/// Long data that a peer offers. The receiver chooses when, and where to: [`read`](Self::read) it, at any later time. Dropping
/// it unread refuses it.
///
/// ```no_run
/// # fn f(mut message: aqueduct::message::Message, deadline: aqueduct::Deadline) -> aqueduct::Result<()> {
/// // The peer chose the length: bound it before memory is allocated. What is not read is refused.
/// if let Some(long) = message.long().filter(|long| long.len() <= 1 << 30) {
///     long.read(vec![0; long.len()], deadline, |bytes| println!("{} bytes", bytes.map_or(0, |b| b.len())))?.posted()?;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Long {
    peer: Peer,
    length: u64,
    answer: Pending,
}

/// The answer that is still to be given, shared with the completion of a read, which takes it.
type Pending = Arc<Mutex<Option<Answer>>>;

/// The duty to tell the sender what became of the data.
#[derive(Debug)]
struct Answer {
    peer: Peer,
    line: Arc<Line>,
    offer: Offer,
    delivered: bool,
}

impl Long {
    pub(super) fn new(peer: Peer, line: Arc<Line>, offer: Offer) -> Self {
        let length = offer.token.len();
        let answer = Some(Answer { peer: peer.clone(), line, offer, delivered: false });
        Self { peer, length, answer: Arc::new(Mutex::new(answer)) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        usize::try_from(self.length).unwrap_or(usize::MAX)
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads the first `into.len()` bytes, usually all; `completion` gets them, and the sender learns that they were delivered, or
    /// refused if they could not be read. As [`Peer::read`] otherwise. The value may be dropped meanwhile.
    ///
    /// # Errors
    /// As [`Peer::read`]. After `Retry` and errors `completion` is not called, and the data can still be read or refused. `InvalidUsage` if it
    /// is read already.
    pub fn read<C>(
        &self,
        into: Vec<u8>,
        deadline: impl Into<Deadline>,
        completion: C,
    ) -> Result<Begun<Read, Vec<u8>, C>>
    where
        C: FnOnce(Result<Vec<u8>>) + Send + 'static,
    {
        let deadline = deadline.into();
        self.begin(|token, told| {
            self.peer.read_and_tell((&token, 0), into, deadline, completion, |completion| {
                Box::new(move |outcome| {
                    told(outcome.is_ok());
                    completion(outcome);
                })
            })
        })
    }

    /// As [`read`](Self::read), into the memory of a device or [`SharedMemory`](super::SharedMemory); see [`Peer::read_into`].
    ///
    /// # Errors
    /// As [`read`](Self::read); those of the driver.
    pub fn read_into<C>(
        &self,
        into: impl Into<Target>,
        deadline: impl Into<Deadline>,
        completion: C,
    ) -> Result<Begun<Read, Target, C>>
    where
        C: FnOnce(Result<()>) + Send + 'static,
    {
        let (into, deadline) = (into.into(), deadline.into());
        self.begin(|token, told| {
            self.peer.read_into_and_tell((&token, 0), into, deadline, completion, |completion| {
                Box::new(move |outcome| {
                    told(outcome.is_ok());
                    completion(outcome.map(drop));
                })
            })
        })
    }

    /// Begins the read with `read`, whose completion says whether the data has come.
    fn begin<D, C>(
        &self,
        read: impl FnOnce(Token, Box<dyn FnOnce(bool) + Send>) -> Result<Begun<Read, D, C>>,
    ) -> Result<Begun<Read, D, C>> {
        let Some(answer) = lock(&self.answer).take() else {
            return Err(Error::usage("read", "this long data was read before; keep the bytes instead"));
        };
        let token = answer.offer.token;
        let pending: Pending = Arc::new(Mutex::new(Some(answer)));
        let taken = pending.clone();
        let told = Box::new(move |delivered| {
            if let Some(mut answer) = lock(&taken).take() {
                answer.delivered = delivered;
            }
        });
        let read = read(token, told);
        if !matches!(read, Ok(Begun::Posted(_))) {
            *lock(&self.answer) = lock(&pending).take();
        }
        read
    }

    /// Refuses it; the same as dropping it.
    pub fn refuse(self) {}
}

impl Drop for Answer {
    fn drop(&mut self) {
        let member = &self.peer.member;
        let answer = answer(&self.offer.token, self.delivered);
        // If the link is gone, the sender has been told so.
        let _ = member.tell(&self.line, Operation::LongDone, 0, self.offer.id, &answer);
    }
}
