//! The register file of one warp: an array of 32 lanes per register.

use crate::code::{Function, Pred, PredSrc, Reg, Src};

/// Lanes of a warp.
pub(super) const LANES: usize = 32;
/// The mask of all lanes.
pub(super) const ALL: u32 = u32::MAX;

/// One value per lane.
pub(super) type Lanes<T> = [T; LANES];

/// Registers of all active calls. The current window holds those of the running function.
#[derive(Debug, Default)]
pub(super) struct Regs {
    w32: Vec<Row<u32>>,
    w64: Vec<Row<u64>>,
    preds: Vec<u32>,
    /// The carry flag, a bit per lane.
    pub(super) carry: u32,
    window: Window,
    /// What registers hold that were never written; zero without it.
    garbage: Option<fastrand::Rng>,
}

/// The first register of a call, per kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Window {
    w32: u32,
    w64: u32,
    preds: u32,
}

impl Window {
    /// The window of a function that `caller` calls; `self` is the window of `caller`.
    pub(super) fn after(self, caller: &Function) -> Window {
        Window {
            w32: self.w32 + u32::from(caller.regs32),
            w64: self.w64 + u32::from(caller.regs64),
            preds: self.preds + u32::from(caller.preds),
        }
    }
}

#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
struct Row<T>(Lanes<T>);

impl Regs {
    /// No registers so far; with a seed, those to come hold garbage at first: PTX promises nothing about what was not written.
    pub(super) fn new(garbage: Option<u64>) -> Self {
        let mut garbage = garbage.map(fastrand::Rng::with_seed);
        let carry = garbage.as_mut().map_or(0, |garbage| garbage.u32(..));
        Self { carry, garbage, ..Self::default() }
    }

    /// Makes `window` current and allocates the registers of `function` in it.
    pub(super) fn enter(&mut self, window: Window, function: &Function) {
        self.window = window;
        let end = window.after(function);
        let grow = |have: usize, need: u32| have.max(need as usize);
        let [w32, w64, preds] = [self.w32.len(), self.w64.len(), self.preds.len()];
        self.w32.resize(grow(self.w32.len(), end.w32), Row([0; LANES]));
        self.w64.resize(grow(self.w64.len(), end.w64), Row([0; LANES]));
        self.preds.resize(grow(self.preds.len(), end.preds), 0);
        if let Some(garbage) = &mut self.garbage {
            self.w32[w32..].iter_mut().for_each(|row| row.0.fill_with(|| garbage.u32(..)));
            self.w64[w64..].iter_mut().for_each(|row| row.0.fill_with(|| garbage.u64(..)));
            self.preds[preds..].fill_with(|| garbage.u32(..));
        }
    }

    /// Reads the low 32 bits of a source in every lane.
    #[inline(never)]
    pub(super) fn get32(&self, src: Src) -> Lanes<u32> {
        match src {
            Src::Reg(Reg::W32(r)) => self.w32[self.window.w32 as usize + usize::from(r)].0,
            Src::Imm(value) => [value as u32; LANES],
            Src::Reg(Reg::W64(r)) => self.w64[self.window.w64 as usize + usize::from(r)].0.map(|v| v as u32),
        }
    }

    /// Reads a source in every lane; a 32-bit slot is zero-extended.
    #[inline(never)]
    pub(super) fn get64(&self, src: Src) -> Lanes<u64> {
        match src {
            Src::Reg(Reg::W64(r)) => self.w64[self.window.w64 as usize + usize::from(r)].0,
            Src::Imm(value) => [value; LANES],
            Src::Reg(Reg::W32(r)) => self.w32[self.window.w32 as usize + usize::from(r)].0.map(u64::from),
        }
    }

    /// Reads a source in one lane.
    #[inline]
    pub(super) fn lane(&self, src: Src, lane: usize) -> u64 {
        match src {
            Src::Reg(Reg::W64(r)) => self.w64[self.window.w64 as usize + usize::from(r)].0[lane],
            Src::Reg(Reg::W32(r)) => u64::from(self.w32[self.window.w32 as usize + usize::from(r)].0[lane]),
            Src::Imm(value) => value,
        }
    }

    /// Writes the lanes of `mask`; a 64-bit slot gets zero-extended values.
    #[inline(never)]
    pub(super) fn put32(&mut self, d: Reg, values: &Lanes<u32>, mask: u32) {
        match d {
            Reg::W32(r) => {
                let row = &mut self.w32[self.window.w32 as usize + usize::from(r)].0;
                select(row, values, mask);
            }
            Reg::W64(r) => {
                let row = &mut self.w64[self.window.w64 as usize + usize::from(r)].0;
                select(row, &values.map(u64::from), mask);
            }
        }
    }

    /// Writes the lanes of `mask`; a 32-bit slot gets truncated values.
    #[inline(never)]
    pub(super) fn put64(&mut self, d: Reg, values: &Lanes<u64>, mask: u32) {
        match d {
            Reg::W64(r) => {
                let row = &mut self.w64[self.window.w64 as usize + usize::from(r)].0;
                select(row, values, mask);
            }
            Reg::W32(r) => {
                let row = &mut self.w32[self.window.w32 as usize + usize::from(r)].0;
                select(row, &values.map(|v| v as u32), mask);
            }
        }
    }

    /// Reads a predicate, one bit per lane.
    #[inline(always)]
    pub(super) fn pred(&self, p: Pred) -> u32 {
        self.preds[self.window.preds as usize + usize::from(p.0)]
    }

    /// Reads a predicate source, one bit per lane.
    #[inline(always)]
    pub(super) fn pred_src(&self, src: PredSrc) -> u32 {
        match src {
            PredSrc::Reg { pred, negate } => self.pred(pred) ^ if negate { ALL } else { 0 },
            PredSrc::Imm(value) => {
                if value {
                    ALL
                } else {
                    0
                }
            }
        }
    }

    /// Writes the lanes of `mask` of a predicate.
    #[inline(always)]
    pub(super) fn put_pred(&mut self, p: Pred, bits: u32, mask: u32) {
        let row = &mut self.preds[self.window.preds as usize + usize::from(p.0)];
        *row = *row & !mask | bits & mask;
    }
}

#[inline(always)]
fn select<T: Copy>(row: &mut Lanes<T>, values: &Lanes<T>, mask: u32) {
    if mask == ALL {
        *row = *values;
    } else {
        for lane in 0..LANES {
            if mask >> lane & 1 != 0 {
                row[lane] = values[lane];
            }
        }
    }
}

/// Iterates over the lanes of a mask, lowest first.
#[inline(always)]
pub(super) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        (rest != 0).then(|| {
            let lane = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            lane
        })
    })
}

/// The mask of the lanes for which `f` is true.
#[inline(always)]
pub(super) fn bits(f: impl Fn(usize) -> bool) -> u32 {
    (0..LANES).fold(0, |acc, lane| acc | u32::from(f(lane)) << lane)
}
