//! Accesses of memory with the race detector on: what it is told, and what it has loads return.

use std::sync::Arc;

use parking_lot::MutexGuard;

use super::fault::{FaultKind, Trouble};
use super::memory;
use super::regs::{LANES, Lanes, lanes};
use super::turn::Context;
use super::warp::Warp;
use crate::check::{self, Failure, Line, Source, Spot, State, Update};
use crate::code::op::Mem;
use crate::code::{Op, Scope, Semantics, Space};

/// Bytes of a line.
const LINE: u64 = 128;

/// An access of all lanes of an instruction, as far as they have the same size and strength.
#[derive(Clone, Copy, Debug)]
pub(super) struct Element {
    pub(super) space: Space,
    pub(super) size: u32,
    pub(super) sem: Semantics,
    pub(super) scope: Scope,
}

impl Element {
    pub(super) fn of(mem: &Mem) -> Self {
        let scope = if mem.sem == Semantics::Volatile { Scope::Sys } else { mem.scope };
        Self { space: mem.space, size: mem.ty.size(), sem: mem.sem, scope }
    }

    /// The bytes of a register that the access moves.
    fn low(self, value: u64) -> u64 {
        low(value, self.size)
    }
}

/// The low bytes of a value.
pub(super) fn low(value: u64, bytes: u32) -> u64 {
    if bytes < 8 { value & ((1 << (8 * bytes)) - 1) } else { value }
}

/// How an access of a lane failed.
pub(super) fn trouble(failure: Failure, lane: usize, address: u64) -> Trouble {
    match failure {
        Failure::Race => Trouble::at(FaultKind::Race, lane, address),
        Failure::TooMuch => Trouble::of(FaultKind::TooMuch, 1 << lane),
    }
}

/// Locks the detector for one instruction, so that no other thread accesses memory in between.
pub(super) fn lock<'a>(cx: &Context<'a, '_>) -> Option<MutexGuard<'a, State>> {
    let work = cx.grid.launch().check.as_ref()?;
    // Threads of the host run the devices. On a busy host one would run its kernel whole, then another one, and most orders of their
    // accesses would hardly come: so where memory is weak, each gives way now and then.
    if work.chance().is_some() && fastrand::u8(..) < 16 {
        std::thread::yield_now();
    }
    Some(work.checker().lock())
}

impl Warp {
    /// Notes the instruction that runs next.
    pub(super) fn names(&mut self, function: u32, pc: u32) {
        if let Some(check) = &mut self.check {
            check.at = (function, pc);
        }
    }

    /// Loads an element in each lane of `mask`, as the detector has it.
    ///
    /// # Errors
    /// A failure of the lane that it names.
    ///
    /// # Safety
    /// As for [`memory::load`].
    pub(super) unsafe fn checked_load(
        &mut self,
        cx: &mut Context<'_, '_>,
        state: &mut State,
        at: &Lanes<u64>,
        mask: u32,
        element: Element,
    ) -> Result<Lanes<u64>, Trouble> {
        let mut values = [0; LANES];
        self.each(cx, state, at, mask, element, |check, state, lane, spot| {
            // SAFETY: the caller checked range, rights and alignment.
            let now = unsafe { memory::load(at, 1 << lane, element.size) }[lane];
            values[lane] = match spot {
                Some(spot) => check.read(state, lane, spot, now, element.sem, element.scope)?,
                None => now,
            };
            Ok(())
        })?;
        Ok(values)
    }

    /// Stores an element in each lane of `mask`, after the detector knows of it. `lines` are those of
    /// [`lines`](Self::lines).
    ///
    /// # Errors
    /// A failure of the lane that it names.
    ///
    /// # Safety
    /// As for [`memory::store`].
    #[allow(clippy::too_many_arguments, reason = "the operands of one instruction")]
    pub(super) unsafe fn checked_store(
        &mut self,
        cx: &mut Context<'_, '_>,
        state: &mut State,
        at: &Lanes<u64>,
        values: &Lanes<u64>,
        mask: u32,
        element: Element,
        lines: &[Option<Arc<Line>>],
    ) -> Result<(), Trouble> {
        self.each(cx, state, at, mask, element, |check, state, lane, spot| {
            let last = match spot {
                Some(spot) => {
                    // SAFETY: the caller checked range, rights and alignment.
                    let before = unsafe { memory::load(at, 1 << lane, element.size) }[lane];
                    let values = [before, element.low(values[lane])];
                    let line = lines.get(lane).cloned().flatten();
                    check.write(state, lane, spot, values, element.sem, element.scope, line)?
                }
                None => true,
            };
            if last {
                // SAFETY: as above.
                unsafe { memory::store(at, values, 1 << lane, element.size) };
            }
            Ok(())
        })
    }

    /// Tells the detector of an atomic operation of one lane, and of the values that it read and wrote.
    ///
    /// # Errors
    /// A failure of the lane.
    #[allow(clippy::too_many_arguments, reason = "the parts of one instruction")]
    pub(super) fn tell_update(
        &mut self,
        cx: &mut Context<'_, '_>,
        state: &mut State,
        at: &Lanes<u64>,
        lane: usize,
        element: Element,
        values: [u64; 2],
        update: Update,
    ) -> Result<(), Trouble> {
        self.each(cx, state, at, 1 << lane, element, |check, state, lane, spot| {
            let Some(spot) = spot else { return Ok(()) };
            let values = values.map(|value| element.low(value));
            check.update(state, lane, spot, values, element.sem, element.scope, update)
        })
    }

    /// Calls `access` for each lane of `mask`, with the place of its element if other threads can access it, too.
    fn each(
        &mut self,
        cx: &mut Context<'_, '_>,
        state: &mut State,
        at: &Lanes<u64>,
        mask: u32,
        element: Element,
        mut access: impl FnMut(&mut check::Warp, &mut State, usize, Option<Spot>) -> Result<(), Failure>,
    ) -> Result<(), Trouble> {
        let stacks = self.stacks();
        let Some(check) = self.checker(cx, state) else { return Ok(()) };
        let block = (cx.grid.id(), cx.place.linear);
        let shared = matches!(element.space, Space::Global | Space::Generic | Space::Shared);
        for lane in lanes(mask) {
            let address = at[lane];
            let end = address + u64::from(element.size);
            let own =
                !shared || stacks.of_lane(lane).holds(address, end) || cx.access.params.holds(address, end);
            let spot = if own { None } else { cx.access.spot(address, element.size, block) };
            access(check, state, lane, spot).map_err(|failure| trouble(failure, lane, address))?;
        }
        Ok(())
    }

    /// The detector's side of the warp, which knows the present instruction.
    pub(super) fn checker(&mut self, cx: &Context<'_, '_>, state: &mut State) -> Option<&mut check::Warp> {
        let check = self.check.as_deref_mut()?;
        let (function, pc) = check.at;
        let key = (cx.grid.image().number, function, pc);
        check.source = state.source(key, || {
            let (function, line) = cx.grid.source((function, pc));
            Source::Instruction { kernel: cx.grid.function().name.clone(), function, line }
        });
        Some(check)
    }

    /// The lines of 128 bytes that the lanes of `mask` store whole with one instruction of vectors: for each lane, the
    /// line that it stores a part of. Lanes that took different paths and have not met since may execute it one by one.
    pub(super) fn lines(
        &self,
        state: &State,
        at: &Lanes<u64>,
        mask: u32,
        mem: &Mem,
    ) -> Vec<Option<Arc<Line>>> {
        let bytes = u64::from(mem.ty.size()) * u64::from(mem.count);
        if mem.count < 2 || mem.sem != Semantics::Relaxed || check::line(state).is_none() {
            return Vec::new();
        }
        let mut found = vec![None; LANES];
        for first in lanes(mask).filter(|lane| at[*lane].is_multiple_of(LINE)) {
            let part = |lane: &usize| at[*lane] / LINE == at[first] / LINE && self.same_path(*lane, first);
            let parts: Vec<usize> = lanes(mask).filter(part).collect();
            let covered = parts.iter().fold(0_u128, |all, lane| all | 1 << (at[*lane] % LINE));
            if u64::from(covered.count_ones()) * bytes == LINE {
                let line = check::line(state);
                parts.iter().for_each(|lane| found[*lane].clone_from(&line));
            }
        }
        found
    }

    /// Whether the choices of the detector end the warp's turn before this instruction.
    pub(super) fn yields(&self, cx: &Context<'_, '_>, op: &Op) -> bool {
        let strong = match op {
            Op::Ld { mem, .. } | Op::St { mem, .. } => mem.sem.strong(),
            Op::Multimem(m) => m.sem.strong(),
            Op::Atom { .. } | Op::Fence { .. } => true,
            _ => false,
        };
        // A loop that waits is left alone, so that it is found waiting.
        strong && !self.spin.repeats() && cx.chance().is_some_and(|chance| chance.one_in(3))
    }

    /// All elements of a load are read.
    pub(super) fn tell_complete(&mut self) {
        if let Some(check) = &mut self.check {
            check.settle();
        }
    }

    /// `fence` of the lanes of `mask`.
    pub(super) fn tell_fence(&mut self, cx: &Context<'_, '_>, mask: u32, sem: Semantics, scope: Scope) {
        if let (Some(mut state), Some(check)) = (lock(cx), &mut self.check) {
            check.fence(&mut state, mask, sem, scope);
        }
    }

    /// `fence.proxy.alias` of the lanes of `mask`.
    pub(super) fn tell_fence_aliases(&mut self, mask: u32) {
        if let Some(check) = &mut self.check {
            check.fence_aliases(mask);
        }
    }

    /// `bar.warp.sync` of the lanes of `now`, each with the lanes of `members`.
    pub(super) fn tell_warp_sync(&mut self, now: u32, members: &Lanes<u32>) {
        let live = self.live;
        let Some(check) = &mut self.check else { return };
        let mut left = now;
        while left != 0 {
            let lane = left.trailing_zeros() as usize % LANES;
            let group = members[lane] & live;
            check.meet(group | 1 << lane);
            left &= !(group | 1 << lane);
        }
    }

    /// The lanes of `mask` exit.
    pub(super) fn tell_exit(&mut self, cx: &Context<'_, '_>, mask: u32) {
        if let (Some(work), Some(check)) = (&cx.grid.launch().check, &self.check) {
            for lane in lanes(mask) {
                work.leaves(check, lane);
            }
        }
    }
}
