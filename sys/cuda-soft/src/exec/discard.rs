//! `discard`: a weak write of a line whose value nobody may rely on (PTX ISA 9.7.9.18).

use super::checked::{self, Element};
use super::fault::Trouble;
use super::memory::{self, Request};
use super::regs::{Lanes, lanes};
use super::turn::Context;
use super::warp::{Frame, Warp};
use crate::code::{Addr, Scope, Semantics, Space};

/// Bytes that the instruction discards.
const LINE: u64 = 128;

impl Warp {
    /// Discards the line at the address of each lane. Without garbage the bytes keep their values.
    #[cold]
    #[inline(never)]
    pub(super) fn discard(
        &mut self,
        cx: &mut Context<'_, '_>,
        mask: u32,
        frame: Frame,
        space: Space,
        addr: Addr,
    ) -> Result<(), Trouble> {
        let mut at = self.addresses(cx, frame, addr, space);
        cx.access.check(&at, mask, Request { space, size: LINE, write: true, stacks: self.stacks() })?;
        self.spin.wrote();
        let (garbage, mut check) = (cx.grid.launch().garbage, checked::lock(cx));
        if garbage.is_none() && check.is_none() {
            return Ok(());
        }
        let word = Element { space, size: 8, sem: Semantics::Weak, scope: Scope::Cta };
        for _ in 0..LINE / 8 {
            // SAFETY: checked just now, under the view that `access` borrows.
            let mut values: Lanes<u64> = unsafe { memory::load(&at, mask, 8) };
            if let Some(seed) = garbage {
                lanes(mask).for_each(|lane| values[lane] = garbage_for(seed, values[lane]));
            }
            // SAFETY: as above, checked for writing.
            unsafe {
                match &mut check {
                    Some(state) => {
                        self.checked_store(cx, state, &at, &values, mask, word, &[])?;
                    }
                    None => memory::store(&at, &values, mask, 8),
                }
            }
            at = at.map(|v| v.wrapping_add(8));
        }
        Ok(())
    }
}

/// A value other than `now` in each half, whatever the seed.
fn garbage_for(seed: u64, now: u64) -> u64 {
    let other = fastrand::Rng::with_seed(seed ^ now).u64(..) | 1 | 1 << 32;
    now ^ other
}
