//! Whether the lanes of a warp are together: at a barrier that PTX calls aligned, and where they store a line of 128 bytes.
//!
//! PTX wants all lanes of a warp to execute an aligned barrier as one. After a branch that not all lanes took, only an
//! instruction at which the lanes wait for each other (`bar.warp.sync`, `vote.sync` and their like) promises that they are
//! together again. So each lane's path since then is kept: the outcomes of its branches.

use super::fault::{FaultKind, Trouble};
use super::regs::lanes;
use super::turn::Context;
use super::warp::Warp;
use crate::code::Op;

impl Warp {
    /// The lanes of `mask` execute `op` at `pc`, under a guard that holds for `active`.
    ///
    /// # Errors
    /// `op` precedes an aligned barrier that only some of them execute.
    pub(super) fn parts(
        &mut self,
        cx: &Context<'_, '_>,
        op: &Op,
        pc: u32,
        mask: u32,
        active: u32,
    ) -> Result<(), Trouble> {
        match op {
            Op::Bra { .. } | Op::Ret => {
                for lane in lanes(mask) {
                    self.turns(lane, u64::from(pc) << 1 | u64::from(active >> lane & 1));
                }
            }
            Op::Aligned if active != 0 && active != mask && cx.grid.launch().aligned => {
                return Err(Trouble::of(FaultKind::Diverged, mask & !active));
            }
            _ => {}
        }
        Ok(())
    }

    /// The lane's path continues with `step`.
    pub(super) fn turns(&mut self, lane: usize, step: u64) {
        if let Some(paths) = &mut self.paths {
            let mixed = (paths[lane] ^ step).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            paths[lane] = mixed.rotate_left(29).wrapping_add(1);
        }
    }

    /// The lane has met the others of `here`.
    pub(super) fn meets(&mut self, lane: usize, here: u32) {
        if let Some(paths) = &mut self.paths {
            paths[lane] = u64::from(here);
        }
    }

    /// Whether PTX promises that two lanes which are at the same instruction execute it as one.
    pub(super) fn same_path(&self, a: usize, b: usize) -> bool {
        self.paths.as_ref().is_none_or(|paths| paths[a] == paths[b])
    }

    /// The lanes of `mask` are at an aligned barrier.
    ///
    /// # Errors
    /// A lane of the warp took another path.
    pub(super) fn together(&self, mask: u32) -> Result<(), Trouble> {
        let Some(paths) = &self.paths else { return Ok(()) };
        let first = mask.trailing_zeros() as usize & 31;
        match lanes(self.live).find(|lane| paths[*lane] != paths[first]) {
            Some(other) => Err(Trouble::of(FaultKind::Diverged, 1 << other)),
            None => Ok(()),
        }
    }
}
