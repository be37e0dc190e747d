//! Memory that other ranks describe falsely.

use std::sync::Arc;

use super::wire::{MemoryWire, Way};
use super::{HostBuffer, import};
use crate::bootstrap::{self, Bootstrap as _};
use crate::comm::{Communicator, CommunicatorConfig, Transports};
use crate::deadline::Deadline;
use crate::gpu::{Context, Device, Driver};
use crate::memory::ledger::Receipt;
use crate::setup::message::Offer;

fn alone() -> Vec<Communicator> {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let soon = || Deadline::after(std::time::Duration::from_secs(60));
    std::thread::scope(|scope| {
        let ranks = bootstrap::local(3).into_iter().map(|bootstrap| {
            let driver = driver.clone();
            scope.spawn(move || {
                let context = Context::new(&Device::new(&driver, bootstrap.rank()).unwrap()).unwrap();
                let config =
                    CommunicatorConfig::default().with_interface(std::net::Ipv4Addr::LOCALHOST.into());
                Communicator::new(&bootstrap, &context, config, soon()).unwrap()
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn a_rank_cannot_pass_its_memory_off_as_that_of_another() {
    let ranks = alone();
    let exchange = ranks[0].exchange();
    let describe = |byte: u8| -> Offer<Receipt> {
        let buffer = Arc::new(HostBuffer::new(&exchange.context, 4096).unwrap());
        buffer.memory().fill(byte);
        let wire = MemoryWire {
            transports: Transports::CUDA_IPC,
            process: 77,
            allocation: 1,
            total: 4096,
            offset: 0,
            len: 4096,
            way: Way::Host,
            region: None,
            keys: Vec::new(),
        };
        Offer { body: wire.encode(), fds: vec![buffer.fd().unwrap()], holds: Vec::new() }
    };
    // Rank 2 claims process and number of rank 1's allocation.
    let theirs = import(exchange, 1, describe(1)).unwrap();
    let claimed = import(exchange, 2, describe(2)).unwrap();
    let first = |memory: &super::RegisteredMemory| {
        let mut byte = [0];
        memory.host().unwrap().read(0, &mut byte).unwrap();
        byte[0]
    };
    assert_eq!((first(&theirs), first(&claimed)), (1, 2));
}
