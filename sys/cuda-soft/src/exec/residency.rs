//! How many blocks a device can hold at once.

/// The capacity of one device. Blocks beyond it start only when others end, so a grid-wide barrier in a grid that does
/// not fit never completes, as on hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Multiprocessors.
    pub sms: u32,
    /// Threads per multiprocessor.
    pub threads_per_sm: u32,
    /// Blocks per multiprocessor.
    pub blocks_per_sm: u32,
    /// Bytes of shared memory per multiprocessor.
    pub shared_per_sm: u32,
    /// 32-bit registers per multiprocessor; 0 if registers do not limit residency.
    pub registers_per_sm: u32,
}

impl Residency {
    /// The maximum number of blocks on one multiprocessor, where each block has `threads` threads, `shared` bytes of
    /// shared memory (static and dynamic) and `registers` registers per thread.
    ///
    /// `cuOccupancyMaxActiveBlocksPerMultiprocessor` returns this number.
    #[must_use]
    pub fn blocks_on_sm(&self, threads: u32, shared: u32, registers: u32) -> u32 {
        let warps = threads.div_ceil(32).max(1);
        let by_threads = self.threads_per_sm / (warps * 32);
        let by_shared = self.shared_per_sm.checked_div(shared).unwrap_or(u32::MAX);
        let by_registers = match self.registers_per_sm {
            0 => u32::MAX,
            file => file.checked_div(registers * warps * 32).unwrap_or(u32::MAX),
        };
        self.blocks_per_sm.min(by_threads).min(by_shared).min(by_registers)
    }

    /// The maximum number of such blocks on the device: the limit of a cooperative launch.
    #[must_use]
    pub fn max_blocks(&self, threads: u32, shared: u32, registers: u32) -> u64 {
        u64::from(self.blocks_on_sm(threads, shared, registers)) * u64::from(self.sms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scarcest_resource_decides() {
        let device = Residency {
            sms: 4,
            threads_per_sm: 2048,
            blocks_per_sm: 32,
            shared_per_sm: 100 << 10,
            registers_per_sm: 65536,
        };
        assert_eq!(device.blocks_on_sm(32, 0, 0), 32);
        assert_eq!(device.blocks_on_sm(1024, 0, 0), 2);
        assert_eq!(device.blocks_on_sm(1000, 0, 0), 2);
        assert_eq!(device.blocks_on_sm(64, 40 << 10, 0), 2);
        assert_eq!(device.blocks_on_sm(256, 0, 128), 2);
        assert_eq!(device.max_blocks(1024, 0, 32), 8);
        assert_eq!(device.max_blocks(32, 101 << 10, 0), 0);
    }
}
