//! Telling a warp that waits from one that works.
//!
//! A group of lanes waits if it keeps taking the same backward branch, has changed no memory since
//! the last time, and every strong load in between returned from the same addresses what it
//! returned then. Registers may change (loops that wait count their turns). A loop whose
//! instructions can change neither registers nor memory waits, too. A mistake costs time only: a waiting warp is still
//! looked at again and again.
//!
//! The watchdog asks for more: whether the warp has *advanced*. A round of a loop whose loads returned what
//! they returned in one of the last few other rounds is a change, but no advance: so looks a loop that reads
//! another word now and then. Nor does a loop advance that goes through the same rounds in the same order again and again, as one
//! does that looks at a word of each of many peers in turn.

use super::regs::{LANES, Lanes, lanes};
use crate::code::{Inst, Op};

/// Turns of a loop without change before the group counts as waiting.
const PATIENCE: u32 = 8;
/// Turns at each further look.
const LOOK: u32 = 2;
/// Nested loops followed at once.
const RECORDS: usize = 4;
/// Different rounds of a loop that are remembered.
const ROUNDS: usize = 8;
/// Rounds of the longest cycle that is recognised.
const CYCLE: u32 = 1 << 16;
/// Pauses in a row that a round of a waiting loop may make.
const PAUSES: u32 = 64;

/// The loops a warp is in.
#[derive(Debug, Default)]
pub(super) struct Spin {
    records: [Record; RECORDS],
    used: usize,
    next: usize,
    /// Something has changed since [`Spin::begin`].
    changed: bool,
    /// Memory has changed since then, or a loop has gone a round that is new.
    advanced: bool,
    /// A branch was taken backwards since then.
    returned: bool,
    /// Number of turns in a row in which none was.
    straight: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Record {
    function: u32,
    pc: u32,
    mask: u32,
    /// Its instructions change neither registers nor memory.
    empty: bool,
    running: u64,
    last: u64,
    repeats: u32,
    dirty: bool,
    strong: bool,
    watch: Option<u64>,
    /// The values that the last different rounds have read.
    rounds: [Option<u64>; ROUNDS],
    oldest: usize,
    cycle: Cycle,
}

/// Recognises rounds that recur in the same order, however many they are, by Brent's method: one round is remembered, at growing
/// distances, until it comes again.
#[derive(Clone, Copy, Debug, Default)]
struct Cycle {
    first: Option<u64>,
    /// Number and hash of the rounds since the first.
    rounds: u32,
    hash: u64,
    /// Hash of the cycle before, if the first round ended one.
    last: Option<u64>,
    /// After so many rounds another one is remembered.
    limit: u32,
    /// The last cycle was as the one before.
    recurs: bool,
}

/// How a backward branch looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loop {
    /// It may lead somewhere.
    Working,
    /// It waits, for the memory at this address if it reads any.
    Waiting(Option<u64>),
}

impl Spin {
    /// A new turn of the warp.
    pub(super) fn begin(&mut self) {
        self.straight = if self.returned { 0 } else { self.straight + 1 };
        (self.changed, self.advanced, self.returned) = (false, false, false);
    }

    /// Whether the turn changed memory or saw a change.
    pub(super) fn changed(&self) -> bool {
        self.changed
    }

    /// Whether the watchdog takes the turn, which has ended although the warp could continue, for progress; with `pauses`
    /// an instruction has ended it. Code without loops comes to an end, but calls may make that long.
    pub(super) fn advanced(&self, pauses: bool) -> bool {
        let straight = if self.returned { 0 } else { self.straight + 1 };
        self.advanced || straight > if pauses { PAUSES } else { 0 }
    }

    /// Whether a loop has gone round without a change.
    pub(super) fn repeats(&self) -> bool {
        self.records[..self.used].iter().any(|record| record.repeats > 0 && !record.dirty)
    }

    /// The warp stored, or did anything else that others may notice.
    #[inline]
    pub(super) fn wrote(&mut self) {
        (self.changed, self.advanced) = (true, true);
        for record in &mut self.records[..self.used] {
            record.dirty = true;
        }
    }

    /// A weak load: the first lane stands for all.
    #[inline]
    pub(super) fn read_weak(&mut self, address: u64, value: u64) {
        for record in &mut self.records[..self.used] {
            record.running = mix(record.running, address, value);
        }
    }

    /// A strong load, or an atomic that changed nothing.
    pub(super) fn read_strong(&mut self, addresses: &Lanes<u64>, values: &Lanes<u64>, mask: u32) {
        if self.used == 0 {
            return;
        }
        let mut hash = 0;
        if mask == u32::MAX {
            for lane in 0..LANES {
                hash = mix(hash, addresses[lane], values[lane]);
            }
        } else {
            for lane in lanes(mask) {
                hash = mix(hash, addresses[lane], values[lane]);
            }
        }
        let watch = addresses[mask.trailing_zeros() as usize & 31];
        for record in &mut self.records[..self.used] {
            record.running = mix(record.running, hash, 1);
            record.strong = true;
            record.watch = Some(watch);
        }
    }

    /// The group `mask` takes the branch at `pc` of `function` backwards. `is_empty` tells whether the instructions up to
    /// there change [nothing](changes_nothing).
    pub(super) fn backward(
        &mut self,
        (function, pc): (u32, u32),
        mask: u32,
        is_empty: impl FnOnce() -> bool,
    ) -> Loop {
        self.returned = true;
        let mut known = self.records[..self.used].iter_mut();
        let Some(record) = known.find(|r| r.pc == pc && r.mask == mask && r.function == function) else {
            let empty = is_empty();
            self.records[self.next] = Record { function, pc, mask, empty, dirty: true, ..Record::default() };
            self.next = (self.next + 1) % RECORDS;
            self.used = (self.used + 1).min(RECORDS);
            (self.changed, self.advanced) = (true, true);
            return Loop::Working;
        };
        let works = record.dirty || !(record.strong || record.empty);
        if works || record.running != record.last {
            record.repeats = 0;
            self.changed = true;
            self.advanced |= works || record.is_new();
        } else {
            record.repeats += 1;
        }
        if record.dirty {
            record.rounds = [None; ROUNDS];
            record.rounds[0] = Some(record.running);
            record.oldest = 1;
            record.cycle = Cycle::default();
        }
        record.last = record.running;
        record.running = 0;
        record.dirty = false;
        record.strong = false;
        if record.repeats >= PATIENCE {
            record.repeats = PATIENCE - LOOK;
            Loop::Waiting(record.watch)
        } else {
            Loop::Working
        }
    }
}

impl Record {
    /// Remembers the present round. Returns whether it differs from those remembered, and is none of a cycle.
    fn is_new(&mut self) -> bool {
        if self.cycle.takes(self.running) || self.rounds.contains(&Some(self.running)) {
            return false;
        }
        self.rounds[self.oldest] = Some(self.running);
        self.oldest = (self.oldest + 1) % ROUNDS;
        true
    }
}

impl Cycle {
    /// The next round. Returns whether the loop goes through a cycle that it has gone through before.
    fn takes(&mut self, round: u64) -> bool {
        (self.rounds, self.hash) = (self.rounds + 1, mix(self.hash, round, 0));
        if self.first == Some(round) {
            // Shorter ones are found round by round: a change is seen at once there, and only at the end of a cycle here.
            self.recurs = self.rounds as usize > ROUNDS && self.last == Some(self.hash);
            (self.last, self.rounds, self.hash) = (Some(self.hash), 0, 0);
        } else if self.rounds >= self.limit {
            let limit = (2 * self.limit).clamp(1, CYCLE);
            *self = Self { first: Some(round), limit, ..Self::default() };
        }
        self.recurs
    }
}

/// Whether a loop of these instructions changes neither registers nor memory, so that it can only go on for ever.
pub(super) fn changes_nothing(code: &[Inst]) -> bool {
    let nothing = |op: &Op| matches!(op, Op::Bra { .. } | Op::Nanosleep { .. } | Op::Fence { .. } | Op::Nop);
    code.iter().all(|inst| nothing(&inst.op))
}

#[inline]
fn mix(hash: u64, a: u64, b: u64) -> u64 {
    (hash.rotate_left(5) ^ a).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_mul(0xff51_afd7_ed55_8ccd)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(spin: &mut Spin, value: u64) -> Loop {
        spin.read_strong(&[0x1000; LANES], &[value; LANES], 1);
        spin.backward((0, 7), 1, || false)
    }

    #[test]
    fn the_same_value_again_and_again_is_waiting() {
        let mut spin = Spin::default();
        let turns = (0..20).position(|_| turn(&mut spin, 5) == Loop::Waiting(Some(0x1000)));
        assert!(turns.is_some_and(|t| t >= PATIENCE as usize), "{turns:?}");
        spin.begin();
        let looks = (0..20).position(|_| turn(&mut spin, 5) != Loop::Working);
        assert_eq!(looks, Some(LOOK as usize - 1));
        assert!(!spin.changed());
    }

    #[test]
    fn new_values_stores_and_loops_without_loads_are_work() {
        let mut spin = Spin::default();
        assert!((0..100).all(|i| turn(&mut spin, i) == Loop::Working));
        assert!((0..100).all(|_| {
            spin.wrote();
            turn(&mut spin, 5) == Loop::Working
        }));
        assert!((0..100).all(|_| spin.backward((0, 9), 1, || false) == Loop::Working));
        assert!(spin.changed());
    }

    #[test]
    fn rounds_that_were_seen_before_are_no_advance_and_new_ones_are() {
        let mut spin = Spin::default();
        let round = |spin: &mut Spin, value| {
            spin.begin();
            turn(spin, value);
            (spin.changed(), spin.advanced(false))
        };
        for value in 0..6 {
            round(&mut spin, value % 2);
        }
        for value in 0..20 {
            assert_eq!(round(&mut spin, value % 2), (true, false));
        }
        assert_eq!(round(&mut spin, 2), (true, true));
        assert_eq!(round(&mut spin, 2), (false, false));
        spin.wrote();
        assert!(spin.advanced(false));
    }

    #[test]
    fn a_cycle_of_rounds_is_no_advance_and_a_new_round_in_it_is_one() {
        for words in [9, 12, 64, 5000] {
            let mut spin = Spin::default();
            let mut round = |value| {
                spin.begin();
                turn(&mut spin, value);
                spin.advanced(false)
            };
            // A round is remembered at distances that double until the whole cycle fits, and then two cycles are compared.
            let patience = 6 * words;
            (0..patience).for_each(|value| _ = round(value % words));
            assert!((0..10 * words).all(|value| !round((patience + value) % words)), "{words} words");
            assert!((0..3 * words).any(|value| round(if value == words { words } else { value % words })));
            assert!((1_000_000..1_000_100).filter(|&value| round(value)).count() > 90);
        }
    }

    #[test]
    fn a_loop_is_not_taken_for_one_at_the_same_place_of_another_function() {
        let mut spin = Spin::default();
        assert!((0..20).any(|_| spin.backward((0, 7), 1, || true) != Loop::Working));
        assert!((0..100).all(|_| spin.backward((1, 7), 1, || false) == Loop::Working));
    }

    #[test]
    fn an_empty_loop_waits_for_nothing() {
        let mut spin = Spin::default();
        assert!((0..20).any(|_| spin.backward((0, 7), 1, || true) == Loop::Waiting(None)));
    }

    #[test]
    fn turns_without_loops_are_an_advance_and_some_pauses_are_none() {
        let mut spin = Spin::default();
        spin.begin();
        assert!(spin.advanced(false) && !spin.advanced(true));
        (0..PAUSES).for_each(|_| spin.begin());
        assert!(spin.advanced(true));
    }
}
