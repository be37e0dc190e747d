//! The last accesses to each byte of memory.
//!
//! Accesses are kept for words of four bytes, and for single bytes once an access was to less than a word.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use super::access::{Access, Race, Stop};
use super::clock::Clock;
use super::history::{History, Write};
use super::reads::Reads;
use super::room::Room;
use super::values::{PAGE, Values};

/// The shadow of all memory, by object and page.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    pages: Pages,
    room: Room,
}

type Pages = HashMap<(Object, u64), Page, BuildHasherDefault<Mix>>;

/// A fast hash: each access looks up its page, and nobody chooses the numbers to do harm.
#[derive(Debug, Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word.cast_unsigned() as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// Names a piece of memory, whatever addresses it is mapped at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Object {
    /// An object of the driver, by its identity.
    Driver(u64),
    /// Host memory that the user registered.
    Host,
    /// Shared memory of a block, by the number of its grid and its own.
    Block(u64, u64),
}

const WORD: u64 = 4;
/// The longest strong access.
const LONGEST: u64 = 8;

/// Where a page has the histories of the 8 bytes at an offset.
fn slot(at: u64) -> usize {
    (at % PAGE / LONGEST) as usize
}

#[derive(Debug)]
pub(super) struct Page {
    words: Vec<Word>,
    /// The last strong writes of each place, by its offset in the object, for each 8 bytes. Strong accesses are aligned, so
    /// none lies in two of them. Empty before the first strong write.
    histories: Vec<Vec<(u64, History)>>,
    /// Empty before the first write that `wrote` is told of.
    values: Option<Values>,
}

#[derive(Clone, Debug)]
enum Word {
    Whole(Cell),
    Bytes(Box<[Cell; WORD as usize]>),
}

#[derive(Clone, Debug, Default)]
struct Cell {
    write: Option<Access>,
    /// Reads since that write.
    reads: Reads,
}

/// Bytes that are counted for the words of a page, for four bytes in place of a word, and for a place that was written by strong
/// accesses. Not counted is what grows with the number of threads, the reads of a word and what a strong write published, and the few
/// earlier strong writes of a place that weak loads may still see.
const WORDS: usize = size_of::<Page>() + (PAGE / WORD) as usize * size_of::<Word>();
const BYTES: usize = size_of::<[Cell; WORD as usize]>();
const PLACES: usize = (PAGE / LONGEST) as usize * size_of::<Vec<(u64, History)>>();
const PLACE: usize = size_of::<(u64, History)>() + size_of::<Write>();
const VALUES: usize = 2 * PAGE as usize;

impl Shadow {
    /// A shadow that takes at most about `limit` bytes.
    pub(super) fn new(limit: u64) -> Self {
        Self { pages: Pages::default(), room: Room::new(limit) }
    }

    pub(super) fn limit(&self) -> u64 {
        self.room.limit()
    }

    /// Records an access of one lane, which `known` happens before.
    ///
    /// # Errors
    /// An earlier access that races with it, or that there is no room for it.
    pub(super) fn access(&mut self, object: Object, access: &Access, known: &Clock) -> Result<(), Stop> {
        let Self { pages, room } = self;
        let end = access.at + u64::from(access.size);
        let mut at = access.at;
        while at < end {
            let page = match pages.entry((object, at / PAGE)) {
                Entry::Occupied(page) => page.into_mut(),
                Entry::Vacant(place) => {
                    room.take(WORDS)?;
                    place.insert(Page::default())
                }
            };
            let (start, stop) = (at, end.min((at / PAGE + 1) * PAGE));
            while at < stop {
                let next = stop.min((at / WORD + 1) * WORD);
                let (word, first) = ((at % PAGE / WORD) as usize, (at % WORD) as usize);
                page.words[word].access(first..first + (next - at) as usize, access, known, room)?;
                at = next;
            }
            if access.write && access.strong.is_none() {
                // A weak write publishes nothing, and takes away what was published.
                page.forget(start..stop, None, room);
            }
        }
        Ok(())
    }

    /// The last strong writes of a place.
    pub(super) fn history(&mut self, object: Object, at: u64) -> Option<&mut History> {
        let histories = &mut self.pages.get_mut(&(object, at / PAGE))?.histories;
        histories.get_mut(slot(at))?.iter_mut().find(|(place, _)| *place == at).map(|(_, history)| history)
    }

    /// The same, for another strong write: forgets those of places that overlap it.
    pub(super) fn history_of_write(&mut self, object: Object, at: u64, size: u32) -> &mut History {
        let Self { pages, room } = self;
        let page = page(pages, room, object, at);
        page.forget(at..at + u64::from(size), Some(at), room);
        if page.histories.is_empty() {
            room.add(PLACES);
            page.histories.resize_with((PAGE / LONGEST) as usize, Vec::new);
        }
        let places = &mut page.histories[slot(at)];
        let known = places.iter().position(|(place, _)| *place == at).unwrap_or_else(|| {
            room.add(PLACE);
            places.push((at, History::default()));
            places.len() - 1
        });
        &mut places[known].1
    }

    /// A kernel or stream has written `bytes`.
    pub(super) fn wrote(&mut self, object: Object, mut at: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let first = (at % PAGE) as usize;
            let (here, rest) = bytes.split_at(bytes.len().min(PAGE as usize - first));
            let page = page(&mut self.pages, &mut self.room, object, at);
            if page.values.is_none() {
                self.room.add(VALUES);
            }
            page.values.get_or_insert_default().wrote(first, here);
            at += here.len() as u64;
            bytes = rest;
        }
    }

    /// Whether kernels and streams wrote the bytes that a place, which lies in one page, now has.
    pub(super) fn holds(&self, object: Object, at: u64, now: &[u8]) -> bool {
        let values = self.pages.get(&(object, at / PAGE)).and_then(|page| page.values.as_ref());
        values.is_some_and(|values| values.hold((at % PAGE) as usize, now))
    }

    /// The host has written a place, which lies in one page.
    pub(super) fn host_wrote(&mut self, object: Object, at: u64, size: u32) {
        let Some(page) = self.pages.get_mut(&(object, at / PAGE)) else { return };
        page.forget(at..at + u64::from(size), None, &mut self.room);
        let first = (at % PAGE) as usize;
        page.values.iter_mut().for_each(|values| values.forget(first..first + size as usize));
    }

    /// Forgets all but the last strong write of places in `len` bytes.
    pub(super) fn settle(&mut self, object: Object, from: u64, len: u64) {
        for page in from / PAGE..=(from + len) / PAGE {
            if let Some(page) = self.pages.get_mut(&(object, page)) {
                let near = page.histories.iter_mut().flatten();
                near.filter(|(at, _)| *at < from + len && at + LONGEST > from).for_each(|(_, h)| h.settle());
            }
        }
    }

    /// Forgets the shared memory of a grid's blocks, because they have ended.
    pub(super) fn forget_grid(&mut self, grid: u64) {
        let Self { pages, room } = self;
        pages.retain(|(object, _), content| {
            let stays = !matches!(object, Object::Block(of, _) if *of == grid);
            if !stays {
                room.give_back(content.bytes());
            }
            stays
        });
    }

    /// Forgets `len` bytes of an object, because that memory is gone.
    pub(super) fn forget(&mut self, object: Object, from: u64, len: u64) {
        let end = from + len;
        let Self { pages, room } = self;
        pages.retain(|(known, page), content| {
            if *known != object || (page + 1) * PAGE <= from || page * PAGE >= end {
                return true;
            }
            let before = content.bytes();
            for (word, at) in content.words.iter_mut().zip((page * PAGE..).step_by(WORD as usize)) {
                if at >= from && at < end {
                    *word = Word::Whole(Cell::default());
                }
            }
            for places in &mut content.histories {
                places.retain(|(at, _)| *at < from || *at >= end);
            }
            if let Some(values) = &mut content.values {
                let inside = |at: u64| (at.clamp(page * PAGE, (page + 1) * PAGE) - page * PAGE) as usize;
                values.forget(inside(from)..inside(end));
            }
            let stays = page * PAGE < from || (page + 1) * PAGE > end;
            room.give_back(before - if stays { content.bytes() } else { 0 });
            stays
        });
    }
}

/// The page at an offset of an object.
fn page<'a>(pages: &'a mut Pages, room: &mut Room, object: Object, at: u64) -> &'a mut Page {
    pages.entry((object, at / PAGE)).or_insert_with(|| {
        room.add(WORDS);
        Page::default()
    })
}

impl Default for Page {
    fn default() -> Self {
        let words = vec![Word::Whole(Cell::default()); (PAGE / WORD) as usize];
        Self { words, histories: Vec::new(), values: None }
    }
}

impl Page {
    /// Forgets the strong writes of places that overlap `bytes`, but for the place `except`.
    fn forget(&mut self, bytes: Range<u64>, except: Option<u64>, room: &mut Room) {
        let start = bytes.start / LONGEST * LONGEST;
        for at in (start..bytes.end).step_by(LONGEST as usize) {
            let Some(places) = self.histories.get_mut(slot(at)) else { return };
            let apart = |place: u64, size: u32| place + u64::from(size) <= bytes.start || place >= bytes.end;
            let before = places.len();
            places.retain(|(place, old)| Some(*place) == except || apart(*place, old.size()));
            room.give_back((before - places.len()) * PLACE);
        }
    }

    /// The bytes that the limit counts for it.
    fn bytes(&self) -> usize {
        let split = self.words.iter().filter(|word| matches!(word, Word::Bytes(_))).count();
        let places: usize = self.histories.iter().map(Vec::len).sum();
        let table = if self.histories.is_empty() { 0 } else { PLACES };
        let values = if self.values.is_some() { VALUES } else { 0 };
        WORDS + split * BYTES + table + places * PLACE + values
    }
}

impl Word {
    fn access(
        &mut self,
        bytes: Range<usize>,
        access: &Access,
        known: &Clock,
        room: &mut Room,
    ) -> Result<(), Stop> {
        if let Self::Whole(cell) = self {
            if bytes.len() == WORD as usize {
                return Ok(cell.access(access, known)?);
            }
            room.take(BYTES)?;
            let cell = std::mem::take(cell);
            *self = Self::Bytes(Box::new(std::array::from_fn(|_| cell.clone())));
        }
        let Self::Bytes(cells) = self else { unreachable!("split above") };
        Ok(cells[bytes].iter_mut().try_for_each(|cell| cell.access(access, known))?)
    }
}

impl Cell {
    fn access(&mut self, access: &Access, known: &Clock) -> Result<(), Race> {
        if let Some(write) = &self.write
            && let Some(race) = write.races(access, known)
        {
            return Err(race);
        }
        if !access.write {
            self.reads.add(access, known);
            return Ok(());
        }
        if let Some(race) = self.reads.races(access, known) {
            return Err(race);
        }
        self.reads = Reads::None;
        self.write = Some(*access);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
