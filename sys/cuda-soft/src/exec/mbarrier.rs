//! `mbarrier` objects and what completes them (PTX ISA 9.7.13.15): counts of arrivals and of bytes in a word of shared
//! memory.
//!
//! The word, which programs must not look into, has the pending arrivals in bits 0 to 19, the arrivals of a whole phase in
//! bits 20 to 39, the pending bytes, with a sign, in bits 40 to 61, and the parity of the phase in bit 63. The state that
//! an arrival returns is the word before it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::fault::{FaultKind, Trouble};
use super::memory::{self, Request};
use super::regs::{LANES, lanes};
use super::turn::Context;
use super::warp::{Frame, Warp};
use crate::code::op::{BulkCopy, Mbarrier, MbarrierOp};
use crate::code::{Addr, Semantics, Space, Src};

const COUNT: u64 = (1 << 20) - 1;
const PHASE: u64 = 1 << 63;
const BYTES: u64 = (1 << 22) - 1;

fn pending(word: u64) -> u64 {
    word & COUNT
}

fn expected(word: u64) -> u64 {
    word >> 20 & COUNT
}

/// The word with these counts, after completing its phase if nothing is pending.
fn with(word: u64, pending: u64, expected: u64, bytes: u64) -> u64 {
    let (pending, bytes) = (pending & COUNT, bytes & BYTES);
    let phase = word & PHASE;
    if pending == 0 && bytes == 0 {
        return expected << 20 | expected | (phase ^ PHASE);
    }
    bytes << 40 | expected << 20 | pending | phase
}

/// The word after `op` with operands `a` and `b`; `None` if `op` does not change it.
fn after(op: MbarrierOp, word: u64, a: u64, b: u64) -> Option<u64> {
    let (count, total, bytes) = (pending(word), expected(word), word >> 40 & BYTES);
    Some(match op {
        MbarrierOp::Init => (a & COUNT) << 20 | a & COUNT,
        MbarrierOp::Inval => 0,
        // Not `with`: expecting bytes completes nothing.
        MbarrierOp::ExpectTx => word & !(BYTES << 40) | (bytes.wrapping_add(a) & BYTES) << 40,
        MbarrierOp::CompleteTx => with(word, count, total, bytes.wrapping_sub(a)),
        MbarrierOp::Arrive => with(word, count.wrapping_sub(a), total, bytes.wrapping_add(b)),
        MbarrierOp::ArriveDrop => {
            with(word, count.wrapping_sub(a), total.wrapping_sub(a) & COUNT, bytes.wrapping_add(b))
        }
        MbarrierOp::TestWait | MbarrierOp::TestWaitParity => return None,
    })
}

impl Warp {
    #[cold]
    #[inline(never)]
    pub(super) fn mbarrier(
        &mut self,
        cx: &mut Context<'_, '_>,
        mask: u32,
        frame: Frame,
        op: &Mbarrier,
    ) -> Result<(), Trouble> {
        let at = self.addresses(cx, frame, op.addr, op.space);
        let ask = Request { space: op.space, size: 8, write: true, stacks: self.stacks() };
        cx.access.check(&at, mask, ask)?;
        let (a, b) = (self.regs.get64(op.a), self.regs.get64(op.b));
        let waits = matches!(op.op, MbarrierOp::TestWait | MbarrierOp::TestWaitParity);
        if !waits {
            memory::before(Semantics::Release);
        }
        let mut words = [0; LANES];
        for lane in lanes(mask) {
            // SAFETY: checked for writing just now, under the view that `access` borrows.
            let cell = unsafe { memory::word::<AtomicU64>(at[lane]) };
            let change = |word| after(op.op, word, a[lane], b[lane]);
            words[lane] =
                cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).unwrap_or_else(|word| word);
        }
        if waits {
            memory::after(Semantics::Acquire);
            self.spin.read_strong(&at, &words, mask);
        } else {
            self.spin.wrote();
        }
        if let Some(d) = op.d {
            self.regs.put64(d, &words, mask);
        }
        if let Some(p) = op.p {
            let past = |lane: usize| match op.op {
                // The phase of the state, or of the parity, is over when the present phase has the other parity.
                MbarrierOp::TestWaitParity => (words[lane] & PHASE != 0) != (a[lane] & 1 != 0),
                _ => words[lane] & PHASE != a[lane] & PHASE,
            };
            let past = lanes(mask).filter(|l| past(*l)).fold(0, |m, l| m | 1 << l);
            self.regs.put_pred(p, past, mask);
        }
        Ok(())
    }

    /// `cp.async.bulk`, which completes at once: copies the bytes, then counts them as completed at the mbarrier.
    #[cold]
    #[inline(never)]
    pub(super) fn bulk_copy(
        &mut self,
        cx: &mut Context<'_, '_>,
        mask: u32,
        frame: Frame,
        copy: &BulkCopy,
    ) -> Result<(), Trouble> {
        let (dst, src) = (copy.dst, copy.src);
        let to = self.addresses(cx, frame, dst.1, dst.0);
        let from = self.addresses(cx, frame, src.1, src.0);
        let sizes = self.regs.get32(copy.size);
        let stacks = self.stacks();
        for lane in lanes(mask) {
            let size = u64::from(sizes[lane]);
            for address in [to[lane], from[lane], size] {
                if address % 16 != 0 {
                    return Err(Trouble::at(FaultKind::MisalignedAddress, lane, address));
                }
            }
            cx.access.check_lane(to[lane], lane, Request { space: dst.0, size, write: true, stacks })?;
            cx.access.check_lane(from[lane], lane, Request { space: src.0, size, write: false, stacks })?;
            for offset in (0..size).step_by(8) {
                // SAFETY: both words are in the ranges checked just now, under the view that `access` borrows.
                unsafe {
                    let value = memory::word::<AtomicU64>(from[lane] + offset).load(Ordering::Relaxed);
                    memory::word::<AtomicU64>(to[lane] + offset).store(value, Ordering::Relaxed);
                }
            }
        }
        self.spin.wrote();
        match copy.mbarrier {
            Some((space, addr)) => self.complete(cx, mask, frame, space, addr, copy.size),
            None => Ok(()),
        }
    }

    fn complete(
        &mut self,
        cx: &mut Context<'_, '_>,
        mask: u32,
        frame: Frame,
        space: Space,
        addr: Addr,
        bytes: Src,
    ) -> Result<(), Trouble> {
        let (op, b) = (MbarrierOp::CompleteTx, Src::Imm(0));
        self.mbarrier(cx, mask, frame, &Mbarrier { op, space, addr, d: None, p: None, a: bytes, b })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(word: u64, ops: &[(MbarrierOp, u64, u64)]) -> u64 {
        ops.iter().fold(word, |word, (op, a, b)| after(*op, word, *a, *b).expect("it changes the word"))
    }

    #[test]
    fn a_phase_ends_with_its_last_arrival_and_its_last_byte() {
        use MbarrierOp::{Arrive, ArriveDrop, CompleteTx, ExpectTx, Init};
        let start = run(0, &[(Init, 3, 0)]);
        assert_eq!((pending(start), expected(start), start & PHASE), (3, 3, 0));
        let two = run(start, &[(Arrive, 2, 0)]);
        assert_eq!((pending(two), two & PHASE), (1, 0));
        let next = run(two, &[(Arrive, 1, 0)]);
        assert_eq!((pending(next), next & PHASE), (3, PHASE));
        // Bytes may complete before they are expected.
        let early = run(start, &[(CompleteTx, 64, 0), (Arrive, 2, 0), (Arrive, 1, 128)]);
        assert_eq!(early & PHASE, 0);
        assert_eq!(run(early, &[(CompleteTx, 64, 0)]) & PHASE, PHASE);
        let tx = run(start, &[(ExpectTx, 16, 0), (Arrive, 3, 0)]);
        assert_eq!(tx & PHASE, 0);
        assert_eq!(pending(run(tx, &[(CompleteTx, 16, 0)])), 3);
        let fewer = run(start, &[(ArriveDrop, 1, 0), (Arrive, 2, 0)]);
        assert_eq!((pending(fewer), expected(fewer), fewer & PHASE), (2, 2, PHASE));
    }
}
