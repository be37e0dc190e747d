//! Words that a waiting loop reads only now and then, such as the one that tells a kernel to leave.
//!
//! A waiting loop runs for a few turns between naps, so it would see a word that it reads once in a thousand turns half
//! a second late. Therefore a warp looks at the next such word itself before it waits. If a loop has kept waiting after
//! it read the value that is there now, the warp waits. Otherwise the warp continues until its loop has read the word.
//! A wrong guess costs only time.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::code::op::Mem;
use crate::code::{Base, Function, Op, Space};

/// How often a warp continues, for two turns each, before it waits whatever the value of the word.
const MAX_HURRIES: u32 = 4096;
/// Maximum number of addresses in [`Harmless`], which forgets all of them beyond that.
const MAX_ADDRESSES: usize = 4096;

/// Values of rarely read words, by address, after which loops kept waiting. All kernels share them, because kernels
/// that wait for the same sender read the same word.
#[derive(Debug, Default)]
pub(super) struct Harmless(Mutex<HashMap<u64, u64>>);

impl Harmless {
    /// Whether a loop kept waiting after it read `value` at `address`.
    fn knows(&self, address: u64, value: u64) -> bool {
        self.0.lock().get(&address) == Some(&value)
    }

    fn learn(&self, address: u64, value: u64) {
        let mut values = self.0.lock();
        if values.len() >= MAX_ADDRESSES {
            values.clear();
        }
        values.insert(address, value);
    }
}

/// The rarely read word of the loop in which a warp was last found waiting.
#[derive(Debug, Default)]
pub(super) struct Rare {
    /// Function and backward branch of the loop.
    branch: Option<(u32, u32)>,
    /// The instruction that reads the word, if the loop has one.
    load: Option<u32>,
    /// Address and value of the word, just before the last execution of that instruction.
    seen: Option<(u64, u64)>,
    /// How often the warp has continued since then.
    hurries: u32,
}

impl Rare {
    /// Begins with another loop, unless `branch` is that of the present one.
    pub(super) fn enter(&mut self, function: u32, code: &Function, (pc, target): (u32, u32)) {
        let branch = Some((function, pc));
        if self.branch != branch {
            *self = Rare { branch, load: rare_load(code, pc, target), ..Rare::default() };
        }
    }

    /// The instruction of the loop that reads the word.
    pub(super) fn load(&self) -> Option<u32> {
        self.load
    }

    /// Whether the instruction at `pc` of `function` reads the word.
    #[inline]
    pub(super) fn is_load(&self, function: u32, pc: u32) -> bool {
        self.load == Some(pc) && self.branch.is_some_and(|(own, _)| own == function)
    }

    /// Notes address and value of the word, just before the loop reads it.
    pub(super) fn note(&mut self, seen: Option<(u64, u64)>) {
        self.seen = seen;
    }

    /// Call when the warp is found waiting. If its loop has read the word before, that value is harmless.
    pub(super) fn waits(&mut self, harmless: &Harmless) {
        if let Some((address, value)) = self.seen.take() {
            harmless.learn(address, value);
            self.hurries = 0;
        }
    }

    /// Whether the warp must continue until its loop reads the word, which is now `value` at `address`.
    pub(super) fn hurries(&mut self, harmless: &Harmless, address: u64, value: u64) -> bool {
        if harmless.knows(address, value) {
            self.hurries = 0;
            return false;
        }
        self.hurries += 1;
        if self.hurries > MAX_HURRIES {
            // The loop does not get to the instruction, so the value does not matter here.
            harmless.learn(address, value);
            self.hurries = 0;
            return false;
        }
        true
    }
}

/// The first strong load between the backward branch at `pc` and the last branch to the same `target`.
fn rare_load(function: &Function, pc: u32, target: u32) -> Option<u32> {
    let back = |op: &Op| matches!(op, Op::Bra { target: to } if *to == target);
    let beyond = function.code.get(pc as usize + 1..)?;
    let end = beyond.iter().rposition(|inst| back(&inst.op))?;
    let load = beyond[..end].iter().position(|inst| load_of(&inst.op).is_some())?;
    Some(pc + 1 + load as u32)
}

/// The memory operand of a load that could read such a word: strong, of one value, from global memory.
pub(super) fn load_of(op: &Op) -> Option<&Mem> {
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
