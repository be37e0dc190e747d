//! Single words of the peer's memory: reads and writes by one thread.

use super::MemoryChannel;
use crate::channel::checks::check;
use crate::channel::launch::{ONE_WARP, check_result};
use crate::comm::Rights;
use crate::error::{Error, Result};
use crate::gpu::{DeviceSlice, Function, Stream, arg};

impl MemoryChannel {
    /// Stores 32-bit element `index` of the peer's `dst` into the first four bytes of `value`.
    pub fn read_u32(&self, stream: &Stream, index: usize, value: &DeviceSlice) -> Result<()> {
        self.read::<u32>("read_u32", &self.inner.functions.read_u32, stream, index, value)
    }

    /// Stores 64-bit element `index` of the peer's `dst` into the first eight bytes of `value`.
    pub fn read_u64(&self, stream: &Stream, index: usize, value: &DeviceSlice) -> Result<()> {
        self.read::<u64>("read_u64", &self.inner.functions.read_u64, stream, index, value)
    }

    /// Stores `value` into 32-bit element `index` of the peer's `dst`.
    pub fn write_u32(&self, stream: &Stream, index: usize, value: u32) -> Result<()> {
        self.check_element::<u32>("write_u32", index, Rights::REMOTE_WRITE)?;
        self.act(&self.inner.functions.write_u32, stream, &[arg(&(index as u64)), arg(&value)])
    }

    /// Stores `value` into 64-bit element `index` of the peer's `dst`.
    pub fn write_u64(&self, stream: &Stream, index: usize, value: u64) -> Result<()> {
        self.check_element::<u64>("write_u64", index, Rights::REMOTE_WRITE)?;
        self.act(&self.inner.functions.write_u64, stream, &[arg(&(index as u64)), arg(&value)])
    }

    fn read<T>(
        &self,
        op: &'static str,
        function: &Function,
        stream: &Stream,
        index: usize,
        value: &DeviceSlice,
    ) -> Result<()> {
        self.check_element::<T>(op, index, Rights::REMOTE_READ)?;
        check_result::<T>(op, self.inner.src.context(), value)?;
        let (index, at) = (index as u64, value.ptr());
        self.launch_with(function, stream, &ONE_WARP, &[arg(&index), arg(&at)], Some(value))
    }

    fn check_element<T>(&self, op: &'static str, index: usize, needed: Rights) -> Result<()> {
        self.inner.dst.check_rights(op, needed)?;
        if !self.inner.handle.dst.is_multiple_of(size_of::<T>() as u64) {
            let message =
                format!("dst lies at {:#x}, not at a multiple of {}", self.inner.handle.dst, size_of::<T>());
            return Err(Error::usage(op, message));
        }
        let offset = index.saturating_mul(size_of::<T>());
        check(op, "dst", offset, size_of::<T>(), self.inner.dst.len())
    }
}
