//! Connections that a test makes by hand.

use std::sync::Arc;
use std::time::Duration;

use super::resources::{Resources, Settings};
use crate::bootstrap::{self, Bootstrap as _};
use crate::comm::{Communicator, CommunicatorConfig, HostBuffer, RegisteredMemory, Transport};
use crate::deadline::{Backoff, Deadline};
use crate::env::Selection;
use crate::gpu::{Context, Device, Driver};
use crate::memory::{Place, register_host};
use crate::rdma::Verbs;

pub(in crate::transport) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Runs `run` at rank 0 with two memories of rank 1.
pub(in crate::transport) fn with_memories(run: impl Fn(&Communicator, [RegisteredMemory; 2]) + Sync) {
    with_memories_of(&Driver::software(cuda_soft::driver_table()).unwrap(), run);
}

/// The same with a driver.
pub(in crate::transport) fn with_memories_of(
    driver: &Driver,
    run: impl Fn(&Communicator, [RegisteredMemory; 2]) + Sync,
) {
    std::thread::scope(|scope| {
        for bootstrap in bootstrap::local(2) {
            let (driver, run) = (driver.clone(), &run);
            scope.spawn(move || {
                let context = Context::new(&Device::new(&driver, bootstrap.rank()).unwrap()).unwrap();
                let config =
                    CommunicatorConfig::default().with_local_address(std::net::Ipv4Addr::LOCALHOST.into());
                let comm = Communicator::new(&bootstrap, &context, config, soon()).unwrap();
                if bootstrap.rank() == 0 {
                    let memories = [0, 1].map(|tag| comm.recv_memory(1, tag).unwrap());
                    comm.setup(soon()).unwrap();
                    run(&comm, memories.map(|memory| memory.get().unwrap()));
                } else {
                    for tag in [0, 1] {
                        let buffer = Arc::new(HostBuffer::new(&context, 64).unwrap());
                        let memory = comm.register_host(&buffer, Transport::Ethernet).unwrap();
                        comm.send_memory(&memory, 0, tag).unwrap();
                    }
                    comm.setup(soon()).unwrap();
                }
                // Rank 1 waits for as long as rank 0 runs, which a sanitizer makes many times slower.
                bootstrap.barrier(Deadline::after(Duration::from_secs(600))).unwrap();
                drop(comm);
                context.settle();
            });
        }
    });
}

/// All of `buffer`, as a connection uses it.
pub(in crate::transport) fn place(buffer: &Arc<HostBuffer>) -> Place {
    register_host(buffer, 0, buffer.len(), Transport::Ethernet.into()).unwrap().place().clone()
}

/// Resources of a communicator for connections that a test makes by hand.
pub(in crate::transport) fn resources(comm: &Communicator, verbs: Option<Verbs>) -> Arc<Resources> {
    resources_with(comm, verbs, 8 << 20)
}

/// The same with so much pinned memory for Ethernet.
pub(in crate::transport) fn resources_with(
    comm: &Communicator,
    verbs: Option<Verbs>,
    ethernet_staging: usize,
) -> Arc<Resources> {
    let exchange = comm.exchange();
    let settings = Settings {
        local_address: None,
        ethernet_staging,
        interfaces: Selection::default(),
        verbs,
        ib_devices: Some("null0".to_owned()),
        ib: crate::rdma::Settings::default(),
    };
    let (context, group, regions) =
        (exchange.context.clone(), exchange.group.clone(), exchange.regions.clone());
    Resources::new(context, group, regions, settings)
}

#[track_caller]
pub(in crate::transport) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let (mut backoff, deadline) = (Backoff::new(), soon());
    while !done() {
        assert!(!deadline.expired(), "{what}");
        backoff.pause(deadline);
    }
}
