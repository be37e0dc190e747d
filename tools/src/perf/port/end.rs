//! One end of a port channel to this rank's partner.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use aqueduct::Deadline;
use aqueduct::channel::PortChannel;
use aqueduct::comm::{RegisteredMemory, Transport};
use aqueduct::gpu::{Function, GpuBuffer, KernelArg, LaunchConfig, Stream};
use aqueduct::proxy::{Idle, ProxyService, ProxyServiceConfig};

use crate::job::Rank;
use crate::perf::channel::{different, paint};

/// Bytes behind the data that nobody may touch.
const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xA5;
/// Words with different writers lie on different lines.
const LINE: usize = 256;

pub(super) struct End {
    me: u32,
    peer: u32,
    pub(super) stream: Stream,
    service: ProxyService,
    pub(super) channel: PortChannel,
    /// What puts read.
    pub(super) local: Arc<GpuBuffer>,
    /// What the peer's puts write; behind it the flag of the bare loop.
    pub(super) inbox: Arc<GpuBuffer>,
    pub(super) theirs: RegisteredMemory,
    /// Where the flag is.
    pub(super) flag: usize,
    /// What a kernel reports.
    result: Arc<GpuBuffer>,
    /// Puts, signals and flushes that kernels have pushed so far.
    pushed: Cell<[u64; 3]>,
}

/// What a kernel has reported.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) nanoseconds: u64,
    pub(super) wrong: u64,
}

impl End {
    /// Collective. `most`: bytes of the largest put.
    pub(super) fn prepare(rank: &Rank, transport: Transport, idle: Idle, most: usize) -> Result<Self> {
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

    /// Ends the service, when both ranks are done.
    pub(super) fn finish(self, rank: &Rank) -> Result<()> {
        Ok(self.service.stop(rank.deadline())?)
    }

    /// Whether this is the rank of its pair that begins.
    pub(super) fn begins(&self) -> bool {
        self.me.is_multiple_of(2)
    }

    /// Address of what a kernel reports.
    pub(super) fn result(&self) -> u64 {
        self.result.ptr()
    }

    /// Runs `function`, one of those that report to [`result`](Self::result), to its end.
    ///
    /// # Safety
    /// As for [`Function::launch`]; both buffers, the result and the channel are retained.
    pub(super) unsafe fn run(
        &self,
        rank: &Rank,
        function: &Function,
        args: &[KernelArg<'_>],
    ) -> Result<Told> {
        self.result.fill(0, rank.deadline())?;
        // SAFETY: the caller vouches for the parameters.
        unsafe { function.launch(&self.stream, &LaunchConfig::linear(1, 32), args) }?;
        self.stream.retain(self.channel.keep_alive())?;
        for buffer in [&self.local, &self.inbox, &self.result] {
            self.stream.retain(buffer.clone())?;
        }
        self.stream.synchronize(rank.deadline())?;
        self.channel.check()?;
        let mut words = [0u64; 3];
        self.result.download(0, &mut words, rank.deadline())?;
        let [nanoseconds, wrong, code] = words;
        if code != 0 {
            bail!("kernel {} has left with code {code}", function.name());
        }
        Ok(Told { nanoseconds, wrong })
    }

    /// A kernel has pushed this.
    pub(super) fn count(&self, puts: u64, signals: u64, flushes: u64) {
        let [p, s, f] = self.pushed.get();
        self.pushed.set([p + puts, s + signals, f + flushes]);
    }

    /// How many more or fewer puts, signals and flushes the service has done than were pushed. It counts a moment after
    /// it acts, when a kernel may have seen the effect.
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

    /// Fills what puts read with bytes of this rank's, and what they write with others.
    pub(super) fn paint(&self, rank: &Rank, bytes: usize) -> Result<()> {
        self.local.upload(0, &paint(bytes, self.me, PAINTED), rank.deadline())?;
        self.inbox.slice(..bytes + GUARD)?.fill(GUARD_BYTE, rank.deadline())?;
        Ok(())
    }

    /// How many bytes are not the peer's paint, but for `but` at either end, and how many beside them were touched.
    pub(super) fn wrong(&self, rank: &Rank, bytes: usize, but: usize) -> Result<u64> {
        let mut seen = vec![0; bytes + GUARD];
        self.inbox.slice(..bytes + GUARD)?.download(0, &mut seen, rank.deadline())?;
        let middle = but.min(bytes)..bytes.saturating_sub(but).max(but.min(bytes));
        let outside = seen[bytes..].iter().filter(|&&byte| byte != GUARD_BYTE).count();
        let inside = different(&seen[middle.clone()], &paint(bytes, self.peer, PAINTED)[middle]);
        Ok((inside + outside) as u64)
    }
}

/// The iteration that paint stands for.
const PAINTED: u32 = 1;
