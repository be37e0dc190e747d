//! Copies, fills, and writes and waits of single values, as streams and graphs execute them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use cuda_driver_sys::CUresult;

use crate::exec::{Step, Watch};
use crate::machine::Machine;
use crate::mem::{Span, View};

/// One side of a copy.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// An address that must be mapped.
    Device(u64),
    /// An address of the host's, mapped or not, on the word of the caller.
    Host(u64),
    /// Pageable host memory, copied when the call was made.
    Staged(Arc<[u8]>),
}

/// How a wait compares the value in memory with its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    /// Cyclically at least.
    Geq,
    /// Equal.
    Eq,
    /// Any common bit.
    And,
    /// Any bit set in neither.
    Nor,
}

/// One memory operation.
#[derive(Clone, Debug)]
pub(crate) enum MemoryOp {
    /// Copies `len` bytes.
    Copy {
        /// Where to.
        dst: Place,
        /// Where from.
        src: Place,
        /// How many.
        len: u64,
    },
    /// Stores `count` elements of `width` bytes (1, 2 or 4).
    Fill {
        /// The first.
        dst: u64,
        /// Their value.
        value: u32,
        /// Their size.
        width: u8,
        /// How many.
        count: u64,
    },
    /// Stores one value of 4 or 8 bytes after everything before it.
    Write {
        /// Where.
        addr: u64,
        /// What.
        value: u64,
        /// Its size.
        width: u8,
    },
    /// Waits until the value of 4 or 8 bytes compares true.
    Wait {
        /// Where.
        addr: u64,
        /// With what.
        value: u64,
        /// Its size.
        width: u8,
        /// How.
        compare: Compare,
    },
}

/// Memory operations in progress.
#[derive(Debug)]
pub(super) struct MemoryTask {
    device: usize,
    ops: VecDeque<MemoryOp>,
    /// Bytes of the first operation that are done.
    at: u64,
}

/// Bytes between two looks at what else there is to do.
const CHUNK: u64 = 256 << 10;

impl MemoryTask {
    pub(super) fn new(device: usize, ops: Vec<MemoryOp>) -> Self {
        Self { device, ops: ops.into(), at: 0 }
    }

    /// Goes on a little. A bad address ends the task and fails the context.
    pub(super) fn step(&mut self, machine: &Machine) -> Step {
        let device = &machine.devices[self.device];
        if device.check().is_err() {
            return Step::Done;
        }
        let Some(op) = self.ops.front() else { return Step::Done };
        let view = machine.space.enter(self.device);
        let moved = match op {
            MemoryOp::Copy { dst, src, len } => copy(&view, dst, src, self.at, *len),
            MemoryOp::Fill { dst, value, width, count } => {
                fill(&view, *dst, *value, *width, self.at, *count * u64::from(*width))
            }
            MemoryOp::Write { addr, value, width } => write(&view, *addr, *value, *width),
            MemoryOp::Wait { addr, value, width, compare } => {
                match holds(&view, *addr, *value, *width, *compare) {
                    Ok(false) => {
                        let (space, addr) = (Arc::clone(&machine.space), *addr);
                        return Step::Waiting { watched: Some(Watch { space, device: self.device, addr }) };
                    }
                    Ok(true) => Ok(None),
                    Err(e) => Err(e),
                }
            }
        };
        match moved {
            Ok(Some(n)) => self.at += n,
            Ok(None) => {
                self.ops.pop_front();
                self.at = 0;
                if self.ops.is_empty() {
                    return Step::Done;
                }
            }
            Err(code) => {
                device.poison(code);
                return Step::Done;
            }
        }
        Step::Again
    }
}

/// Progress in bytes, or `None` when the operation is complete.
type Moved = Result<Option<u64>, CUresult>;

fn copy(view: &View<'_>, dst: &Place, src: &Place, at: u64, len: u64) -> Moved {
    let mut n = (len - at).min(CHUNK);
    if n == 0 {
        return Ok(None);
    }
    let to = match dst {
        Place::Device(a) => end_within(view, a + at, true, &mut n)?,
        Place::Host(a) => view.find_for_copy(a + at, true).inspect(|s| n = n.min(s.end - (a + at))),
        Place::Staged(_) => return Err(CUresult::CUDA_ERROR_UNKNOWN),
    };
    let from = match src {
        Place::Device(a) => {
            end_within(view, a + at, false, &mut n)?;
            a + at
        }
        Place::Host(a) => a + at,
        Place::Staged(bytes) => bytes.as_ptr() as u64 + at,
    };
    let (Place::Device(base) | Place::Host(base)) = dst else { return Err(CUresult::CUDA_ERROR_UNKNOWN) };
    // SAFETY: a device side lies in a mapping that stays while the view lives; a host side is valid by the
    // contract of the copy call until it completes; staged bytes are owned by the operation.
    unsafe { copy_atomic((base + at) as *mut u8, from as *const u8, n as usize) };
    ring(to);
    Ok(if at + n == len { None } else { Some(n) })
}

fn fill(view: &View<'_>, dst: u64, value: u32, width: u8, at: u64, len: u64) -> Moved {
    let mut n = (len - at).min(CHUNK);
    if n == 0 {
        return Ok(None);
    }
    let to = end_within(view, dst + at, true, &mut n)?;
    n -= n % u64::from(width);
    let (mut p, end) = (dst + at, dst + at + n);
    while p < end {
        // SAFETY: the element lies in the mapping found, is aligned (checked when submitted, and mappings begin
        // on a page), and is accessed atomically because kernels may look at it meanwhile.
        unsafe {
            match width {
                1 => (*(p as *const AtomicU8)).store(value as u8, Ordering::Relaxed),
                2 => (*(p as *const AtomicU16)).store(value as u16, Ordering::Relaxed),
                _ => (*(p as *const AtomicU32)).store(value, Ordering::Relaxed),
            }
        }
        p += u64::from(width);
    }
    ring(to);
    if n == 0 {
        return Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    Ok(if at + n == len { None } else { Some(n) })
}

fn write(view: &View<'_>, addr: u64, value: u64, width: u8) -> Moved {
    let span = whole(view, addr, width, true)?;
    // SAFETY: mapped and writable while the view lives, aligned as checked when submitted.
    unsafe {
        match width {
            4 => (*(addr as *const AtomicU32)).store(value as u32, Ordering::SeqCst),
            _ => (*(addr as *const AtomicU64)).store(value, Ordering::SeqCst),
        }
    }
    ring(Some(span));
    Ok(None)
}

fn holds(view: &View<'_>, addr: u64, value: u64, width: u8, compare: Compare) -> Result<bool, CUresult> {
    whole(view, addr, width, false)?;
    // SAFETY: mapped while the view lives, aligned as checked when submitted.
    let now = unsafe {
        match width {
            4 => u64::from((*(addr as *const AtomicU32)).load(Ordering::SeqCst)),
            _ => (*(addr as *const AtomicU64)).load(Ordering::SeqCst),
        }
    };
    let mask = if width == 4 { u64::from(u32::MAX) } else { u64::MAX };
    let value = value & mask;
    Ok(match compare {
        Compare::Geq if width == 4 => (now as u32).wrapping_sub(value as u32).cast_signed() >= 0,
        Compare::Geq => now.wrapping_sub(value).cast_signed() >= 0,
        Compare::Eq => now == value,
        Compare::And => now & value != 0,
        Compare::Nor => !(now | value) & mask != 0,
    })
}

/// The span at `addr`, with `n` cut to what it holds from there.
fn end_within(view: &View<'_>, addr: u64, write: bool, n: &mut u64) -> Result<Option<Span>, CUresult> {
    let span = view.find_for_copy(addr, write).ok_or(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)?;
    *n = (*n).min(span.end - addr);
    Ok(Some(span))
}

fn whole(view: &View<'_>, addr: u64, width: u8, write: bool) -> Result<Span, CUresult> {
    view.find(addr, write)
        .filter(|s| s.end - addr >= u64::from(width))
        .ok_or(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)
}

fn ring(span: Option<Span>) {
    if let Some(span) = span {
        // SAFETY: the callers hold the view in which they found the span.
        unsafe { (*span.bell).ring() };
    }
}

/// Copies like `memcpy`, each element with an atomic access: other devices, processes and host threads may look
/// at, or write, the same memory.
///
/// # Safety
/// Both ranges are mapped, the first one writable.
unsafe fn copy_atomic(dst: *mut u8, src: *const u8, len: usize) {
    let head = (dst as usize).wrapping_neg() % 8;
    let (head, words) = if (dst as usize ^ src as usize).is_multiple_of(8) && len >= head + 8 {
        (head, (len - head) / 8)
    } else {
        (len, 0)
    };
    let bytes = |from: usize, to: usize| {
        for i in from..to {
            // SAFETY: i < len, within both ranges.
            unsafe {
                let v = (*src.add(i).cast::<AtomicU8>()).load(Ordering::Relaxed);
                (*dst.add(i).cast::<AtomicU8>()).store(v, Ordering::Relaxed);
            }
        }
    };
    bytes(0, head);
    for i in 0..words {
        // SAFETY: head + 8 * words <= len, and both addresses are multiples of 8.
        unsafe {
            let v = (*src.add(head + 8 * i).cast::<AtomicU64>()).load(Ordering::Relaxed);
            (*dst.add(head + 8 * i).cast::<AtomicU64>()).store(v, Ordering::Relaxed);
        }
    }
    bytes(head + 8 * words, len);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_exact_at_any_alignment_and_size() {
        let src: Vec<u8> = (0..200u32).map(|i| (i * 7 + 3) as u8).collect();
        for to in 0..9 {
            for from in 0..9 {
                for len in [0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 100] {
                    let mut dst = vec![0xeeu8; 200];
                    // SAFETY: both ranges lie in their vectors.
                    unsafe { copy_atomic(dst.as_mut_ptr().add(to), src.as_ptr().add(from), len) };
                    assert_eq!(dst[to..to + len], src[from..from + len], "{to} {from} {len}");
                    assert!(
                        dst[..to].iter().chain(&dst[to + len..]).all(|b| *b == 0xee),
                        "{to} {from} {len}"
                    );
                }
            }
        }
    }
}
