//! Ports of a NIC.

use std::fmt;

use rdma_core_sys::{
    IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, IBV_LINK_LAYER_UNSPECIFIED,
    ib_uverbs_query_port_flags, ibv_mtu, ibv_port_attr, ibv_port_state,
};

use super::context::Context;
use super::status::{errno_of, failed};
use crate::error::{Error, Result};

/// Type of network that a port is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkLayer {
    /// An InfiniBand fabric: peers are addressed by LID, across subnets by GID.
    InfiniBand,
    /// Ethernet: RoCE, peers are addressed by GID.
    Ethernet,
    /// Something this version does not know.
    Unknown(u8),
}

/// State of a port. An integer: newer kernels may have more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortState(pub u32);

impl PortState {
    /// Ready for traffic.
    pub const ACTIVE: Self = Self(ibv_port_state::IBV_PORT_ACTIVE.0);
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = ["unknown", "down", "initializing", "armed", "active", "active (deferred)"];
        match name.get(self.0 as usize) {
            Some(name) => f.write_str(name),
            None => write!(f, "state {}", self.0),
        }
    }
}

/// Attributes of a port, as the NIC reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttributes {
    /// Its number, from 1.
    pub number: u8,
    /// Its state.
    pub state: PortState,
    /// Type of network it is connected to.
    pub link: LinkLayer,
    /// The MTU in effect, in bytes of payload: 256 to 4096.
    pub active_mtu: u32,
    /// The largest message, in bytes.
    pub max_message: u32,
    /// Entries of its GID table, set or not.
    pub gid_table_length: u32,
    /// Entries of its partition key table.
    pub pkey_table_length: u16,
    /// Its local identifier, 0 on Ethernet.
    pub lid: u16,
    /// Whether peers must be addressed by GID even on InfiniBand.
    pub grh_required: bool,
    /// Link width and speed as the kernel encodes them.
    pub width_and_speed: (u8, u8),
}

impl PortAttributes {
    pub(super) fn new(number: u8, attr: &ibv_port_attr) -> Self {
        Self {
            number,
            state: PortState(attr.state.0),
            link: match u32::from(attr.link_layer) {
                // Providers older than RoCE leave it unspecified.
                l if l == IBV_LINK_LAYER_INFINIBAND.0 || l == IBV_LINK_LAYER_UNSPECIFIED.0 => {
                    LinkLayer::InfiniBand
                }
                l if l == IBV_LINK_LAYER_ETHERNET.0 => LinkLayer::Ethernet,
                _ => LinkLayer::Unknown(attr.link_layer),
            },
            active_mtu: mtu_bytes(attr.active_mtu).unwrap_or(256),
            max_message: attr.max_msg_sz,
            gid_table_length: u32::try_from(attr.gid_tbl_len).unwrap_or(0),
            pkey_table_length: attr.pkey_tbl_len,
            lid: attr.lid,
            grh_required: u32::from(attr.flags) & ib_uverbs_query_port_flags::IB_UVERBS_QPF_GRH_REQUIRED.0
                != 0,
            width_and_speed: (attr.active_width, attr.active_speed),
        }
    }
}

impl Context {
    /// Queries the current attributes of port `number`.
    ///
    /// # Errors
    /// `InvalidUsage` if there is no such port; otherwise the error of libibverbs.
    pub fn port(&self, number: u8) -> Result<PortAttributes> {
        const OP: &str = "ibv_query_port";
        let (name, ports) = (self.device().name(), self.attributes().ports);
        if number == 0 || number > ports {
            let message = format!("device {name} has no port {number}: its ports are 1 to {ports}");
            return Err(Error::usage(OP, message));
        }
        self.verbs().check(OP)?;
        let mut attr = ibv_port_attr::default();
        // SAFETY: the context is live.
        let result =
            unsafe { rdma_core_sys::ibv_query_port(self.verbs().table(), self.as_ptr(), number, &mut attr) };
        errno_of(result)
            .map_err(|errno| failed(OP, errno, format!("port {number} of device {name} does not answer")))?;
        Ok(PortAttributes::new(number, &attr))
    }
}

/// The payload in bytes that the enum value means.
pub(super) fn mtu_bytes(mtu: ibv_mtu) -> Option<u32> {
    matches!(mtu.0, 1..=5).then(|| 128 << mtu.0)
}

/// The enum value for an MTU in bytes, which must be 256, 512, 1024, 2048 or 4096.
pub(super) fn mtu_value(bytes: u32) -> Option<ibv_mtu> {
    (1..=5).map(ibv_mtu).find(|mtu| mtu_bytes(*mtu) == Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus() {
        for bytes in [256, 512, 1024, 2048, 4096] {
            assert_eq!(mtu_value(bytes).and_then(mtu_bytes), Some(bytes));
        }
        assert_eq!(mtu_value(1500), None);
        assert_eq!(mtu_bytes(ibv_mtu(0)), None);
        assert_eq!(mtu_bytes(ibv_mtu(6)), None);
    }
}
