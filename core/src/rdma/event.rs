//! Asynchronous events of a NIC.

use std::fmt;

use rdma_core_sys::{ibv_async_event, ibv_event_type as e};

use super::context::Context;
use super::status::{errno_of, failed, words};
use crate::error::{Error, ErrorKind, Result};

/// Something that happened to a NIC or to what was made on it, outside of any request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Type of the event.
    pub kind: EventKind,
    /// The object that it concerns.
    pub about: About,
    /// The library's description of it.
    pub words: String,
}

/// The object that an event concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum About {
    /// The whole NIC: every connection over it.
    Device,
    /// The port of this number.
    Port(u8),
    /// The queue pair of this number.
    QueuePair(u32),
    /// The completion queue with this [`number`](super::CompletionQueue::number): every queue pair that uses it.
    CompletionQueue(u64),
    /// Something that is not used here.
    Other,
}

/// Kind of an event. An integer: newer kernels may have more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventKind(pub u32);

impl EventKind {
    /// The NIC failed or was removed.
    pub const DEVICE_FATAL: Self = Self(e::IBV_EVENT_DEVICE_FATAL.0);
    /// A port lost its link.
    pub const PORT_ERROR: Self = Self(e::IBV_EVENT_PORT_ERR.0);
    /// A port has its link.
    pub const PORT_ACTIVE: Self = Self(e::IBV_EVENT_PORT_ACTIVE.0);
    /// A completion queue overflowed.
    pub const CQ_ERROR: Self = Self(e::IBV_EVENT_CQ_ERR.0);
    /// A queue pair failed.
    pub const QP_FATAL: Self = Self(e::IBV_EVENT_QP_FATAL.0);
    /// The GID table changed.
    pub const GID_CHANGE: Self = Self(e::IBV_EVENT_GID_CHANGE.0);
}

impl AsyncEvent {
    /// The error it means for the connections it is about, if they cannot go on.
    ///
    /// A port that loses its link is none: it may come back before the retries are over, and if not the requests fail.
    pub fn error(&self) -> Option<Error> {
        let fatal = matches!(
            e(self.kind.0),
            e::IBV_EVENT_CQ_ERR
                | e::IBV_EVENT_QP_FATAL
                | e::IBV_EVENT_QP_REQ_ERR
                | e::IBV_EVENT_QP_ACCESS_ERR
                | e::IBV_EVENT_DEVICE_FATAL
        );
        fatal.then(|| {
            Error::new(ErrorKind::Verbs, "ibv_get_async_event", self.to_string())
                .with_code(self.kind.0.cast_signed())
        })
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.about {
            About::Device => write!(f, "the NIC reports: {}", self.words)?,
            About::Port(number) => write!(f, "port {number} reports: {}", self.words)?,
            About::QueuePair(number) => write!(f, "queue pair {number:#x} reports: {}", self.words)?,
            About::CompletionQueue(_) => write!(f, "a completion queue reports: {}", self.words)?,
            About::Other => f.write_str(&self.words)?,
        }
        match self.kind {
            EventKind::DEVICE_FATAL => f.write_str("; it was removed or failed, look at the kernel's log"),
            EventKind::CQ_ERROR => {
                f.write_str("; it overflowed: make it larger than all outstanding requests")
            }
            _ => Ok(()),
        }
    }
}

impl Context {
    /// The next event, if there is one. Never waits; the context's descriptor says when there is one.
    ///
    /// # Errors
    /// The error of libibverbs.
    pub fn next_event(&self) -> Result<Option<AsyncEvent>> {
        const OP: &str = "ibv_get_async_event";
        self.verbs().check(OP)?;
        let table = self.verbs().table();
        let mut raw = ibv_async_event::default();
        loop {
            // SAFETY: the context is live, `raw` is a live output.
            match errno_of(unsafe { (table.ibv_get_async_event)(self.as_ptr(), &raw mut raw) }) {
                Ok(()) => break,
                Err(libc::EAGAIN) => return Ok(None),
                Err(libc::EINTR) => {}
                Err(errno) => return Err(failed(OP, errno, "asynchronous events cannot be read")),
            }
        }
        // SAFETY: the event was just read and is acknowledged only below.
        let about = unsafe { about(&raw) };
        // SAFETY: the function takes any value and returns a string that lives for ever.
        let words = unsafe { words((table.ibv_event_type_str)(raw.event_type)) };
        // SAFETY: read above, acknowledged once. Until now the destruction of what it is about has waited.
        unsafe { (table.ibv_ack_async_event)(&raw mut raw) };
        Ok(Some(AsyncEvent { kind: EventKind(raw.event_type.0), about, words }))
    }
}

/// # Safety
/// The event was read and not acknowledged yet: what it names is live.
unsafe fn about(event: &ibv_async_event) -> About {
    match event.event_type {
        e::IBV_EVENT_CQ_ERR => {
            // SAFETY: this kind names a completion queue, which the caller says is live.
            About::CompletionQueue(unsafe { (*event.element.cq).cq_context }.addr() as u64)
        }
        e::IBV_EVENT_QP_FATAL
        | e::IBV_EVENT_QP_REQ_ERR
        | e::IBV_EVENT_QP_ACCESS_ERR
        | e::IBV_EVENT_COMM_EST
        | e::IBV_EVENT_SQ_DRAINED
        | e::IBV_EVENT_PATH_MIG
        | e::IBV_EVENT_PATH_MIG_ERR
        | e::IBV_EVENT_QP_LAST_WQE_REACHED => {
            // SAFETY: these kinds name a queue pair, which the caller says is live.
            About::QueuePair(unsafe { (*event.element.qp).qp_num })
        }
        e::IBV_EVENT_PORT_ACTIVE
        | e::IBV_EVENT_PORT_ERR
        | e::IBV_EVENT_LID_CHANGE
        | e::IBV_EVENT_PKEY_CHANGE
        | e::IBV_EVENT_SM_CHANGE
        | e::IBV_EVENT_CLIENT_REREGISTER
        | e::IBV_EVENT_GID_CHANGE => {
            // SAFETY: these kinds name a port by number.
            About::Port(u8::try_from(unsafe { event.element.port_num }).unwrap_or(0))
        }
        e::IBV_EVENT_DEVICE_FATAL => About::Device,
        _ => About::Other,
    }
}
