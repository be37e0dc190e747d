//! Wire form of a memory: the way to map or access it, and the range of it that is meant. It never contains an
//! address.
#![forbid(unsafe_code)]

use super::rights::Rights;
use super::transports::Transports;
use crate::rdma::RemoteRegion;
use crate::wire::{Reader, WireError, WireResult, Writer};

/// Version of a memory on the wire.
const VERSION: u16 = 3;

/// More pieces than this do not fit one message with their descriptors.
pub(super) const MAX_CHUNKS: usize = crate::net::MAX_FDS;

/// A registered memory as another rank hears of it. Its descriptors, if any, come beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemoryWire {
    pub(super) transports: Transports,
    pub(super) rights: Rights,
    /// The exporting process and the number that it gave the allocation.
    pub(super) process: u64,
    pub(super) allocation: u64,
    /// Bytes that the importer maps, and where in them the memory lies.
    pub(super) total: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) way: Way,
    /// The number under which the peer may write it by message.
    pub(super) region: Option<u64>,
    /// Keys with which NICs access it.
    pub(super) keys: Vec<RemoteKey>,
}

/// How the NIC at the other end of a connection names a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteKey {
    /// The owner's NIC for which the key holds.
    pub(crate) nic: u8,
    /// The region registered with that NIC, and the offset of the memory in it.
    pub(crate) region: RemoteRegion,
    pub(crate) offset: u64,
}

/// A rank has no more NICs than this.
const MAX_KEYS: usize = 64;

/// How the importer gets at the allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It is memory of its own process.
    Process,
    /// One descriptor for each of these pieces, in bytes, in order of address.
    Fds(Vec<u64>),
    /// One fabric handle for each piece.
    Fabric(Vec<(u64, [u8; 64])>),
    /// A legacy handle of the whole allocation; to be released.
    Legacy([u8; 64]),
    /// Host memory, by the descriptor of its segment.
    Host,
    /// It cannot be mapped.
    Unmapped,
}

impl MemoryWire {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u16(VERSION)
            .u32(self.transports.to_wire())
            .u8(self.rights.to_wire())
            .u64(self.process)
            .u64(self.allocation);
        w.u64(self.total).u64(self.offset).u64(self.len);
        match &self.way {
            Way::Process => {
                w.u8(0);
            }
            Way::Fds(sizes) => {
                w.u8(1).count(sizes.len());
                for size in sizes {
                    w.u64(*size);
                }
            }
            Way::Fabric(chunks) => {
                w.u8(2).count(chunks.len());
                for (size, handle) in chunks {
                    w.u64(*size).raw(handle);
                }
            }
            Way::Legacy(handle) => {
                w.u8(3).raw(handle);
            }
            Way::Host => {
                w.u8(4);
            }
            Way::Unmapped => {
                w.u8(5);
            }
        }
        w.u8(u8::from(self.region.is_some())).u64(self.region.unwrap_or(0)).count(self.keys.len());
        for RemoteKey { nic, region, offset } in &self.keys {
            region.encode(w.u8(*nic).u64(*offset));
        }
        w.finish()
    }

    /// Decodes and checks everything that can be checked without the device.
    pub(super) fn decode(bytes: &[u8], fds: usize) -> WireResult<Self> {
        let mut r = Reader::new(bytes);
        r.version(VERSION)?;
        let (transports, rights) = (Transports::from_wire(r.u32()?), Rights::from_wire(r.u8()?)?);
        let (process, allocation) = (r.u64()?, r.u64()?);
        let (total, offset, len) = (r.u64()?, r.u64()?, r.u64()?);
        let way = match r.u8()? {
            0 => Way::Process,
            1 => {
                let count = r.count(MAX_CHUNKS, 8)?;
                Way::Fds((0..count).map(|_| r.u64()).collect::<WireResult<_>>()?)
            }
            2 => {
                let count = r.count(MAX_CHUNKS, 72)?;
                Way::Fabric((0..count).map(|_| Ok((r.u64()?, r.array()?))).collect::<WireResult<_>>()?)
            }
            3 => Way::Legacy(r.array()?),
            4 => Way::Host,
            5 => Way::Unmapped,
            _ => return Err(WireError::Invalid { what: "way to a memory" }),
        };
        let (granted, number) = (r.bool()?, r.u64()?);
        if !granted && number != 0 {
            return Err(WireError::Invalid { what: "region of a memory" });
        }
        let region = granted.then_some(number);
        let count = r.count(MAX_KEYS, 9 + RemoteRegion::BYTES)?;
        let key = |r: &mut Reader<'_>| {
            Ok(RemoteKey { nic: r.u8()?, offset: r.u64()?, region: RemoteRegion::decode(r)? })
        };
        let keys = (0..count).map(|_| key(&mut r)).collect::<WireResult<Vec<_>>>()?;
        r.finish()?;
        let outside = |key: &RemoteKey| key.region.range(key.offset, len).is_err();
        if offset.checked_add(len).is_none_or(|end| end > total) || keys.iter().any(outside) {
            return Err(WireError::Invalid { what: "range of a memory" });
        }
        let sum = |sizes: Vec<u64>| sizes.into_iter().try_fold(0_u64, u64::checked_add);
        let (pieces, expected) = match &way {
            Way::Fds(sizes) => (sum(sizes.clone()), sizes.len()),
            Way::Fabric(chunks) => (sum(chunks.iter().map(|(size, _)| *size).collect()), 0),
            Way::Host => (Some(total), 1),
            Way::Process | Way::Legacy(_) | Way::Unmapped => (Some(total), 0),
        };
        if pieces != Some(total) {
            return Err(WireError::Invalid { what: "sizes of the pieces of a memory" });
        }
        if fds != expected {
            return Err(WireError::Invalid { what: "number of descriptors of a memory" });
        }
        Ok(Self { transports, rights, process, allocation, total, offset, len, way, region, keys })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn memory(way: Way) -> MemoryWire {
        MemoryWire {
            transports: Transports::CUDA_IPC,
            rights: Rights::READ_WRITE,
            process: 1,
            allocation: 2,
            total: 96,
            offset: 32,
            len: 64,
            way,
            region: Some(5),
            keys: Vec::new(),
        }
    }

    #[test]
    fn every_way_round_trips() {
        let ways = [
            (Way::Process, 0),
            (Way::Fds(vec![32, 64]), 2),
            (Way::Fabric(vec![(96, [7; 64])]), 0),
            (Way::Legacy([9; 64]), 0),
            (Way::Host, 1),
            (Way::Unmapped, 0),
        ];
        for (way, fds) in ways {
            let memory = memory(way);
            assert_eq!(MemoryWire::decode(&memory.encode(), fds), Ok(memory.clone()));
            assert!(MemoryWire::decode(&memory.encode(), fds + 1).is_err());
        }
    }

    #[test]
    fn ranges_and_sizes_that_lie_are_refused() {
        let past = MemoryWire { offset: 33, ..memory(Way::Process) };
        assert!(MemoryWire::decode(&past.encode(), 0).is_err());
        let overflow = MemoryWire { offset: u64::MAX, len: 2, ..memory(Way::Process) };
        assert!(MemoryWire::decode(&overflow.encode(), 0).is_err());
        assert!(MemoryWire::decode(&memory(Way::Fds(vec![32])).encode(), 1).is_err());
        assert!(MemoryWire::decode(&memory(Way::Fds(vec![u64::MAX, 97])).encode(), 2).is_err());
    }

    proptest! {
        #[test]
        fn garbage_is_never_a_panic(bytes: Vec<u8>, fds in 0usize..4) {
            let _ = MemoryWire::decode(&bytes, fds);
        }
    }
}
