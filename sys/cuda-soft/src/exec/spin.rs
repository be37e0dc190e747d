//! Telling a warp that waits from one that works.
//!
//! A group of lanes waits if it keeps taking the same backward branch, has changed no memory since
//! the last time, and every strong load in between returned from the same addresses what it
//! returned then. Registers may change (loops that wait count their turns). A mistake costs time
//! only: a waiting warp is still looked at again and again.

use super::regs::{LANES, Lanes, lanes};

/// Turns of a loop without change before the group counts as waiting.
const PATIENCE: u32 = 8;
/// Turns at each further look.
const LOOK: u32 = 2;
/// Nested loops followed at once.
const RECORDS: usize = 4;

/// The loops a warp is in.
#[derive(Debug, Default)]
pub(super) struct Spin {
    records: [Record; RECORDS],
    used: usize,
    next: usize,
    /// Something has changed since [`Spin::begin`].
    changed: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Record {
    pc: u32,
    mask: u32,
    running: u64,
    last: u64,
    repeats: u32,
    dirty: bool,
    strong: bool,
    watch: u64,
}

/// How a backward branch looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loop {
    /// It may lead somewhere.
    Working,
    /// It waits for the memory at this address.
    Waiting(u64),
}

impl Spin {
    /// A new turn of the warp.
    pub(super) fn begin(&mut self) {
        self.changed = false;
    }

    /// Whether the turn changed memory or saw a change.
    pub(super) fn changed(&self) -> bool {
        self.changed
    }

    /// Whether a loop has gone round without a change.
    pub(super) fn repeats(&self) -> bool {
        self.records[..self.used].iter().any(|record| record.repeats > 0 && !record.dirty)
    }

    /// The warp stored, or did anything else that others may notice.
    #[inline]
    pub(super) fn wrote(&mut self) {
        self.changed = true;
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
            record.watch = watch;
        }
    }

    /// The group `mask` takes the branch at `pc` backwards.
    pub(super) fn backward(&mut self, pc: u32, mask: u32) -> Loop {
        let found = self.records[..self.used].iter_mut().find(|r| r.pc == pc && r.mask == mask);
        let Some(record) = found else {
            self.records[self.next] = Record { pc, mask, dirty: true, ..Record::default() };
            self.next = (self.next + 1) % RECORDS;
            self.used = (self.used + 1).min(RECORDS);
            self.changed = true;
            return Loop::Working;
        };
        if record.dirty || !record.strong || record.running != record.last {
            record.repeats = 0;
            self.changed = true;
        } else {
            record.repeats += 1;
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

#[inline]
fn mix(hash: u64, a: u64, b: u64) -> u64 {
    (hash.rotate_left(5) ^ a).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_mul(0xff51_afd7_ed55_8ccd)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(spin: &mut Spin, value: u64) -> Loop {
        spin.read_strong(&[0x1000; LANES], &[value; LANES], 1);
        spin.backward(7, 1)
    }

    #[test]
    fn the_same_value_again_and_again_is_waiting() {
        let mut spin = Spin::default();
        let turns = (0..20).position(|_| turn(&mut spin, 5) == Loop::Waiting(0x1000));
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
        assert!((0..100).all(|_| spin.backward(9, 1) == Loop::Working));
        assert!(spin.changed());
    }
}
