//! Buffers of other processes of this host, mapped for a device of this one.
#![forbid(unsafe_code)]

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::gpu::vmm::{Mapping, PhysicalAllocation};
use crate::gpu::{Context, DeviceSlice};
use crate::message::device::DeviceMapping;
use crate::wire::{Reader, WireResult, Writer};

/// The form of the descriptions. Others are not mapped.
const VERSION: u16 = 1;

/// The description that goes with a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Description {
    /// Bytes of the allocation.
    pub(super) size: u64,
    /// Bytes of the buffer, at its start.
    pub(super) length: u64,
}

impl Description {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u16(VERSION).u64(self.size).u64(self.length);
        w.finish()
    }

    fn decode(bytes: &[u8]) -> WireResult<Self> {
        let mut r = Reader::new(bytes);
        r.version(VERSION)?;
        let description = Self { size: r.u64()?, length: r.u64()? };
        r.finish()?;
        Ok(description)
    }
}

/// A buffer that is mapped. Unmapped when nothing uses it any more.
pub(super) struct Mapped {
    mapping: Arc<Mapping>,
    length: u64,
}

impl Mapped {
    /// Maps the buffer behind `descriptor` for reading by the device of `context`.
    ///
    /// # Errors
    /// `Remote` for a description that cannot be; a driver error.
    pub(super) fn open(context: &Context, descriptor: BorrowedFd<'_>, description: &[u8]) -> Result<Self> {
        let Description { size, length } = Description::decode(description)?;
        let bytes = usize::try_from(size).ok().filter(|_| length <= size);
        let Some(bytes) = bytes else {
            let text = format!("a buffer of {length} bytes in memory of {size}");
            return Err(Error::new(ErrorKind::Remote, "read", text));
        };
        let memory = PhysicalAllocation::import_fd(context, descriptor, bytes)?;
        let mapping = Mapping::read_only(context, vec![Arc::new(memory)])?;
        Ok(Self { mapping: Arc::new(mapping), length })
    }

    /// `length` bytes from `offset`.
    pub(super) fn slice(&self, offset: u64, length: usize) -> Result<DeviceSlice> {
        let end = offset.checked_add(length as u64).filter(|end| *end <= self.length);
        let Some(end) = end else {
            let text = format!("{length} bytes at {offset} of a buffer of {} bytes", self.length);
            return Err(Error::new(ErrorKind::Remote, "read", text));
        };
        self.mapping.slice(offset as usize..end as usize)
    }
}

impl DeviceMapping for Mapped {
    fn len(&self) -> u64 {
        self.length
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn descriptions_round_trip_and_others_are_refused() {
        let description = Description { size: 2 << 20, length: 100 };
        let bytes = description.encode();
        assert_eq!(Description::decode(&bytes).unwrap(), description);
        for cut in 0..bytes.len() {
            assert!(Description::decode(&bytes[..cut]).is_err(), "{cut}");
        }
        assert!(Description::decode(&[&bytes[..], &[0]].concat()).is_err());
    }
}
