//! A provider without a NIC: fills a [`VerbsTable`], executes requests at once by copying memory of this process.
//!
//! For tests of what is built on verbs and for measuring its cost per request; not part of any library. Queue pairs reach
//! each other by number across all opened devices. It is as unkind as a NIC: keys, ranges, rights and states are checked,
//! places in a send queue become free only when a completion that covers them is polled, a full completion queue is lost,
//! and destroying something in use is refused and counted in [`violations`].
//!
//! | device | what it is |
//! |---|---|
//! | `null0` | RoCE; the good GID stands at index 3 |
//! | `null1` | port 1 down, port 2 InfiniBand with LID 7 |
//! | `dark0` | no active port |
//! | `bare0` | RoCE with an empty GID table |
//! | `warp0` | iWARP |

#![allow(dead_code, unreachable_pub, reason = "each user takes a part of it")]

mod devices;
mod entries;
mod execute;
mod machine;
mod queues;

use std::cell::RefCell;

pub use entries::table;
use machine::machine;
pub use machine::{Counts, Registrations};
use rdma_core_sys::{VerbsTable, ibv_device, ibv_event_type, ibv_qp_attr, ibv_wc_status};

/// The table of a host with libibverbs and no NIC.
pub fn without_devices() -> VerbsTable {
    unsafe extern "C" fn empty(count: *mut core::ffi::c_int) -> *mut *mut ibv_device {
        // SAFETY: the caller gives a live output.
        unsafe { *count = 0 };
        Box::into_raw(Box::new(std::ptr::null_mut()))
    }
    unsafe extern "C" fn free(list: *mut *mut ibv_device) {
        // SAFETY: `empty` made it, and its owner gives it back once.
        drop(unsafe { Box::from_raw(list) });
    }
    VerbsTable { ibv_get_device_list: empty, ibv_free_device_list: free, ..table() }
}

/// What queue pair `number` has seen so far.
pub fn counts(number: u32) -> Counts {
    machine().find_qp(number).map(|qp| qp.counts).unwrap_or_default()
}

/// How often something was destroyed while it was in use, or twice.
pub fn violations() -> usize {
    machine().violations
}

/// Memory regions made so far, and by which way.
pub fn registrations() -> Registrations {
    machine().registrations
}

/// Devices that are open.
pub fn opened() -> usize {
    machine().events.len()
}

/// From now on requests of queue pair `number` are accepted and not executed, until it is moved to the error state.
pub fn hold(number: u32) {
    machine().qp(number).held = true;
}

/// From now on all requests succeed without being executed: no memory is looked at. For measuring what is around them.
pub fn swallow(on: bool) {
    machine().swallows = on;
}

/// Makes the next request of queue pair `number` fail with `status`.
pub fn fail_next(number: u32, status: ibv_wc_status) {
    machine().qp(number).fail_next = Some(status);
}

/// Raises an event about queue pair `number`, its NIC, its port 1 or its send completion queue, by the kind of event.
pub fn raise(number: u32, kind: ibv_event_type) {
    machine().raise(number, kind);
}

thread_local! {
    static REFUSED: RefCell<Vec<(&'static str, i32)>> = const { RefCell::new(Vec::new()) };
}

/// Makes the next call of `function` on this thread fail with `errno`.
pub fn refuse(function: &'static str, errno: i32) {
    REFUSED.with_borrow_mut(|refused| refused.push((function, errno)));
}

/// Calls that [`refuse`] still waits for on this thread.
pub fn not_called() -> usize {
    REFUSED.with_borrow(Vec::len)
}

/// What queue pair `number` was moved to INIT, RTR and RTS with, so far.
pub fn moves(number: u32) -> Vec<ibv_qp_attr> {
    machine().qp(number).moves.clone()
}

fn refused(function: &str) -> Option<i32> {
    REFUSED.with_borrow_mut(|refused| {
        let index = refused.iter().position(|(name, _)| *name == function)?;
        Some(refused.remove(index).1)
    })
}
