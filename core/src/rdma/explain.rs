//! Which attribute was wrong: the NIC says `EINVAL`, and nothing else.
#![forbid(unsafe_code)]

use rdma_core_sys::{ibv_qp_attr, ibv_qp_attr_mask as mask};

use super::address::QpAddress;
use super::context::DeviceAttributes;
use super::gid::GidEntry;
use super::port::{Port, PortAttributes, PortState, mtu_bytes};

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

/// What is probably wrong with a transition that ended with `errno`: everything found to be out of range, or what else the
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
