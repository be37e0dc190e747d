//! The contract between the engine of a messenger and what carries its frames.
//!
//! A wire carries frames both ways between two processes, in order. It knows neither kinds nor tokens. The engine above it
//! checks sequence numbers, so that a frame that a wire, or something wrapped around it, loses or repeats ends the link.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::head::Head;
use super::lent::Lent;
use super::one_sided::OneSided;
use crate::error::Result;

/// One link to one peer. An error of any call is final: the engine closes the wire and reports the peer as lost.
pub(super) trait Wire: Send + Sync + fmt::Debug {
    /// Names the carrier of the frames for people: `tcp`, `shared memory` or `verbs`.
    fn name(&self) -> &'static str;

    /// The longest body that a frame on this wire may have. At least 8 KiB.
    fn max_body(&self) -> usize;

    /// Takes one frame, `head` and then the bytes of `body`, whole or not at all; false if there is no room now. Never waits.
    /// Any thread may call it. Stamps `head.sequence`: the first frame of a wire is 0, and frames are pulled at the other end
    /// in the order of their numbers. `head.length` is the length of `body`.
    fn push(&self, head: Head, body: &[u8]) -> Result<bool>;

    /// As [`push`](Self::push), of memory that the wire may keep until it has been sent, instead of copying it. One thread at a
    /// time calls it.
    fn push_lent(&self, head: Head, body: Lent) -> Result<bool> {
        match body.stable() {
            Some(bytes) => self.push(head, bytes),
            None => self.push(head, &body.copy()),
        }
    }

    /// Sends what pushes held back (batching), as far as there is room now. Called at the end of each progress, and before a
    /// thread sleeps. True if nothing is left.
    fn kick(&self) -> Result<bool>;

    /// Gives frames that have arrived, in order, to `sink`, until a fair share has been given. Returns how
    /// many it gave, parts of data frames included: 0 means that there was nothing. One thread at a time calls it.
    fn pull(&self, sink: &mut dyn Sink) -> Result<usize>;

    /// Asks for [`descriptors`](Self::descriptors) to become readable when something arrives. Called before a thread sleeps,
    /// and when a wire has been silent for a while. True if something has arrived meanwhile: then nothing was asked for.
    fn arm(&self) -> Result<bool>;

    /// Descriptors to watch for reading; always the same, at most two. The first one is also watched for writing while
    /// [`kick`](Self::kick) says that something is left and [`waits_for_room`](Self::waits_for_room) is true.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// Whether the first descriptor becomes writable when there is room again. Without it, the engine tries again at each progress.
    fn waits_for_room(&self) -> bool;

    /// Whether there may be room by now for a push that found none, since this was last asked. The engine asks after each pull, kick and
    /// arm.
    fn take_room(&self) -> bool;

    /// Whether pushes may be held back until [`kick`](Self::kick).
    fn gathers(&self) -> bool {
        true
    }

    /// Whether pulling costs a system call even if nothing has arrived. The engine then relies on the descriptors sooner.
    fn pull_is_syscall(&self) -> bool;

    /// Called about once a second: an error if the peer's host has not answered for too long.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Bytes of reads that the peer may be asked for at a time, if that is more than one read.
    fn read_window(&self) -> usize {
        usize::MAX
    }

    /// Whether descriptors can be handed over.
    fn passes_descriptors(&self) -> bool {
        false
    }

    /// Hands a descriptor over; the peer finds it before any frame that is pushed afterwards. False if that is not possible, or
    /// not now.
    fn send_descriptor(&self, _fd: BorrowedFd<'_>) -> bool {
        false
    }

    /// The next descriptor that the peer has handed over; `None` if there is none, or if this process had no room for it. The thread
    /// that pulls calls it, also from within the sink.
    fn take_descriptor(&self) -> Option<OwnedFd> {
        None
    }

    /// The devices behind the wire, if they can read memory without the help of its owner.
    fn one_sided(&self) -> Option<&dyn OneSided> {
        None
    }

    /// Whether all that was pushed has arrived at the peer's host, so that closing loses none of it.
    fn has_arrived(&self) -> bool {
        true
    }

    /// Whether the peer takes nothing more, where a push does not say so. Whoever says goodbye reads until all of its own words have arrived,
    /// and hangs up then.
    fn has_ended(&self) -> bool;

    /// Ends the sending side after what was pushed, or both sides at once if `both`. Later pushes fail.
    fn close(&self, both: bool);
}

/// Takes what a wire has brought.
pub(super) trait Sink {
    /// Takes one whole frame. There is always room: each side sends no more messages than it has credit for. An error ends the link.
    fn frame(&mut self, head: Head, body: &[u8]) -> Result<()>;

    /// Begins a [`Data`](super::head::Operation::Data) frame whose body a wire receives in place, instead of giving the frame whole.
    fn begin(&mut self, head: Head) -> Result<()>;

    /// The place for the bytes of that frame from offset `done` of its body on. It is valid until the next call of anything of
    /// the sink.
    fn landing(&mut self, head: Head, done: usize) -> Result<Landing>;

    /// `bytes` more of that frame have landed where [`landing`](Self::landing) said. Called for each part.
    fn landed(&mut self, head: Head, bytes: usize) -> Result<()>;
}

/// Where the bytes of a data frame go.
#[derive(Clone, Copy, Debug)]
pub(super) enum Landing {
    /// To this memory, which is writable and at least as long as the rest of the frame.
    Memory(*mut u8),
    /// Nowhere: nobody wants the read any more.
    Nowhere,
}
