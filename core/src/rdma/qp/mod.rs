//! Queue pairs of type RC (reliable connection), with their states as types.

mod bound;
mod post;
mod transition;

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};

pub use post::PostError;
use rdma_core_sys::{
    ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
};

use super::context::ProtectionDomain;
use super::cq::CompletionQueue;
use super::status::{errno_of, failed, last_errno};
use crate::error::{Error, Result};
use crate::sync::{AtomicU64, Ordering};

/// A state of a queue pair. Transitions consume the queue pair and give it back in the next state.
pub trait State: sealed::Sealed + Send + Sync + 'static {}

/// A state in which receives can be posted.
pub trait Receiving: State {}

mod sealed {
    pub trait Sealed: std::fmt::Debug {
        const NAME: &'static str;
    }
}

macro_rules! states {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl sealed::Sealed for $name {
            const NAME: &'static str = $text;
        }
        impl State for $name {}
    )*};
}

states! {
    /// Created; nothing can be posted.
    Reset = "reset";
    /// Bound to a port; receives can be posted.
    Init = "init";
    /// Knows its peer, executes the peer's requests.
    ReadyToReceive = "ready to receive";
    /// Executes requests of both sides.
    ReadyToSend = "ready to send";
}

impl Receiving for Init {}
impl Receiving for ReadyToReceive {}
impl Receiving for ReadyToSend {}

/// How large a queue pair is made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpOptions {
    /// Outstanding requests of this side; 1024.
    pub max_send: u32,
    /// Outstanding receives; 1.
    pub max_receive: u32,
    /// Bytes that a request may carry in itself; 64. Fewer if the NIC cannot.
    pub max_inline: u32,
}

impl Default for QpOptions {
    fn default() -> Self {
        Self { max_send: 1024, max_receive: 1, max_inline: 64 }
    }
}

impl QpOptions {
    /// The same with room for `requests` outstanding requests.
    #[must_use]
    pub fn with_max_send(mut self, requests: u32) -> Self {
        self.max_send = requests;
        self
    }

    /// The same with room for `receives` outstanding receives.
    #[must_use]
    pub fn with_max_receive(mut self, receives: u32) -> Self {
        self.max_receive = receives;
        self
    }

    /// The same with another bound on inline data.
    #[must_use]
    pub fn with_max_inline(mut self, bytes: u32) -> Self {
        self.max_inline = bytes;
        self
    }
}

/// A queue pair in state `S`.
///
/// Dropping it ends its requests without completions and takes its completions out of the completion queue; to see how
/// outstanding requests end, call [`abort`](Self::abort) and poll first. One that the NIC does not destroy is moved to the error state,
/// which ends its requests, too.
pub struct QueuePair<S: State> {
    inner: Inner,
    state: PhantomData<S>,
}

struct Inner {
    domain: ProtectionDomain,
    /// Kept until the queue pair is gone.
    _completion_queues: (CompletionQueue, CompletionQueue),
    raw: NonNull<ibv_qp>,
    capacity: ibv_qp_cap,
    psn: u32,
    /// Set by the transition to [`Init`].
    bound: Option<bound::Bound>,
    requests: AtomicU64,
    doorbells: AtomicU64,
}

// SAFETY: posting and the rest of libibverbs are thread-safe for one queue pair; the pointer is freed once, by the owner.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// Counts of a queue pair's requests and doorbells so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCounters {
    /// Requests accepted.
    pub requests: u64,
    /// Calls into the provider that posted them.
    pub doorbells: u64,
}

impl ProtectionDomain {
    /// A queue pair whose requests complete on `send` and whose receives complete on `receive`, which may be the same.
    ///
    /// # Errors
    /// `InvalidUsage` for more than the NIC can do, or a queue of another NIC; otherwise the error of libibverbs.
    pub fn queue_pair(
        &self,
        options: &QpOptions,
        send: &CompletionQueue,
        receive: &CompletionQueue,
    ) -> Result<QueuePair<Reset>> {
        const OP: &str = "ibv_create_qp";
        self.verbs().check(OP)?;
        let (name, most) = (self.context().device().name(), self.context().attributes().max_work_requests);
        let context = self.context().as_ptr();
        if [send, receive].iter().any(|queue| queue.context().as_ptr() != context) {
            let message = format!("the completion queue was not made from the same opened device {name}");
            return Err(Error::usage(OP, message));
        }
        for (what, count) in [("max_send", options.max_send), ("max_receive", options.max_receive)] {
            if count == 0 || count > most {
                return Err(Error::usage(OP, format!("{what} is {count}: device {name} takes 1 to {most}")));
            }
        }
        let (raw, capacity) = self.create(options, send, receive)?;
        let inner = Inner {
            domain: self.clone(),
            _completion_queues: (send.clone(), receive.clone()),
            raw,
            capacity,
            psn: random_psn(),
            bound: None,
            requests: AtomicU64::new(0),
            doorbells: AtomicU64::new(0),
        };
        Ok(QueuePair { inner, state: PhantomData })
    }

    /// The queue pair and what it can hold. NICs refuse more inline data than they can do, and cannot say how much they can:
    /// half as much is tried then, down to the word of a signal, and none at last.
    fn create(
        &self,
        options: &QpOptions,
        send: &CompletionQueue,
        receive: &CompletionQueue,
    ) -> Result<(NonNull<ibv_qp>, ibv_qp_cap)> {
        const WORD: u32 = 8;
        let mut max_inline_data = options.max_inline;
        loop {
            let mut attr = ibv_qp_init_attr {
                qp_context: null_mut(),
                send_cq: send.as_ptr(),
                recv_cq: receive.as_ptr(),
                srq: null_mut(),
                cap: ibv_qp_cap {
                    max_send_wr: options.max_send,
                    max_recv_wr: options.max_receive,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data,
                },
                qp_type: ibv_qp_type::IBV_QPT_RC,
                sq_sig_all: 0,
            };
            // SAFETY: the domain and the queues are live; `attr` lives during the call, which fills in what it gives.
            let raw = unsafe { (self.verbs().table().ibv_create_qp)(self.as_ptr(), &raw mut attr) };
            if let Some(raw) = NonNull::new(raw) {
                return Ok((raw, attr.cap));
            }
            let errno = last_errno();
            if max_inline_data == 0 {
                let name = self.context().device().name();
                let message = format!(
                    "device {name} gives no queue pair with max_send {} and max_receive {}; try fewer",
                    options.max_send, options.max_receive
                );
                return Err(failed("ibv_create_qp", errno, message));
            }
            max_inline_data = if max_inline_data > WORD { WORD.max(max_inline_data / 2) } else { 0 };
        }
    }
}

impl<S: State> QueuePair<S> {
    /// Its number, by which completions and events name it.
    pub fn number(&self) -> u32 {
        self.inner.number()
    }

    /// The domain it belongs to.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.inner.domain
    }

    /// Requests that can be outstanding: at least what was asked for.
    pub fn max_send(&self) -> u32 {
        self.inner.capacity.max_send_wr
    }

    /// Receives that can be outstanding: at least what was asked for.
    pub fn max_receive(&self) -> u32 {
        self.inner.capacity.max_recv_wr
    }

    /// Bytes that a request may carry in itself; may be fewer than were asked for, even none.
    pub fn max_inline(&self) -> u32 {
        self.inner.capacity.max_inline_data
    }

    /// Counts of its requests and doorbells so far.
    pub fn counters(&self) -> QpCounters {
        QpCounters {
            requests: self.inner.requests.load(Ordering::Relaxed),
            doorbells: self.inner.doorbells.load(Ordering::Relaxed),
        }
    }

    /// Moves it to the error state: outstanding requests and receives complete as flushed, and so does everything
    /// posted later. The peer's requests fail.
    ///
    /// # Errors
    /// The error of libibverbs, for instance because the NIC is gone; then nothing more completes.
    pub fn abort(&self) -> Result<()> {
        const OP: &str = "ibv_modify_qp";
        self.inner.domain.verbs().check(OP)?;
        let mut attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
        self.inner.modify(&mut attr, ibv_qp_attr_mask::IBV_QP_STATE).map_err(|errno| {
            failed(OP, errno, format!("queue pair {:#x} cannot be moved to the error state", self.number()))
        })
    }
}

impl Inner {
    fn number(&self) -> u32 {
        // SAFETY: the queue pair is live; its number never changes.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) -> std::result::Result<(), i32> {
        let modify = self.domain.verbs().table().ibv_modify_qp;
        // SAFETY: the queue pair is live, the attributes live during the call.
        errno_of(unsafe { modify(self.raw.as_ptr(), attr, mask.0.cast_signed()) })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let raw = self.raw.as_ptr();
        // SAFETY: created once, destroyed once; its events were acknowledged when they were read.
        let gone =
            self.domain.verbs().destroy("a queue pair", |table| unsafe { (table.ibv_destroy_qp)(raw) });
        if gone || self.domain.verbs().forked() {
            return;
        }
        // Its requests would go on, and write to memory whose owner learns from this drop that they have ended.
        let mut attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
        if let Err(errno) = self.modify(&mut attr, ibv_qp_attr_mask::IBV_QP_STATE) {
            let reason = std::io::Error::from_raw_os_error(errno);
            log::error!("queue pair {:#x} may still reach registered memory: {reason}", self.number());
        }
    }
}

impl<S: State> fmt::Debug for QueuePair<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("number", &format_args!("{:#x}", self.number()))
            .field("state", &S::NAME)
            .finish_non_exhaustive()
    }
}

/// A first packet number that stale packets of an earlier connection are unlikely to have.
fn random_psn() -> u32 {
    (RandomState::new().build_hasher().finish() & 0x00ff_ffff) as u32
}
