//! This rank's end of a port channel to its partner.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use aqueduct::Deadline;
use aqueduct::channel::PortChannel;
use aqueduct::comm::{RegisteredMemory, Transport};
use aqueduct::gpu::{Function, GpuBuffer, KernelArg, LaunchConfig, PinnedBuffer, Stream};
use aqueduct::plan::Reduction;
use aqueduct::proxy::{Idle, ProxyService, ProxyServiceConfig};

use crate::job::Rank;
use crate::perf::checker::{CheckBy, Checker, GUARD, GUARD_BYTE};
use crate::perf::data::{Expected, Kind};

/// Distance in bytes that keeps words with different writers on different cache lines.
const LINE: usize = 256;

pub(super) struct End {
    me: u32,
    peer: u32,
    checker: Checker,
    pub(super) stream: Stream,
    service: ProxyService,
    pub(super) channel: PortChannel,
    /// Source of this rank's puts.
    pub(super) local: Arc<GpuBuffer>,
    /// Target of the peer's puts, followed by the flag of the bare loop.
    pub(super) inbox: Arc<GpuBuffer>,
    pub(super) theirs: RegisteredMemory,
    /// Offset of the flag in `inbox`.
    pub(super) flag: usize,
    /// Memory that kernels write their results to.
    result: Arc<GpuBuffer>,
    /// Puts, signals and flushes that kernels have pushed so far.
    pushed: Cell<[u64; 3]>,
}

/// The results of one kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Results {
    pub(super) nanoseconds: u64,
    pub(super) wrong: u64,
}

impl End {
    /// Connects to the partner. Collective. `most` is the size of the largest put in bytes.
    pub(super) fn prepare(
        rank: &Rank,
        transport: Transport,
        idle: Idle,
        check_by: CheckBy,
        most: usize,
    ) -> Result<Self> {
        let (comm, me) = (&rank.comm, rank.bootstrap.rank());
        let peer = me ^ 1;
        let flag = (most + GUARD).next_multiple_of(LINE);
        let local = Arc::new(GpuBuffer::new(&rank.context, most.max(LINE))?);
        let inbox = Arc::new(GpuBuffer::new(&rank.context, flag + LINE)?);
        inbox.slice(flag..)?.fill(0, rank.deadline())?;
        let mine = comm.register_memory(&local, transport)?;
        comm.send_memory(&comm.register_memory(&inbox, transport)?, peer, 0)?;
        let theirs = comm.recv_memory(peer, 0)?;
        let connection = comm.connect(peer, 0, transport)?;
        let service =
            ProxyService::start(comm, ProxyServiceConfig { idle, ..ProxyServiceConfig::default() })?;
        let semaphore = service.build_and_add_semaphore(&connection, 0)?;
        comm.setup(rank.deadline())?;
        let theirs = theirs.get()?;
        let (dst, src) = (service.add_memory(&theirs)?, service.add_memory(&mine)?);
        Ok(Self {
            me,
            peer,
            checker: Checker::prepare(rank, check_by, Kind::Byte, Reduction::Sum)?,
            stream: Stream::new(&rank.context)?,
            channel: PortChannel::new(&service, semaphore.get()?, dst, src)?,
            service,
            local,
            inbox,
            theirs,
            flag,
            result: Arc::new(GpuBuffer::new(&rank.context, 24)?),
            pushed: Cell::new([0; 3]),
        })
    }

    /// Waits until both ranks are done, then stops the service.
    pub(super) fn finish(self, rank: &Rank) -> Result<()> {
        Ok(self.service.stop(rank.deadline())?)
    }

    /// Whether this rank sends first.
    pub(super) fn begins(&self) -> bool {
        self.me.is_multiple_of(2)
    }

    /// Device address for a kernel's results.
    pub(super) fn result(&self) -> u64 {
        self.result.ptr()
    }

    /// Runs `function`, which must write its results to [`result`](Self::result), and waits until it has ended.
    ///
    /// # Safety
    /// As for [`Function::launch`]; both buffers, the result, the channel and `also` are retained.
    pub(super) unsafe fn run(
        &self,
        rank: &Rank,
        function: &Function,
        args: &[KernelArg<'_>],
        also: impl IntoIterator<Item = Arc<PinnedBuffer>>,
    ) -> Result<Results> {
        self.result.fill(0, rank.deadline())?;
        // SAFETY: the caller vouches for the parameters.
        unsafe { function.launch(&self.stream, &LaunchConfig::linear(1, 32), args) }?;
        self.stream.retain(self.channel.keep_alive())?;
        for buffer in [&self.local, &self.inbox, &self.result] {
            self.stream.retain(buffer.clone())?;
        }
        for buffer in also {
            self.stream.retain(buffer)?;
        }
        self.stream.synchronize(rank.deadline())?;
        self.channel.check()?;
        let mut words = [0u64; 3];
        self.result.download(0, &mut words, rank.deadline())?;
        let [nanoseconds, wrong, code] = words;
        if code != 0 {
            bail!("kernel {} has left with code {code}", function.name());
        }
        Ok(Results { nanoseconds, wrong })
    }

    /// Adds to the counts of what kernels have pushed.
    pub(super) fn count(&self, puts: u64, signals: u64, flushes: u64) {
        let [p, s, f] = self.pushed.get();
        self.pushed.set([p + puts, s + signals, f + flushes]);
    }

    /// Number of puts, signals and flushes that the service counted too many or too few. The service counts shortly
    /// after it acts, so a kernel may see the effect first; this waits for the count.
    pub(super) fn miscounted(&self) -> Result<u64> {
        let deadline = Deadline::after(Duration::from_secs(1));
        loop {
            let done = self.channel.counters()?;
            let done = [done.puts, done.signals, done.flushes];
            let off = done.iter().zip(self.pushed.get()).map(|(done, pushed)| done.abs_diff(pushed)).sum();
            if off == 0 || deadline.expired() {
                return Ok(off);
            }
            std::thread::yield_now();
        }
    }

    /// Fills the source with this rank's pattern and the inbox with another one.
    pub(super) fn paint(&self, rank: &Rank, bytes: usize) -> Result<()> {
        let mine = Expected::bytes(self.me, PAINTED);
        self.checker.fill(rank, &self.local.slice(..bytes)?, mine)?;
        self.inbox.slice(..bytes + GUARD)?.fill(GUARD_BYTE, rank.deadline())?;
        Ok(())
    }

    /// Number of wrong bytes: of the peer's pattern, except for `but` bytes at either end, and of the bytes behind it.
    pub(super) fn wrong(&self, rank: &Rank, bytes: usize, but: usize) -> Result<u64> {
        let middle = but.min(bytes)..bytes.saturating_sub(but).max(but.min(bytes));
        let (start, theirs) = (middle.start as u64, Expected::bytes(self.peer, PAINTED));
        let inside = self.checker.wrong(rank, &self.inbox.slice(middle)?, theirs, start)?;
        Ok(inside + self.checker.touched(rank, &self.inbox.slice(bytes..bytes + GUARD)?)?)
    }

    /// How data is checked, for the head.
    pub(super) fn checks(&self) -> &'static str {
        self.checker.meaning()
    }
}

/// The iteration number that the pattern is made for.
const PAINTED: u32 = 1;
