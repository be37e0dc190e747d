//! How many blocks of how many threads move a given number of bytes.

use crate::error::Result;
use crate::gpu::{Context, LaunchConfig};

/// Properties of a device that decide the shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Multiprocessors.
    pub(crate) sms: u32,
    /// Whether it is the software device: its threads share the host's processors, so a few do as much as many.
    pub(crate) software: bool,
}

impl Geometry {
    pub(crate) fn of(context: &Context) -> Result<Self> {
        Ok(Self { sms: context.device().sm_count()?, software: context.driver().is_software() })
    }

    /// A copy of `bytes` in 16-byte vectors, `unroll` of them in flight per thread. One block per multiprocessor at
    /// most: on an H200 64 blocks of 512 threads already reach the link's limit with stores (365 GB/s of 370).
    pub(crate) fn copy(self, bytes: usize, unroll: usize) -> LaunchConfig {
        let threads = if self.software { 128 } else { 512 };
        self.linear(bytes.div_ceil(16 * unroll), threads)
    }

    /// One packet per thread, up to the number of multiprocessors. Small blocks: each leaves as soon as its own packets
    /// have come.
    pub(crate) fn packets(self, packets: usize) -> LaunchConfig {
        self.linear(packets, if packets > 4096 { 512 } else { 128 })
    }

    fn linear(self, work: usize, threads: u32) -> LaunchConfig {
        let most = if self.software { self.sms.min(2) } else { self.sms };
        let wanted = work.div_ceil(threads as usize).max(1);
        let blocks = u32::try_from(wanted).unwrap_or(u32::MAX).min(most.max(1));
        let threads = if wanted == 1 {
            u32::try_from(work.max(1)).unwrap_or(threads).next_multiple_of(32)
        } else {
            threads
        };
        LaunchConfig::linear(blocks, threads.min(1024))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_grow_with_the_work_up_to_the_device() {
        let gpu = Geometry { sms: 132, software: false };
        assert_eq!(gpu.copy(0, 4), LaunchConfig::linear(1, 32));
        assert_eq!(gpu.copy(64 * 33, 4), LaunchConfig::linear(1, 64));
        assert_eq!(gpu.copy(1 << 20, 4), LaunchConfig::linear(32, 512));
        assert_eq!(gpu.copy(1 << 40, 4), LaunchConfig::linear(132, 512));
        assert_eq!(gpu.packets(1), LaunchConfig::linear(1, 32));
        assert_eq!(gpu.packets(129), LaunchConfig::linear(2, 128));
        assert_eq!(gpu.packets(4096), LaunchConfig::linear(32, 128));
        assert_eq!(gpu.packets(4097), LaunchConfig::linear(9, 512));
        let soft = Geometry { sms: 16, software: true };
        assert_eq!(soft.copy(1 << 30, 4), LaunchConfig::linear(2, 128));
    }
}
