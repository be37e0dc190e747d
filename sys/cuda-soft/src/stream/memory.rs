//! Memory operations of streams and graphs: copies, fills, and writes of and waits for single values.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cuda_driver_sys::CUresult;

use super::words::{Run, copy_and_keep, copy_atomic, fill_atomic, runs};
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

impl Place {
    /// The address of the first byte.
    fn address(&self) -> u64 {
        match self {
            Self::Device(address) | Self::Host(address) => *address,
            Self::Staged(bytes) => bytes.as_ptr() as u64,
        }
    }
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
        /// Value. The upper half of one of 4 bytes is zero.
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

impl MemoryOp {
    /// As reports name it, and a number of this name.
    fn name(&self) -> (&'static str, u32) {
        match self {
            Self::Copy { .. } => ("a copy", 0),
            Self::Fill { .. } => ("a fill", 1),
            Self::Write { .. } => ("cuStreamWriteValue", 2),
            Self::Wait { .. } => ("cuStreamWaitValue", 3),
        }
    }
}

impl fmt::Display for MemoryOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _) = self.name();
        match self {
            Self::Copy { dst, src, len } => {
                write!(f, "{name} of {len} bytes from {:#x} to {:#x}", src.address(), dst.address())
            }
            Self::Fill { dst, width, count, .. } => {
                write!(f, "{name} of {} bytes at {dst:#x}", u64::from(*width) * count)
            }
            Self::Write { addr, width, .. } | Self::Wait { addr, width, .. } => {
                write!(f, "{name} of {width} bytes at {addr:#x}")
            }
        }
    }
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
        let mut brought = Vec::new();
        let moved = match op {
            MemoryOp::Copy { dst, src, len } => {
                copy(&view, dst, src, self.at, *len, check.is_some().then_some(&mut brought))?
            }
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
            tell(&view, state, warp, op, self.at, moved, &brought)?;
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

/// Tells the race detector what an operation did in one step: `moved` bytes from `at` on, or all that was left. A copy
/// `brought` these.
///
/// # Errors
/// `CUDA_ERROR_LAUNCH_FAILED` after a race, or if the detector cannot follow the operation.
fn tell(
    view: &View<'_>,
    state: &mut check::State,
    warp: &mut check::Warp,
    op: &MemoryOp,
    at: u64,
    moved: Option<u64>,
    brought: &[u8],
) -> Result<(), CUresult> {
    let (name, number) = op.name();
    let limit = state.limit();
    let failed = |failure| {
        if failure == check::Failure::TooMuch {
            eprintln!("cuda-soft: device {}: {} (now {limit} bytes): {op}", view.device(), check::TOO_MUCH);
        }
        CUresult::CUDA_ERROR_LAUNCH_FAILED
    };
    warp.source = state.source((0, 0, number), || check::Source::Call(name));
    let mut range = |addr: u64, run: Run, bytes: Option<&[u8]>| -> Result<(), CUresult> {
        let Some(spot) = spot(view, addr + run.at as u64, run.len as u32) else { return Ok(()) };
        let bytes = bytes.map(|bytes| &bytes[run.at..run.at + run.len]);
        warp.range(state, spot, run.word as u8, bytes).map_err(failed)
    };
    match op {
        MemoryOp::Copy { dst, src, len } => {
            let (to, from) = (dst.address() + at, src.address() + at);
            let words = || runs(to as usize, from as usize, moved.unwrap_or(len - at) as usize);
            if !matches!(src, Place::Staged(_)) {
                words().try_for_each(|run| range(from, run, None))?;
            }
            words().try_for_each(|run| range(to, run, Some(brought)))
        }
        MemoryOp::Fill { dst, value, width, count } => {
            let (to, width) = (dst + at, usize::from(*width));
            let len = moved.unwrap_or(*count * width as u64 - at) as usize;
            let bytes = value.to_le_bytes()[..width].repeat(len / width);
            runs(to as usize, to as usize, len).try_for_each(|run| range(to, run, Some(&bytes)))
        }
        MemoryOp::Write { addr, value, width } => {
            let Some(spot) = spot(view, *addr, (*width).into()) else { return Ok(()) };
            warp.wrote(state, spot, *value, Semantics::Release, Scope::Sys).map_err(failed)
        }
        MemoryOp::Wait { addr, width, .. } => {
            let Some(spot) = spot(view, *addr, (*width).into()) else { return Ok(()) };
            // SAFETY: `holds` has just read it in this view.
            let value = unsafe { value_at(*addr, *width) };
            warp.saw(state, spot, value, Semantics::Acquire, Scope::Sys).map_err(failed)
        }
    }
}

/// The memory at an address, if it is mapped.
fn spot(view: &View<'_>, addr: u64, size: u32) -> Option<check::Spot> {
    let span = view.find_for_copy(addr, false)?;
    Some(check::Spot::of(span.object, span.base, span.home, addr, size))
}

/// The number of bytes done, or `None` if the operation is complete.
type Moved = Result<Option<u64>, CUresult>;

/// Copies a part, and keeps what it moved in `brought`: memory may have another value as soon as the host sees it.
fn copy(
    view: &View<'_>,
    dst: &Place,
    src: &Place,
    at: u64,
    len: u64,
    brought: Option<&mut Vec<u8>>,
) -> Moved {
    let mut n = (len - at).min(CHUNK);
    if n == 0 {
        return Ok(None);
    }
    let to = match dst {
        Place::Device(a) => end_within(view, a + at, true, &mut n)?,
        Place::Host(a) => view.find_for_copy(a + at, true).inspect(|s| n = n.min(s.end - (a + at))),
        Place::Staged(_) => return Err(CUresult::CUDA_ERROR_UNKNOWN),
    };
    let from = src.address() + at;
    if let Place::Device(_) = src {
        end_within(view, from, false, &mut n)?;
    }
    let (target, source, count) = ((dst.address() + at) as *mut u8, from as *const u8, n as usize);
    // SAFETY: a device side is in a mapping that stays while the view lives. A host side is valid until the copy
    // completes, by the contract of the call. The operation owns staged bytes.
    unsafe {
        match brought {
            None => copy_atomic(target, source, count),
            Some(brought) => copy_and_keep(target, source, count, brought),
        }
    }
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
