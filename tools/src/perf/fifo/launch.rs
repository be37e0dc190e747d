//! Launches of a kernel that pushes: their shape, and whether the kernel reached its end.

use std::sync::Arc;

use anyhow::{Result, bail};
use aqueduct::gpu::{BufferOptions, GpuBuffer, HandlePolicy, LaunchConfig};

use crate::job::Rank;

/// Largest number of threads per block.
pub(super) const BLOCK: u32 = 1024;

/// The shape of one launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pushes {
    pub(super) threads: u32,
    /// Pushes per thread.
    pub(super) count: u32,
}

impl Pushes {
    pub(super) fn total(self) -> u64 {
        u64::from(self.threads) * u64::from(self.count)
    }

    pub(super) fn config(self) -> LaunchConfig {
        LaunchConfig::linear(self.threads.div_ceil(BLOCK), self.threads.min(BLOCK))
    }
}

/// Zeroed device memory that is not shared with other processes.
pub(super) fn zeroed(rank: &Rank, len: usize) -> Result<Arc<GpuBuffer>> {
    let options = BufferOptions { zeroed: true, handles: HandlePolicy::Legacy };
    Ok(Arc::new(GpuBuffer::with_options(&rank.context, len, options)?))
}

/// Fails if a kernel gave up: then the first four bytes of `status` are a code, otherwise 0.
pub(super) fn given_up(rank: &Rank, status: &GpuBuffer, what: &str) -> Result<()> {
    let mut code = [0u32];
    status.download(0, &mut code, rank.deadline())?;
    rank.comm.check()?;
    match code {
        [0] => Ok(()),
        [code] => bail!("{what} were given up with code {code}"),
    }
}
