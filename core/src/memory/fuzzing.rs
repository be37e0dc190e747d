//! The wire form of a registered memory, see [`crate::fuzzing`].
#![forbid(unsafe_code)]

use super::rights::Rights;
use super::transports::Transports;
use super::wire::{MemoryWire, RemoteKey, Way};
use crate::rdma::RemoteRegion;
use crate::wire::Reader;

/// A registered memory; the first byte says how many descriptors came with it.
pub fn memory(bytes: &[u8]) -> Option<Vec<u8>> {
    let (fds, bytes) = bytes.split_first()?;
    let memory = MemoryWire::decode(bytes, usize::from(*fds)).ok()?;
    assert!(memory.offset.checked_add(memory.len).is_some_and(|end| end <= memory.total));
    assert!(memory.keys.iter().all(|key| key.region.range(key.offset, memory.len).is_ok()));
    Some([&[*fds], &memory.encode()[..]].concat())
}

pub(crate) fn wire_forms() -> Vec<(&'static str, Vec<u8>)> {
    let ways = [
        (Way::Process, 0),
        (Way::Fds(vec![32, 64]), 2),
        (Way::Fabric(vec![(96, [7; 64])]), 0),
        (Way::Legacy([9; 64]), 0),
        (Way::Host, 1),
        (Way::Unmapped, 0),
    ];
    let mut region = [0; RemoteRegion::BYTES];
    region[8] = 96; // its length; at address 0, with key 0
    let region = RemoteRegion::decode(&mut Reader::new(&region)).expect("96 bytes do not wrap around");
    let form = |(way, fds): (Way, u8)| {
        let keys = vec![RemoteKey { nic: 1, region, offset: 32 }];
        let memory = MemoryWire {
            transports: Transports::CUDA_IPC,
            rights: Rights::REMOTE_READ,
            process: 1,
            allocation: 2,
            total: 96,
            offset: 32,
            len: 64,
            region: (way == Way::Host).then_some(5),
            way,
            keys,
        };
        ("memory", [&[fds], &memory.encode()[..]].concat())
    };
    ways.into_iter().map(form).collect()
}
