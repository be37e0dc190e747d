//! The devices of the provider and their ports.

use std::ffi::c_char;
use std::sync::OnceLock;

use rdma_core_sys::{
    IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, ibv_context, ibv_device, ibv_gid, ibv_gid_entry,
    ibv_gid_type, ibv_mtu, ibv_node_type, ibv_port_attr, ibv_port_state, ibv_transport_type,
};

pub(super) struct Port {
    pub(super) attr: ibv_port_attr,
    pub(super) gids: Vec<ibv_gid_entry>,
}

pub(super) struct Device {
    pub(super) raw: ibv_device,
    pub(super) ports: Vec<Port>,
}

// SAFETY: devices are immutable, and the pointers in them are null.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

pub(super) fn devices() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let (v1, v2) = (ibv_gid_type::IBV_GID_TYPE_ROCE_V1, ibv_gid_type::IBV_GID_TYPE_ROCE_V2);
        let link_local: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let mapped: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
        let roce = [(0, link_local, v1), (1, link_local, v2), (2, mapped, v1), (3, mapped, v2)];
        let (active, down) = (ibv_port_state::IBV_PORT_ACTIVE, ibv_port_state::IBV_PORT_DOWN);
        vec![
            device("warp0", ibv_transport_type::IBV_TRANSPORT_IWARP, vec![ethernet(active, &roce)]),
            device("null1", ibv_transport_type::IBV_TRANSPORT_IB, vec![ethernet(down, &roce), infiniband()]),
            device("null0", ibv_transport_type::IBV_TRANSPORT_IB, vec![ethernet(active, &roce)]),
            device("bare0", ibv_transport_type::IBV_TRANSPORT_IB, vec![ethernet(active, &[])]),
            device("dark0", ibv_transport_type::IBV_TRANSPORT_IB, vec![ethernet(down, &roce)]),
        ]
    })
}

pub(super) fn find(raw: *mut ibv_device) -> &'static Device {
    devices().iter().find(|device| std::ptr::eq(&raw const device.raw, raw)).expect("a device of this table")
}

/// The ports of the device that `context` belongs to.
pub(super) fn ports(context: *mut ibv_context) -> &'static [Port] {
    // SAFETY: the context is live.
    &find(unsafe { (*context).device }).ports
}

fn device(name: &str, transport_type: ibv_transport_type, ports: Vec<Port>) -> Device {
    let mut raw = ibv_device { node_type: ibv_node_type::IBV_NODE_CA, transport_type, ..Default::default() };
    let path = format!("/nonexistent/infiniband/{name}");
    for (to, from) in raw.name.iter_mut().zip(name.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    for (to, from) in raw.ibdev_path.iter_mut().zip(path.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    Device { raw, ports }
}

fn ethernet(state: ibv_port_state, table: &[(u32, [u8; 16], ibv_gid_type)]) -> Port {
    let attr = ibv_port_attr {
        state,
        max_mtu: ibv_mtu::IBV_MTU_4096,
        active_mtu: ibv_mtu::IBV_MTU_1024,
        gid_tbl_len: 16,
        max_msg_sz: 1 << 30,
        pkey_tbl_len: 1,
        link_layer: IBV_LINK_LAYER_ETHERNET.0 as u8,
        ..Default::default()
    };
    let entry = |(gid_index, raw, kind): &(u32, [u8; 16], ibv_gid_type)| ibv_gid_entry {
        gid: ibv_gid { raw: *raw },
        gid_index: *gid_index,
        port_num: 1,
        gid_type: kind.0,
        ndev_ifindex: 2,
    };
    Port { attr, gids: table.iter().map(entry).collect() }
}

fn infiniband() -> Port {
    let attr = ibv_port_attr {
        state: ibv_port_state::IBV_PORT_ACTIVE,
        max_mtu: ibv_mtu::IBV_MTU_4096,
        active_mtu: ibv_mtu::IBV_MTU_4096,
        gid_tbl_len: 1,
        max_msg_sz: 1 << 30,
        pkey_tbl_len: 2,
        lid: 7,
        link_layer: IBV_LINK_LAYER_INFINIBAND.0 as u8,
        ..Default::default()
    };
    Port { attr, gids: Vec::new() }
}
