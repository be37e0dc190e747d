//! Where a process reaches the bytes of a memory.
#![forbid(unsafe_code)]

use super::host::HostSlice;
use crate::error::Result;
use crate::gpu::{DeviceSlice, KeepAlive};

/// A range of memory as this process sees it.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// Device memory, this rank's or mapped from another.
    Device(DeviceSlice),
    /// Host memory; the second if devices can access it, too.
    Host(HostSlice, Option<DeviceSlice>),
    /// Not mapped here.
    Elsewhere,
}

impl Place {
    /// As devices of this process see it.
    pub(crate) fn device(&self) -> Option<&DeviceSlice> {
        match self {
            Self::Device(slice) | Self::Host(_, Some(slice)) => Some(slice),
            Self::Host(_, None) | Self::Elsewhere => None,
        }
    }

    /// The same, which keeps `more` alive as well: so does every stream that uses it.
    pub(crate) fn keeping(self, more: &KeepAlive) -> Self {
        let device = |slice: DeviceSlice| slice.keeping(more.clone());
        match self {
            Self::Device(slice) => Self::Device(device(slice)),
            Self::Host(host, slice) => Self::Host(host.keeping(more.clone()), slice.map(device)),
            Self::Elsewhere => Self::Elsewhere,
        }
    }

    /// As the host sees it.
    pub(crate) fn host(&self) -> Option<&HostSlice> {
        match self {
            Self::Host(slice, _) => Some(slice),
            Self::Device(_) | Self::Elsewhere => None,
        }
    }

    /// `offset .. offset + len` of it; the range was checked.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Result<Self> {
        let cut = |slice: &DeviceSlice| slice.slice(offset..offset + len);
        Ok(match self {
            Self::Device(slice) => Self::Device(cut(slice)?),
            Self::Host(host, device) => {
                Self::Host(host.part(offset, len), device.as_ref().map(cut).transpose()?)
            }
            Self::Elsewhere => Self::Elsewhere,
        })
    }
}
