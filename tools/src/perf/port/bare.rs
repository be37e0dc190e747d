//! The bare loops that port channels are compared with over CudaIpc.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context as _, Result, bail};
use aqueduct::Deadline;
use aqueduct::channel::load_kernels;
use aqueduct::gpu::{Function, KeepAlive, PinnedBuffer, Stream, arg};

use super::end::End;
use super::windows::Shape;
use crate::job::Rank;
use crate::perf::copies::bare_copy;
use crate::perf::host_thread::HostThread;
use crate::perf::timing::StreamClock;

/// A put and a signal without the library: a kernel writes a word, this rank's host thread sees it and enqueues a copy
/// and the write of a flag, and the peer's kernel polls the flag.
pub(super) struct Relay {
    function: Function,
    /// Whether the kernel takes a position and fences before it writes the word.
    fenced: bool,
    word: Arc<PinnedBuffer>,
    /// The stream that the host thread enqueues copies on.
    stream: Stream,
    /// The next unused value of the word.
    first: u64,
    thread: HostThread,
}

/// Parameters of the host thread for one launch.
struct Route {
    stream: Stream,
    word: Arc<PinnedBuffer>,
    from: u64,
    to: u64,
    bytes: usize,
    /// Address of the peer's flag.
    flag: u64,
    /// The owners of the memories at `from` and `to`, in which `flag` lies as well.
    memories: [KeepAlive; 2],
    first: u64,
    count: u64,
    give_way: bool,
}

impl Relay {
    pub(super) fn new(rank: &Rank, fenced: bool) -> Result<Self> {
        let Some(function) = load_kernels(&rank.context, "perf_port_bare", &[])?.pop() else {
            bail!("kernel file perf_port_bare has no entry");
        };
        let thread = HostThread::start(&rank.context, rank.deadline())?;
        let context = rank.context.clone();
        // Allocated by the thread that reads it, so that it lies on the NUMA node of the GPU.
        let word = thread.begin(move || PinnedBuffer::new(&context, 64))?.get(rank.deadline())??;
        let stream = Stream::new(&rank.context)?;
        Ok(Self { function, fenced, word: Arc::new(word), stream, first: 1, thread })
    }

    /// Half a round trip in microseconds.
    pub(super) fn run(&mut self, rank: &Rank, end: &End, bytes: usize, iterations: u32) -> Result<f64> {
        let theirs = end.theirs.slice()?.ptr();
        let route = Route {
            stream: self.stream.clone(),
            word: self.word.clone(),
            from: end.local.ptr(),
            to: theirs,
            bytes,
            flag: theirs + end.flag as u64,
            memories: [end.local.clone(), end.theirs.keep_alive()],
            first: self.first,
            count: u64::from(iterations) + 1,
            give_way: rank.context.driver().is_software(),
        };
        self.first += route.count;
        let fenced = u32::from(self.fenced);
        let (first, begins, deadline) = (route.first, u32::from(end.begins()), rank.deadline());
        rank.barrier()?;
        let host = self.thread.begin(move || route.serve(deadline))?;
        let (word, flag, result) = (self.word.device_ptr(), end.inbox.ptr() + end.flag as u64, end.result());
        let patience = rank.timeout.as_nanos() as u64;
        let args = [
            arg(&word),
            arg(&flag),
            arg(&iterations),
            arg(&first),
            arg(&begins),
            arg(&fenced),
            arg(&patience),
            arg(&result),
        ];
        // SAFETY: the parameters of the catalog row; the word is retained, too.
        let results = unsafe { end.run(rank, &self.function, &args, [self.word.clone()]) };
        let served = host.get(rank.deadline());
        // The copies end before an error of the job does anything else.
        let copied = self.stream.synchronize(rank.deadline());
        served??;
        copied?;
        Ok(results?.nanoseconds as f64 / 1e3 / 2.0 / f64::from(iterations))
    }
}

impl Route {
    /// Waits for each value of the word and enqueues the copy and the flag for it. The stream retains what they use, also after
    /// an error.
    fn serve(&self, deadline: Deadline) -> Result<()> {
        let served = self.relay(deadline);
        let retained = self.stream.retain_all(self.memories.clone());
        served?;
        Ok(retained?)
    }

    fn relay(&self, deadline: Deadline) -> Result<()> {
        let context = self.stream.context();
        let _entered = context.enter()?;
        let write = context.driver().table().cuStreamWriteValue64_v2;
        let write = write.context("the driver has no cuStreamWriteValue64")?;
        let word = self.word.memory().word64(0)?;
        for value in self.first..self.first + self.count {
            let mut looks = 0u64;
            while word.load(Ordering::Acquire) < value {
                looks += 1;
                if self.give_way {
                    std::thread::yield_now();
                } else {
                    std::hint::spin_loop();
                }
                if looks.is_multiple_of(1 << 16) && deadline.expired() {
                    bail!("the kernel of the bare loop did not write {value} before the deadline");
                }
            }
            if self.bytes > 0 {
                // SAFETY: the context was entered above; both ranges lie in `memories`, which this job holds until the stream
                // retains them.
                unsafe { bare_copy(&self.stream, self.to, self.from, self.bytes) }?;
            }
            // SAFETY: as above, an aligned word of the peer's memory.
            let code = unsafe { write(self.stream.raw(), self.flag, value, 0) };
            if code.0 != 0 {
                bail!("cuStreamWriteValue64 failed with {code:?}");
            }
        }
        Ok(())
    }
}

/// The copy engine: a loop of the driver's copies, timed by events.
pub(super) struct CopyEngine(StreamClock);

impl CopyEngine {
    pub(super) fn new(rank: &Rank) -> Result<Self> {
        Ok(Self(StreamClock::new(rank)?))
    }

    /// Time of one copy in microseconds on the rank that puts, 0 on the other.
    pub(super) fn run(&self, rank: &Rank, end: &End, shape: Shape) -> Result<f64> {
        rank.barrier()?;
        if !end.begins() {
            return Ok(0.0);
        }
        let (to, from) = (end.theirs.slice()?.ptr(), end.local.ptr());
        let owners: [KeepAlive; 2] = [end.local.clone(), end.theirs.keep_alive()];
        let time = self.0.time(rank, owners, |stream, _| {
            let _entered = rank.context.enter()?;
            for number in 0..shape.puts() {
                let at = number % shape.places as u64 * shape.bytes as u64;
                // SAFETY: the context was entered above; both memories of `end` hold all places, and the clock's stream
                // retains them.
                unsafe { bare_copy(stream, to + at, from + at, shape.bytes) }?;
            }
            Ok(())
        })?;
        Ok(time / shape.puts() as f64)
    }
}
