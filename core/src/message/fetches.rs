//! The reads of a link that this side's device makes: which they are, and how far they have come.
//!
//! They stand at the front of the queue, with none before them that the owner was asked for: the device reads them in order, many
//! at a time. The owner is asked for one key at a time, beside them, and nothing behind that read is asked for until the answer
//! has come.
#![forbid(unsafe_code)]

use super::keys::{Choice, Key, Keys};
use super::one_sided::{OneSided, PIECE, Piece, Wanted};
use super::reading::{Finished, Queue, Reading, Way, broken};
use super::tokens::Token;
use crate::error::Result;
use crate::rdma::QpAddress;

/// The reads at the front of the queue that the device makes.
#[derive(Default)]
pub(super) struct Fetches {
    /// How many they are.
    count: usize,
    /// How many of them the device has been asked for all of.
    begun: usize,
    keys: Keys,
    /// The request for a key that the owner has not answered.
    asked: Option<Asked>,
    /// A thread copies the piece in front, and has taken the place for its bytes.
    copying: bool,
}

/// A request for a key.
#[derive(Clone, Copy)]
struct Asked {
    /// The read that it is for. It may have been cancelled meanwhile.
    id: u64,
    token: Token,
    /// Whether the address of an end of a pair went with it, so that the answer brings another.
    with_pair: bool,
}

/// A piece that has come, to be copied with no lock held.
pub(super) struct Arrival {
    piece: Piece,
    into: Vec<u8>,
    at: usize,
}

/// The outcome of [`Fetches::step`].
pub(super) enum Step {
    /// Nothing has come.
    Idle,
    Come(Arrival),
    /// The pair is gone. The owner is to be asked for what was read.
    Failed,
}

impl Arrival {
    /// Copies the piece, unless nobody wants the read any more, or the device has placed it. Returns how many bytes that were.
    pub(super) fn copy(&mut self) -> usize {
        let bytes = self.piece.brought.bytes();
        if let Some(into) = self.into.get_mut(self.at..self.at + bytes.len()) {
            into.copy_from_slice(bytes);
        }
        bytes.len()
    }

    /// Gives the piece up; returns its length, the place for the bytes, and the pair that it came by.
    pub(super) fn finish(self) -> (usize, Vec<u8>, u64) {
        (self.piece.brought.len(), self.into, self.piece.pair)
    }
}

impl Fetches {
    /// How many reads the device makes.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Whether the owner has been asked for a key and has not answered.
    pub(super) fn waits_for_key(&self) -> bool {
        self.asked.is_some()
    }

    /// Chooses the way of a read, if it has not been. Returns the address to send with a request for its key, if that is the next
    /// thing to do.
    pub(super) fn choose(
        &mut self,
        reading: &mut Reading,
        device: Option<&dyn OneSided>,
    ) -> Option<Option<QpAddress>> {
        if !matches!(reading.way, Way::Open) {
            return None;
        }
        let choice = match device {
            Some(device) if device.is_able() => self.keys.choose(&reading.token, reading.length),
            _ => Choice::Data,
        };
        let prepared = match (choice, device) {
            (Choice::Fetch(region), _) if region.range(reading.offset, reading.length as u64).is_ok() => {
                reading.way = Way::Fetched(region);
                return None;
            }
            (Choice::Ask, Some(device)) => device.prepare(),
            // Asked for the data, the owner says what is wrong with the range.
            _ => {
                reading.way = Way::Data;
                return None;
            }
        };
        match prepared {
            Ok(address) => Some(address),
            Err(error) => {
                log::debug!("a peer's memory is read with its owner's help: {error}");
                reading.way = Way::Data;
                None
            }
        }
    }

    /// The owner was asked for the key of this read, and given the address of an end if it is `with_pair`.
    pub(super) fn ask(&mut self, reading: &Reading, with_pair: bool) {
        self.asked = Some(Asked { id: reading.id, token: reading.token, with_pair });
    }

    /// The owner's answer for read `id`.
    pub(super) fn answered(&mut self, id: u32, key: Option<Key>, device: &dyn OneSided) -> Result<()> {
        let Some(Asked { token, with_pair, .. }) = self.asked.take_if(|asked| asked.id as u32 == id) else {
            return Err(broken(format!("a key for read {id}, for which nobody asked")));
        };
        let pair = key.and_then(|key| key.pair);
        if pair.is_some() && !with_pair {
            return Err(broken(format!(
                "an end of a pair with the key for read {id}, which nobody asked for"
            )));
        }
        if let Some(Err(error)) = pair.map(|pair| device.connect(&pair)) {
            log::info!("a peer's memory is read with its owner's help: {error}");
        }
        match key {
            Some(key) if device.is_connected() => self.keys.add(token, Some(key.region)),
            // The pair failed while the request was on its way. The key is good, and comes again with a new pair.
            Some(_) if !with_pair => self.keys.forget(token),
            _ => self.keys.add(token, None),
        }
        // What was made for this key only is held for nobody.
        device.give_up();
        Ok(())
    }

    /// The next read in the queue is made by the device.
    pub(super) fn add(&mut self) {
        self.count += 1;
    }

    /// Has the device begin what there is room for, and takes the next piece that has come; [`land`](Self::land) must follow. If it `hangs`, its pair
    /// is given up.
    pub(super) fn step(&mut self, queue: &mut Queue, device: &dyn OneSided, hangs: bool) -> Step {
        if self.copying || self.count == 0 {
            return Step::Idle;
        }
        if hangs {
            device.abandon();
            self.give_up(queue);
            return Step::Failed;
        }
        let begun = device.begin(&mut || {
            while self.begun < self.count {
                let Some(reading) = queue.get_mut(self.begun) else { break };
                let Way::Fetched(region) = reading.way else { break };
                // A part that has a place is one piece.
                let longest = if reading.placing.is_some() { reading.length } else { PIECE };
                let length = longest.min(reading.length - reading.begun);
                if length > 0 {
                    let from = region.range(reading.offset + reading.begun as u64, length as u64)?;
                    let place = reading.placing.as_ref().map(|placing| placing.place(reading.begun, length));
                    reading.begun += length;
                    return Ok(Some(Wanted { from, place: place.transpose()? }));
                }
                self.begun += 1;
            }
            Ok(None)
        });
        match begun.and_then(|()| device.take()) {
            Ok(None) => Step::Idle,
            Ok(Some(piece)) => {
                let Some(reading) = queue.front_mut() else { return Step::Idle };
                self.copying = true;
                Step::Come(Arrival { piece, into: std::mem::take(&mut reading.into), at: reading.got })
            }
            Err(error) => {
                log::debug!("a peer's memory is read with its owner's help from here on: {error}");
                self.give_up(queue);
                Step::Failed
            }
        }
    }

    /// `length` bytes of the oldest read have been copied to `into`. Returns the read if it has ended.
    pub(super) fn land(&mut self, queue: &mut Queue, length: usize, into: Vec<u8>) -> Option<Finished> {
        self.copying = false;
        // It is still the oldest: what is copied for stays in the queue even if it is cancelled. All of them may have ended.
        let reading = queue.front_mut()?;
        reading.got += length;
        if reading.completion.is_some() {
            reading.into = into;
        }
        if reading.got < reading.length {
            return None;
        }
        self.count -= 1;
        self.begun = self.begun.saturating_sub(1);
        let mut reading = queue.pop_front()?;
        let into = std::mem::take(&mut reading.into);
        reading.end(Ok(into))
    }

    /// Nobody wants the read at `index` any more, one of those that the device makes. Its place in the order stays as long as
    /// pieces of it are on their way.
    pub(super) fn cancel(&mut self, queue: &mut Queue, index: usize) {
        let reading = &mut queue[index];
        (reading.into, reading.length) = (Vec::new(), reading.begun);
        if reading.got == reading.begun {
            queue.remove(index);
            self.count -= 1;
            self.begun -= usize::from(index < self.begun);
        }
    }

    /// The pair is gone, and with it the keys: the owner is to be asked for the rest of all that was to be read so. If memory was
    /// revoked, it says so.
    fn give_up(&mut self, queue: &mut Queue) {
        let count = std::mem::take(&mut self.count);
        for (index, reading) in queue.iter_mut().enumerate() {
            if matches!(reading.way, Way::Fetched(_)) {
                reading.way = if index < count { Way::Data } else { Way::Open };
                reading.begun = reading.got;
            }
        }
        let mut index = 0;
        queue.retain(|reading| {
            index += 1;
            index > count || reading.completion.is_some()
        });
        self.begun = 0;
        self.keys.clear();
    }

    /// Forgets everything; the queue is empty.
    pub(super) fn clear(&mut self) {
        (self.count, self.begun, self.asked) = (0, 0, None);
        self.keys.clear();
    }
}
