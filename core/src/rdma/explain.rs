//! Which attribute was wrong: the NIC says `EINVAL`, and nothing else.
#![forbid(unsafe_code)]

use rdma_core_sys::{ibv_qp_attr, ibv_qp_attr_mask as mask};

use super::address::QpAddress;
use super::choose::Port;
use super::context::DeviceAttributes;
use super::gid::GidEntry;
use super::port::{PortAttributes, PortState, mtu_bytes};

/// A transition that was refused, and what is known about the port now.
pub(super) struct Asked<'a> {
    pub(super) attr: &'a ibv_qp_attr,
    pub(super) set: mask,
    /// The port as it was when it was chosen.
    pub(super) port: &'a Port,
    /// The port now, if it still answers.
    pub(super) now: Option<&'a PortAttributes>,
    /// Its GID table now.
    pub(super) gids: &'a [GidEntry],
    /// The partition key at the index asked for, 0 if not set.
    pub(super) pkey: Option<u16>,
    pub(super) peer: Option<&'a QpAddress>,
}

/// Explains a transition that failed with `errno`: everything found to be out of range, or what else the
/// error can mean.
pub(super) fn modify(errno: i32, asked: &Asked<'_>, device: &DeviceAttributes) -> String {
    let found = suspects(asked, device);
    if !found.is_empty() {
        return found.join("; ");
    }
    let to = || match asked.peer.and_then(|peer| peer.gid) {
        Some((gid, kind)) => format!("{gid} ({kind})"),
        None => "the peer".to_owned(),
    };
    match errno {
        libc::EINVAL if asked.set.0 & mask::IBV_QP_AV.0 != 0 => {
            format!(
                "no attribute is out of range by itself; gid_index, traffic_class or service_level may not suit the path to {}",
                to()
            )
        }
        libc::EINVAL => {
            "no attribute is out of range by itself; the peer may have sent values that do not fit".into()
        }
        libc::ENODEV => {
            "the network interface of the GID or the NIC is gone; check `rdma link`, or set gid_index".into()
        }
        libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH => {
            format!(
                "there is no way to {}: check IP routes and that the peer's interface is up, or set gid_index",
                to()
            )
        }
        libc::ENOMEM => "the NIC is out of resources".into(),
        _ => "the NIC refuses".into(),
    }
}

fn suspects(asked: &Asked<'_>, device: &DeviceAttributes) -> Vec<String> {
    let Asked { attr, set, port, now, gids, pkey, .. } = asked;
    let has = |bit: mask| set.0 & bit.0 != 0;
    let number = port.attributes.number;
    let mut found = Vec::new();
    match now {
        None => found.push(format!("port {number} does not answer any more")),
        Some(now) if now.state != PortState::ACTIVE => {
            found.push(format!("port {number} is {} now", now.state))
        }
        Some(_) if has(mask::IBV_QP_PKEY_INDEX) && *pkey == Some(0) => {
            found.push(format!("pkey_index {} has no partition key", attr.pkey_index));
        }
        Some(now) if has(mask::IBV_QP_PATH_MTU) => {
            let asked = mtu_bytes(attr.path_mtu).unwrap_or(0);
            if asked > now.active_mtu || asked == 0 {
                found.push(format!("mtu {asked} is above the port's {}", now.active_mtu));
            }
        }
        Some(_) => {}
    }
    if has(mask::IBV_QP_AV) && attr.ah_attr.is_global != 0 {
        let index = u32::from(attr.ah_attr.grh.sgid_index);
        match (port.gid, gids.iter().find(|entry| entry.index == index)) {
            (Some(chosen), _) if chosen.index > 255 => {
                found.push(format!("gid_index {} is above 255, which requests can name", chosen.index));
            }
            (_, None) => found.push(format!("gid_index {index} has no address any more")),
            (Some(chosen), Some(entry)) if chosen.gid != entry.gid => {
                found.push(format!("gid_index {index} is {} now, it was {}", entry.gid, chosen.gid));
            }
            _ => {}
        }
    }
    let mut above = |bit: mask, name: &str, value: u8, limit: u8| {
        if has(bit) && value > limit {
            found.push(format!("{name} {value} is above the device's {limit}"));
        }
    };
    above(
        mask::IBV_QP_MAX_DEST_RD_ATOMIC,
        "max_read_atomic",
        attr.max_dest_rd_atomic,
        device.max_read_atomic_in,
    );
    above(mask::IBV_QP_MAX_QP_RD_ATOMIC, "max_read_atomic", attr.max_rd_atomic, device.max_read_atomic_out);
    found
}

#[cfg(test)]
mod tests {
    use rdma_core_sys::{ibv_ah_attr, ibv_global_route, ibv_mtu, ibv_port_attr, ibv_port_state};

    use super::*;
    use crate::rdma::context::Atomics;
    use crate::rdma::gid::{Gid, GidKind};

    fn entry(index: u32, last: u8) -> GidEntry {
        let mut gid = Gid([0; 16]);
        gid.0[15] = last;
        GidEntry { index, gid, kind: GidKind::ROCE_V2, interface: 1 }
    }

    fn device() -> DeviceAttributes {
        DeviceAttributes {
            firmware: String::new(),
            vendor: (0, 0),
            ports: 1,
            max_region: 0,
            max_regions: 0,
            max_queue_pairs: 0,
            max_work_requests: 0,
            max_completions: 0,
            max_read_atomic_in: 16,
            max_read_atomic_out: 8,
            atomics: Atomics::None,
            max_windows: 0,
        }
    }

    /// Everything in order for a transition that sets all, then made wrong by `spoil`.
    fn found(
        spoil: impl FnOnce(&mut ibv_qp_attr, &mut PortAttributes, &mut Vec<GidEntry>, &mut Option<u16>),
    ) -> String {
        let raw = ibv_port_attr {
            state: ibv_port_state::IBV_PORT_ACTIVE,
            active_mtu: ibv_mtu::IBV_MTU_1024,
            ..Default::default()
        };
        let port = Port { attributes: PortAttributes::new(1, &raw), gid: Some(entry(3, 1)) };
        let grh = ibv_global_route { sgid_index: 3, ..Default::default() };
        let mut attr = ibv_qp_attr {
            path_mtu: ibv_mtu::IBV_MTU_1024,
            max_dest_rd_atomic: 16,
            max_rd_atomic: 8,
            ah_attr: ibv_ah_attr { is_global: 1, grh, ..Default::default() },
            ..Default::default()
        };
        let (mut now, mut gids, mut pkey) = (port.attributes, vec![entry(3, 1)], Some(0xffff));
        spoil(&mut attr, &mut now, &mut gids, &mut pkey);
        let set = mask(u32::MAX);
        // The key and the MTU are never set by one transition.
        let set = if pkey == Some(0) { set } else { mask(set.0 & !mask::IBV_QP_PKEY_INDEX.0) };
        let asked = Asked { attr: &attr, set, port: &port, now: Some(&now), gids: &gids, pkey, peer: None };
        modify(libc::EINVAL, &asked, &device())
    }

    #[test]
    fn each_attribute_out_of_range_is_named_and_nothing_else() {
        assert!(found(|_, _, _, _| ()).contains("no attribute is out of range by itself"));
        for (text, expected) in [
            (found(|_, now, _, _| now.state = PortState(1)), "port 1 is down now"),
            (
                found(|attr, _, _, _| attr.path_mtu = ibv_mtu::IBV_MTU_4096),
                "mtu 4096 is above the port's 1024",
            ),
            (found(|_, _, _, pkey| *pkey = Some(0)), "pkey_index 0 has no partition key"),
            (found(|_, _, gids, _| gids.clear()), "gid_index 3 has no address any more"),
            (found(|_, _, gids, _| gids[0] = entry(3, 2)), "gid_index 3 is ::2 now, it was ::1"),
            (
                found(|attr, _, _, _| attr.max_dest_rd_atomic = 17),
                "max_read_atomic 17 is above the device's 16",
            ),
            (found(|attr, _, _, _| attr.max_rd_atomic = 9), "max_read_atomic 9 is above the device's 8"),
        ] {
            assert_eq!(text, expected);
        }
    }
}
