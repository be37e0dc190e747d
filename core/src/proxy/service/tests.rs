//! A number's way from one object to the next, and a connection's from one service to the next, where the test is the proxy and
//! the kernel.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use aqueduct_ptx::abi::{ChannelTrigger, TriggerKind};

use super::ids::{MemoryId, SemaphoreId};
use super::proxy_service::{ProxyService, ProxyServiceConfig};
use super::registry::{Added, Registry};
use super::router::{Command, End, Removal, Router};
use super::state::{PortCounters, Ports};
use crate::bootstrap;
use crate::comm::{Communicator, CommunicatorConfig, Host2DeviceSemaphore, RegisteredMemory, Transport};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Context, Device, Driver, GpuBuffer};
use crate::proxy::fifo::{Fifo, FifoConsumer};
use crate::proxy::handler::ProxyHandler as _;
use crate::sync::{AtomicU64, Ordering};

mod several;

thread_local! {
    static SENT: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// Runs the test's closure when a command has been sent, before the call that sent it goes on.
pub(super) fn sent() {
    if let Some(then) = SENT.take() {
        then();
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// A communicator of one rank, with two semaphores of one connection.
fn one_rank() -> (Context, Communicator, [Host2DeviceSemaphore; 2]) {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let config = CommunicatorConfig::default().with_local_address(Ipv4Addr::LOCALHOST.into());
    let comm = Communicator::new(&bootstrap::local(1)[0], &context, config, soon()).unwrap();
    let connection = comm.connect(0, 0, Transport::CudaIpc).unwrap();
    let semaphores = [0, 1].map(|tag| comm.build_host2device_semaphore(&connection, tag).unwrap());
    comm.setup(soon()).unwrap();
    (context, comm, semaphores.map(|semaphore| semaphore.get().unwrap()))
}

/// A service with few numbers, of which the test is the proxy.
struct Service {
    fifo: Fifo,
    consumer: FifoConsumer,
    ports: Arc<Ports>,
    registry: Registry,
    router: Router,
    commands: mpsc::Sender<Command>,
    sent: Arc<AtomicU64>,
    pushed: u64,
}

impl Service {
    fn new(context: &Context) -> Self {
        Self::with(context, 1)
    }

    fn with(context: &Context, semaphores: usize) -> Self {
        let (fifo, ports) = (Fifo::new(context, 4).unwrap(), Ports::new(context, 0, semaphores).unwrap());
        let consumer = fifo.consumer().unwrap();
        let registry = Registry::new(context, semaphores, 1, vec![fifo.clone()]);
        let ((commands, received), sent) = (mpsc::channel(), Arc::new(AtomicU64::new(0)));
        let router = Router::new(received, sent.clone(), ports.clone(), 4);
        Self { fifo, consumer, ports, registry, router, commands, sent, pushed: 0 }
    }

    fn tell(&self, command: Command) {
        self.commands.send(command).unwrap();
        self.sent.fetch_add(1, Ordering::Release);
    }

    fn add_semaphore(&mut self, semaphore: &Host2DeviceSemaphore) -> Result<SemaphoreId> {
        let Added { id, number, claim, .. } = self.registry.add_semaphore(semaphore)?;
        self.ports.open(id, number);
        self.tell(Command::AddSemaphore(id, semaphore.clone(), claim));
        Ok(id)
    }

    fn remove_semaphore(&mut self, id: SemaphoreId) {
        self.registry.remove_semaphore(id).unwrap();
        self.tell(Command::Remove(Removal::Semaphore(id)));
    }

    fn add_memory(&mut self, memory: &RegisteredMemory) -> Result<MemoryId> {
        let id = self.registry.add_memory(memory)?;
        self.tell(Command::AddMemory(id, memory.clone()));
        Ok(id)
    }

    fn remove_memory(&mut self, id: MemoryId) {
        let removed = self.registry.remove_memory(id).unwrap();
        self.tell(Command::Remove(Removal::Memory(id)));
        drop(removed);
    }

    /// Pushes, as a kernel does.
    fn push(&mut self, trigger: ChannelTrigger) {
        self.fifo.write(self.pushed, |lap| trigger.encode(lap).unwrap());
        self.pushed += 1;
    }

    /// Handles the oldest trigger, as the proxy does before it pops it.
    fn handle(&mut self) {
        let trigger = self.consumer.poll().unwrap();
        self.router.handle(self.consumer.position(), &trigger).unwrap();
    }

    /// Lets the proxy work until it has given up the number of `id`.
    fn give_up(&mut self, id: SemaphoreId) {
        let deadline = soon();
        while self.ports.number(id).is_some() {
            assert!(!deadline.expired(), "nothing is under way");
            self.router.progress().unwrap();
        }
    }
}

/// A request to put from the start of a memory to the same place.
fn put(semaphore: SemaphoreId, memory: MemoryId) -> ChannelTrigger {
    ChannelTrigger {
        kind: TriggerKind::DATA,
        semaphore: semaphore.0,
        dst_id: memory.0,
        src_id: memory.0,
        size: 8,
        ..ChannelTrigger::default()
    }
}

fn is_exhausted(error: &Error) -> bool {
    error.kind() == ErrorKind::Exhausted && error.message().contains("1 of them by removed")
}

/// Nobody waits for the last put of a plan: it may still lie in the FIFO when the plan is dropped.
#[test]
fn what_is_retired_stays_for_the_requests_that_lie_in_the_fifo() {
    let (context, comm, [semaphore, _]) = one_rank();
    let buffer = Arc::new(GpuBuffer::new(&context, 64).unwrap());
    let mut service = Service::new(&context);
    let id = service.add_semaphore(&semaphore).unwrap();
    let memory = service.add_memory(&comm.register_memory(&buffer, Transport::CudaIpc).unwrap()).unwrap();
    service.push(put(id, memory));
    service.registry.remove_semaphore(id).unwrap();
    let removed = service.registry.remove_memory(memory).unwrap();
    for removal in [Removal::Memory(memory), Removal::Semaphore(id)] {
        service.tell(Command::RemoveBehind(End::of(&service.fifo), removal));
    }
    drop(removed);
    service.push(put(id, memory));
    service.router.progress().unwrap();
    service.handle();
    service.ports.check(id).unwrap();
    assert_eq!((service.ports.counters(id).puts, service.ports.dropped()), (1, 0));
    service.consumer.pop().unwrap();
    service.handle();
    assert_eq!((service.ports.counters(id).puts, service.ports.dropped()), (1, 1), "pushed behind it");
    service.give_up(id);
}

/// Streams are asked later whether kernels gave up.
#[test]
fn kernels_that_ended_before_a_service_was_dropped_have_not_given_up() {
    for stopped in [false, true] {
        let (context, comm, [semaphore, _]) = one_rank();
        let service = ProxyService::start(&comm, ProxyServiceConfig::default()).unwrap();
        let id = service.add_semaphore(&semaphore).unwrap();
        let buffer = Arc::new(GpuBuffer::new(&context, 64).unwrap());
        let memory = comm.register_memory(&buffer, Transport::CudaIpc).unwrap();
        let memory = service.add_memory(&memory).unwrap();
        let outcome = service.port(id, memory, memory).unwrap().outcome.clone();
        if stopped {
            service.stop(soon()).unwrap();
        }
        drop(service);
        let deadline = soon();
        // Until the proxy has told whoever waits.
        while semaphore.connection().claim().is_err() {
            assert!(!deadline.expired(), "it ends");
        }
        let told = outcome.outcome("test").map_err(|error| error.kind());
        assert_eq!(told, if stopped { Err(ErrorKind::Stopped) } else { Ok(()) });
        assert_eq!(outcome.has_failed(), stopped);
    }
}

/// The proxy hears of both at once.
#[test]
fn what_is_retired_leaves_before_the_next_user_of_its_number_comes() {
    let (context, comm, [semaphore, _]) = one_rank();
    let memory =
        comm.register_memory(&Arc::new(GpuBuffer::new(&context, 64).unwrap()), Transport::CudaIpc).unwrap();
    let mut service = Service::new(&context);
    let id = service.add_semaphore(&semaphore).unwrap();
    let first = service.add_memory(&memory).unwrap();
    service.router.progress().unwrap();
    let removed = service.registry.remove_memory(first).unwrap();
    service.tell(Command::RemoveBehind(End::of(&service.fifo), Removal::Memory(first)));
    drop(removed);
    context.settle();
    let second = service.add_memory(&memory).unwrap();
    assert_eq!(first, second);
    service.router.progress().unwrap();
    service.push(put(id, second));
    service.handle();
    service.ports.check(id).unwrap();
    assert_eq!(service.ports.counters(id).puts, 1);
}

/// The proxy has heard of the removal, nobody has the number and nothing runs, but the last request is still to come.
#[test]
fn a_number_is_free_only_once_the_fifo_holds_no_request_of_its_former_user() {
    let (context, _comm, [first, second]) = one_rank();
    let mut service = Service::new(&context);
    let id = service.add_semaphore(&first).unwrap();
    service.router.progress().unwrap();
    service.push(ChannelTrigger { kind: TriggerKind::FLAG, semaphore: id.0, ..ChannelTrigger::default() });
    service.remove_semaphore(id);
    service.give_up(id);
    context.settle();
    assert!(service.add_semaphore(&second).is_err_and(|error| is_exhausted(&error)), "a request names it");
    service.handle();
    let added = service.add_semaphore(&second);
    assert!(added.is_err_and(|error| is_exhausted(&error)), "the proxy may be dropping the request");
    service.consumer.pop().unwrap();
    assert_eq!((service.add_semaphore(&second).unwrap(), service.ports.dropped()), (id, 1));
    service.router.progress().unwrap();
    service.ports.check(id).unwrap();
    assert_eq!(service.ports.counters(id), PortCounters::default());
}

/// A put that names a removed memory must not reach the memory that is added next.
#[test]
fn a_memorys_number_is_free_only_once_no_channel_and_no_request_names_it() {
    let (context, comm, [semaphore, _]) = one_rank();
    let memories = [(); 2].map(|()| {
        let buffer = Arc::new(GpuBuffer::new(&context, 64).unwrap());
        comm.register_memory(&buffer, Transport::CudaIpc).unwrap()
    });
    let mut service = Service::new(&context);
    let id = service.add_semaphore(&semaphore).unwrap();
    let memory = service.add_memory(&memories[0]).unwrap();
    let channel = service.registry.port(id, memory, memory).unwrap();
    service.push(put(id, memory));
    service.remove_memory(memory);
    context.settle();
    let refused =
        |service: &mut Service| service.add_memory(&memories[1]).is_err_and(|error| is_exhausted(&error));
    service.router.progress().unwrap();
    assert!(refused(&mut service), "a channel has it");
    drop(channel);
    context.settle();
    assert!(refused(&mut service), "a request in the FIFO names it");
    service.handle();
    assert!(refused(&mut service), "the proxy may be reading the request");
    let failure = service.ports.check(id).unwrap_err();
    assert!(failure.message().contains("no memory 0"), "{failure}");
    service.consumer.pop().unwrap();
    assert_eq!(service.add_memory(&memories[1]).unwrap(), memory);
}

/// What to do depends on whether a number is one of an object that is there.
#[test]
fn a_full_service_says_whether_it_waits_for_what_was_removed() {
    let (context, comm, [first, second]) = one_rank();
    let buffer = Arc::new(GpuBuffer::new(&context, 64).unwrap());
    let memory = comm.register_memory(&buffer, Transport::CudaIpc).unwrap();
    let fifo = Fifo::new(&context, 4).unwrap();
    let mut registry = Registry::new(&context, 2, 2, vec![fifo]);
    assert!(!registry.is_full() && !registry.is_full_of_memories());
    let semaphores = [(); 2].map(|()| registry.add_semaphore(&first).unwrap());
    let memories = [(); 2].map(|()| registry.add_memory(&memory).unwrap());
    assert!(registry.is_full() && registry.is_full_of_memories());
    let refusals = |registry: &mut Registry| {
        let errors = [
            registry.add_semaphore(&second).map(drop).unwrap_err(),
            registry.add_memory(&memory).unwrap_err(),
        ];
        errors.map(|error| {
            assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
            error.message().to_owned()
        })
    };
    let [of_semaphores, of_memories] = refusals(&mut registry);
    assert!(of_semaphores.contains("there are 2 semaphores already"), "{of_semaphores}");
    assert!(of_memories.contains("there are 2 memories already"), "{of_memories}");
    registry.remove_semaphore(semaphores[0].id).unwrap();
    // Held, as by a channel.
    let _held = registry.remove_memory(memories[0]).unwrap();
    for message in refusals(&mut registry) {
        assert!(message.contains("all 2 numbers are in use, 1 of them by removed"), "{message}");
    }
}

/// Requests that the first service has taken may be under way when it removes its last semaphore.
#[test]
fn a_connection_is_free_for_another_service_only_once_the_proxy_has_done_with_it() {
    let (context, _comm, [first, second]) = one_rank();
    let [mut one, mut other] = [(); 2].map(|()| Service::new(&context));
    let id = one.add_semaphore(&first).unwrap();
    one.push(ChannelTrigger { kind: TriggerKind::FLAG, semaphore: id.0, ..ChannelTrigger::default() });
    one.handle();
    one.consumer.pop().unwrap();
    one.remove_semaphore(id);
    let refused = |error: Error| error.message().contains("another proxy service");
    assert!(other.add_semaphore(&second).is_err_and(refused), "the signal is held back");
    one.give_up(id);
    other.add_semaphore(&second).unwrap();
    assert!(one.add_semaphore(&first).is_err_and(refused));
}

#[test]
fn connections_are_spread_over_the_proxies_and_each_has_one() {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let config = CommunicatorConfig::default().with_local_address(Ipv4Addr::LOCALHOST.into());
    let comm = Communicator::new(&bootstrap::local(1)[0], &context, config, soon()).unwrap();
    let connections = [0, 1, 2].map(|tag| comm.connect(0, tag, Transport::CudaIpc).unwrap());
    let semaphores = [(0, 0), (0, 1), (1, 2), (0, 3), (2, 4)]
        .map(|(index, tag)| comm.build_host2device_semaphore(&connections[index], tag).unwrap());
    comm.setup(soon()).unwrap();
    let fifos = [(); 2].map(|()| Fifo::new(&context, 4).unwrap());
    let mut registry = Registry::new(&context, 5, 1, fifos.into());
    // A connection is claimed as long as anybody holds what was added.
    let added = semaphores.map(|semaphore| registry.add_semaphore(&semaphore.get().unwrap()).unwrap());
    assert_eq!(added.map(|added| added.shard), [0, 0, 1, 0, 0]);
}

/// Its semaphores were removed, and another one comes before the proxy has looked at its queues again.
#[test]
fn a_connection_that_has_failed_begins_anew_with_its_next_semaphore() {
    let (context, _comm, [first, second]) = one_rank();
    let mut service = Service::with(&context, 2);
    let id = service.add_semaphore(&first).unwrap();
    // A put into memory that nobody has added.
    service.push(ChannelTrigger { kind: TriggerKind::DATA, semaphore: id.0, ..ChannelTrigger::default() });
    service.handle();
    service.ports.check(id).unwrap_err();
    service.remove_semaphore(id);
    let next = service.add_semaphore(&second).unwrap();
    service.router.progress().unwrap();
    service.ports.check(next).unwrap();
}

/// The proxy may hear of a semaphore, and fail it, before the call that adds it returns.
#[test]
fn a_semaphore_that_is_added_to_a_failed_connection_has_failed() {
    let (_context, comm, [first, second]) = one_rank();
    let service = ProxyService::start(&comm, ProxyServiceConfig::default()).unwrap();
    let id = service.add_semaphore(&first).unwrap();
    // A put into memory that nobody has added.
    let put = ChannelTrigger { kind: TriggerKind::DATA, semaphore: id.0, ..ChannelTrigger::default() };
    service.inner.shards[0].proxy.queue().write(0, |lap| put.encode(lap).unwrap());
    let (ports, deadline) = (service.inner.ports.clone(), soon());
    let wait_until_failed = move |id| {
        while ports.check(id).is_ok() {
            assert!(!deadline.expired(), "the proxy has not failed it");
            std::thread::yield_now();
        }
    };
    wait_until_failed(id);
    SENT.set(Some(Box::new(move || wait_until_failed(SemaphoreId(id.0 + 1)))));
    let added = service.add_semaphore(&second).unwrap();
    assert!(added.0 == id.0 + 1 && SENT.take().is_none());
    let failure = service.check(added).unwrap_err();
    assert!(failure.message().contains("no memory 0"), "{failure}");
    // The test took no position for its push, so the FIFO never counts as drained.
    service.stop(Duration::ZERO).unwrap_err();
}
