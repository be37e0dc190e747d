//! Reads into the memory of devices among the reads of a link: their parts are in the queue, and what ends is told in order.
#![forbid(unsafe_code)]

use std::time::Duration;

use super::reading::{Finished, Reading, Way, oldest};
use super::reads::{Reads, late_error};
use super::transfer::{Transfer, Turn};
use super::transfers::{HandedDevice, Part, unasked};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};

impl Reads {
    /// Queues a read into the memory of a device, or into shared memory; returns its number.
    pub(super) fn add_transfer(&mut self, transfer: Transfer) -> u64 {
        let id = self.begin(transfer.deadline);
        self.transfers.add(Transfer { id, ..transfer });
        id
    }

    /// Moves reads into devices on. Gives those that have ended to `deliver`.
    pub(super) fn step_transfers(
        &mut self,
        revoked: &dyn Fn() -> Error,
        deliver: &mut dyn FnMut(Finished),
    ) -> Turn {
        if self.ended.is_some() || self.transfers.is_empty() {
            return Turn::default();
        }
        let Self { transfers, queue, next, maps, fetches, .. } = self;
        let mut given_up = Vec::new();
        let mut issue = |transfer, part: Part| {
            let id = *next;
            *next += 1;
            let Part { token, offset, into, length, placing, maps: asks } = part;
            let may_map = asks || (*maps && token.shared && !token.device);
            queue.push_back(Reading {
                id,
                token,
                offset,
                length,
                way: Way::new(may_map, *fetches && !token.device && length > 0),
                into,
                placing,
                got: 0,
                begun: 0,
                // The whole has one.
                deadline: Deadline::after(Duration::MAX),
                transfer: Some(transfer),
                completion: Some(Box::new(drop)),
            });
            id
        };
        let turn = transfers.step(*maps, revoked, &mut issue, &mut given_up);
        self.drop_parts(given_up);
        self.tell(None, deliver);
        turn
    }

    /// Whether there are reads into devices.
    pub(super) fn has_transfers(&self) -> bool {
        !self.transfers.is_empty()
    }

    /// A read has ended. Gives all that are to be told of now to `deliver`, in order; says whether a read into a device has to be
    /// moved on.
    pub(super) fn settle(&mut self, finished: Finished, deliver: &mut dyn FnMut(Finished)) -> bool {
        let Some(transfer) = finished.transfer else {
            self.tell(Some(finished), deliver);
            return false;
        };
        let given_up = self.transfers.part_ended(transfer, finished.id, finished.outcome);
        self.drop_parts(given_up);
        self.tell(None, deliver);
        true
    }

    /// Gives reads that have ended to `deliver`, those whose turn it is.
    fn tell(&mut self, finished: Option<Finished>, deliver: &mut dyn FnMut(Finished)) {
        let is_open = |reading: &&Reading| reading.completion.is_some() && reading.transfer.is_none();
        let oldest = self.queue.iter().find(is_open).map(|reading| reading.id);
        self.transfers.settle(finished, oldest, deliver);
    }

    /// Gives up parts of a read into a device that has failed. Their owner is not told: it is not much.
    fn drop_parts(&mut self, parts: Vec<u64>) {
        for id in parts {
            let why = Error::new(ErrorKind::Aborted, "read", "the read that it is a part of has failed");
            drop(self.cancel(id, why));
        }
    }

    /// The owner has handed over the memory of a device, for the oldest read; `None` if that failed on the way.
    pub(super) fn handed(&mut self, id: u32, handed: Option<HandedDevice>) -> Result<Option<Finished>> {
        let asked_for = self.waits_for_mapping && self.asked == 1;
        let reading = oldest(&mut self.queue, self.asked, id)?;
        let Some(transfer) = reading.transfer.filter(|_| asked_for && reading.token.device) else {
            return Err(unasked());
        };
        (self.asked, self.waits_for_mapping) = (0, false);
        let Some(reading) = self.queue.pop_front() else { return Ok(None) };
        match handed {
            Some(handed) if reading.completion.is_some() => {
                self.transfers.handed(transfer, reading.id, handed);
                Ok(None)
            }
            // As if the owner had answered with data, of which there is none.
            _ => Ok(reading.end(Ok(Vec::new()))),
        }
    }

    /// Gives up read `id` into a device, if it has not ended: it ends when the device writes nothing more, with `why`. False if it has.
    pub(super) fn cancel_transfer(&mut self, id: u64, why: Error) -> bool {
        let is_open = self.transfers.is_open(id);
        let parts = self.transfers.give_up(id, why);
        self.drop_parts(parts);
        is_open
    }

    /// Gives up reads into devices whose deadline has passed; says whether there are any.
    pub(super) fn expire_transfers(&mut self) -> bool {
        let late = self.transfers.late();
        for id in &late {
            self.cancel_transfer(*id, late_error());
        }
        !late.is_empty()
    }
}
