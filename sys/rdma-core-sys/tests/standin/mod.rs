//! A verbs provider without a NIC. It fills a [`VerbsTable`] and executes requests at once, by copying memory within
//! this process.
//!
//! It serves tests of code built on verbs, and measurements of that code's cost per request. It is not part of any
//! library. Queue pairs address each other by number, across all open devices. The provider is as strict as a NIC: it
//! checks keys, ranges, rights and states; a place in a send queue becomes free only when a completion that covers it
//! is polled; a completion queue that overflows fails; and destroying an object in use is refused and counted in
//! [`violations`].
//!
//! With `AQUEDUCT_SOFT_UNKIND` or [`unkind`] it is as late and as unordered as verbs allow ([`late`]).
//!
//! | device | description |
//! |---|---|
//! | `null0` | RoCE; the usable GID is at index 3 |
//! | `null1` | port 1 down, port 2 InfiniBand with LID 7 |
//! | `dark0` | no active port |
//! | `bare0` | RoCE with an empty GID table |
//! | `warp0` | iWARP |

#![allow(dead_code, unreachable_pub, reason = "each user takes a part of it")]

mod devices;
mod entries;
mod execute;
mod late;
mod machine;
mod notices;
mod queues;
mod windows;

use std::cell::{Cell, RefCell};

pub use entries::table;
use machine::machine;
pub use machine::{Counts, Registrations};
use rdma_core_sys::{
    VerbsTable, ibv_context, ibv_device, ibv_device_attr, ibv_event_type, ibv_qp_attr, ibv_wc_status,
};

/// The table of a host that has libibverbs but no NIC.
pub fn without_devices() -> VerbsTable {
    unsafe extern "C" fn empty(count: *mut core::ffi::c_int) -> *mut *mut ibv_device {
        // SAFETY: the caller passes a valid output pointer.
        unsafe { *count = 0 };
        Box::into_raw(Box::new(std::ptr::null_mut()))
    }
    unsafe extern "C" fn free(list: *mut *mut ibv_device) {
        // SAFETY: `empty` allocated the list, and the caller frees it once.
        drop(unsafe { Box::from_raw(list) });
    }
    VerbsTable { ibv_get_device_list: empty, ibv_free_device_list: free, ..table() }
}

/// The counters of queue pair `number`.
pub fn counts(number: u32) -> Counts {
    machine().find_qp(number).map(|qp| qp.counts).unwrap_or_default()
}

/// Number of contract violations: objects destroyed while in use or twice, and acknowledgements of too many events.
pub fn violations() -> usize {
    machine().violations
}

/// Number of memory regions registered so far, by kind.
pub fn registrations() -> Registrations {
    machine().registrations
}

/// The table of a host whose NICs have no memory windows.
pub fn without_windows() -> VerbsTable {
    unsafe extern "C" fn query(context: *mut ibv_context, out: *mut ibv_device_attr) -> core::ffi::c_int {
        // SAFETY: as the caller keeps the contract of this function.
        let result = unsafe { (table().ibv_query_device)(context, out) };
        // SAFETY: the caller passes a valid output pointer, which was filled.
        unsafe { (*out).device_cap_flags = 0 };
        result
    }
    VerbsTable { ibv_query_device: query, ..table() }
}

/// Number of memory regions that are registered now in the protection domain at `pd`.
pub fn regions(pd: usize) -> usize {
    machine().regions.iter().flatten().filter(|region| region.pd == pd).count()
}

/// Bytes of memory that are registered now, in all protection domains.
pub fn registered_bytes() -> u64 {
    machine().regions.iter().flatten().map(|region| region.length).sum()
}

/// The queue pair to which queue pair `number` was connected.
pub fn peer_of(number: u32) -> u32 {
    machine().qp(number).peer
}

/// Number of receives of queue pair `number` that are posted and have not been used.
pub fn receives(number: u32) -> usize {
    machine().qp(number).receives.len()
}

/// Whether queue pair `number` has not been destroyed.
pub fn exists(number: u32) -> bool {
    machine().find_qp(number).is_some()
}

/// Number of open devices.
pub fn opened() -> usize {
    machine().events.len()
}

/// From now on, requests of queue pair `number` are accepted but not executed, until [`release`] or until it moves to the error
/// state.
pub fn hold(number: u32) {
    machine().qp(number).held = true;
}

/// Ends [`hold`], and executes the requests that were held.
pub fn release(number: u32) {
    let mut machine = machine();
    let late = machine.unkind.is_some();
    let qp = machine.qp(number);
    qp.held = false;
    if late {
        qp.pending.iter_mut().for_each(|posted| posted.held = false);
        machine.wake_nic();
        return;
    }
    while let Some(posted) = machine.qp(number).pending.pop_front() {
        // SAFETY: keys that are no longer registered are refused.
        unsafe { machine.carry_out(number, &posted) };
    }
}

/// From now on, all requests succeed without being executed and without access to memory. Used to measure the cost of
/// the code around them.
pub fn swallow(on: bool) {
    machine().swallows = on;
}

/// Executes all requests that were posted and are not held, and completes them, as late as they may be otherwise.
pub fn settle() {
    let mut machine = machine();
    while machine.step().is_some() {}
}

/// From now on, executes requests later, and completes them later still, as `seed` chooses.
pub fn unkind(seed: u64) {
    machine().unkind = Some(late::Unkind::new(seed));
}

/// The NIC in the caller's hands, so that a test sees each state between two steps of it; given back when dropped.
pub struct ByHand(());

impl ByHand {
    /// From now on, executes requests only in [`step`](Self::step), as `seed` chooses.
    pub fn unkind(seed: u64) -> Self {
        unkind(seed);
        machine().by_hand = true;
        Self(())
    }

    /// Does a part of what is to be done, if there is anything.
    pub fn step(&self) {
        machine().step();
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        let mut machine = machine();
        machine.by_hand = false;
        machine.wake_nic();
    }
}

/// Makes the next request of queue pair `number` fail with `status`.
pub fn fail_next(number: u32, status: ibv_wc_status) {
    machine().qp(number).fail_next = Some(status);
}

/// Has the next poll of the send completion queue of queue pair `number` that finds nothing call `then`, on the polling thread,
/// before it returns.
pub fn once_empty(number: u32, then: impl FnOnce() + Send + 'static) {
    let mut machine = machine();
    let queue = machine.qp(number).send_cq;
    machine.cq(queue).once_empty = Some(Box::new(then));
}

/// Raises an asynchronous event. Its kind decides whether it concerns queue pair `number`, its send completion queue,
/// its port 1 or its device.
pub fn raise(number: u32, kind: ibv_event_type) {
    machine().raise(number, kind);
}

thread_local! {
    static MAX_INLINE: Cell<Option<u32>> = const { Cell::new(None) };
    static GENEROUS: Cell<bool> = const { Cell::new(false) };
    static SENDS: Cell<u32> = const { Cell::new(1) };
    static REFUSED: RefCell<Vec<(&'static str, usize, i32)>> = const { RefCell::new(Vec::new()) };
}

/// From now on, queue pairs that this thread makes take at most as many bytes of inline data.
pub fn limit_inline(bytes: u32) {
    MAX_INLINE.set(Some(bytes));
}

/// Whether, from now on, queue pairs that this thread makes take as many bytes of inline data as they can, whatever they were asked for.
pub fn give_all_inline(generous: bool) {
    GENEROUS.set(generous);
}

/// From now on, queue pairs that this thread makes hold `times` as many requests as they were asked for, as a NIC may that counts
/// in larger units.
pub fn multiply_sends(times: u32) {
    SENDS.set(times);
}

/// Makes the next call of `function` on this thread fail with `errno`.
pub fn refuse(function: &'static str, errno: i32) {
    refuse_after(function, 0, errno);
}

/// Makes a call of `function` on this thread fail with `errno` after `calls` that do not.
pub fn refuse_after(function: &'static str, calls: usize, errno: i32) {
    REFUSED.with_borrow_mut(|refused| refused.push((function, calls, errno)));
}

/// Number of [`refuse`] requests of this thread that have not been used yet.
pub fn not_called() -> usize {
    REFUSED.with_borrow(Vec::len)
}

/// The attributes with which queue pair `number` was moved to INIT, RTR and RTS so far.
pub fn moves(number: u32) -> Vec<ibv_qp_attr> {
    machine().qp(number).moves.clone()
}

fn refused(function: &str) -> Option<i32> {
    REFUSED.with_borrow_mut(|refused| {
        let index = refused.iter().position(|(name, ..)| *name == function)?;
        if let Some(left) = refused[index].1.checked_sub(1) {
            refused[index].1 = left;
            return None;
        }
        Some(refused.remove(index).2)
    })
}
