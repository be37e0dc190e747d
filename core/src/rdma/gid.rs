//! GIDs: the addresses of a port, and which of them to use.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use rdma_core_sys::{ibv_gid, ibv_gid_entry, ibv_gid_type};

use super::context::Context;
use super::port::{LinkLayer, PortAttributes};
use crate::error::{Error, ErrorKind, Result};

/// A 128-bit port address. With RoCE it is an IPv6 address, or an IPv4 address mapped into one (`::ffff:a.b.c.d`).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IPv4 address in it, if it is mapped.
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// Whether no address is set.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    /// Whether it is valid on its own link only (`fe80::/10`).
    pub fn is_link_local(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Protocol that an entry of a GID table belongs to. An integer: newer kernels may have more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GidKind(pub u32);

impl GidKind {
    /// InfiniBand.
    pub const INFINIBAND: Self = Self(ibv_gid_type::IBV_GID_TYPE_IB.0);
    /// RoCE v1: over Ethernet frames, one network segment only.
    pub const ROCE_V1: Self = Self(ibv_gid_type::IBV_GID_TYPE_ROCE_V1.0);
    /// RoCE v2: over UDP, routable.
    pub const ROCE_V2: Self = Self(ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0);
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::INFINIBAND => f.write_str("InfiniBand"),
            Self::ROCE_V1 => f.write_str("RoCE v1"),
            Self::ROCE_V2 => f.write_str("RoCE v2"),
            Self(other) => write!(f, "type {other}"),
        }
    }
}

/// One entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index in the table. The same address has another index on another host.
    pub index: u32,
    /// The address.
    pub gid: Gid,
    /// The protocol it belongs to.
    pub kind: GidKind,
    /// The network interface it belongs to, 0 if unknown or none.
    pub interface: u32,
}

impl fmt::Display for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.index, self.gid, self.kind)
    }
}

/// The entry to use on a port of this link layer: never by a fixed index, because kernels fill tables in any order.
///
/// On Ethernet RoCE v2 with an IPv4 address comes first, then with a routable IPv6 address, then a link-local one, then
/// RoCE v1 in the same order; on InfiniBand the first. `wanted` is an index that overrides this. `None` on InfiniBand means
/// that the table is empty and the LID alone must do.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if nothing in the table is usable; `InvalidUsage` if `wanted` is no valid entry. Both list
/// what is there.
pub fn choose_gid(link: LinkLayer, table: &[GidEntry], wanted: Option<u32>) -> Result<Option<GidEntry>> {
    const OP: &str = "ibv_query_gid";
    let listed = || match table {
        [] => "it is empty".to_owned(),
        _ => format!("it has {}", table.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    };
    if let Some(index) = wanted {
        let found = table.iter().find(|entry| entry.index == index && !entry.gid.is_zero());
        return found.copied().map(Some).ok_or_else(|| {
            let message = format!(
                "the GID table has no valid entry at index {index}: {}; change gid_index or leave it out",
                listed()
            );
            Error::usage(OP, message)
        });
    }
    let best =
        table.iter().filter_map(|entry| Some((rank(link, entry)?, entry))).min_by_key(|(rank, _)| *rank);
    match best {
        Some((_, entry)) => Ok(Some(*entry)),
        None if link == LinkLayer::InfiniBand => Ok(None),
        None => {
            let message = format!(
                "the port's GID table has no RoCE address: {}; give the network interface of the NIC an IP address and bring it up",
                listed()
            );
            Err(Error::new(ErrorKind::Unsupported, OP, message))
        }
    }
}

/// How good an entry is, smaller is better; none if it cannot be used.
fn rank(link: LinkLayer, entry: &GidEntry) -> Option<(u8, u8, u32)> {
    if entry.gid.is_zero() {
        return None;
    }
    let kind = match (link, entry.kind) {
        (LinkLayer::InfiniBand, GidKind::INFINIBAND) => 0,
        (LinkLayer::Ethernet, GidKind::ROCE_V2) => 0,
        (LinkLayer::Ethernet, GidKind::ROCE_V1) => 1,
        _ => return None,
    };
    let reach = match link {
        LinkLayer::Ethernet if entry.gid.ipv4().is_some() => 0,
        LinkLayer::Ethernet if entry.gid.is_link_local() => 2,
        LinkLayer::Ethernet => 1,
        _ => 0,
    };
    Some((kind, reach, entry.index))
}

/// The valid entries of a port's table, by the library or, where that is older than rdma-core 34, from sysfs.
pub(super) fn table(context: &Context, port: &PortAttributes) -> Result<Vec<GidEntry>> {
    match by_library(context, port) {
        Some(entries) => Ok(entries),
        None => Ok(by_sysfs(&context.device().sysfs(), port.number, port.gid_table_length)),
    }
}

fn by_library(context: &Context, port: &PortAttributes) -> Option<Vec<GidEntry>> {
    // Room for every port: the call gives the entries of all.
    let ports = usize::from(context.attributes().ports);
    let room = (port.gid_table_length as usize).saturating_mul(ports).clamp(16, 1 << 16);
    let mut entries = vec![ibv_gid_entry::default(); room];
    // SAFETY: the context is live.
    let count = unsafe {
        rdma_core_sys::ibv_query_gid_table(context.verbs().table(), context.as_ptr(), &mut entries, 0)
    };
    let count = usize::try_from(count).ok()?;
    let of_port = entries.iter().take(count).filter(|entry| entry.port_num == u32::from(port.number));
    Some(
        of_port
            .map(|entry| GidEntry {
                index: entry.gid_index,
                gid: raw(&entry.gid),
                kind: GidKind(entry.gid_type),
                interface: entry.ndev_ifindex,
            })
            .collect(),
    )
}

fn raw(gid: &ibv_gid) -> Gid {
    // SAFETY: both fields of the union are 16 plain bytes.
    Gid(unsafe { gid.raw })
}

/// Reads `ports/P/gids/I` and `ports/P/gid_attrs/types/I`, which hold an error or zeros for entries that are not set.
fn by_sysfs(device: &Path, port: u8, length: u32) -> Vec<GidEntry> {
    let port = device.join("ports").join(port.to_string());
    let read = |file: String| std::fs::read_to_string(port.join(file)).ok();
    (0..length)
        .filter_map(|index| {
            let gid: Ipv6Addr = read(format!("gids/{index}"))?.trim().parse().ok()?;
            let kind = match read(format!("gid_attrs/types/{index}"))?.trim() {
                "RoCE v2" => GidKind::ROCE_V2,
                "IB/RoCE v1" => match read("link_layer".into())?.trim() {
                    "Ethernet" => GidKind::ROCE_V1,
                    _ => GidKind::INFINIBAND,
                },
                _ => return None,
            };
            let entry = GidEntry { index, gid: Gid(gid.octets()), kind, interface: 0 };
            (!entry.gid.is_zero()).then_some(entry)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u32, gid: &str, kind: GidKind) -> GidEntry {
        GidEntry { index, gid: Gid(gid.parse::<Ipv6Addr>().unwrap().octets()), kind, interface: 2 }
    }

    fn full() -> Vec<GidEntry> {
        vec![
            entry(0, "fe80::1", GidKind::ROCE_V1),
            entry(1, "fe80::1", GidKind::ROCE_V2),
            entry(2, "::ffff:10.0.0.1", GidKind::ROCE_V1),
            entry(3, "2001:db8::1", GidKind::ROCE_V2),
            entry(7, "::ffff:10.0.0.1", GidKind::ROCE_V2),
        ]
    }

    fn chosen(link: LinkLayer, table: &[GidEntry]) -> Option<u32> {
        choose_gid(link, table, None).unwrap().map(|entry| entry.index)
    }

    #[test]
    fn roce_v2_over_ipv4_wins_wherever_it_stands() {
        let mut table = full();
        let mut order = Vec::new();
        while !table.is_empty() {
            let index = chosen(LinkLayer::Ethernet, &table).unwrap();
            order.push(index);
            table.retain(|entry| entry.index != index);
        }
        assert_eq!(order, [7, 3, 1, 2, 0]);
    }

    #[test]
    fn the_override_is_obeyed_and_checked() {
        let index = choose_gid(LinkLayer::Ethernet, &full(), Some(0)).unwrap().unwrap().index;
        assert_eq!(index, 0);
        let error = choose_gid(LinkLayer::Ethernet, &full(), Some(4)).unwrap_err();
        assert!(
            error.message().contains("index 4") && error.message().contains("7 ::ffff:10.0.0.1 (RoCE v2)"),
            "{error}"
        );
    }

    #[test]
    fn an_unusable_table_is_an_error_on_ethernet_only() {
        let zero = entry(0, "::", GidKind::ROCE_V2);
        for table in [
            vec![],
            vec![zero],
            vec![entry(0, "fe80::1", GidKind::INFINIBAND)],
            vec![entry(0, "::1", GidKind(9))],
        ] {
            let error = choose_gid(LinkLayer::Ethernet, &table, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.message().contains("give the network interface"), "{error}");
        }
        assert_eq!(chosen(LinkLayer::InfiniBand, &[]), None);
        assert_eq!(chosen(LinkLayer::InfiniBand, &[entry(0, "fe80::1", GidKind::INFINIBAND)]), Some(0));
    }

    #[test]
    fn sysfs_gives_the_same_table() {
        let root = std::env::temp_dir().join(format!("aqueduct-gid-{}", std::process::id()));
        let port = root.join("ports/1");
        std::fs::create_dir_all(port.join("gids")).unwrap();
        std::fs::create_dir_all(port.join("gid_attrs/types")).unwrap();
        let write = |file: &str, text: &str| std::fs::write(port.join(file), text).unwrap();
        write("link_layer", "Ethernet\n");
        for (index, gid, kind) in [
            (0, "fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1\n"),
            (1, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2\n"),
            (2, "0000:0000:0000:0000:0000:0000:0000:0000", "RoCE v2\n"),
        ] {
            write(&format!("gids/{index}"), gid);
            write(&format!("gid_attrs/types/{index}"), kind);
        }
        let table = by_sysfs(&root, 1, 8);
        std::fs::remove_dir_all(&root).unwrap();
        let found: Vec<_> = table.iter().map(|entry| (entry.index, entry.kind)).collect();
        assert_eq!(found, [(0, GidKind::ROCE_V1), (1, GidKind::ROCE_V2)]);
        assert_eq!(table[1].gid.ipv4(), Some(Ipv4Addr::new(10, 0, 0, 1)));
    }
}
