//! The last accesses to each byte of memory.
//!
//! Accesses are kept for words of four bytes, and for single bytes once an access was to less than a word.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use super::access::{Access, Race};
use super::clock::Clock;
use super::history::History;
use super::reads::Reads;
use super::values::{PAGE, Values};

/// The shadow of all memory, by object and page.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    pages: HashMap<(Object, u64), Page, BuildHasherDefault<Mix>>,
}

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

impl Shadow {
    /// Records an access of one lane, which `known` happens before.
    ///
    /// # Errors
    /// An earlier access that races with it.
    pub(super) fn access(&mut self, object: Object, access: &Access, known: &Clock) -> Result<(), Race> {
        let end = access.at + u64::from(access.size);
        let mut at = access.at;
        while at < end {
            let page = self.page(object, at);
            let (start, stop) = (at, end.min((at / PAGE + 1) * PAGE));
            while at < stop {
                let next = stop.min((at / WORD + 1) * WORD);
                let (word, first) = ((at % PAGE / WORD) as usize, (at % WORD) as usize);
                page.words[word].access(first..first + (next - at) as usize, access, known)?;
                at = next;
            }
            if access.write && access.strong.is_none() {
                // A weak write publishes nothing, and takes away what was published.
                page.forget(start..stop, None);
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
        let page = self.page(object, at);
        page.forget(at..at + u64::from(size), Some(at));
        if page.histories.is_empty() {
            page.histories.resize_with((PAGE / LONGEST) as usize, Vec::new);
        }
        let places = &mut page.histories[slot(at)];
        let known = places.iter().position(|(place, _)| *place == at).unwrap_or_else(|| {
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
            self.page(object, at).values.get_or_insert_default().wrote(first, here);
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
        page.forget(at..at + u64::from(size), None);
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

    /// Forgets `len` bytes of an object, because that memory is gone.
    pub(super) fn forget(&mut self, object: Object, from: u64, len: u64) {
        let end = from + len;
        self.pages.retain(|(known, page), content| {
            if *known != object || (page + 1) * PAGE <= from || page * PAGE >= end {
                return true;
            }
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
            page * PAGE < from || (page + 1) * PAGE > end
        });
    }

    fn page(&mut self, object: Object, at: u64) -> &mut Page {
        self.pages.entry((object, at / PAGE)).or_insert_with(|| Page {
            words: vec![Word::Whole(Cell::default()); (PAGE / WORD) as usize],
            histories: Vec::new(),
            values: None,
        })
    }
}

impl Page {
    /// Forgets the strong writes of places that overlap `bytes`, but for the place `except`.
    fn forget(&mut self, bytes: Range<u64>, except: Option<u64>) {
        let start = bytes.start / LONGEST * LONGEST;
        for at in (start..bytes.end).step_by(LONGEST as usize) {
            let Some(places) = self.histories.get_mut(slot(at)) else { return };
            let apart = |place: u64, size: u32| place + u64::from(size) <= bytes.start || place >= bytes.end;
            places.retain(|(place, old)| Some(*place) == except || apart(*place, old.size()));
        }
    }
}

impl Word {
    fn access(&mut self, bytes: Range<usize>, access: &Access, known: &Clock) -> Result<(), Race> {
        if let Self::Whole(cell) = self {
            if bytes.len() == WORD as usize {
                return cell.access(access, known);
            }
            let cell = std::mem::take(cell);
            *self = Self::Bytes(Box::new(std::array::from_fn(|_| cell.clone())));
        }
        let Self::Bytes(cells) = self else { unreachable!("split above") };
        cells[bytes].iter_mut().try_for_each(|cell| cell.access(access, known))
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
mod tests {
    use super::*;
    use crate::check::access::Why;
    use crate::check::history::{KEPT, Write};
    use crate::check::stamp::{Stamp, WorkId};

    const HERE: Object = Object::Driver(7);

    fn access(block: u32, write: bool, at: u64, size: u32) -> Access {
        let who = Stamp { work: WorkId { chain: 0, seq: 1 }, block, warp: 0, lanes: 1, tick: 1 };
        Access { who, device: 0, strong: None, write, engine: None, at, size, source: 0 }
    }

    #[test]
    fn accesses_race_where_their_bytes_meet_and_nowhere_else() {
        let known = Clock::default();
        for (at, size, races) in
            [(0, 4, true), (3, 1, true), (4, 4, false), (2, 2, true), (1, 1, true), (PAGE - 4, 8, false)]
        {
            let mut shadow = Shadow::default();
            shadow.access(HERE, &access(0, true, 0, 4), &known).unwrap();
            let second = shadow.access(HERE, &access(1, false, at, size), &known);
            assert_eq!(second.is_err(), races, "{size} bytes at {at}");
            assert!(shadow.access(Object::Host, &access(1, true, 0, 4), &known).is_ok());
        }
        let mut shadow = Shadow::default();
        shadow.access(HERE, &access(0, true, PAGE - 1, 1), &known).unwrap();
        shadow.access(HERE, &access(1, true, PAGE - 2, 1), &known).unwrap();
        let race = shadow.access(HERE, &access(2, true, PAGE - 8, 16), &known).unwrap_err();
        assert_eq!(race, (access(1, true, PAGE - 2, 1), Why::Unordered));
    }

    #[test]
    fn a_write_races_with_every_read_that_is_not_ordered_before_it() {
        let mut shadow = Shadow::default();
        let nothing = Clock::default();
        for block in 0..3 {
            shadow.access(HERE, &access(block, false, 0, 4), &nothing).unwrap();
        }
        let mut known = Clock::default();
        for block in [0, 2] {
            known.reach(WorkId { chain: 0, seq: 1 }, block, 0, 0, 1);
        }
        let race = shadow.access(HERE, &access(3, true, 0, 4), &known).unwrap_err();
        assert_eq!(race.0.who.block, 1);
        known.reach(WorkId { chain: 0, seq: 1 }, 1, 0, 0, 1);
        shadow.access(HERE, &access(3, true, 0, 4), &known).unwrap();
    }

    #[test]
    fn a_value_is_the_hosts_unless_kernels_or_streams_wrote_it_last() {
        let mut shadow = Shadow::default();
        assert!(!shadow.holds(HERE, 0, &[0]));
        shadow.wrote(HERE, PAGE - 4, &[7; 12]);
        assert!(shadow.holds(HERE, PAGE - 4, &[7; 4]) && shadow.holds(HERE, PAGE, &[7; 8]));
        assert!(!shadow.holds(HERE, PAGE, &[8; 8]) && !shadow.holds(HERE, PAGE + 8, &[0; 4]));
        shadow.host_wrote(HERE, PAGE, 4);
        assert!(!shadow.holds(HERE, PAGE, &[7; 4]) && shadow.holds(HERE, PAGE + 4, &[7; 4]));
        shadow.forget(HERE, PAGE - 2, 8);
        assert!(shadow.holds(HERE, PAGE - 4, &[7; 2]) && !shadow.holds(HERE, PAGE - 2, &[7]));
        assert!(!shadow.holds(HERE, PAGE + 5, &[7]) && shadow.holds(HERE, PAGE + 6, &[7; 2]));
    }

    fn strong_write(shadow: &mut Shadow, at: u64, size: u32, value: u64) {
        let history = shadow.history_of_write(HERE, at, size);
        if history.size() != size {
            history.restart(size, None);
        }
        history.add(history.len(), Write { value, ..Write::default() }, KEPT);
    }

    #[test]
    fn a_weak_write_takes_away_what_was_published() {
        let known = Clock::default();
        for (write, at, left) in [(true, 8, false), (false, 8, true), (true, 16, true)] {
            let mut shadow = Shadow::default();
            strong_write(&mut shadow, 8, 8, 1);
            shadow.access(HERE, &access(0, write, at, 4), &known).unwrap();
            assert_eq!(shadow.history(HERE, 8).is_some(), left, "a write: {write}, at {at}");
        }
    }

    #[test]
    fn what_a_copy_reads_has_settled_wherever_in_a_word_it_begins_or_ends() {
        for (from, len, settled) in [
            (8, 8, true),
            (12, 4, true),
            (8, 1, true),
            (4, 5, true),
            (15, 20, true),
            (0, 8, false),
            (16, 8, false),
        ] {
            let mut shadow = Shadow::default();
            (1..=3).for_each(|value| strong_write(&mut shadow, 8, 8, value));
            shadow.settle(HERE, from, len);
            let kept = shadow.history(HERE, 8).map(|history| history.len());
            assert_eq!(kept, Some(if settled { 1 } else { 3 }), "{len} bytes from {from}");
        }
    }

    /// Otherwise a value that the host wrote would count as a kernel's, if a kernel has once written the same.
    #[test]
    fn no_strong_write_is_left_where_the_host_has_written() {
        for (at, size) in [(8, 8), (12, 4), (8, 1)] {
            let mut shadow = Shadow::default();
            strong_write(&mut shadow, 8, 8, 1);
            strong_write(&mut shadow, 16, 8, 1);
            shadow.host_wrote(HERE, at, size);
            assert!(shadow.history(HERE, 8).is_none(), "{size} bytes at {at}");
            assert!(shadow.history(HERE, 16).is_some_and(|history| history.last(1, 8).is_some()));
        }
    }

    #[test]
    fn what_is_forgotten_is_new() {
        let mut shadow = Shadow::default();
        let known = Clock::default();
        shadow.access(HERE, &access(0, true, 0, 4), &known).unwrap();
        shadow.access(HERE, &access(0, true, 8, 4), &known).unwrap();
        shadow.forget(HERE, 0, 8);
        assert!(shadow.access(HERE, &access(1, true, 8, 4), &known).is_err());
        shadow.access(HERE, &access(1, true, 0, 4), &known).unwrap();
    }
}
