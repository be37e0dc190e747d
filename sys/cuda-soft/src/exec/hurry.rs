//! Lets a warp that waits in a loop continue until the loop has read its rarely read word; see [`rare`](super::rare).

use super::memory;
use super::rare::load_of;
use super::turn::Context;
use super::warp::{Frame, Warp};

impl Warp {
    /// Whether the lanes of `mask`, found waiting at the backward branch `pc` to `target`, must continue all the same
    /// until they have read the word that they read rarely.
    pub(super) fn hurries(
        &mut self,
        cx: &mut Context<'_, '_>,
        frame: Frame,
        (pc, target): (u32, u32),
        mask: u32,
    ) -> bool {
        let grid = cx.grid;
        let code = &grid.image().code.functions[frame.function as usize];
        self.rare.enter(frame.function, code, (pc, target));
        let Some(load) = self.rare.load() else { return false };
        self.rare.waits(cx.harmless);
        let Some((address, value)) = self.peek(cx, frame, load, mask) else { return false };
        self.rare.hurries(cx.harmless, address, value)
    }

    /// Notes the word that the instruction at `pc` will read, if that is the rarely read word of the loop. Call before
    /// the instruction is executed.
    #[inline]
    pub(super) fn notice(&mut self, cx: &mut Context<'_, '_>, frame: Frame, pc: u32, mask: u32) {
        if self.rare.is_load(frame.function, pc) {
            let seen = self.peek(cx, frame, pc, mask);
            self.rare.note(seen);
        }
    }

    /// Address and value that the load at `pc` would read in the first lane of `mask`, if its access is valid.
    fn peek(&self, cx: &mut Context<'_, '_>, frame: Frame, pc: u32, mask: u32) -> Option<(u64, u64)> {
        let grid = cx.grid;
        let inst = grid.image().code.functions[frame.function as usize].code.get(pc as usize)?;
        let mem = load_of(&inst.op)?;
        let (lane, first) = (mask.trailing_zeros() as usize & 31, mask & mask.wrapping_neg());
        let at = self.addresses(cx, frame, mem.addr, mem.space);
        cx.access.check(&at, first, self.request(mem, false)).ok()?;
        // SAFETY: `check` has just found the address accessible, under the view of the memory that `access` borrows.
        let values = unsafe { memory::load(&at, first, mem.ty.size()) };
        Some((at[lane], values[lane]))
    }
}
