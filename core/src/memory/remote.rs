//! A peer's memory, as the peer described it.
#![forbid(unsafe_code)]

use super::wire::RemoteKey;
use crate::group::Group;
use crate::ledger::receipt::Receipt;

/// This rank's hold on a memory of a peer, and what the peer said about it beside how to map it. Whatever uses the memory
/// holds this: handles, and operations until they are acknowledged. The drop of the last gives back what the peer keeps for it.
#[derive(Debug)]
pub(crate) struct Remote {
    /// The communicator lives as long as memory received by it.
    pub(super) group: Group,
    pub(super) from: u32,
    /// Where it begins in the owner's allocation, in bytes.
    pub(super) begin: u64,
    pub(super) region: Option<u64>,
    pub(super) keys: Vec<RemoteKey>,
    /// Receipts for what the peer keeps alive while this is used.
    pub(super) _receipts: Vec<Receipt>,
}

impl Remote {
    /// The rank whose memory it is.
    pub(crate) fn from(&self) -> u32 {
        self.from
    }

    /// The group in which that is its rank.
    pub(super) fn group(&self) -> &Group {
        &self.group
    }

    /// Whether the byte at `offset` of it lies at a multiple of 8 of the owner's addresses: allocations begin at one.
    pub(crate) fn is_aligned(&self, offset: u64) -> bool {
        self.begin.wrapping_add(offset).is_multiple_of(8)
    }

    /// The number by which it is written by message.
    pub(crate) fn region(&self) -> Option<u64> {
        self.region
    }

    /// How the owner's NIC of this number names it.
    pub(crate) fn key(&self, nic: u8) -> Option<&RemoteKey> {
        self.keys.iter().find(|key| key.nic == nic)
    }

    #[cfg(test)]
    pub(super) fn with_key(&self, nic: u8, region: crate::rdma::RemoteRegion) -> Self {
        let keys = vec![RemoteKey { nic, region, offset: 0 }];
        let (group, from, begin) = (self.group.clone(), self.from, self.begin);
        Self { group, from, begin, region: None, keys, _receipts: Vec::new() }
    }
}
