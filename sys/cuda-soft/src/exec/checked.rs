//! What the race detector is told of each instruction, if it is on.

use std::sync::Arc;

use parking_lot::MutexGuard;

use super::fault::{FaultKind, Trouble};
use super::regs::{LANES, Lanes, lanes};
use super::turn::Context;
use super::warp::Warp;
use crate::check::{Event, Source, State};
use crate::code::op::Mem;
use crate::code::{Scope, Semantics, Space};

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
        if self.size < 8 { value & ((1 << (8 * self.size)) - 1) } else { value }
    }

    pub(super) fn weak(space: Space, size: u32) -> Self {
        Self { space, size, sem: Semantics::Weak, scope: Scope::Cta }
    }
}

/// Locks the detector for one instruction, so that no other thread accesses memory in between.
pub(super) fn lock<'a>(cx: &Context<'a, '_>) -> Option<MutexGuard<'a, State>> {
    let grid = cx.grid;
    grid.launch().check.as_ref().map(|work| work.checker().lock())
}

impl Warp {
    /// Notes the instruction that runs next.
    pub(super) fn names(&mut self, function: u32, pc: u32) {
        if let Some(check) = &mut self.check {
            check.at = (function, pc);
        }
    }

    /// Tells the detector of one access of each lane of `mask`.
    ///
    /// # Errors
    /// A race of the lane that it names.
    pub(super) fn tell(
        &mut self,
        cx: &mut Context<'_, '_>,
        state: &mut Option<MutexGuard<'_, State>>,
        at: &Lanes<u64>,
        mask: u32,
        element: Element,
        event: impl Fn(usize) -> Event,
    ) -> Result<(), Trouble> {
        let stacks = self.stacks();
        let (Some(state), Some(check)) = (state, &mut self.check) else { return Ok(()) };
        if !matches!(element.space, Space::Global | Space::Generic | Space::Shared) {
            return Ok(());
        }
        let (function, pc) = check.at;
        let image = &cx.grid.launch().image;
        let key = (Arc::as_ptr(image).addr(), function, pc);
        check.source = state.source(key, || {
            let (function, line) = cx.grid.source((function, pc));
            Source::Instruction { kernel: cx.grid.function().name.clone(), function, line }
        });
        let block = (cx.grid.id(), cx.place.linear);
        for lane in lanes(mask) {
            let address = at[lane];
            let end = address + u64::from(element.size);
            if stacks.of_lane(lane).holds(address, end) || cx.access.params.holds(address, end) {
                continue;
            }
            let Some(spot) = cx.access.spot(address, element.size, block) else { continue };
            let event = match event(lane) {
                Event::Read(value) => Event::Read(element.low(value)),
                Event::Write(value) => Event::Write(element.low(value)),
                Event::Update(old, new) => Event::Update(element.low(old), element.low(new)),
            };
            check
                .event(state, lane, spot, event, element.sem, element.scope)
                .map_err(|_| Trouble::at(FaultKind::Race, lane, address))?;
        }
        Ok(())
    }

    /// `fence` of the lanes of `mask`.
    pub(super) fn tell_fence(&mut self, cx: &Context<'_, '_>, mask: u32, sem: Semantics, scope: Scope) {
        if let (Some(mut state), Some(check)) = (lock(cx), &mut self.check) {
            check.fence(&mut state, mask, sem, scope);
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
