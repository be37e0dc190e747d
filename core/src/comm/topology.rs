//! Which ranks share this process, host or device, and how their memory is reached.
#![forbid(unsafe_code)]

use crate::gpu::{Device, PeerLink};
use crate::group::peer::PeerInfo;

/// Where a rank is, seen from this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerTopology {
    /// The rank.
    pub rank: u32,
    /// Whether it runs in this process.
    pub same_process: bool,
    /// Whether it runs on this host, so that memory handles can be passed.
    pub same_host: bool,
    /// Whether it uses this rank's device.
    pub same_device: bool,
    /// How this rank's device reaches its device; `None` on another host, on the same device, and where its device
    /// is not visible to this process (`CUDA_VISIBLE_DEVICES`), in which case only mapping its memory shows it.
    pub link: Option<PeerLink>,
}

impl PeerTopology {
    /// Whether loads and stores on its memory can work: certain for a known link, likely where it is on this host
    /// but not visible.
    pub fn is_reachable(&self) -> bool {
        self.same_device || (self.same_host && self.link.is_none_or(|link| link.access))
    }

    /// Whether the path to its memory keeps 128-byte lines whole: the same device, or NVLink. NVLink is recognised by
    /// native atomics over peer access, which PCIe lacks; false if unknown.
    pub fn is_nvlink(&self) -> bool {
        self.same_device || self.link.is_some_and(|link| link.access && link.native_atomics)
    }
}

/// All ranks, seen from this one; entry `r` is rank `r`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    peers: Vec<PeerTopology>,
}

impl Topology {
    pub(super) fn discover(device: &Device, mine: &PeerInfo, all: &[PeerInfo]) -> Self {
        let visible = Device::all(device.driver()).unwrap_or_default();
        let named: Vec<_> = visible.iter().map(|d| (d, d.pci_bus_id().ok(), d.uuid().ok())).collect();
        let peers = all.iter().map(|info| {
            let (same_host, same_device) = (mine.same_host(info), mine.same_device(info));
            // Compares uuid and PCI address: partitions of a GPU share the address, and an old driver has no uuids.
            let theirs = named.iter().find(|(_, pci, uuid)| {
                info.device.as_ref().is_some_and(|device| {
                    pci.as_deref() == Some(&device.pci_bus_id) && uuid.unwrap_or_default() == device.uuid
                })
            });
            let link = match theirs {
                Some((other, ..)) if same_host && !same_device => device.peer_link(other).ok(),
                _ => None,
            };
            PeerTopology {
                rank: info.rank,
                same_process: mine.same_process(info),
                same_host,
                same_device,
                link,
            }
        });
        Self { peers: peers.collect() }
    }

    /// Rank `rank`, if there is one.
    pub fn peer(&self, rank: u32) -> Option<&PeerTopology> {
        self.peers.get(rank as usize)
    }

    /// Every rank, in order, this one included.
    pub fn peers(&self) -> &[PeerTopology] {
        &self.peers
    }

    /// Whether every rank can load from and store to every other one's memory, as far as this rank sees.
    pub fn all_reachable(&self) -> bool {
        self.peers.iter().all(PeerTopology::is_reachable)
    }

    /// Whether all ranks are joined by NVLink, or on one device, as far as this rank sees.
    pub fn all_nvlink(&self) -> bool {
        self.peers.iter().all(PeerTopology::is_nvlink)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvlink_needs_certainty_and_reach_does_not() {
        let unseen =
            PeerTopology { rank: 1, same_process: false, same_host: true, same_device: false, link: None };
        assert!(unseen.is_reachable() && !unseen.is_nvlink());
        let link = PeerLink { access: true, native_atomics: false, performance_rank: 1 };
        let pcie = PeerTopology { link: Some(link), ..unseen };
        assert!(pcie.is_reachable() && !pcie.is_nvlink());
        let nvlink = PeerTopology { link: Some(PeerLink { native_atomics: true, ..link }), ..unseen };
        assert!(nvlink.is_nvlink());
        let none = PeerTopology { link: Some(PeerLink { access: false, ..link }), ..unseen };
        assert!(!none.is_reachable());
        assert!(!PeerTopology { same_host: false, ..unseen }.is_reachable());
    }
}
