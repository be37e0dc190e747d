//! The last strong writes of a place, in coherence order, and which of them a thread may read.
//!
//! A thread may read a write unless a later one happens before the read, or a read that observed a later one does. That
//! is coherence (a thread's reads and writes of a place never go back) and causality (what a thread knows of includes
//! what others observed) in one rule. A write, in turn, may take its place in coherence order before others, but behind
//! all that its thread knows of.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::clock::Clock;
use super::stamp::Stamp;
use super::sync::Published;
use crate::config::Lines;

/// Strong writes of one place.
#[derive(Debug, Default)]
pub(super) struct History {
    size: u32,
    /// In coherence order. Memory holds the last.
    writes: VecDeque<Write>,
}

/// How many writes of a place are kept where loads may be weak.
pub(super) const KEPT: usize = 8;

/// A strong write.
#[derive(Debug, Default)]
pub(super) struct Write {
    pub(super) value: u64,
    /// `None` for the value that was there before the first write that is known.
    pub(super) who: Option<Stamp>,
    /// It belongs to an atomic operation, which read the write before it: no other write may come between.
    pub(super) update: bool,
    pub(super) published: Published,
    /// The threads that read it, each once, with its first read.
    pub(super) readers: Vec<Stamp>,
    /// The line that it is a part of.
    pub(super) line: Option<Arc<Line>>,
}

/// A thread that is about to read or write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    pub(super) who: Stamp,
    pub(super) known: &'a Clock,
    pub(super) at: u64,
    pub(super) lines: Lines,
}

/// A line of 128 bytes that a warp wrote with one instruction: who has seen how much of it. Its parts share it.
#[derive(Debug, Default)]
pub(crate) struct Line {
    seen: Mutex<Vec<(Stamp, u64)>>,
}

/// Threads that a write lists at most. If more read it, all others are treated as if they had, too.
const READERS: usize = 256;

impl History {
    /// The last write, if it wrote `value` with this size: memory then holds it.
    pub(super) fn last(&self, value: u64, size: u32) -> Option<&Write> {
        self.writes.back().filter(|last| (last.value, self.size) == (value, size))
    }

    /// Forgets all writes, and begins with what memory holds.
    pub(super) fn restart(&mut self, size: u32, first: Option<Write>) {
        self.size = size;
        self.writes.clear();
        self.writes.extend(first);
    }

    pub(super) fn size(&self) -> u32 {
        self.size
    }

    pub(super) fn len(&self) -> usize {
        self.writes.len()
    }

    pub(super) fn write(&self, at: usize) -> &Write {
        &self.writes[at]
    }

    /// The oldest write that `reader` may read. There is at least one write.
    pub(super) fn oldest(&self, reader: &Reader<'_>) -> usize {
        (1..self.writes.len()).rev().find(|at| self.writes[*at].is_known(reader)).unwrap_or(0)
    }

    /// `who` reads a write.
    pub(super) fn observe(&mut self, at: usize, who: Stamp) {
        if self.writes[at].readers.len() >= READERS {
            // A later reader sees this write or a later one, as if all had seen it.
            self.writes.drain(..at);
            return;
        }
        self.writes[at].observed_by(who);
    }

    /// Adds a write before the one at `at`, or as the last one, and keeps at most `kept`.
    pub(super) fn add(&mut self, at: usize, write: Write, kept: usize) {
        self.writes.insert(at, write);
        while self.writes.len() > kept {
            self.writes.pop_front();
        }
    }

    /// Forgets all but the last write: whoever looks at memory itself has seen that.
    pub(super) fn settle(&mut self) {
        self.writes.drain(..self.writes.len().saturating_sub(1));
    }
}

impl Write {
    /// Whether `reader` may not read anything older.
    fn is_known(&self, reader: &Reader<'_>) -> bool {
        let known = |who: &Stamp| is_own(who, &reader.who) || reader.known.unknown(who) != who.lanes;
        self.who.as_ref().is_none_or(known)
            || self.readers.iter().any(known)
            || self.line.as_ref().is_some_and(|line| line.is_known(reader))
    }

    fn observed_by(&mut self, who: Stamp) {
        let same = |old: &&mut Stamp| (old.work, old.block, old.warp) == (who.work, who.block, who.warp);
        if self.readers.iter().any(|old| is_own(old, &who)) {
            return;
        }
        match self.readers.iter_mut().filter(same).find(|old| old.tick == who.tick) {
            Some(old) => old.lanes |= who.lanes,
            None => self.readers.push(who),
        }
    }
}

impl Line {
    /// `who` has read a part of the line, at `at`.
    pub(super) fn observed_by(&self, who: Stamp, at: u64) {
        let mut seen = self.seen.lock();
        let same =
            |(old, _): &&mut (Stamp, u64)| (old.work, old.block, old.warp) == (who.work, who.block, who.warp);
        match seen.iter_mut().find(same) {
            Some((_, top)) if *top >= at => {}
            Some(old) => *old = (who, at),
            None => seen.push((who, at)),
        }
    }

    /// Whether the warp of `reader`, or one that it knows of, has seen so much of the line that what is at the reader's
    /// address has arrived.
    fn is_known(&self, reader: &Reader<'_>) -> bool {
        let far = |top: u64| reader.lines == Lines::Whole || top >= reader.at;
        let own = |who: &Stamp| {
            (who.work, who.block, who.warp) == (reader.who.work, reader.who.block, reader.who.warp)
        };
        self.seen.lock().iter().any(|(who, top)| far(*top) && (own(who) || reader.known.covers(who)))
    }
}

/// Whether the thread of `who`, one lane, is among those of `old`.
fn is_own(old: &Stamp, who: &Stamp) -> bool {
    (old.work, old.block, old.warp) == (who.work, who.block, who.warp) && old.lanes & who.lanes != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::stamp::WorkId;

    const WORK: WorkId = WorkId { chain: 0, seq: 1 };

    fn stamp(block: u32, tick: u32) -> Stamp {
        Stamp { work: WORK, block, warp: 0, lanes: 1, tick }
    }

    fn history(writers: &[u32]) -> History {
        let mut history = History::default();
        history.restart(4, Some(Write::default()));
        for (at, block) in writers.iter().enumerate() {
            let write = Write { value: at as u64 + 1, who: Some(stamp(*block, 1)), ..Write::default() };
            history.add(history.len(), write, KEPT);
        }
        history
    }

    fn oldest(history: &History, block: u32, known: &Clock) -> usize {
        history.oldest(&Reader { who: stamp(block, 1), known, at: 0, lines: Lines::Torn })
    }

    #[test]
    fn a_thread_reads_nothing_older_than_what_it_knows_of_wrote_or_read() {
        let nothing = Clock::default();
        let mut history = history(&[1, 2, 3]);
        assert_eq!([9, 1, 2, 3].map(|block| oldest(&history, block, &nothing)), [0, 1, 2, 3]);
        let mut known = Clock::default();
        known.reach(WORK, 2, 0, 0, 1);
        assert_eq!(oldest(&history, 9, &known), 2);
        history.observe(3, stamp(7, 4));
        assert_eq!(oldest(&history, 7, &nothing), 3);
        known.reach(WORK, 7, 0, 0, 3);
        assert_eq!(oldest(&history, 9, &known), 2, "it knows of that thread, but not of this read");
        known.reach(WORK, 7, 0, 0, 4);
        assert_eq!(oldest(&history, 9, &known), 3);
    }

    #[test]
    fn only_the_last_writes_are_kept() {
        let mut history = history(&[1; 20]);
        assert_eq!((history.len(), history.write(0).value), (KEPT, 13));
        assert!(
            history.last(20, 4).is_some() && history.last(20, 8).is_none() && history.last(1, 4).is_none()
        );
        history.settle();
        assert_eq!(history.len(), 1);
    }

    #[test]
    fn a_line_is_known_as_far_as_its_rule_says() {
        let line = Line::default();
        let nothing = Clock::default();
        line.observed_by(stamp(1, 1), 64);
        let sees =
            |block, at, lines| line.is_known(&Reader { who: stamp(block, 1), known: &nothing, at, lines });
        assert!(sees(1, 127, Lines::Whole) && sees(1, 0, Lines::Ascending) && sees(1, 64, Lines::Ascending));
        assert!(!sees(1, 72, Lines::Ascending) && !sees(2, 0, Lines::Whole));
    }
}
