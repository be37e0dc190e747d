//! Tests of the whole module.

mod soft;
mod table;

use super::*;

#[test]
fn markers() {
    fn send_sync<T: Send + Sync>() {}
    send_sync::<Driver>();
    send_sync::<Device>();
    send_sync::<Context>();
    send_sync::<Stream>();
    send_sync::<Event>();
    send_sync::<GraphExec>();
    send_sync::<GpuBuffer>();
    send_sync::<PinnedBuffer>();
    send_sync::<HostRegistration>();
    send_sync::<DeviceSlice>();
    send_sync::<Module>();
    send_sync::<Function>();
    send_sync::<vmm::PhysicalAllocation>();
    send_sync::<vmm::Mapping>();
    send_sync::<ipc::LegacyMapping>();
    send_sync::<multicast::MulticastObject>();
    send_sync::<multicast::MulticastBinding>();
}
