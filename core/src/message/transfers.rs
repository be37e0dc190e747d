//! Reads of one link into the memory of devices ([`Open`]), a bounded number of their parts at a time.
//!
//! A part is a read like any other, without a completion of its own. Completions of all reads run in the order of the calls: reads
//! that end while an earlier one into a device is under way are held back until that has ended.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::device::STAGED;
use super::mappings::Mapping;
use super::placing::Placing;
use super::reading::Finished;
use super::tokens::Token;
use super::transfer::{Mapped, Open, Transfer, Turn, Way};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};

/// Bytes of parts that may be under way, or wait for a device, at a time; and how many parts.
const MAX_BYTES: usize = 4 * STAGED;
const MAX_PARTS: usize = 64;
/// Tokens of mapped memory that are kept, and tokens of which it is kept that their memory cannot be mapped.
const MAX_MAPPED: usize = 64;
/// How long memory counts as one that cannot be mapped: its owner or this side may have been short of something.
const UNMAPPABLE: Duration = Duration::from_secs(5);
/// How long the end of links waits for copies of their devices.
const SETTLES: Duration = Duration::from_secs(1);
/// How long a read that was given up waits for what is on its way to its place.
const GIVEN_UP: Duration = Duration::from_millis(500);

/// A device's memory as its owner has handed it over: the page with the word of the exposure, and the memory with its description.
pub(super) struct HandedDevice {
    pub(super) word: Mapping,
    pub(super) descriptor: OwnedFd,
    pub(super) description: Vec<u8>,
}

/// A part to be read, or a request for a handle, which has no bytes.
pub(super) struct Part {
    pub(super) token: Token,
    pub(super) offset: u64,
    pub(super) into: Vec<u8>,
    pub(super) length: usize,
    /// The place for the bytes, if this side's RDMA device may bring them there; `into` is empty then.
    pub(super) placing: Option<Arc<Placing>>,
    pub(super) maps: bool,
}

/// The reads of one link into devices, and what is held back for their sake.
#[derive(Default)]
pub(super) struct Transfers {
    /// In the order of the calls.
    open: VecDeque<Open>,
    /// Reads that have ended after one into a device was begun that has not, by number.
    held: VecDeque<Finished>,
    /// The latest used first.
    mapped: Vec<Arc<Mapped>>,
    /// The latest first, and since when.
    unmappable: VecDeque<(Token, Instant)>,
    /// A buffer of a part that has ended.
    spare: Vec<u8>,
}

/// The reads of a link that has ended, as long as devices may copy for them.
pub(super) struct Failed {
    open: VecDeque<Open>,
    held: VecDeque<Finished>,
    _mapped: Vec<Arc<Mapped>>,
}

impl Failed {
    /// Ends all of them because of `why`, with what was held back, in order. Waits for copies of devices until `settled`: the caller may use
    /// the memory again. Call it without the lock of the reads, which others take meanwhile.
    pub(super) fn end(mut self, why: &Error, settled: Deadline) -> Vec<Finished> {
        let mut ended = Vec::new();
        for mut open in self.open {
            while open.copies.iter_mut().any(|copy| matches!(copy.is_done(), Ok(false))) && !settled.expired()
            {
                std::thread::yield_now();
            }
            while self.held.front().is_some_and(|held| held.id < open.transfer.id) {
                ended.extend(self.held.pop_front());
            }
            open.failed = open.failed.or_else(|| Some(why.clone().of("read")));
            ended.push(open.end());
        }
        ended.extend(self.held);
        ended
    }
}

/// Until when links that end now wait for copies of their devices, all of them together.
pub(super) fn settled() -> Deadline {
    Deadline::after(SETTLES)
}

impl Transfers {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Reads of which nobody has been told yet, without those that are still in the queue.
    pub(super) fn len(&self) -> usize {
        self.open.len() + self.held.len()
    }

    pub(super) fn add(&mut self, transfer: Transfer) {
        let length = transfer.target.len();
        self.open.push_back(Open {
            transfer,
            length,
            way: Way::Undecided,
            begun: 0,
            asked: false,
            parts: Vec::new(),
            come: VecDeque::new(),
            copies: VecDeque::new(),
            failed: None,
            failed_at: None,
            early: false,
        });
    }

    /// The earliest deadline.
    pub(super) fn deadline(&self) -> Option<Deadline> {
        self.open.iter().filter(|open| open.failed.is_none()).map(|open| open.transfer.deadline).min()
    }

    /// Whether there is one with the number `id` that was not given up.
    pub(super) fn is_open(&self, id: u64) -> bool {
        self.open.iter().any(|open| open.transfer.id == id && open.failed.is_none())
    }

    /// The ones whose deadline has passed.
    pub(super) fn late(&self) -> Vec<u64> {
        let late = |open: &&Open| open.failed.is_none() && open.transfer.deadline.expired();
        self.open.iter().filter(late).map(|open| open.transfer.id).collect()
    }

    /// Whether an RDMA device has not brought in time what was on its way for a read that was given up.
    pub(super) fn hang(&self) -> bool {
        let late = |failed_at: Instant| failed_at.elapsed() > GIVEN_UP;
        let hangs = |open: &Open| {
            open.transfer.place.is_some() && !open.copies.is_empty() && open.failed_at.is_some_and(late)
        };
        self.open.iter().any(hangs)
    }

    /// Gives read `id` up because of `why`. It ends when the device writes nothing more. Returns the numbers of its parts, which nobody
    /// wants any more.
    pub(super) fn give_up(&mut self, id: u64, why: Error) -> Vec<u64> {
        let Some(open) = self.open.iter_mut().find(|open| open.transfer.id == id) else { return Vec::new() };
        open.early |= open.failed.is_none();
        open.fail(why)
    }

    /// A part of the read `id`, or its request for a handle, has ended.
    pub(super) fn part_ended(&mut self, id: u64, part: u64, outcome: Result<Vec<u8>>) -> Vec<u64> {
        let Some(open) = self.open.iter_mut().find(|open| open.transfer.id == id) else { return Vec::new() };
        let Some(index) = open.parts.iter().position(|(known, _)| *known == part) else { return Vec::new() };
        let (_, at) = open.parts.swap_remove(index);
        match outcome {
            Err(error) => return open.fail(error),
            Ok(_) if matches!(open.way, Way::Asking) => {
                // Answered without a handle.
                open.way = Way::Parts;
                let token = open.transfer.token;
                self.refuse(token);
            }
            Ok(bytes) => open.come.push_back((at, bytes)),
        }
        Vec::new()
    }

    /// The owner has answered the request of read `id` for a handle with one.
    pub(super) fn handed(&mut self, id: u64, part: u64, handed: HandedDevice) {
        let Some(open) = self.open.iter_mut().find(|open| open.transfer.id == id) else { return };
        open.parts.retain(|(known, _)| *known != part);
        let (token, target) = (open.transfer.token, &open.transfer.target);
        match target.map(handed.descriptor.as_fd(), &handed.description) {
            Ok(memory) if memory.len() >= token.length => {
                let mapped = Arc::new(Mapped { token, device: target.device(), word: handed.word, memory });
                open.way = Way::Mapped(mapped.clone());
                self.mapped.truncate(MAX_MAPPED - 1);
                self.mapped.insert(0, mapped);
            }
            outcome => {
                if let Err(error) = outcome {
                    log::debug!("memory of a peer's device is not mapped: {error}");
                }
                open.way = Way::Parts;
                self.refuse(token);
            }
        }
    }

    /// As if so much time had passed.
    #[cfg(all(test, not(loom)))]
    pub(super) fn age(&mut self, time: Duration) {
        self.unmappable.iter_mut().for_each(|(_, since)| *since -= time);
    }

    /// Notes that memory cannot be mapped now.
    fn refuse(&mut self, token: Token) {
        self.unmappable.retain(|(other, _)| *other != token);
        self.unmappable.truncate(MAX_MAPPED - 1);
        self.unmappable.push_front((token, Instant::now()));
    }

    /// Moves on what can be: begins parts with `issue`, which returns their numbers, gives bytes to devices, and looks which copies have
    /// ended. `maps` says whether the link can carry descriptors. Adds to `given_up` the parts that nobody wants any more.
    pub(super) fn step(
        &mut self,
        maps: bool,
        revoked: &dyn Fn() -> Error,
        issue: &mut dyn FnMut(u64, Part) -> u64,
        given_up: &mut Vec<u64>,
    ) -> Turn {
        let copies = self.open.iter().map(|open| open.copies.len()).sum();
        let mut turn = Turn { copies, ..Turn::default() };
        let waiting = |open: &Open| open.come.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        let (mut parts, mut bytes) = (0, 0);
        for open in &self.open {
            parts += open.parts.len() + open.come.len();
            bytes +=
                waiting(open) + open.parts.iter().map(|(_, at)| STAGED.min(open.length - at)).sum::<usize>();
        }
        let mut may_begin = true;
        for index in 0..self.open.len() {
            let open = &mut self.open[index];
            let stepped = open.advance(revoked, &mut self.spare, &mut turn);
            if let Err(error) = stepped {
                given_up.extend(open.fail(error));
                // Its other copies have to be asked for, and what is behind its parts may have its turn.
                turn.moved += 1;
            }
            if !may_begin || open.failed.is_some() {
                continue;
            }
            if matches!(open.way, Way::Undecided) {
                let (token, device) = (open.transfer.token, open.transfer.target.device());
                let can_map = maps && token.shared && token.device && device.is_some();
                let is_refused =
                    |(other, since): &(Token, Instant)| *other == token && since.elapsed() < UNMAPPABLE;
                open.way = if !can_map || self.unmappable.iter().any(is_refused) {
                    Way::Parts
                } else if let Some(known) =
                    self.mapped.iter().position(|mapped| mapped.token == token && mapped.device == device)
                {
                    self.mapped[..=known].rotate_right(1);
                    Way::Mapped(self.mapped[0].clone())
                } else {
                    let offset = open.transfer.offset;
                    let part = Part { token, offset, into: Vec::new(), length: 0, placing: None, maps: true };
                    open.parts.push((issue(open.transfer.id, part), open.length));
                    turn.moved += 1;
                    Way::Asking
                };
            }
            match &open.way {
                // The next ones are likely to be of the same memory.
                Way::Asking | Way::Undecided => may_begin = false,
                Way::Mapped(_) => {
                    if let Err(error) = open.advance(revoked, &mut self.spare, &mut turn) {
                        given_up.extend(open.fail(error));
                        turn.moved += 1;
                    }
                }
                Way::Parts => {
                    while open.wants_part() && parts < MAX_PARTS && bytes < MAX_BYTES {
                        let length = STAGED.min(open.length - open.begun);
                        let Transfer { id, token, offset, ref place, .. } = open.transfer;
                        let placing = place.as_ref().filter(|_| length > 0);
                        let placing = placing.map(|place| Arc::new(place.behind(open.begun)));
                        let mut into = Vec::new();
                        match &placing {
                            Some(placing) => open.copies.push_back(Box::new(placing.underway())),
                            None => {
                                into = std::mem::take(&mut self.spare);
                                into.resize(length, 0);
                            }
                        }
                        let offset = offset + open.begun as u64;
                        let part = Part { token, offset, into, length, placing, maps: false };
                        open.parts.push((issue(id, part), open.begun));
                        (open.begun, open.asked) = (open.begun + length, true);
                        (parts, bytes, turn.moved) = (parts + 1, bytes + length, turn.moved + 1);
                    }
                    may_begin &= !open.wants_part();
                }
            }
        }
        turn
    }

    /// Takes a read that has ended, and gives all that are to be told now to `deliver`, in order. `oldest` is the first read in the queue
    /// that is no part, if there is one: a device that has mapped the memory may be done before the owner has answered that.
    pub(super) fn settle(
        &mut self,
        finished: Option<Finished>,
        oldest: Option<u64>,
        deliver: &mut dyn FnMut(Finished),
    ) {
        if let Some(finished) = finished {
            if self.open.front().is_none_or(|open| finished.id < open.transfer.id) {
                deliver(finished);
            } else {
                let at = self.held.partition_point(|held| held.id < finished.id);
                self.held.insert(at, finished);
            }
        }
        // Those that were given up do not wait for their turn.
        let mut index = 0;
        while index < self.open.len() {
            let open = &self.open[index];
            let is_first = || index == 0 && oldest.is_none_or(|oldest| open.transfer.id < oldest);
            if open.is_over() && (open.early || is_first()) {
                if index == 0 {
                    self.release(deliver);
                }
                if let Some(open) = self.open.remove(index) {
                    deliver(open.end());
                }
            } else {
                index += 1;
            }
        }
        self.release(deliver);
        if self.open.is_empty() {
            self.spare = Vec::new();
        }
    }

    /// Gives the reads that were held back and that come before all that are under way.
    fn release(&mut self, deliver: &mut dyn FnMut(Finished)) {
        while let Some(held) = self.held.front() {
            if self.open.front().is_some_and(|open| open.transfer.id < held.id) {
                break;
            }
            self.held.pop_front().into_iter().for_each(&mut *deliver);
        }
    }

    /// Gives all of them up, with what was held back. Their devices may still copy.
    pub(super) fn fail(&mut self) -> Failed {
        self.spare = Vec::new();
        Failed {
            open: std::mem::take(&mut self.open),
            held: std::mem::take(&mut self.held),
            _mapped: std::mem::take(&mut self.mapped),
        }
    }

    /// Unmaps memory that is not exposed any more, so that its owner's system gets it back.
    pub(super) fn sweep(&mut self) {
        self.mapped.retain(|mapped| !mapped.word.is_revoked());
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn mappings(&self) -> usize {
        self.mapped.len()
    }

    /// Bytes that are kept for the next part.
    #[cfg(all(test, not(loom)))]
    pub(super) fn spare(&self) -> usize {
        self.spare.capacity()
    }
}

/// The error for a handle that nobody asked for.
pub(super) fn unasked() -> Error {
    Error::new(ErrorKind::Remote, "progress", "a handle of memory for which nobody asked")
}
