//! A number's way from one semaphore to the next, where the test is the proxy and the kernel.

use std::net::Ipv4Addr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use aqueduct_ptx::abi::{ChannelTrigger, TriggerKind};

use super::ids::SemaphoreId;
use super::registry::Registry;
use super::router::{Command, Router};
use super::state::{PortCounters, Ports};
use crate::bootstrap;
use crate::comm::{Communicator, CommunicatorConfig, Transport};
use crate::deadline::Deadline;
use crate::error::ErrorKind;
use crate::gpu::{Context, Device, Driver};
use crate::proxy::fifo::Fifo;
use crate::proxy::handler::ProxyHandler as _;
use crate::sync::{AtomicU64, Ordering};

/// The proxy has heard of the removal, nobody has the number and nothing runs, but the last request is still to come.
#[test]
fn a_number_is_free_only_once_the_fifo_holds_no_request_of_its_former_user() {
    let deadline = Deadline::after(Duration::from_secs(60));
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let config = CommunicatorConfig::default().with_local_address(Ipv4Addr::LOCALHOST.into());
    let comm = Communicator::new(&bootstrap::local(1)[0], &context, config, deadline).unwrap();
    let connection = comm.connect(0, 0, Transport::CudaIpc).unwrap();
    let semaphores = [0, 1].map(|tag| comm.build_host2device_semaphore(&connection, tag).unwrap());
    comm.setup(deadline).unwrap();
    let [first, second] = semaphores.map(|semaphore| semaphore.get().unwrap());

    let (fifo, ports) = (Fifo::new(&context, 4).unwrap(), Ports::new(&context, 0, 1).unwrap());
    let mut consumer = fifo.consumer().unwrap();
    let mut registry = Registry::new(1, vec![fifo.clone()]);
    let ((commands, received), sent) = (mpsc::channel(), Arc::new(AtomicU64::new(0)));
    let mut router = Router::new(received, sent.clone(), ports.clone(), 4);
    let tell = |command| {
        commands.send(command).unwrap();
        sent.fetch_add(1, Ordering::Release);
    };

    let (id, _) = registry.add_semaphore(&first, &ports).unwrap();
    ports.open(id);
    tell(Command::AddSemaphore(id, first));
    router.progress().unwrap();
    let signal = ChannelTrigger { kind: TriggerKind::FLAG, semaphore: id.0, ..ChannelTrigger::default() };
    fifo.write(0, |lap| signal.encode(lap).unwrap());
    registry.remove_semaphore(id).unwrap();
    tell(Command::RemoveSemaphore(id));
    while ports.number(id).is_some() {
        assert!(!deadline.expired(), "nothing is under way");
        router.progress().unwrap();
    }
    context.settle();
    let mut add = || registry.add_semaphore(&second, &ports).map(|(id, _)| id);
    let refused = |added: crate::Result<_>| added.is_err_and(|error| error.kind() == ErrorKind::Exhausted);
    assert!(refused(add()), "a request in the FIFO names it");
    let trigger = consumer.poll().unwrap();
    router.handle(0, &trigger).unwrap();
    assert!(refused(add()), "the proxy may be dropping the request");
    consumer.pop().unwrap();
    assert_eq!((add().unwrap(), ports.dropped()), (id, 1));
    ports.open(id);
    tell(Command::AddSemaphore(id, second.clone()));
    router.progress().unwrap();
    ports.check(id).unwrap();
    assert_eq!(ports.counters(id), PortCounters::default());
}

#[test]
fn connections_are_spread_over_the_proxies_and_each_has_one() {
    let deadline = Deadline::after(Duration::from_secs(60));
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let config = CommunicatorConfig::default().with_local_address(Ipv4Addr::LOCALHOST.into());
    let comm = Communicator::new(&bootstrap::local(1)[0], &context, config, deadline).unwrap();
    let connections = [0, 1, 2].map(|tag| comm.connect(0, tag, Transport::CudaIpc).unwrap());
    let semaphores = [(0, 0), (0, 1), (1, 2), (0, 3), (2, 4)]
        .map(|(index, tag)| comm.build_host2device_semaphore(&connections[index], tag).unwrap());
    comm.setup(deadline).unwrap();
    let ports = Ports::new(&context, 0, 5).unwrap();
    let mut registry =
        Registry::new(5, vec![(); 2].into_iter().map(|()| Fifo::new(&context, 4).unwrap()).collect());
    let shards =
        semaphores.map(|semaphore| registry.add_semaphore(&semaphore.get().unwrap(), &ports).unwrap().1);
    assert_eq!(shards, [0, 0, 1, 0, 0]);
}

/// Its semaphores were removed, and another one comes before the proxy has looked at its queues again.
#[test]
fn a_connection_that_has_failed_begins_anew_with_its_next_semaphore() {
    let deadline = Deadline::after(Duration::from_secs(60));
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let config = CommunicatorConfig::default().with_local_address(Ipv4Addr::LOCALHOST.into());
    let comm = Communicator::new(&bootstrap::local(1)[0], &context, config, deadline).unwrap();
    let connection = comm.connect(0, 0, Transport::CudaIpc).unwrap();
    let semaphores = [0, 1].map(|tag| comm.build_host2device_semaphore(&connection, tag).unwrap());
    comm.setup(deadline).unwrap();
    let [first, second] = semaphores.map(|semaphore| semaphore.get().unwrap());
    let ports = Ports::new(&context, 0, 2).unwrap();
    let ((commands, received), sent) = (mpsc::channel(), Arc::new(AtomicU64::new(0)));
    let mut router = Router::new(received, sent.clone(), ports.clone(), 4);
    let tell = |command| {
        commands.send(command).unwrap();
        sent.fetch_add(1, Ordering::Release);
    };
    let ids = [0, 1].map(SemaphoreId);
    ids.into_iter().for_each(|id| ports.open(id));
    tell(Command::AddSemaphore(ids[0], first));
    // A put into memory that nobody has added.
    let put = ChannelTrigger { kind: TriggerKind::DATA, semaphore: ids[0].0, ..ChannelTrigger::default() };
    router.handle(0, &put.encode(false).unwrap()).unwrap();
    ports.check(ids[0]).unwrap_err();
    tell(Command::RemoveSemaphore(ids[0]));
    tell(Command::AddSemaphore(ids[1], second));
    router.progress().unwrap();
    ports.check(ids[1]).unwrap();
}
