//! The sending side: frames are copied into packets, and packets leave while there are credits.
//!
//! A frame leaves at once if none has come since the last flush. Further ones leave when their packet is full, or at the next flush: each
//! packet takes a receive of the peer, whatever is in it.

use std::collections::VecDeque;

use super::credits::{Credits, RECEIVES};
use super::memory::Slots;
use super::packet::{Header, PAYLOAD};
use super::{PACKET, RECEIVE};
use crate::error::Result;
use crate::message::head::{Head, Operation};
use crate::rdma::{Batch, INLINE_BYTES, LocalRange, QueuePair, ReadyToSend, RemoteRegion, Window};
use crate::wire::Reader;

/// The queue pair, and the ring of sends.
#[derive(Debug)]
pub(super) struct Outbound {
    queue_pair: QueuePair<ReadyToSend>,
    window: Window,
    batch: Batch,
    /// The most bytes that a packet may have to leave inline.
    inline: usize,
    /// Slots that hold nothing.
    free: Vec<u32>,
    /// How many of them data frames leave to others.
    reserved: usize,
    /// How many of them all frames leave to packets that only give back receives: 1 where such a packet does not leave inline.
    /// Otherwise two ends whose slots all wait for credits would wait for each other.
    spare: usize,
    /// Packets that have not left, and the bytes in them. The last one takes more.
    filled: VecDeque<(u32, usize)>,
    /// Packets whose requests are not known to have completed: number of the request, and slot.
    in_flight: VecDeque<(u64, u32)>,
    /// The number of the next frame.
    sequence: u32,
    /// No frame has come since the last flush: the next one leaves at once.
    fresh: bool,
    /// A packet leaves even if it is not full.
    flushing: bool,
}

impl Outbound {
    /// Over `queue_pair`, with at most `depth` requests outstanding, and the `sends` slots behind the receives. Packets of up to `inline`
    /// bytes leave inline if the queue pair takes so many, which may be more than it was asked for.
    pub(super) fn new(queue_pair: QueuePair<ReadyToSend>, sends: u32, depth: u32, inline: usize) -> Self {
        let inline = (queue_pair.max_inline() as usize).min(inline);
        // Requests that are not covered by a signalled one keep less than half of the slots, so that the longest frame fits.
        let window = Window::new(depth, sends / 4);
        let free = (RECEIVES..RECEIVES + sends).rev().collect();
        let (filled, in_flight) = (VecDeque::new(), VecDeque::new());
        let batch = Batch::with_capacity(8);
        let (sequence, fresh, flushing) = (0, true, false);
        // With those that are not covered, less than half: the longest data frame fits into the others.
        let reserved = sends as usize / 4;
        let spare = usize::from(inline < Header::BYTES);
        Self {
            queue_pair,
            window,
            batch,
            inline,
            free,
            reserved,
            spare,
            filled,
            in_flight,
            sequence,
            fresh,
            flushing,
        }
    }

    pub(super) fn queue_pair(&self) -> &QueuePair<ReadyToSend> {
        &self.queue_pair
    }

    /// Copies one frame into packets; false if there is no room for all of it.
    #[inline]
    pub(super) fn append(&mut self, slots: &Slots, head: Head, body: &[u8]) -> bool {
        let open = self.filled.back().map_or(0, |(_, filled)| PACKET - filled);
        // Answers to reads leave some slots to messages, which pass between them.
        let left = if head.operation == Operation::Data { self.reserved } else { self.spare };
        if Head::BYTES + body.len() > open + self.free.len().saturating_sub(left) * PAYLOAD {
            return false;
        }
        self.copy(slots, &Head { sequence: self.sequence, ..head }.encode());
        self.copy(slots, body);
        self.sequence = self.sequence.wrapping_add(1);
        self.flushing |= std::mem::take(&mut self.fresh);
        true
    }

    /// Has all frames so far leave in the next [`issue`](Self::issue), also those in a packet that is not full, and the next
    /// one at once.
    pub(super) fn flush(&mut self) {
        self.fresh = true;
        self.flushing |= !self.filled.is_empty();
    }

    /// Whether the packet in front is not held back for more frames.
    fn is_due(&self) -> bool {
        self.filled.len() > 1
            || self.filled.front().is_some_and(|(_, filled)| self.flushing || *filled == PACKET)
    }

    /// Copies bytes for which there is room.
    fn copy(&mut self, slots: &Slots, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.filled.back().is_none_or(|(_, filled)| *filled == PACKET) {
                let slot = self.free.pop().expect("the caller has counted the room");
                self.filled.push_back((slot, Header::BYTES));
            }
            let (slot, filled) = self.filled.back_mut().expect("made above if there was none");
            let (now, later) = bytes.split_at(bytes.len().min(PACKET - *filled));
            slots.slot(*slot).write(*filled, now).expect("within the slot");
            *filled += now.len();
            bytes = later;
        }
    }

    /// Sends packets, as far as there are credits and places in the queue, and gives receives back.
    pub(super) fn issue(&mut self, slots: &Slots, credits: &mut Credits) -> Result<()> {
        loop {
            let sent = if credits.may_send() && self.is_due() {
                self.send_packet(slots, credits)?
            } else if credits.owes_bundle() {
                self.send_credits(slots, credits)?
            } else {
                false
            };
            if !sent {
                return self.post();
            }
        }
    }

    fn send_packet(&mut self, slots: &Slots, credits: &mut Credits) -> Result<bool> {
        let (Some(&(slot, filled)), Some((id, signal))) = (self.filled.front(), self.window.take()) else {
            return Ok(false);
        };
        self.filled.pop_front();
        self.flushing &= !self.filled.is_empty();
        let header = Header { returned: credits.take_owed(), length: (filled - Header::BYTES) as u32 };
        credits.sent();
        slots.slot(slot).write(0, &header.encode())?;
        if filled <= self.inline {
            let mut bytes = [0; INLINE_BYTES];
            slots.slot(slot).read(0, &mut bytes[..filled])?;
            self.batch.send_inline(&bytes[..filled])?.id(id).signalled_if(signal);
            self.free.push(slot);
        } else {
            self.send(slots.range(slot, filled)?, id, signal)?;
            self.in_flight.push_back((id, slot));
        }
        Ok(true)
    }

    /// A packet that only gives back receives. False if there is no room for it now.
    fn send_credits(&mut self, slots: &Slots, credits: &mut Credits) -> Result<bool> {
        if self.spare == 0 {
            let Some((id, signal)) = self.window.take() else { return Ok(false) };
            let header = Header { returned: credits.take_owed(), length: 0 }.encode();
            self.batch.send_inline(&header)?.id(id).signalled_if(signal);
            return Ok(true);
        }
        let Some(&slot) = self.free.last() else { return Ok(false) };
        // Signalled in any case: nothing may leave behind it that would tell when its slot is free.
        let Some(id) = self.window.take_signalled() else { return Ok(false) };
        self.free.pop();
        let header = Header { returned: credits.take_owed(), length: 0 }.encode();
        slots.slot(slot).write(0, &header)?;
        self.send(slots.range(slot, header.len())?, id, true)?;
        self.in_flight.push_back((id, slot));
        Ok(true)
    }

    fn send(&mut self, from: LocalRange, id: u64, signal: bool) -> Result<()> {
        debug_assert!(id < RECEIVE, "2^63 requests take centuries");
        self.batch.send(from)?.id(id).signalled_if(signal);
        Ok(())
    }

    fn post(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        match self.queue_pair.post(&mut self.batch) {
            // The window bounds what is posted: the queue cannot be full for long. The rest stays in the batch.
            Err(error) if !error.full => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Request `id` and all before it have completed.
    pub(super) fn complete(&mut self, id: u64) {
        self.window.complete(id);
        while let Some((number, slot)) = self.in_flight.front().copied()
            && number < self.window.done()
        {
            self.in_flight.pop_front();
            self.free.push(slot);
        }
    }

    /// Whether nothing waits to leave.
    pub(super) fn is_empty(&self) -> bool {
        self.filled.is_empty() && self.batch.is_empty()
    }

    /// Whether something waits only for credits, or for places in the queue.
    pub(super) fn is_stuck(&self) -> bool {
        self.is_due() || !self.batch.is_empty()
    }

    /// Whether all that has left is known to have arrived. If not, makes sure that it will be known.
    pub(super) fn has_arrived(&mut self) -> Result<bool> {
        if self.window.outstanding() == 0 {
            return Ok(true);
        }
        if !self.window.is_covered()
            && let Some(id) = self.window.take_signalled()
        {
            // A write of no bytes touches no memory, and completes after what was posted before it.
            let nowhere = RemoteRegion::decode(&mut Reader::new(&[0; RemoteRegion::BYTES]))?.range(0, 0)?;
            self.batch.write_inline(&[], nowhere)?.id(id).signalled();
            self.post()?;
        }
        Ok(false)
    }
}
