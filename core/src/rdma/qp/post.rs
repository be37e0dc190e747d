//! Posting work requests and receives.

use std::fmt;
use std::ptr::null_mut;

use rdma_core_sys::{ibv_recv_wr, ibv_send_wr, ibv_sge};

use super::{QueuePair, ReadyToSend, Receiving};
use crate::error::{Error, Result};
use crate::rdma::batch::Batch;
use crate::rdma::region::LocalRange;
use crate::rdma::status::{errno_of, failed};
use crate::sync::Ordering;

/// Why a batch was not posted, or not all of it. The requests that were not accepted are still in the batch.
#[derive(Debug)]
pub struct PostError {
    /// How many requests were accepted before the failure: they are executed and complete as usual.
    pub accepted: usize,
    /// Whether the send queue was full: poll completions, then post again.
    pub full: bool,
    /// The reason why posting stopped.
    pub error: Error,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for PostError {}

impl From<PostError> for Error {
    fn from(error: PostError) -> Self {
        error.error
    }
}

impl QueuePair<ReadyToSend> {
    /// Hands all requests of `batch` to the NIC with one doorbell, and empties it. An empty batch is fine.
    ///
    /// # Errors
    /// [`PostError`]; the caller knows which requests were accepted. A failed queue pair accepts requests, which then
    /// complete as flushed.
    pub fn post(&self, batch: &mut Batch) -> std::result::Result<(), PostError> {
        const OP: &str = "ibv_post_send";
        let refuse = |error| PostError { accepted: 0, full: false, error };
        self.inner.domain.verbs().check(OP).map_err(refuse)?;
        let (inline, most) = (batch.largest_inline(), self.max_inline());
        if inline > most {
            let message =
                format!("{inline} bytes inline: this queue pair takes {most}; register them and write them");
            return Err(refuse(Error::usage(OP, message)));
        }
        let first = batch.link();
        if first.is_null() {
            return Ok(());
        }
        let mut bad = null_mut();
        // SAFETY: the queue pair is live. The list and what it points to live in the batch, which is borrowed; the NIC copies
        // them. The memory that requests name need not live: a key that is not registered any more is a failed completion,
        // and as long as a key is registered the region keeps the memory (contract of `register`).
        let result = unsafe { rdma_core_sys::ibv_post_send(self.inner.raw.as_ptr(), first, &raw mut bad) };
        let posted = match errno_of(result) {
            Ok(()) => batch.len(),
            Err(_) => batch.position(bad).unwrap_or(0),
        };
        self.inner.requests.fetch_add(posted as u64, Ordering::Relaxed);
        self.inner.doorbells.fetch_add(1, Ordering::Relaxed);
        errno_of(result).map_err(|errno| {
            batch.remove_first(posted);
            let full = errno == libc::ENOMEM;
            let why = match errno {
                libc::ENOMEM => "its send queue is full: poll completions first, or make max_send larger",
                libc::EINVAL => {
                    "the NIC finds a request invalid: check alignment of atomics, and inline and message sizes"
                }
                _ => "it does not accept requests",
            };
            let message = format!("queue pair {:#x}: {why}", self.number());
            PostError { accepted: posted, full, error: failed(OP, errno, message) }
        })?;
        batch.clear();
        Ok(())
    }
}

impl QueuePair<ReadyToSend> {
    /// Posts one request that is about no memory of the caller's, for windows.
    pub(in super::super) fn post_one(&self, wr: &mut ibv_send_wr) -> Result<()> {
        const OP: &str = "ibv_post_send";
        self.inner.domain.verbs().check(OP)?;
        let mut bad = null_mut();
        // SAFETY: the queue pair is live; the request, and the objects that it names, live during the call, which copies it.
        let result = unsafe { rdma_core_sys::ibv_post_send(self.inner.raw.as_ptr(), wr, &raw mut bad) };
        errno_of(result).map_err(|errno| {
            let why = match errno {
                libc::ENOMEM => "its send queue is full",
                libc::EINVAL | libc::EOPNOTSUPP => "the NIC has no such request",
                _ => "it does not accept requests",
            };
            failed(OP, errno, format!("queue pair {:#x}: {why}", self.number()))
        })?;
        self.inner.requests.fetch_add(1, Ordering::Relaxed);
        self.inner.doorbells.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl<S: Receiving> QueuePair<S> {
    /// Posts a receive that the peer's next message, or write with an immediate, consumes. `into` needs local write; without
    /// it only writes with an immediate and empty messages fit.
    ///
    /// # Errors
    /// `InvalidUsage` if `into` is too long for one receive; otherwise the NIC's error, for instance that its receive
    /// queue is full.
    pub fn post_receive(&self, id: u64, into: Option<LocalRange>) -> Result<()> {
        const OP: &str = "ibv_post_recv";
        self.inner.domain.verbs().check(OP)?;
        let range = into.unwrap_or(LocalRange { address: 0, length: 0, key: 0 });
        let length = u32::try_from(range.length)
            .map_err(|_| Error::usage(OP, format!("{} bytes do not fit into one receive", range.length)))?;
        let mut sge = ibv_sge { addr: range.address, length, lkey: range.key };
        let carries = length != 0;
        let mut wr = ibv_recv_wr {
            wr_id: id,
            next: null_mut(),
            sg_list: if carries { &raw mut sge } else { null_mut() },
            num_sge: carries.into(),
        };
        let mut bad = null_mut();
        // SAFETY: as for `post`; request and list entry live during the call.
        let result =
            unsafe { rdma_core_sys::ibv_post_recv(self.inner.raw.as_ptr(), &raw mut wr, &raw mut bad) };
        errno_of(result).map_err(|errno| {
            let why = match errno {
                libc::ENOMEM => "its receive queue is full: make max_receive larger",
                _ => "it does not accept receives",
            };
            failed(OP, errno, format!("queue pair {:#x}: {why}", self.number()))
        })
    }
}
