//! Loads and stores of a warp: addresses, checks, and the accesses themselves.
//!
//! Every access of device code is a relaxed Rust atomic of the element's size, with fences around it for stronger
//! semantics, because other threads of this process, other processes and the host may access the same bytes at the same
//! time. A 16-byte vector consists of two 8-byte or four 4-byte single-copy-atomic elements, as in the PTX memory
//! model.

#![allow(trivial_numeric_casts, reason = "one body for all widths")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use super::buffer::Range;
use super::cluster::Cluster;
use super::fault::{FaultKind, Trouble};
use super::regs::{ALL, LANES, Lanes, lanes};
use crate::check::{Object, Spot};
use crate::code::{Semantics, Space};
use crate::mem::multicast::Bound;
use crate::mem::{EventCount, EventCountRef, Home, Span, View};

/// Local memory of a warp: the stacks of its lanes, one after another.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stacks {
    pub(super) base: u64,
    pub(super) stride: u64,
}

impl Stacks {
    #[inline(always)]
    pub(super) fn of_lane(self, lane: usize) -> Range {
        let base = self.base + self.stride * lane as u64;
        Range { base, end: base + self.stride }
    }
}

/// The memory that a block may access during one quantum.
#[derive(Debug)]
pub(super) struct Access<'a> {
    view: &'a View<'a>,
    /// Recently found spans; they stay valid while the view lives.
    cache: [Cached; CACHE],
    next: usize,
    /// The block's shared memory.
    pub(super) shared: Range,
    /// The block's cluster, and its rank there.
    pub(super) cluster: &'a Cluster,
    pub(super) rank: u32,
    /// The launch's parameters, which are read-only.
    pub(super) params: Range,
    /// Event counts to notify, because their memory was stored to.
    stored: [*const EventCount; CACHE],
    stored_len: usize,
}

const CACHE: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Cached {
    range: Range,
    writable: bool,
    event_count: *const EventCount,
    object: Option<u64>,
    home: Home,
}

/// An access to check for all lanes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) space: Space,
    /// Bytes per lane: a power of two, at most 16.
    pub(super) size: u64,
    pub(super) write: bool,
    pub(super) stacks: Stacks,
}

impl<'a> Access<'a> {
    pub(super) fn new(view: &'a View<'a>, cluster: &'a Cluster, rank: u32, params: Range) -> Self {
        let shared = cluster.shared(rank);
        let none = Cached {
            range: Range::default(),
            writable: false,
            event_count: std::ptr::null(),
            object: None,
            home: Home::Pinned,
        };
        let stored = [std::ptr::null(); CACHE];
        Access { view, cache: [none; CACHE], next: 0, shared, cluster, rank, params, stored, stored_len: 0 }
    }

    /// Checks that the lanes of `mask` may access `size` bytes at their addresses.
    ///
    /// # Errors
    /// A fault that names the first lane that may not.
    #[inline]
    pub(super) fn check(&mut self, at: &Lanes<u64>, mask: u32, ask: Request) -> Result<(), Trouble> {
        let (mut least, mut most, mut low) = (u64::MAX, 0, 0);
        if mask == ALL {
            for address in at {
                least = least.min(*address);
                most = most.max(*address);
                low |= address;
            }
        } else {
            for lane in lanes(mask) {
                least = least.min(at[lane]);
                most = most.max(at[lane]);
                low |= at[lane];
            }
        }
        if low & (ask.size - 1) != 0 {
            let lane = lanes(mask).find(|l| at[*l] & (ask.size - 1) != 0).unwrap_or(0);
            return Err(Trouble::at(FaultKind::MisalignedAddress, lane, at[lane]));
        }
        // The address is aligned, so the sum can overflow only at the very top; saturated, it is outside every range.
        let end = most.saturating_add(ask.size);
        match ask.space {
            Space::Shared if self.shared.holds(least, end) => return Ok(()),
            Space::Global | Space::Generic | Space::Const => {
                for cached in &self.cache {
                    if cached.range.holds(least, end) && (cached.writable || !ask.write) {
                        if ask.write {
                            self.notify_later(cached.event_count);
                        }
                        return Ok(());
                    }
                }
            }
            _ => {}
        }
        lanes(mask).try_for_each(|lane| self.check_lane(at[lane], lane, ask))
    }

    /// [`Self::check`] for one lane, whatever the alignment.
    #[cold]
    pub(super) fn check_lane(&mut self, first: u64, lane: usize, ask: Request) -> Result<(), Trouble> {
        let end = first.saturating_add(ask.size);
        let windows = match ask.space {
            Space::Shared => self.shared.holds(first, end),
            Space::Cluster => self.cluster.holds(first, end),
            Space::Local => ask.stacks.of_lane(lane).holds(first, end),
            Space::Param => {
                ask.stacks.of_lane(lane).holds(first, end) || (!ask.write && self.params.holds(first, end))
            }
            Space::Generic => {
                self.shared.holds(first, end)
                    || ask.stacks.of_lane(lane).holds(first, end)
                    || (!ask.write && self.params.holds(first, end))
                    || self.cluster.holds(first, end)
            }
            Space::Global | Space::Const => false,
        };
        if windows {
            return Ok(());
        }
        if !matches!(ask.space, Space::Global | Space::Generic | Space::Const) {
            return Err(Trouble::at(FaultKind::IllegalAddress, lane, first));
        }
        let event_count = self.span(first, end, ask.write);
        let event_count = event_count.ok_or(Trouble::at(FaultKind::IllegalAddress, lane, first))?;
        if ask.write {
            self.notify_later(event_count);
        }
        Ok(())
    }

    fn span(&mut self, first: u64, end: u64, write: bool) -> Option<*const EventCount> {
        let known = self.cache.iter().find(|c| c.range.holds(first, end) && (c.writable || !write));
        if let Some(cached) = known {
            return Some(cached.event_count);
        }
        let span = self.view.find(first, write)?;
        let range = Range { base: span.base, end: span.end };
        if !range.holds(first, end) {
            return None;
        }
        let Span { writable, event_count, object, home, .. } = span;
        self.cache[self.next] = Cached { range, writable, event_count, object, home };
        self.next = (self.next + 1) % CACHE;
        Some(span.event_count)
    }

    #[inline(always)]
    fn notify_later(&mut self, event_count: *const EventCount) {
        if self.stored[..self.stored_len].contains(&event_count) {
            return;
        }
        if self.stored_len == CACHE {
            self.notify();
        }
        self.stored[self.stored_len] = event_count;
        self.stored_len += 1;
    }

    /// Notifies the event counts of all memory stored to since the last call.
    pub(super) fn notify(&mut self) {
        for event_count in &self.stored[..self.stored_len] {
            // SAFETY: `self` borrows the view, and a span's event count is valid while the view lives. An unused cache
            // entry has a null pointer.
            if let Some(event_count) = unsafe { event_count.as_ref() } {
                event_count.notify();
            }
        }
        self.stored_len = 0;
    }

    /// The memory of all devices behind a multicast address, as of now, and the offset in the multicast object.
    ///
    /// # Errors
    /// A fault if the address of the lane is no multicast address that this device may access.
    pub(super) fn team(&self, address: u64, lane: usize, write: bool) -> Result<(Arc<Bound>, u64), Trouble> {
        let found = self.view.team(address, write);
        let (team, offset) = found.ok_or(Trouble::at(FaultKind::IllegalAddress, lane, address))?;
        Ok((team.bound(), offset))
    }

    /// The memory at `address` that other threads can access too, for the race detector. `None` for parameters and for
    /// what lies in a thread's own stack.
    pub(super) fn spot(&mut self, address: u64, size: u32, block: (u64, u64)) -> Option<Spot> {
        let end = address + u64::from(size);
        if self.shared.holds(address, end) {
            let object = Object::Block(block.0, block.1);
            return Some(Spot { object, at: address - self.shared.base, size, home: None, multicast: false });
        }
        self.span(address, end, false)?;
        let found = self.cache.iter().find(|cached| cached.range.holds(address, end))?;
        Some(Spot::of(found.object, found.range.base, found.home, address, size))
    }

    /// The event count of the memory at `address`, and its current sequence.
    pub(super) fn sequence(&self, address: u64) -> Option<(EventCountRef, u32)> {
        let event_count = self.view.event_count(address)?;
        let sequence = event_count.sequence();
        Some((event_count, sequence))
    }
}

/// The fence before a store or atomic with these semantics.
#[inline(always)]
pub(super) fn before(sem: Semantics) {
    match sem {
        Semantics::Release | Semantics::AcqRel => fence(Ordering::Release),
        Semantics::SeqCst => fence(Ordering::SeqCst),
        Semantics::Weak | Semantics::Relaxed | Semantics::Acquire | Semantics::Volatile => {}
    }
}

/// The fence after a load or atomic with these semantics.
#[inline(always)]
pub(super) fn after(sem: Semantics) {
    match sem {
        Semantics::Acquire | Semantics::AcqRel => fence(Ordering::Acquire),
        Semantics::SeqCst => fence(Ordering::SeqCst),
        Semantics::Weak | Semantics::Relaxed | Semantics::Release | Semantics::Volatile => {}
    }
}

/// Loads `size` bytes at the address of each lane.
///
/// # Safety
/// The lanes of `mask` passed [`Access::check`] for this size under a view that still lives.
#[inline(always)]
pub(super) unsafe fn load(at: &Lanes<u64>, mask: u32, size: u32) -> Lanes<u64> {
    macro_rules! each {
        ($atomic:ty) => {{
            let mut r = [0; LANES];
            if mask == ALL {
                for lane in 0..LANES {
                    // SAFETY: the caller checked range, rights and alignment.
                    r[lane] = unsafe { u64::from(word::<$atomic>(at[lane]).load(Ordering::Relaxed)) };
                }
            } else {
                for lane in lanes(mask) {
                    // SAFETY: the caller checked range, rights and alignment.
                    r[lane] = unsafe { u64::from(word::<$atomic>(at[lane]).load(Ordering::Relaxed)) };
                }
            }
            r
        }};
    }
    match size {
        1 => each!(AtomicU8),
        2 => each!(AtomicU16),
        4 => each!(AtomicU32),
        _ => each!(AtomicU64),
    }
}

/// Stores the low `size` bytes of each lane's value at its address.
///
/// # Safety
/// The lanes of `mask` passed [`Access::check`] for writing this size under a view that still lives.
#[inline(always)]
pub(super) unsafe fn store(at: &Lanes<u64>, values: &Lanes<u64>, mask: u32, size: u32) {
    macro_rules! each {
        ($atomic:ty, $t:ty) => {
            if mask == ALL {
                for lane in 0..LANES {
                    // SAFETY: the caller checked range, rights and alignment.
                    unsafe { word::<$atomic>(at[lane]) }.store(values[lane] as $t, Ordering::Relaxed);
                }
            } else {
                for lane in lanes(mask) {
                    // SAFETY: the caller checked range, rights and alignment.
                    unsafe { word::<$atomic>(at[lane]) }.store(values[lane] as $t, Ordering::Relaxed);
                }
            }
        };
    }
    match size {
        1 => each!(AtomicU8, u8),
        2 => each!(AtomicU16, u16),
        4 => each!(AtomicU32, u32),
        _ => each!(AtomicU64, u64),
    }
}

/// The atomic at a host address.
///
/// # Safety
/// For `'a`, `address` is mapped, aligned for `A`, and the caller has the right to its accesses.
#[inline(always)]
pub(super) unsafe fn word<'a, A>(address: u64) -> &'a A {
    // SAFETY: the caller vouches for the address, and all concurrent accesses to it are atomic.
    unsafe { &*std::ptr::with_exposed_provenance::<A>(address as usize) }
}

/// The `fence` instruction with these semantics.
#[inline]
pub(super) fn fence_of(sem: Semantics) {
    match sem {
        Semantics::SeqCst => fence(Ordering::SeqCst),
        Semantics::Acquire => fence(Ordering::Acquire),
        Semantics::Release => fence(Ordering::Release),
        Semantics::AcqRel | Semantics::Relaxed | Semantics::Volatile | Semantics::Weak => {
            fence(Ordering::AcqRel);
        }
    }
}

/// Copies bytes between stacks.
///
/// # Safety
/// Both ranges are mapped and writable, and nothing else accesses them during the call.
pub(super) unsafe fn copy(from: u64, to: u64, size: u64) {
    let source = std::ptr::with_exposed_provenance::<u8>(from as usize);
    let target = std::ptr::with_exposed_provenance_mut::<u8>(to as usize);
    // SAFETY: the caller keeps the contract above.
    unsafe { std::ptr::copy(source, target, size as usize) };
}
