//! Tests of the whole module: against the stand-in, and ignored ones against a real NIC or soft-RoCE.

mod events;
mod failures;
mod nic;
mod rig;
mod setup;
#[path = "../../../../sys/rdma-core-sys/tests/standin/mod.rs"]
pub(crate) mod standin;
mod transfer;
mod windows;

use super::*;

#[test]
fn markers() {
    fn send_sync<T: Send + Sync>() {}
    send_sync::<Verbs>();
    send_sync::<Device>();
    send_sync::<Context>();
    send_sync::<ProtectionDomain>();
    send_sync::<MemoryRegion>();
    send_sync::<MemoryWindow>();
    send_sync::<CompletionQueue>();
    send_sync::<CompletionChannel>();
    send_sync::<QueuePair<Reset>>();
    send_sync::<QueuePair<ReadyToSend>>();
    send_sync::<Batch>();
}
