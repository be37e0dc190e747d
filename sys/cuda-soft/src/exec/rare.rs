//! Words that a waiting loop reads only now and then, such as the one that tells a kernel to leave.
//!
//! A loop that waits is executed for a few turns between naps. A word that it reads once in a thousand turns would be seen
//! half a second late. So before a warp waits, it looks at the next such word itself. If some loop has already waited on
//! after reading the value that is there, the warp waits. Otherwise it goes on with the loop until the loop has read the
//! word. A mistake costs time only.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::memory;
use super::turn::Context;
use super::warp::{Frame, Warp};
use crate::code::op::Mem;
use crate::code::{Base, Function, Op, Space};

/// How often a loop is hurried on, two turns each, before it is left to wait whatever the word says.
const MOST: u32 = 4096;
/// Addresses remembered; beyond that all are forgotten.
const KNOWN: usize = 4096;

/// Values that loops have read rarely and then waited on, by address. One for all kernels, because each that waits for the
/// same sender begins by not knowing.
#[derive(Debug, Default)]
pub(super) struct Harmless(Mutex<HashMap<u64, u64>>);

impl Harmless {
    fn knows(&self, address: u64, value: u64) -> bool {
        self.0.lock().get(&address) == Some(&value)
    }

    fn learn(&self, address: u64, value: u64) {
        let mut values = self.0.lock();
        if values.len() >= KNOWN {
            values.clear();
        }
        values.insert(address, value);
    }
}

/// What a warp knows of the loop it was last found waiting in.
#[derive(Debug, Default)]
pub(super) struct Rare {
    /// The loop: function and backward branch.
    branch: Option<(u32, u32)>,
    /// Its load beyond that branch, if it has one.
    load: Option<u32>,
    /// Address and value at that load, each time just before it is executed.
    seen: Option<(u64, u64)>,
    /// How often it has been hurried on since.
    hurried: u32,
}

/// The first strong load between the branch at `pc` and the last one that also goes back to `target`.
fn rare_load(function: &Function, pc: u32, target: u32) -> Option<u32> {
    let back = |op: &Op| matches!(op, Op::Bra { target: to } if *to == target);
    let beyond = function.code.get(pc as usize + 1..)?;
    let end = beyond.iter().rposition(|inst| back(&inst.op))?;
    let load = beyond[..end].iter().position(|inst| load_of(&inst.op).is_some())?;
    Some(pc + 1 + load as u32)
}

fn load_of(op: &Op) -> Option<&Mem> {
    match op {
        Op::Ld { mem, .. }
            if mem.sem.strong()
                && mem.count == 1
                && matches!(mem.space, Space::Global | Space::Generic)
                && matches!(mem.addr.base, Base::Reg(_)) =>
        {
            Some(mem)
        }
        _ => None,
    }
}

impl Warp {
    /// Whether the lanes of `mask`, found waiting at the backward branch `pc` to `target`, must go on all the same until
    /// they have read the word they read rarely.
    pub(super) fn hurries(
        &mut self,
        cx: &mut Context<'_, '_>,
        frame: Frame,
        (pc, target): (u32, u32),
        mask: u32,
    ) -> bool {
        let branch = Some((frame.function, pc));
        let grid = cx.grid;
        if self.rare.branch != branch {
            let function = &grid.image().code.functions[frame.function as usize];
            self.rare = Rare { branch, load: rare_load(function, pc, target), ..Rare::default() };
        }
        let Some(load) = self.rare.load else { return false };
        if let Some((address, value)) = self.rare.seen.take() {
            // It has read the word, and waits on.
            cx.harmless.learn(address, value);
            self.rare.hurried = 0;
        }
        let Some((address, value)) = self.peek(cx, frame, load, mask) else { return false };
        if cx.harmless.knows(address, value) {
            self.rare.hurried = 0;
            return false;
        }
        self.rare.hurried += 1;
        if self.rare.hurried > MOST {
            // It has not come to that load: the value does not matter here.
            cx.harmless.learn(address, value);
            self.rare.hurried = 0;
            return false;
        }
        true
    }

    /// Call before the instruction at `pc` is executed.
    #[inline]
    pub(super) fn notice(&mut self, cx: &mut Context<'_, '_>, frame: Frame, pc: u32, mask: u32) {
        if self.rare.load == Some(pc)
            && self.rare.branch.is_some_and(|(function, _)| function == frame.function)
        {
            self.rare.seen = self.peek(cx, frame, pc, mask);
        }
    }

    /// What the load at `pc` would read in the first lane of `mask`, if it may.
    fn peek(&self, cx: &mut Context<'_, '_>, frame: Frame, pc: u32, mask: u32) -> Option<(u64, u64)> {
        let grid = cx.grid;
        let inst = grid.image().code.functions[frame.function as usize].code.get(pc as usize)?;
        let mem = load_of(&inst.op)?;
        let (lane, first) = (mask.trailing_zeros() as usize & 31, mask & mask.wrapping_neg());
        let at = self.addresses(cx, frame, mem.addr, mem.space);
        cx.access.check(&at, first, self.request(mem, false)).ok()?;
        // SAFETY: checked just now, under the view that `access` borrows.
        let values = unsafe { memory::load(&at, first, mem.ty.size()) };
        Some((at[lane], values[lane]))
    }
}
