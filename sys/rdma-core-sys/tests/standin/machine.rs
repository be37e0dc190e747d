//! The state of the provider.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rdma_core_sys::{
    ibv_async_event, ibv_async_event__bindgen_ty_1, ibv_context, ibv_cq, ibv_event_type, ibv_qp, ibv_qp_attr,
    ibv_qp_cap, ibv_qp_state, ibv_wc, ibv_wc_status,
};

use super::late::{Posted, Unkind};
use super::notices::wake;
use super::windows::Window;

/// The number of the first queue pair. Numbers 0 and 1 are reserved for fabric management.
pub(super) const FIRST_QP: u32 = 17;

/// Entries of a request's list, on every device.
pub(super) const MAX_SGE: u32 = 1;

#[derive(Default)]
pub(super) struct Machine {
    /// Regions, indexed by the upper 24 bits of their key.
    pub(super) regions: Vec<Option<Region>>,
    /// Windows, indexed by their handle.
    pub(super) windows: Vec<Option<Window>>,
    /// Queue pairs, indexed by their number minus [`FIRST_QP`]. Indices are not reused.
    pub(super) qps: Vec<Option<Qp>>,
    /// Completion queues, indexed by their handle. Indices are not reused.
    pub(super) cqs: Vec<Option<Cq>>,
    pub(super) channels: HashMap<usize, Channel>,
    /// Number of live children per object address. A parent cannot be destroyed before its children.
    pub(super) children: HashMap<usize, usize>,
    pub(super) events: HashMap<usize, Events>,
    pub(super) violations: usize,
    /// Whether requests succeed without being executed.
    pub(super) swallows: bool,
    pub(super) registrations: Registrations,
    /// With it, requests are executed later.
    pub(super) unkind: Option<Unkind>,
    /// A test calls `step`; the thread in place of the NIC rests.
    pub(super) by_hand: bool,
}

// SAFETY: the pointers are addresses of objects that the provider owns and frees only under its lock.
unsafe impl Send for Machine {}

pub(super) struct Region {
    /// The address of the first byte, as requests name it.
    pub(super) address: u64,
    pub(super) length: u64,
    /// The address of the first byte in this process.
    pub(super) memory: *mut u8,
    pub(super) access: u32,
    pub(super) key: u32,
    /// The address of its protection domain.
    pub(super) pd: usize,
    /// Whether the provider mapped `memory` itself.
    pub(super) mapped: bool,
}

pub(super) struct Qp {
    pub(super) raw: *mut ibv_qp,
    pub(super) cap: ibv_qp_cap,
    pub(super) state: ibv_qp_state,
    pub(super) access: u32,
    pub(super) peer: u32,
    pub(super) send_cq: u32,
    pub(super) receive_cq: u32,
    /// Occupied places in the send queue.
    pub(super) used: u32,
    /// Requests of them that no completion covers yet.
    pub(super) uncovered: u32,
    pub(super) receives: VecDeque<Receive>,
    pub(super) held: bool,
    /// Requests that have not been executed.
    pub(super) pending: VecDeque<Posted>,
    pub(super) fail_next: Option<ibv_wc_status>,
    /// The attributes of its moves to INIT, RTR and RTS.
    pub(super) moves: Vec<ibv_qp_attr>,
    pub(super) counts: Counts,
}

#[derive(Clone, Copy)]
pub(super) struct Receive {
    pub(super) id: u64,
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) key: u32,
}

/// Counters of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls that posted requests.
    pub doorbells: u64,
    /// Posted requests.
    pub requests: u64,
    /// Requests of them that brought their bytes along.
    pub inline: u64,
    /// Requests of them that were to wait for reads before them.
    pub fenced: u64,
    /// Completions of requests, whether polled or not.
    pub completions: u64,
}

/// Memory regions registered so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registrations {
    /// By address.
    pub by_address: usize,
    /// By dma-buf descriptor.
    pub by_dmabuf: usize,
    /// Windows bound so far; these are no registrations.
    pub binds: usize,
}

pub(super) struct Cq {
    pub(super) raw: *mut ibv_cq,
    pub(super) channel: usize,
    pub(super) room: usize,
    pub(super) ready: VecDeque<Entry>,
    /// Completions that cannot be polled yet.
    pub(super) late: VecDeque<Entry>,
    pub(super) lost: bool,
    pub(super) notify: bool,
    pub(super) unacknowledged: u32,
    /// Called when a poll has found nothing.
    pub(super) once_empty: Option<Box<dyn FnOnce() + Send>>,
}

pub(super) struct Entry {
    pub(super) wc: ibv_wc,
    pub(super) qp: u32,
    /// Whether it is of a receive.
    pub(super) received: bool,
    /// Places in the send queue that become free when it is polled.
    pub(super) frees: u32,
}

pub(super) struct Channel {
    pub(super) waiting: VecDeque<*mut ibv_cq>,
    pub(super) pipe: [i32; 2],
}

pub(super) struct Events {
    pub(super) waiting: VecDeque<ibv_async_event>,
    pub(super) pipe: [i32; 2],
    /// The addresses of the objects that events name which were read and not acknowledged; 0 for a port or device.
    pub(super) unacknowledged: Vec<usize>,
}

pub(super) fn machine() -> MutexGuard<'static, Machine> {
    static MACHINE: OnceLock<Mutex<Machine>> = OnceLock::new();
    let new = || Mutex::new(Machine { unkind: Unkind::from_env(), ..Machine::default() });
    let machine = MACHINE.get_or_init(new);
    machine.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    /// Bytes that requests can carry: NICs differ, and a seed is one of them.
    pub(super) fn max_inline(&self) -> u32 {
        let limit = super::MAX_INLINE.get();
        limit.unwrap_or_else(|| self.unkind.as_ref().map_or(256, Unkind::max_inline))
    }

    /// The inline limit of a queue pair that was asked for `inline` bytes.
    pub(super) fn granted(&mut self, inline: u32) -> u32 {
        let most = self.max_inline();
        match &mut self.unkind {
            _ if super::GENEROUS.get() => most,
            Some(unkind) if inline > 0 => inline + unkind.below((most - inline + 1) as usize) as u32,
            _ => inline,
        }
    }

    pub(super) fn find_qp(&mut self, number: u32) -> Option<&mut Qp> {
        self.qps.get_mut(number.checked_sub(FIRST_QP)? as usize)?.as_mut()
    }

    pub(super) fn qp(&mut self, number: u32) -> &mut Qp {
        self.find_qp(number).expect("a queue pair of this provider")
    }

    pub(super) fn cq(&mut self, handle: u32) -> &mut Cq {
        self.cqs[handle as usize].as_mut().expect("a completion queue of this provider")
    }

    /// Counts a new child of `owner`.
    pub(super) fn adopt(&mut self, owner: *const c_void) {
        *self.children.entry(owner.addr()).or_default() += 1;
    }

    /// Counts a destroyed child of `owner`.
    pub(super) fn release(&mut self, owner: *const c_void) {
        match self.children.get_mut(&owner.addr()) {
            Some(count) if *count > 0 => *count -= 1,
            _ => self.violations += 1,
        }
    }

    /// Whether `owner` may be destroyed. If it has children, counts a violation.
    pub(super) fn is_free(&mut self, owner: *const c_void) -> bool {
        let free = self.children.get(&owner.addr()).is_none_or(|count| *count == 0);
        if free {
            self.children.remove(&owner.addr());
        } else {
            self.violations += 1;
        }
        free
    }

    pub(super) fn complete(&mut self, queue: u32, entry: Entry) {
        let cq = self.cq(queue);
        if cq.lost {
            return;
        }
        if cq.ready.len() + cq.late.len() == cq.room {
            cq.lost = true;
            let raw = cq.raw;
            let element = ibv_async_event__bindgen_ty_1 { cq: raw };
            // SAFETY: the queue is live under the lock.
            let context = unsafe { (*raw).context };
            self.event(context, ibv_async_event { element, event_type: ibv_event_type::IBV_EVENT_CQ_ERR });
            return;
        }
        if self.unkind.is_some() {
            self.cq(queue).late.push_back(entry);
            self.wake_nic();
        } else {
            self.appear(queue, entry);
        }
    }

    /// A completion can be polled.
    pub(super) fn appear(&mut self, queue: u32, entry: Entry) {
        let cq = self.cq(queue);
        cq.ready.push_back(entry);
        if std::mem::take(&mut cq.notify) {
            let (raw, channel) = (cq.raw, cq.channel);
            let channel = self.channels.get_mut(&channel).expect("a channel");
            channel.waiting.push_back(raw);
            wake(channel.pipe);
        }
    }

    pub(super) fn raise(&mut self, number: u32, event_type: ibv_event_type) {
        let qp = self.qp(number).raw;
        // SAFETY: the queue pair is live under the lock.
        let (context, cq) = unsafe { ((*qp).context, (*qp).send_cq) };
        let element = match event_type {
            ibv_event_type::IBV_EVENT_CQ_ERR => ibv_async_event__bindgen_ty_1 { cq },
            ibv_event_type::IBV_EVENT_QP_FATAL
            | ibv_event_type::IBV_EVENT_QP_REQ_ERR
            | ibv_event_type::IBV_EVENT_QP_ACCESS_ERR => ibv_async_event__bindgen_ty_1 { qp },
            _ => ibv_async_event__bindgen_ty_1 { port_num: 1 },
        };
        self.event(context, ibv_async_event { element, event_type });
    }

    fn event(&mut self, context: *mut ibv_context, event: ibv_async_event) {
        let events = self.events.get_mut(&context.addr()).expect("an opened device");
        events.waiting.push_back(event);
        wake(events.pipe);
    }
}

/// Sets `errno` and returns null.
pub(super) fn fail<T>(errno: i32) -> *mut T {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = errno };
    std::ptr::null_mut()
}

/// Sets `errno` and returns -1.
pub(super) fn status(errno: i32) -> i32 {
    fail::<()>(errno);
    -1
}

pub(super) fn pipe() -> [i32; 2] {
    let mut pipe = [-1; 2];
    // SAFETY: `pipe` has room for both descriptors.
    assert_eq!(unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    pipe
}

pub(super) fn close(pipe: [i32; 2]) {
    for fd in pipe {
        // SAFETY: `pipe` opened it, and it is closed once.
        unsafe { libc::close(fd) };
    }
}
