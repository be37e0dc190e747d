//! The latency kernels: a message bounces between two ranks inside one launch.

use std::sync::Arc;

use anyhow::{Result, bail};
use aqueduct::channel::{MemoryChannel, load_kernels};
use aqueduct::gpu::{Function, GpuBuffer, LaunchConfig, Stream, arg};

use crate::job::Rank;

/// The kind of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LatencyKernel {
    Ll8,
    Ll16,
    Ll128,
    Signal,
}

impl LatencyKernel {
    fn mode(self) -> &'static str {
        match self {
            Self::Ll8 => "ll8",
            Self::Ll16 => "ll16",
            Self::Ll128 => "ll128",
            Self::Signal => "signal",
        }
    }
}

/// A loaded latency kernel, and the flags it has used.
pub(super) struct PingPong {
    ours: Function,
    bare: Option<Function>,
    elapsed: Arc<GpuBuffer>,
    next_flag: u32,
}

impl PingPong {
    /// Number of flags of a run: 32 bits, without 0.
    pub(super) const FLAGS: u64 = u32::MAX as u64 - 1;
    /// Flags of a launch besides those of its messages: some for the round trip that is not timed, and a gap.
    const SPARE: u32 = 8;

    /// Flags of a launch.
    pub(super) fn flags(iterations: u32) -> u64 {
        u64::from(iterations) + u64::from(Self::SPARE)
    }

    pub(super) fn new(rank: &Rank, kernel: LatencyKernel) -> Result<Self> {
        let bare = match kernel {
            LatencyKernel::Ll16 => Some(load(rank, "perf_bare", &[])?),
            _ => None,
        };
        Ok(Self {
            ours: load(rank, "perf", &[("MODE", kernel.mode())])?,
            bare,
            elapsed: Arc::new(GpuBuffer::new(&rank.context, 8)?),
            next_flag: 1,
        })
    }

    /// Whether there is a bare loop for this kind of message.
    pub(super) fn has_bare(&self) -> bool {
        self.bare.is_some()
    }

    /// Half a round trip in microseconds, the mean over `iterations` round trips.
    #[expect(clippy::too_many_arguments, reason = "the parameters of the kernel")]
    pub(super) fn run(
        &mut self,
        rank: &Rank,
        stream: &Stream,
        channel: &MemoryChannel,
        bytes: usize,
        iterations: u32,
        begins: bool,
        bare: bool,
    ) -> Result<f64> {
        let handle = channel.device_handle();
        let first = self.next_flag;
        self.next_flag = match first.checked_add(iterations).and_then(|f| f.checked_add(Self::SPARE)) {
            Some(next) => next,
            // With a number of iterations the run would not have begun.
            None => bail!(
                "all {} flags for the messages of a run are used up: measure fewer sizes, or with a shorter --duration",
                Self::FLAGS
            ),
        };
        let most = self.ours.attributes().max_threads_per_block;
        let config = LaunchConfig::linear(1, threads(bytes).min(most / 32 * 32));
        let (bytes, begins, elapsed) = (bytes as u64, u32::from(begins), self.elapsed.ptr());
        let local = handle.src + bytes;
        match (&self.bare, bare) {
            (Some(function), true) => {
                let [remote, packets, source, target] =
                    [&handle.dst, &handle.packets, &handle.src, &local].map(arg);
                let [iterations, first, begins] = [&iterations, &first, &begins].map(arg);
                let args =
                    [remote, packets, source, target, arg(&bytes), iterations, first, begins, arg(&elapsed)];
                // SAFETY: the parameters of the catalog row; the channel's memory is twice `bytes` and its packet buffers
                // hold them (the bench sized both). The stream retains their owner and the result below; should that fail,
                // the context frees neither while its stream has work.
                unsafe { function.launch(stream, &config, &args) }?;
            }
            _ => {
                let args =
                    [arg(&handle), arg(&bytes), arg(&iterations), arg(&first), arg(&begins), arg(&elapsed)];
                // SAFETY: as above.
                unsafe { self.ours.launch(stream, &config, &args) }?;
            }
        }
        stream.retain_all([channel.keep_alive(), self.elapsed.clone()])?;
        stream.synchronize(rank.deadline())?;
        let mut nanoseconds = [0u64];
        self.elapsed.download(0, &mut nanoseconds, rank.deadline())?;
        Ok(nanoseconds[0] as f64 / 1e3 / 2.0 / f64::from(iterations))
    }
}

/// Number of threads: one per 8 bytes, in whole warps.
fn threads(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(8)).unwrap_or(u32::MAX).clamp(1, 1024).next_multiple_of(32)
}

fn load(rank: &Rank, kernel: &str, params: &[(&str, &str)]) -> Result<Function> {
    match load_kernels(&rank.context, kernel, params)?.pop() {
        Some(function) => Ok(function),
        None => bail!("kernel file {kernel} has no entry"),
    }
}
