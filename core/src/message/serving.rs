//! Reads of a peer from memory that this process exposes, on the side of the owner: answered in order, piece by piece.

use std::collections::VecDeque;

use super::exposed::{Exposures, Refusal};
use super::head::{Head, Operation};
use super::mappings::Place;
use super::tokens::Token;
use super::wire::{Lent, Wire};
use crate::error::{Error, ErrorKind, Result};
use crate::wire::{Reader, WireResult};

/// The least that a piece counts for in a turn, so that many short ones do not hold up others either.
const LEAST: u64 = 256;
/// Shorter pieces are copied: keeping a share in the memory costs more.
const COPIED: usize = 4 << 10;

/// Bytes that one turn of progress serves to one peer before it goes on with others. A piece may be longer.
pub(super) const TURN: u64 = 512 << 10;

/// How far [`Serving::serve`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// All answers are pushed.
    All,
    /// The wire has no room.
    Full,
    /// So much was served as one turn may. There may be room for more.
    Enough,
}

/// The reads that one link has asked for.
#[derive(Debug, Default)]
pub(super) struct Serving {
    jobs: VecDeque<Job>,
}

#[derive(Debug)]
struct Job {
    id: u32,
    token: Token,
    offset: u64,
    left: u64,
    cancelled: bool,
    answer: Answer,
    /// A copy of the next piece, for which there was no room.
    copied: Option<Lent>,
}

/// How a read is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Data,
    /// The peer can map the memory, if that can be handed over.
    MayMap,
    /// The descriptor has been handed over; this says what it is.
    Mapped(Place),
}

/// Token, offset and length of a read.
pub(super) fn decode(body: &[u8]) -> WireResult<(Token, u64, u64)> {
    let mut r = Reader::new(body);
    let read = (Token::decode(&mut r)?, r.u64()?, r.u64()?);
    r.finish()?;
    Ok(read)
}

impl Serving {
    /// Takes a request, of a peer that can map the memory if `maps`; at most `depth` are open.
    pub(super) fn add(&mut self, id: u32, body: &[u8], maps: bool, depth: usize) -> Result<()> {
        if self.jobs.len() >= depth {
            let text = format!("the peer asks for more than {depth} reads at a time");
            return Err(Error::new(ErrorKind::Remote, "progress", text));
        }
        let (token, offset, left) = decode(body)?;
        let answer = if maps { Answer::MayMap } else { Answer::Data };
        self.jobs.push_back(Job { id, token, offset, left, cancelled: false, answer, copied: None });
        Ok(())
    }

    /// Serves no more of read `id`. One that was answered meanwhile is no error.
    pub(super) fn cancel(&mut self, id: u32) {
        if let Some(job) = self.jobs.iter_mut().find(|job| job.id == id) {
            job.cancelled = true;
        }
    }

    /// Pushes answers until all are pushed, there is no room, or others should have their turn.
    pub(super) fn serve(&mut self, exposures: &Exposures, wire: &dyn Wire) -> Result<Served> {
        let mut left = TURN;
        while let Some(job) = self.jobs.front_mut() {
            if left == 0 {
                return Ok(Served::Enough);
            }
            if job.answer == Answer::MayMap && !job.cancelled {
                job.answer = hand_over(exposures, job, wire);
            }
            // Also if it was cancelled meanwhile: the peer must take the descriptor.
            if let Answer::Mapped(place) = job.answer {
                if !wire.push(Head::new(Operation::Mapped, 0, job.id, Place::BYTES), &place.encode())? {
                    return Ok(Served::Full);
                }
                self.jobs.pop_front();
                continue;
            }
            let piece = job.left.min(wire.max_body() as u64);
            // All that is left must be within the memory, so that a read past the end brings nothing rather than a part.
            let lent = match exposures.lend(&job.token, job.offset, job.left) {
                _ if job.cancelled => Err(Refusal::Cancelled),
                Ok(_) => exposures.lend(&job.token, job.offset, piece),
                Err(refusal) => Err(refusal),
            };
            let lent = match lent {
                Ok(lent) => lent,
                Err(refusal) => {
                    if !wire.push(Head::new(Operation::Refused, 0, job.id, 1), &[refusal as u8])? {
                        return Ok(Served::Full);
                    }
                    self.jobs.pop_front();
                    continue;
                }
            };
            let head = Head::new(Operation::Data, 0, job.id, lent.len());
            let pushed = match lent.stable() {
                Some(bytes) if bytes.len() < COPIED => wire.push(head, bytes)?,
                Some(_) => wire.push_lent(head, lent)?,
                None => {
                    let copied = job.copied.take().unwrap_or_else(|| Lent::of(lent.copy()));
                    // The owner writes to it once it has revoked the token. If it still has not, all of the copy is from before.
                    if exposures.lend(&job.token, job.offset, piece).is_err() {
                        continue;
                    }
                    job.copied = Some(copied.clone());
                    wire.push_lent(head, copied)?
                }
            };
            if !pushed {
                return Ok(Served::Full);
            }
            left = left.saturating_sub(piece.max(LEAST));
            job.copied = None;
            job.offset += piece;
            job.left -= piece;
            if job.left == 0 {
                self.jobs.pop_front();
            }
        }
        if self.jobs.capacity() > 64 {
            self.jobs = VecDeque::new();
        }
        Ok(Served::All)
    }
}

/// Hands the memory over that `job` is about, if its token is good and the wire can do that. Otherwise it is answered as usual.
fn hand_over(exposures: &Exposures, job: &Job, wire: &dyn Wire) -> Answer {
    let Ok(Some(shown)) = exposures.map(&job.token, job.offset, job.left) else { return Answer::Data };
    if !shown.descriptor().is_some_and(|fd| wire.send_descriptor(fd)) {
        return Answer::Data;
    }
    Answer::Mapped(Place { length: shown.length() as u64, word: shown.index, serial: shown.serial })
}
