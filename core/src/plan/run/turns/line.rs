//! The line of calls that wait for their turn: words that ranks share, and what a call enqueues before and behind its work.
//!
//! | rank 0 | other ranks |
//! |---|---|
//! | wait until every rank has said that it is ready | say so to rank 0 |
//! | kernel `turn_ask`: take a position, grant the call if it is the first | |
//! | wait for the grant | wait for the grant |
//! | the call's work | the call's work |
//! | kernel `turn_end`: take back the grant, wait for the others, grant the next call | kernel `turn_leave`: take back the grant, say to rank 0 that it is done |
//!
//! Waits are operations of the stream, which hold no place on the device. Of the kernels, `turn_end` waits for other ranks, and is there only
//! while no call's kernels are. What is written is the same in every call, so a graph can repeat it.
//!
//! Words lie in host memory: the host ends all waits when the communicator is aborted or a rank has left, without the driver.
#![allow(unsafe_code, reason = "launches kernels")]

use std::sync::Arc;

use aqueduct_ptx::abi::{DeviceStruct, TURN_FREE, TurnQueue};

use super::stream_locks::StreamLocks;
use crate::channel::load_kernels;
use crate::comm::{Communicator, HostBuffer, Pending, RegisteredMemory, StreamWaits, Transport};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{DeviceSlice, Function, GpuBuffer, KeepAlive, LaunchConfig, Stream, arg};
use crate::sync::Mutex;
use crate::sync::raw::{Ordering, fence};

/// The most callers of a communicator.
pub(in super::super) const CALLERS: u32 = 4096;
/// Bytes of a word. All accesses of devices are as wide: otherwise the memory model would promise nothing.
const WORD: usize = size_of::<u32>();
/// Bytes of all words by which calls are granted; on rank 0 others follow.
const GRANTS: usize = CALLERS as usize * WORD;

/// Words of this rank for which its streams wait.
#[derive(Debug)]
struct Words {
    buffer: Arc<HostBuffer>,
    /// How many of them.
    count: usize,
}

impl StreamWaits for Words {
    fn end(&self) {
        let memory = self.buffer.memory();
        // The abort word was raised before. A kernel that clears a word meanwhile sees that, or clears before this.
        fence(Ordering::SeqCst); // SYNC abort.word
        for number in 0..self.count {
            if let Ok(word) = memory.word32(number * WORD) {
                word.store(1, Ordering::Release);
            }
        }
    }
}

/// A rank's part.
#[derive(Debug)]
pub(in super::super) struct Line {
    rank: u32,
    ranks: u32,
    /// Words of this rank. A stream that waits for one keeps [`Words`], which end the wait, also if the rest of the call was not enqueued
    /// and nothing else keeps the line.
    mine: DeviceSlice,
    role: Role,
    /// Held while a call is enqueued, of which no other one may come between the parts.
    enqueuing: StreamLocks,
}

#[derive(Debug)]
enum Role {
    /// Of rank 0.
    Decides(Queue),
    Follows {
        /// Words of rank 0.
        first: RegisteredMemory,
        leave: Function,
    },
}

#[derive(Debug)]
struct Queue {
    memory: Arc<GpuBuffer>,
    ask: Function,
    end: Function,
    /// The other ranks' words, which kernels write.
    peers: Arc<Vec<RegisteredMemory>>,
}

/// A line whose exchange is queued for `setup()`.
pub(super) struct PendingLine {
    buffer: Arc<HostBuffer>,
    mine: RegisteredMemory,
    peers: Vec<Pending<RegisteredMemory>>,
}

impl Line {
    /// Whether this rank's driver and links can do it.
    pub(super) fn is_possible(comm: &Communicator) -> bool {
        let first = &comm.peers()[0];
        let missing = comm.context().device().driver().missing();
        let needs = ["cuStreamWriteValue32", "cuStreamWaitValue32"];
        let able = !missing.iter().any(|name| needs.iter().any(|needed| name.starts_with(needed)));
        able && comm.peers().iter().all(|peer| peer.same_host(first))
    }

    /// The lock to hold from before [`enter`](Self::enter) until after [`leave`](Self::leave). Not one lock for all streams: the driver makes
    /// whoever enqueues wait for room in a stream, and that may come only with a call on another one.
    pub(in super::super) fn enqueuing(&self, stream: &Stream) -> Arc<Mutex<()>> {
        self.enqueuing.of(stream.address())
    }

    /// Enqueues what comes before the work of a call: behind it, the call's turn has come.
    pub(in super::super) fn enter(&self, comm: &Communicator, stream: &Stream, caller: u32) -> Result<()> {
        match &self.role {
            Role::Decides(queue) => {
                for rank in 1..self.ranks {
                    let ready = word(&self.mine, self.ready(caller, rank))?;
                    stream.wait_any_bit32(&ready)?; // SYNC turn.word (acquire)
                }
                let keep = [self.mine.keep_alive().clone()];
                // SAFETY: these are the kernel's parameters, a queue and one of its callers. The queue leads to this rank's words, which are in
                // `keep`, and to those of others, which `launch` keeps: also if nothing behind this kernel is enqueued. It waits for nothing.
                unsafe { queue.launch(&queue.ask, 32, (comm, stream, caller), keep.into_iter()) }?;
            }
            Role::Follows { first, .. } => {
                stream.write_value32(&word(first.slice()?, self.ready(caller, self.rank))?, 1)?; // SYNC turn.word (release)
            }
        }
        stream.wait_any_bit32(&word(&self.mine, WORD * caller as usize)?) // SYNC turn.word (acquire)
    }

    /// Enqueues what comes behind the work of a call. The stream retains `keep`, which keeps this, until it is done.
    pub(in super::super) fn leave(
        &self,
        comm: &Communicator,
        stream: &Stream,
        caller: u32,
        keep: impl Iterator<Item = KeepAlive>,
    ) -> Result<()> {
        match &self.role {
            Role::Decides(queue) => {
                let threads = self.ranks.next_multiple_of(32).min(1024);
                // SAFETY: as in `enter`. The kernel waits for the other ranks, and leaves when the abort word is set.
                unsafe { queue.launch(&queue.end, threads, (comm, stream, caller), keep) }
            }
            Role::Follows { first, leave } => {
                let granted = self.mine.ptr() + (WORD * caller as usize) as u64;
                let (done, abort) = (first.ptr() + self.done(self.rank) as u64, comm.abort_handle());
                let args = [arg(&granted), arg(&done), arg(&abort)];
                let keep = keep.chain([comm.keep_alive()]);
                // SAFETY: these are the kernel's parameters: addresses of words of this rank and of rank 0 that the line keeps, which the
                // stream retains. It waits for nothing.
                unsafe { leave.launch_keeping(stream, &LaunchConfig::linear(1, 32), &args, keep) }
            }
        }
    }

    /// Where a rank's word for a caller lies in those of rank 0.
    fn ready(&self, caller: u32, rank: u32) -> usize {
        GRANTS + WORD * (caller as usize * self.ranks as usize + rank as usize)
    }

    fn done(&self, rank: u32) -> usize {
        self.ready(CALLERS, rank)
    }
}

fn word(words: &DeviceSlice, at: usize) -> Result<DeviceSlice> {
    words.slice(at..at + WORD)
}

impl PendingLine {
    /// Asks the peers for their words under `tag`.
    pub(super) fn begin(comm: &Communicator, tag: u64) -> Result<Self> {
        let (rank, ranks) = (comm.rank(), comm.size());
        let more = if rank == 0 { (CALLERS as usize + 1) * ranks as usize * WORD } else { 0 };
        let buffer = Arc::new(HostBuffer::new(comm.context(), GRANTS + more)?);
        let mine = comm.register_host(&buffer, Transport::CudaIpc)?;
        let peers = if rank == 0 { 1..ranks } else { 0..1 };
        let exchange = |peer| {
            comm.send_memory_internal(&mine, peer, tag)?;
            comm.recv_memory_internal(peer, tag)
        };
        let peers = peers.map(exchange).collect::<Result<_>>()?;
        Ok(Self { buffer, mine, peers })
    }

    /// The line, once `setup()` has resolved what [`begin`](Self::begin) asked for.
    pub(super) fn finish(self, comm: &Communicator, deadline: Deadline) -> Result<Line> {
        let (rank, ranks) = (comm.rank(), comm.size());
        let mut peers = self.peers.iter().map(Pending::get).collect::<Result<Vec<_>>>()?;
        let own = if rank == 0 { CALLERS as usize * (1 + ranks as usize) } else { CALLERS as usize };
        let words = Arc::new(Words { buffer: self.buffer, count: own });
        let kernels = load_kernels(comm.context(), "turn", &[])?;
        let [ask, leave, end] =
            <[Function; 3]>::try_from(kernels).map_err(|_| wrong("the kernels are others"))?;
        let role = match rank {
            0 => Role::Decides(Queue::new(comm, [ask, end], &self.mine, peers, deadline)?),
            _ => Role::Follows { first: peers.pop().ok_or_else(|| wrong("no words of rank 0"))?, leave },
        };
        comm.end_with_kernels(&(words.clone() as Arc<dyn StreamWaits>));
        let mine = self.mine.slice()?.clone().keeping(words);
        Ok(Line { rank, ranks, mine, role, enqueuing: StreamLocks::default() })
    }
}

impl Queue {
    fn new(
        comm: &Communicator,
        [ask, end]: [Function; 2],
        mine: &RegisteredMemory,
        peers: Vec<RegisteredMemory>,
        deadline: Deadline,
    ) -> Result<Self> {
        let (ranks, ring) = (comm.size(), size_of::<u32>() * CALLERS as usize);
        let table = size_of::<TurnQueue>() + ring;
        let memory = Arc::new(GpuBuffer::new(comm.context(), table + size_of::<u64>() * ranks as usize)?);
        let at = mine.ptr();
        let queue = TurnQueue {
            words: memory.ptr() + table as u64,
            ready: at + GRANTS as u64,
            done: at + (GRANTS + CALLERS as usize * ranks as usize * WORD) as u64,
            ranks,
            mask: CALLERS - 1,
            ..TurnQueue::default()
        };
        let mut bytes = queue.as_bytes().to_vec();
        bytes.extend(TURN_FREE.to_le_bytes());
        bytes.resize(table, 0);
        let words = std::iter::once(at).chain(peers.iter().map(RegisteredMemory::ptr));
        bytes.extend(words.flat_map(u64::to_le_bytes));
        memory.upload(0, &bytes, deadline)?;
        Ok(Self { memory, ask, end, peers: Arc::new(peers) })
    }

    /// Launches a kernel of the queue, one block of `threads` threads. The stream retains each of `keep` for it.
    ///
    /// # Safety
    /// The kernel must be one with these parameters, and this rank's words must stay accessible until it is done.
    unsafe fn launch(
        &self,
        kernel: &Function,
        threads: u32,
        (comm, stream, caller): (&Communicator, &Stream, u32),
        keep: impl Iterator<Item = KeepAlive>,
    ) -> Result<()> {
        let (queue, abort) = (self.memory.ptr(), comm.abort_handle());
        let args = [arg(&queue), arg(&caller), arg(&abort)];
        let keep = keep.chain([self.memory.clone() as KeepAlive, self.peers.clone(), comm.keep_alive()]);
        // SAFETY: the caller's promise; the stream keeps the queue, the other ranks' words and the abort word.
        unsafe { kernel.launch_keeping(stream, &LaunchConfig::linear(1, threads), &args, keep) }
    }
}

#[cold]
fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::Internal, "Executor::prepare", what.to_owned())
}
