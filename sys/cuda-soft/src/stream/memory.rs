//! Memory operations of streams and graphs: copies, fills, and writes of and waits for single values.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use cuda_driver_sys::CUresult;

use crate::check;
use crate::code::{Scope, Semantics};
use crate::exec::{Step, Watch};
use crate::mem::{Space, Span, View};

/// One side of a copy.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A mapped address.
    Device(u64),
    /// A host address, valid by the contract of the call.
    Host(u64),
    /// A copy of pageable host memory, made by the call.
    Staged(Arc<[u8]>),
}

/// How a wait compares the value in memory with the given one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    /// Greater or equal, by the sign of the wrapping difference.
    Geq,
    /// Equal.
    Eq,
    /// They have a common bit.
    And,
    /// Some bit is set in neither.
    Nor,
}

/// One memory operation.
#[derive(Clone, Debug)]
pub(crate) enum MemoryOp {
    /// Copies `len` bytes.
    Copy {
        /// Destination.
        dst: Place,
        /// Source.
        src: Place,
        /// Number of bytes.
        len: u64,
    },
    /// Stores `count` elements of `width` bytes (1, 2 or 4).
    Fill {
        /// Address of the first element.
        dst: u64,
        /// Value of each element.
        value: u32,
        /// Size of an element.
        width: u8,
        /// Number of elements.
        count: u64,
    },
    /// Stores one value of 4 or 8 bytes, ordered after all earlier operations.
    Write {
        /// Address.
        addr: u64,
        /// Value.
        value: u64,
        /// Size of the value.
        width: u8,
    },
    /// Waits until the comparison with a value of 4 or 8 bytes is true.
    Wait {
        /// Address.
        addr: u64,
        /// Value to compare with.
        value: u64,
        /// Size of the value.
        width: u8,
        /// Comparison.
        compare: Compare,
    },
}

/// A list of memory operations in progress.
#[derive(Debug)]
pub(super) struct MemoryTask {
    space: Arc<Space>,
    device: usize,
    ops: VecDeque<MemoryOp>,
    /// Completed bytes of the first operation.
    at: u64,
    /// For the race detector: the work, and its one thread.
    check: Option<(Arc<check::Work>, check::Warp)>,
}

/// Maximum bytes per step, so that other work gets its turn.
const CHUNK: u64 = 256 << 10;

impl MemoryTask {
    pub(super) fn new(
        space: Arc<Space>,
        device: usize,
        ops: Vec<MemoryOp>,
        check: Option<&Arc<check::Work>>,
    ) -> Self {
        let check = check.map(|work| (Arc::clone(work), work.stream()));
        Self { space, device, ops: ops.into(), at: 0, check }
    }

    /// Executes a part of the operations.
    ///
    /// # Errors
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`, which ends the task.
    pub(super) fn step(&mut self) -> Result<Step, CUresult> {
        let Some(op) = self.ops.front() else { return Ok(self.done()) };
        let view = self.space.enter(self.device);
        let mut check = self.check.as_mut().map(|(work, warp)| (work.checker().lock(), warp));
        let moved = match op {
            MemoryOp::Copy { dst, src, len } => copy(&view, dst, src, self.at, *len)?,
            MemoryOp::Fill { dst, value, width, count } => {
                fill(&view, *dst, *value, *width, self.at, *count * u64::from(*width))?
            }
            MemoryOp::Write { addr, value, width } => write(&view, *addr, *value, *width)?,
            MemoryOp::Wait { addr, value, width, compare } => {
                if !holds(&view, *addr, *value, *width, *compare)? {
                    let (space, addr) = (Arc::clone(&self.space), *addr);
                    let watched = Some(Watch { space, device: self.device, addr });
                    return Ok(Step::Waiting { watched });
                }
                None
            }
        };
        if let Some((state, warp)) = &mut check {
            tell(&view, state, warp, op, self.at, moved)?;
        }
        drop(check);
        if let Some(n) = moved {
            self.at += n;
            return Ok(Step::Again);
        }
        self.ops.pop_front();
        self.at = 0;
        Ok(if self.ops.is_empty() { self.done() } else { Step::Again })
    }

    fn done(&self) -> Step {
        if let Some((work, warp)) = &self.check {
            work.leaves(warp, 0);
        }
        Step::Done
    }
}

/// Tells the race detector what an operation did in one step: `moved` bytes from `at` on, or all that was left.
///
/// # Errors
/// `CUDA_ERROR_LAUNCH_FAILED` after a race.
fn tell(
    view: &View<'_>,
    state: &mut check::State,
    warp: &mut check::Warp,
    op: &MemoryOp,
    at: u64,
    moved: Option<u64>,
) -> Result<(), CUresult> {
    let place = |place: &Place| match place {
        Place::Device(addr) | Place::Host(addr) => Some(*addr),
        Place::Staged(_) => None,
    };
    let raced = |_: check::Raced| CUresult::CUDA_ERROR_LAUNCH_FAILED;
    let (name, number) = match op {
        MemoryOp::Copy { .. } => ("a copy", 0),
        MemoryOp::Fill { .. } => ("a fill", 1),
        MemoryOp::Write { .. } => ("cuStreamWriteValue", 2),
        MemoryOp::Wait { .. } => ("cuStreamWaitValue", 3),
    };
    warp.source = state.source((0, 0, number), || check::Source::Call(name));
    let mut range = |addr: Option<u64>, len: u64, write: bool| -> Result<(), CUresult> {
        let Some(addr) = addr else { return Ok(()) };
        let size = u32::try_from(moved.unwrap_or(len - at)).unwrap_or(u32::MAX);
        let Some(spot) = spot(view, addr + at, size) else { return Ok(()) };
        warp.range(state, spot, write).map_err(raced)
    };
    match op {
        MemoryOp::Copy { dst, src, len } => {
            range(place(src), *len, false)?;
            range(place(dst), *len, true)
        }
        MemoryOp::Fill { dst, width, count, .. } => range(Some(*dst), *count * u64::from(*width), true),
        MemoryOp::Write { addr, value, width } => {
            let Some(spot) = spot(view, *addr, (*width).into()) else { return Ok(()) };
            let value = if *width == 4 { *value & u64::from(u32::MAX) } else { *value };
            warp.wrote(state, spot, value, Semantics::Release, Scope::Sys).map_err(raced)
        }
        MemoryOp::Wait { addr, width, .. } => {
            let Some(spot) = spot(view, *addr, (*width).into()) else { return Ok(()) };
            // SAFETY: `holds` has just read it in this view.
            let value = unsafe { value_at(*addr, *width) };
            warp.saw(state, spot, value, Semantics::Acquire, Scope::Sys).map_err(raced)
        }
    }
}

/// The memory at an address, if it is mapped.
fn spot(view: &View<'_>, addr: u64, size: u32) -> Option<check::Spot> {
    let span = view.find_for_copy(addr, false)?;
    let (object, at) = match span.object {
        Some(identity) => (check::Object::Driver(identity), addr - span.base),
        None => (check::Object::Host, addr),
    };
    Some(check::Spot { object, at, size, host: span.host })
}

/// The number of bytes done, or `None` if the operation is complete.
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
    // SAFETY: a device side is in a mapping that stays while the view lives. A host side is valid until the copy
    // completes, by the contract of the call. The operation owns staged bytes.
    unsafe { copy_atomic((base + at) as *mut u8, from as *const u8, n as usize) };
    notify(to);
    Ok(if at + n == len { None } else { Some(n) })
}

fn fill(view: &View<'_>, dst: u64, value: u32, width: u8, at: u64, len: u64) -> Moved {
    let mut n = (len - at).min(CHUNK);
    if n == 0 {
        return Ok(None);
    }
    let to = end_within(view, dst + at, true, &mut n)?;
    n -= n % u64::from(width);
    // SAFETY: the bytes are in the mapping found above, and elements aligned, as checked when submitted.
    unsafe { fill_atomic((dst + at) as *mut u8, value, width, n as usize) };
    notify(to);
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
    notify(Some(span));
    Ok(None)
}

fn holds(view: &View<'_>, addr: u64, value: u64, width: u8, compare: Compare) -> Result<bool, CUresult> {
    whole(view, addr, width, false)?;
    // SAFETY: mapped while the view lives, aligned as checked when submitted.
    let now = unsafe { value_at(addr, width) };
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

/// The value of 4 or 8 bytes.
///
/// # Safety
/// The address is mapped in a view that lives, and aligned.
unsafe fn value_at(addr: u64, width: u8) -> u64 {
    // SAFETY: the caller vouches for the address.
    unsafe {
        match width {
            4 => u64::from((*(addr as *const AtomicU32)).load(Ordering::SeqCst)),
            _ => (*(addr as *const AtomicU64)).load(Ordering::SeqCst),
        }
    }
}

/// Finds the span at `addr` and limits `n` to its end.
fn end_within(view: &View<'_>, addr: u64, write: bool, n: &mut u64) -> Result<Option<Span>, CUresult> {
    let span = view.find_for_copy(addr, write).ok_or(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)?;
    *n = (*n).min(span.end - addr);
    Ok(Some(span))
}

/// Finds the span that contains `width` bytes at `addr`.
fn whole(view: &View<'_>, addr: u64, width: u8, write: bool) -> Result<Span, CUresult> {
    view.find(addr, write)
        .filter(|s| s.end - addr >= u64::from(width))
        .ok_or(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)
}

fn notify(span: Option<Span>) {
    if let Some(span) = span {
        // SAFETY: the callers hold the view in which they found the span.
        unsafe { (*span.event_count).notify() };
    }
}

/// Stores `len` bytes of elements of `width` bytes, by relaxed atomic accesses of whole elements, because kernels may access
/// them at the same time. Aligned words are stored at once: by bytes a large fill would take long.
///
/// # Safety
/// `to` is valid for writing `len` bytes, which are whole elements, and aligned to an element.
unsafe fn fill_atomic(to: *mut u8, value: u32, width: u8, len: usize) {
    const WORD: usize = size_of::<u64>();
    let element = u64::from(value) & (u64::MAX >> (64 - 8 * u32::from(width)));
    let word =
        (0..WORD as u32 / u32::from(width)).fold(0, |word, at| word | element << (at * 8 * u32::from(width)));
    let mut at = 0;
    while at < len {
        // SAFETY: `at` is less than `len`.
        let p = unsafe { to.add(at) };
        let size = if p.addr().is_multiple_of(WORD) && len - at >= WORD { WORD } else { usize::from(width) };
        // SAFETY: so many bytes from `p` on are valid by the caller's promise, and `p` is aligned to as many.
        unsafe {
            match size {
                1 => (*p.cast::<AtomicU8>()).store(value as u8, Ordering::Relaxed),
                2 => (*p.cast::<AtomicU16>()).store(value as u16, Ordering::Relaxed),
                4 => (*p.cast::<AtomicU32>()).store(value, Ordering::Relaxed),
                _ => (*p.cast::<AtomicU64>()).store(word, Ordering::Relaxed),
            }
        }
        at += size;
    }
}

/// Copies like `memcpy`, but with atomic accesses, because other devices, processes and host threads may access the
/// same memory at the same time.
///
/// # Safety
/// Both ranges are mapped, and `dst` is writable.
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

    #[test]
    fn fills_are_exact_at_any_alignment_and_size() {
        let value = 0x0403_0201_u32;
        for width in [1_u8, 2, 4] {
            let element = &value.to_le_bytes()[..usize::from(width)];
            for first in 0..12 {
                for count in [0, 1, 2, 3, 7, 8, 9, 20] {
                    let (from, len) = (first * usize::from(width), count * usize::from(width));
                    let mut words = [u64::MAX; 32];
                    // SAFETY: the range lies in the array, whose elements are aligned to words.
                    unsafe { fill_atomic(words.as_mut_ptr().cast::<u8>().add(from), value, width, len) };
                    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                    assert_eq!(bytes[from..from + len], element.repeat(count), "{width} {first} {count}");
                    let others = bytes[..from].iter().chain(&bytes[from + len..]);
                    assert!(others.into_iter().all(|byte| *byte == 0xff), "{width} {first} {count}");
                }
            }
        }
    }
}
