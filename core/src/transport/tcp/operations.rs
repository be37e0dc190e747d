//! Operations of this rank, until frames are made of them.

use std::collections::VecDeque;

use super::super::waits::Awaited;
use super::frame::{Frame, MAX_PAYLOAD};
use super::made::{Made, Obstacle};
use super::piece::Payload;
use super::reads::{Reads, WINDOW};
use super::staging::Staging;
use crate::error::Result;
use crate::memory::Place;

pub(super) enum Operation {
    Write { region: u64, offset: u64, source: Place, len: usize, done: usize },
    Update { region: u64, offset: u64, value: u64 },
    Read { region: u64, offset: u64, to: Place, len: usize, done: usize },
    Ask,
    After(Awaited),
}

impl Operation {
    /// The memory of this rank that it uses.
    fn into_place(self) -> Option<Place> {
        match self {
            Self::Write { source: place, .. } | Self::Read { to: place, .. } => Some(place),
            Self::Update { .. } | Self::Ask | Self::After(_) => None,
        }
    }

    /// Whether frames of it are still to be made.
    fn is_unfinished(&self) -> bool {
        matches!(self, Self::Write { len, done, .. } | Self::Read { len, done, .. } if *done < *len)
    }
}

/// Operations to send, in order.
#[derive(Default)]
pub(super) struct Operations(VecDeque<Operation>);

impl Operations {
    pub(super) fn push(&mut self, operation: Operation) {
        self.0.push_back(operation);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nothing more is sent: gives the memory out, to be dropped where blocking is allowed.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Place> {
        self.0.drain(..).filter_map(Operation::into_place)
    }

    /// The next frame, if it can be made. Device memory needs room in `staging`; bytes that were `spilled` from there, and are not sent
    /// yet, come first.
    pub(super) fn next(&mut self, reads: &Reads, staging: &mut Staging, spilled: usize) -> Result<Made> {
        loop {
            let Some(operation) = self.0.front_mut() else { return Ok(Made::Nothing) };
            let (frame, payload) = match operation {
                Operation::After(awaited) => {
                    if !awaited.is_over()? {
                        return Ok(Made::Waits(Obstacle::Device));
                    }
                    self.0.pop_front();
                    continue;
                }
                // Operations take effect in order: what a read reads must not be overwritten before, and what it brings may be sent.
                Operation::Write { .. } | Operation::Update { .. } if reads.waiting() > 0 => {
                    return Ok(Made::Waits(Obstacle::Answers));
                }
                Operation::Update { region, offset, value } => {
                    (Frame::Update { region: *region, offset: *offset, value: *value }, Payload::None)
                }
                Operation::Ask => (Frame::Ask, Payload::None),
                // So much of this connection lies in ordinary memory, and no more.
                Operation::Write { source: Place::Device(_), .. } if spilled > 0 => {
                    return Ok(Made::Waits(Obstacle::Socket));
                }
                Operation::Write { region, offset, source, len, done } => {
                    let size = (*len - *done).min(MAX_PAYLOAD);
                    let Some(payload) = Payload::of(source, *done, size, staging)? else {
                        return Ok(Made::Waits(Obstacle::of(staging)));
                    };
                    let offset = *offset + *done as u64;
                    *done += size;
                    (Frame::Write { region: *region, offset, len: size as u32 }, payload)
                }
                Operation::Read { .. } if reads.waiting() >= WINDOW => {
                    return Ok(Made::Waits(Obstacle::Answers));
                }
                Operation::Read { region, offset, to, len, done } => {
                    let size = (*len - *done).min(MAX_PAYLOAD);
                    reads.ask(to.part(*done, size)?, size);
                    let offset = *offset + *done as u64;
                    *done += size;
                    (Frame::Read { region: *region, offset, len: size as u32 }, Payload::None)
                }
            };
            let unfinished = operation.is_unfinished();
            let ended = if unfinished { None } else { self.0.pop_front() };
            return Ok(Made::Frame(frame, payload, ended.and_then(Operation::into_place)));
        }
    }
}
