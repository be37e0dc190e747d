//! Completion queues.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rdma_core_sys::{ibv_comp_channel, ibv_cq, ibv_wc};

use super::completion::Completion;
use super::context::{Context, nonblocking};
use super::status::{errno_of, failed, last_errno};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::raw::{AtomicU64, Ordering};

/// The number of the next queue.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// How many completions are taken from the NIC at a time.
const POLL: usize = 32;

/// Where the ends of work requests are found. Cheap to clone; clones are one queue.
///
/// The queue must have room for every completion that can be outstanding at once: the signalled requests of all queue pairs
/// that use it, one failure each of the others, and their receives. A queue that overflows is lost, and
/// [`AsyncEvent`](super::AsyncEvent) says so.
#[derive(Clone)]
pub struct CompletionQueue {
    inner: Arc<Inner>,
}

struct Inner {
    context: Context,
    number: u64,
    channel: Option<CompletionChannel>,
    raw: NonNull<ibv_cq>,
}

// SAFETY: polling and the rest of libibverbs are thread-safe for one queue; the pointer is freed once, by the last owner.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Context {
    /// A completion queue of at least `capacity` entries.
    ///
    /// # Errors
    /// `InvalidUsage` for more than the NIC can do; otherwise the error of libibverbs.
    pub fn completion_queue(&self, capacity: u32) -> Result<CompletionQueue> {
        self.create_cq(capacity, None)
    }

    /// A completion queue that can wake a thread through `channel`, after [`CompletionQueue::request_event`].
    ///
    /// # Errors
    /// As for [`completion_queue`](Self::completion_queue).
    pub fn completion_queue_with(
        &self,
        capacity: u32,
        channel: &CompletionChannel,
    ) -> Result<CompletionQueue> {
        self.create_cq(capacity, Some(channel.clone()))
    }

    fn create_cq(&self, capacity: u32, channel: Option<CompletionChannel>) -> Result<CompletionQueue> {
        const OP: &str = "ibv_create_cq";
        self.verbs().check(OP)?;
        let (name, most) = (self.device().name(), self.attributes().max_completions);
        let count = match i32::try_from(capacity) {
            Ok(count) if count > 0 && capacity <= most => count,
            _ => {
                let message =
                    format!("{capacity} entries: device {name} has completion queues of 1 to {most}");
                return Err(Error::usage(OP, message));
            }
        };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // The number of the queue, which its events return as their context pointer; nobody dereferences it.
        let user = std::ptr::without_provenance_mut(number as usize);
        let raw_channel = channel.as_ref().map_or(null_mut(), CompletionChannel::as_ptr);
        // SAFETY: context and channel are live; the queue keeps both alive.
        let raw = unsafe { (self.verbs().table().ibv_create_cq)(self.as_ptr(), count, user, raw_channel, 0) };
        let Some(raw) = NonNull::new(raw) else {
            let message = format!("device {name} gives no completion queue of {capacity} entries");
            return Err(failed(OP, last_errno(), message));
        };
        Ok(CompletionQueue { inner: Arc::new(Inner { context: self.clone(), number, channel, raw }) })
    }

    /// A channel through which completion queues wake a thread.
    ///
    /// # Errors
    /// The error of libibverbs.
    pub fn completion_channel(&self) -> Result<CompletionChannel> {
        const OP: &str = "ibv_create_comp_channel";
        self.verbs().check(OP)?;
        // SAFETY: the context is live.
        let raw = unsafe { (self.verbs().table().ibv_create_comp_channel)(self.as_ptr()) };
        let raw =
            NonNull::new(raw).ok_or_else(|| failed(OP, last_errno(), "no channel for completion events"))?;
        let channel = CompletionChannel { inner: Arc::new(Channel { context: self.clone(), raw }) };
        nonblocking(channel.as_fd())
            .map_err(|error| Error::system("fcntl", "completion events cannot be made nonblocking", error))?;
        Ok(channel)
    }
}

impl CompletionQueue {
    /// Gives each completion that is there to `each`, in order, at most `most`; how many there were. Never waits.
    ///
    /// # Errors
    /// [`ErrorKind::Verbs`] if the queue is lost: it overflowed or its NIC is gone.
    pub fn poll(&self, most: usize, mut each: impl FnMut(Completion)) -> Result<usize> {
        let mut taken = 0;
        while taken < most {
            let mut room = [const { MaybeUninit::<ibv_wc>::uninit() }; POLL];
            let ask = POLL.min(most - taken);
            // SAFETY: the queue is live and there is room for what is asked.
            let count =
                unsafe { rdma_core_sys::ibv_poll_cq(self.as_ptr(), ask as i32, room.as_mut_ptr().cast()) };
            let count = usize::try_from(count).ok().filter(|count| *count <= ask);
            let count = count.ok_or_else(|| self.lost())?;
            for entry in &room[..count] {
                // SAFETY: the provider has filled this many entries.
                each(Completion::new(unsafe { entry.assume_init_ref() }));
            }
            taken += count;
            if count < ask {
                break;
            }
        }
        Ok(taken)
    }

    /// Entries it has room for: at least what was asked for.
    pub fn capacity(&self) -> u32 {
        // SAFETY: the queue is live; the field changes only when the queue is resized, which nobody does.
        u32::try_from(unsafe { (*self.as_ptr()).cqe }).unwrap_or(0)
    }

    /// Makes the next completion wake the channel, once. Poll again after this: what came before it does not wake.
    ///
    /// # Errors
    /// `InvalidUsage` without a channel; otherwise the error of libibverbs.
    pub fn request_event(&self) -> Result<()> {
        const OP: &str = "ibv_req_notify_cq";
        if self.inner.channel.is_none() {
            return Err(Error::usage(OP, "the completion queue was made without a channel"));
        }
        // SAFETY: the queue is live.
        errno_of(unsafe { rdma_core_sys::ibv_req_notify_cq(self.as_ptr(), 0) })
            .map_err(|errno| failed(OP, errno, "no event can be asked for"))
    }

    /// Its number, which no other queue of this process ever has: what [`About`](super::About) names.
    pub fn number(&self) -> u64 {
        self.inner.number
    }

    /// The NIC it belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_cq {
        self.inner.raw.as_ptr()
    }

    fn lost(&self) -> Error {
        let message = format!(
            "the completion queue of device {} is lost: it overflowed, or the device is gone (see its asynchronous events)",
            self.context().device().name()
        );
        Error::new(ErrorKind::Verbs, "ibv_poll_cq", message)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let raw = self.raw.as_ptr();
        // SAFETY: queue pairs held the queue alive and are gone; its events were acknowledged when they were read.
        self.context.verbs().destroy("a completion queue", |table| unsafe { (table.ibv_destroy_cq)(raw) });
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("device", self.context().device())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

/// Wakes a thread when a completion queue has something. Cheap to clone; clones are one channel.
#[derive(Clone)]
pub struct CompletionChannel {
    inner: Arc<Channel>,
}

struct Channel {
    context: Context,
    raw: NonNull<ibv_comp_channel>,
}

// SAFETY: reading events is thread-safe; the pointer is freed once, by the last owner.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl CompletionChannel {
    /// Takes all pending events and returns their number. Then poll the queues and ask for events again. Never waits.
    ///
    /// # Errors
    /// The error of libibverbs.
    pub fn clear(&self) -> Result<usize> {
        let table = self.inner.context.verbs().table();
        let mut taken = 0;
        loop {
            let (mut cq, mut context) = (null_mut(), null_mut());
            // SAFETY: the channel is live, both are live outputs.
            match errno_of(unsafe { (table.ibv_get_cq_event)(self.as_ptr(), &raw mut cq, &raw mut context) })
            {
                // SAFETY: the event was just read for this queue; destroying the queue waits for this call.
                Ok(()) => unsafe { (table.ibv_ack_cq_events)(cq, 1) },
                Err(libc::EAGAIN) => return Ok(taken),
                Err(libc::EINTR) => continue,
                Err(errno) => {
                    return Err(failed("ibv_get_cq_event", errno, "completion events cannot be read"));
                }
            }
            taken += 1;
        }
    }

    fn as_ptr(&self) -> *mut ibv_comp_channel {
        self.inner.raw.as_ptr()
    }
}

/// Readable when a queue has asked for an event and has a completion. Nonblocking.
impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the library keeps the descriptor open as long as the channel lives.
        unsafe { BorrowedFd::borrow_raw((*self.as_ptr()).fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let raw = self.raw.as_ptr();
        // SAFETY: the queues on it held it alive and are gone.
        let destroy = |table: &rdma_core_sys::VerbsTable| unsafe { (table.ibv_destroy_comp_channel)(raw) };
        self.context.verbs().destroy("a completion channel", destroy);
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel").field("fd", &self.as_fd()).finish()
    }
}
