//! Reads of a peer from memory that this process exposes, on the side of the owner: answered in order, piece by piece.

use std::collections::VecDeque;

use super::exposed::{Exposures, Lending, Refusal};
use super::handing::{Handed, hand_over};
use super::head::{Head, Operation};
use super::keys::{self, Key};
use super::lent::Lent;
use super::one_sided::OneSided;
use super::staging::{Next, Staging};
use super::tokens::Token;
use super::wire::Wire;
use crate::error::{Error, ErrorKind, Result};
use crate::rdma::QpAddress;
use crate::wire::{Reader, WireResult};

/// The least that a piece counts for in a turn, so that many short ones do not hold up others either.
const LEAST: u64 = 256;
/// Shorter pieces are copied: keeping a share in the memory costs more.
const COPIED: usize = 4 << 10;

/// Bytes that one turn of progress serves to one peer before it goes on with others. A piece may be longer.
pub(super) const TURN: u64 = 512 << 10;

/// What a key counts for in a turn: memory that was not read before is registered. A new pair is enough for one.
const KEY: u64 = TURN / 8;

/// How far [`Serving::serve`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// All answers are pushed.
    All,
    /// The wire has no room.
    Full,
    /// So much was served as one turn may, or a device copies. Another turn may have more to do.
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
    /// Parts of a device's memory on their way through the host.
    staging: Staging,
}

/// How a read is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Data,
    /// The peer can map the memory, if that can be handed over.
    MayMap,
    /// Descriptors have been handed over; this says what they are.
    Mapped(Handed),
    /// The peer's device can read the memory; the address of its end of a new pair, if it made one.
    MayFetch(Option<QpAddress>),
    Key(Option<Key>),
}

/// Token, offset and length of a read; and the reader's end of a pair for reads, in a request for a key that has one.
pub(super) fn decode(body: &[u8], may_have_pair: bool) -> WireResult<(Token, u64, u64, Option<QpAddress>)> {
    let mut r = Reader::new(body);
    let (token, offset, length) = (Token::decode(&mut r)?, r.u64()?, r.u64()?);
    let pair = if may_have_pair && r.remaining() > 0 { Some(QpAddress::decode(&mut r)?) } else { None };
    r.finish()?;
    Ok((token, offset, length, pair))
}

impl Serving {
    /// Takes a request; at most `depth` are open.
    pub(super) fn add(&mut self, head: Head, body: &[u8], depth: usize) -> Result<()> {
        if self.jobs.len() >= depth {
            let text = format!("the peer asks for more than {depth} reads at a time");
            return Err(Error::new(ErrorKind::Remote, "progress", text));
        }
        let (token, offset, left, pair) = decode(body, head.operation == Operation::Fetch)?;
        let answer = match head.operation {
            Operation::Map => Answer::MayMap,
            Operation::Fetch => Answer::MayFetch(pair),
            _ => Answer::Data,
        };
        let staging = Staging::default();
        self.jobs.push_back(Job {
            id: head.id,
            token,
            offset,
            left,
            cancelled: false,
            answer,
            copied: None,
            staging,
        });
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
                // Exporting a device's memory is a call of its driver.
                left = left.saturating_sub(KEY);
                let request = (&job.token, job.offset, job.left);
                job.answer = hand_over(exposures, request, wire).map_or(Answer::Data, Answer::Mapped);
            }
            if let Answer::MayFetch(pair) = job.answer {
                left = left.saturating_sub(if pair.is_some() { TURN } else { KEY });
                job.answer = Answer::Key(give_key(exposures, job, wire.one_sided(), pair));
            }
            if let Answer::Key(key) = &job.answer {
                let body = keys::encode(key.as_ref());
                if !wire.push(Head::new(Operation::Key, 0, job.id, body.len()), &body)? {
                    return Ok(Served::Full);
                }
                self.jobs.pop_front();
                continue;
            }
            // Also if it was cancelled meanwhile: the peer must take the descriptor.
            if let Answer::Mapped(handed) = &job.answer {
                let body = handed.encode();
                if !wire.push(Head::new(Operation::Mapped, 0, job.id, body.len()), &body)? {
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
            let (mut staged, most) = (false, wire.max_body());
            let lent = match lent {
                Ok(Lending::Bytes(lent)) => Ok(lent),
                Ok(Lending::Device(memory)) => {
                    match job.staging.next(&**memory, (job.offset, job.left), most) {
                        Ok(Next::Later) => return Ok(Served::Enough),
                        // Looked up once more: if the owner still has not revoked the token, all of the copy is from before.
                        Ok(Next::Bytes(bytes)) => {
                            staged = true;
                            exposures.resources.note();
                            exposures.lend(&job.token, job.offset, job.left).map(|_| bytes)
                        }
                        Err(error) => {
                            log::warn!("memory that a peer reads cannot be copied to the host: {error}");
                            Err(Refusal::Failed)
                        }
                    }
                }
                Err(refusal) => Err(refusal),
            };
            let lent = match lent {
                Ok(lent) => lent,
                Err(refusal) => {
                    job.staging = Staging::default();
                    if !wire.push(Head::new(Operation::Refused, 0, job.id, 1), &[refusal as u8])? {
                        return Ok(Served::Full);
                    }
                    self.jobs.pop_front();
                    continue;
                }
            };
            let piece = lent.len() as u64;
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
                // Until then another turn is needed, and no descriptor tells of it.
                return Ok(if job.staging.is_copying() { Served::Enough } else { Served::Full });
            }
            exposures.sent(&job.token, piece);
            if staged {
                job.staging.sent(piece);
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

/// Gives the key of the memory that `job` is about, if its token is good and the `device` can be used. Otherwise the peer asks
/// for the data, and is told what is wrong.
fn give_key(
    exposures: &Exposures,
    job: &Job,
    device: Option<&dyn OneSided>,
    pair: Option<QpAddress>,
) -> Option<Key> {
    let device = device?;
    let (token, offset, length) = (&job.token, job.offset, job.left);
    let admit = || match pair.map(|theirs| device.admit(&theirs)).transpose() {
        Ok(pair) => Some(pair),
        Err(error) => {
            log::info!("a peer's device cannot read memory of this process: {error}");
            None
        }
    };
    let register = || exposures.key(token, offset, length, |bytes| device.register(bytes)).ok().flatten();
    let stock = exposures.stock(token, offset, length, |bytes, shared| device.stock(bytes, shared)).ok()?;
    let Some(stock) = stock else {
        let region = register()?;
        return Some(Key { region, pair: admit()? });
    };
    // A window belongs to a pair.
    let pair = admit()?;
    let exposure = (token.slot, token.age);
    match device.show(exposure, &stock) {
        Ok(Some((region, rights))) => {
            // The owner may have revoked the token meanwhile. Nobody has learned the key.
            let added = exposures.add_rights(token, &rights);
            if added.is_err() {
                rights.revoke(exposure);
            }
            added.ok().map(|()| Key { region, pair })
        }
        Ok(None) => Some(Key { region: register()?, pair }),
        Err(error) => {
            log::info!("a peer's pair for reads has ended: {error}");
            // By an earlier pair, the peer's next read fails, and then it makes another. A new one that has failed already is of no use to it.
            if pair.is_some() { None } else { Some(Key { region: register()?, pair }) }
        }
    }
}
