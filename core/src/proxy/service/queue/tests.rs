//! A connection as a proxy serves it.

use std::net::Ipv4Addr;
use std::sync::mpsc;
use std::time::Duration;

use super::super::numbers::Numbers;
use super::super::state::PortCounters;
use super::*;
use crate::bootstrap::{self, Bootstrap as _};
use crate::comm::{Communicator, CommunicatorConfig, EndpointConfig, HostBuffer, Transport};
use crate::deadline::Deadline;
use crate::gpu::{Context, Device, Driver, Event, PinnedBuffer, Stream};
use crate::sync::Ordering;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// With nothing under way nobody is told, and later requests are what is lost.
#[test]
fn a_peer_that_has_left_is_no_error_before_something_is_asked_of_it() {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    std::thread::scope(|scope| {
        for bootstrap in bootstrap::local(2) {
            let driver = driver.clone();
            scope.spawn(move || {
                let (me, peer) = (bootstrap.rank(), 1 - bootstrap.rank());
                let context = Context::new(&Device::new(&driver, me).unwrap()).unwrap();
                let config = CommunicatorConfig::default().with_local_address(Ipv4Addr::LOCALHOST.into());
                let comm = Communicator::new(&bootstrap, &context, config, soon()).unwrap();
                let connection = comm.connect(peer, 0, Transport::Ethernet).unwrap();
                comm.setup(soon()).unwrap();
                let connection = connection.get().unwrap();
                if me == 1 {
                    return;
                }
                let deadline = soon();
                while connection.check("test").is_ok() {
                    assert!(!deadline.expired(), "the peer has not left");
                }
                let claim = Arc::new(connection.claim().unwrap());
                let queue = || ConnectionQueue::new(claim.clone(), Ports::new(&context, me, 1).unwrap());
                let trigger = ChannelTrigger {
                    kind: TriggerKind::FLAG,
                    dst_id: 0,
                    dst_offset: 0,
                    src_id: 0,
                    src_offset: 0,
                    size: 0,
                    semaphore: 0,
                };
                let request = Request { position: 0, trigger };
                let mut idle = queue();
                idle.examine();
                assert!(idle.failure.is_some() && idle.untold);
                idle.take(request, &Tables::default(), 16);
                assert!(!idle.untold);
                let mut busy = queue();
                busy.deferred.push_back(Deferred::new(request, &Tables::default()));
                busy.examine();
                assert!(busy.failure.is_some() && !busy.untold);
            });
        }
    });
}

/// Rank 0's end of a connection with room for one operation, which a gate holds back, and what requests for it name.
struct Gated {
    queue: ConnectionQueue,
    connection: Connection,
    ports: Arc<Ports>,
    tables: Tables,
    source: Arc<HostBuffer>,
    open: mpsc::Sender<()>,
    keeper: std::thread::JoinHandle<bool>,
}

const KEPT: SemaphoreId = SemaphoreId(0);
const REMOVED: SemaphoreId = SemaphoreId(1);

/// Runs rank 0, whose puts leave `last` in rank 1's memory.
fn gated(last: u64, run: impl Fn(&mut Gated) + Sync) {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    std::thread::scope(|scope| {
        for bootstrap in bootstrap::local(2) {
            let (driver, run) = (driver.clone(), &run);
            scope.spawn(move || {
                let (me, peer) = (bootstrap.rank(), 1 - bootstrap.rank());
                let context = Context::new(&Device::new(&driver, me).unwrap()).unwrap();
                let config = CommunicatorConfig::default().with_local_address(Ipv4Addr::LOCALHOST.into());
                let comm = Communicator::new(&bootstrap, &context, config, soon()).unwrap();
                let endpoint = EndpointConfig::new(Transport::Ethernet).with_max_outstanding(1);
                let [source, inbox] = [(); 2].map(|()| Arc::new(HostBuffer::new(&context, 64).unwrap()));
                let [mine, arrivals] =
                    [&source, &inbox].map(|buffer| comm.register_host(buffer, Transport::Ethernet).unwrap());
                comm.send_memory(&arrivals, peer, 0).unwrap();
                let theirs = comm.recv_memory(peer, 0).unwrap();
                let connection = comm.connect(peer, 0, endpoint).unwrap();
                let semaphore = comm.build_host2device_semaphore(&connection, 0).unwrap();
                comm.setup(soon()).unwrap();
                if me == 0 {
                    let (connection, semaphore) = (connection.get().unwrap(), semaphore.get().unwrap());
                    let mut end =
                        Gated::new(&context, connection, semaphore, [theirs.get().unwrap(), mine], source);
                    run(&mut end);
                    end.connection.flush(soon()).unwrap();
                    assert!(end.keeper.join().unwrap(), "a call waited for room");
                }
                context.reap();
                bootstrap.barrier(soon()).unwrap();
                if me == 1 {
                    assert_eq!(inbox.memory().word64(0).unwrap().load(Ordering::Acquire), last);
                }
                bootstrap.barrier(soon()).unwrap();
                drop(comm);
                context.settle();
            });
        }
    });
}

impl Gated {
    fn new(
        context: &Context,
        connection: Connection,
        semaphore: Host2DeviceSemaphore,
        memories: [RegisteredMemory; 2],
        source: Arc<HostBuffer>,
    ) -> Self {
        let tables =
            Tables { memories: memories.map(Some).into(), routes: vec![Some(Route { queue: 0, semaphore })] };
        let ports = Ports::new(context, 0, 2).unwrap();
        let claim = Arc::new(connection.claim().unwrap());
        let mut queue = ConnectionQueue::new(claim, ports.clone());
        let mut numbers = Numbers::new(context, 2);
        for id in [KEPT, REMOVED] {
            ports.open(id, numbers.take(0..0).unwrap());
            queue.add(id);
        }
        let gate = Arc::new(PinnedBuffer::new(context, 8).unwrap());
        let (stream, event) = (Stream::new(context).unwrap(), Event::new(context).unwrap());
        stream.wait_value64(&gate.slice(..).unwrap(), 1).unwrap();
        event.record(&stream).unwrap();
        connection.wait_event(&event).unwrap();
        // A call that waits for what the gate holds back would wait for ever.
        let (open, opened) = mpsc::channel();
        let keeper = std::thread::spawn(move || {
            let in_time = opened.recv_timeout(Duration::from_secs(20)).is_ok();
            gate.memory().word64(0).unwrap().store(1, Ordering::Release);
            in_time
        });
        Self { queue, connection, ports, tables, source, open, keeper }
    }

    /// A put of `number`, and of a signal behind it if `kind` says so.
    fn put(&mut self, number: u64, kind: TriggerKind, limit: usize) {
        let word = self.source.memory().word64(8 * number as usize).unwrap();
        word.store(number, Ordering::Relaxed);
        let trigger = ChannelTrigger {
            kind,
            dst_id: 0,
            dst_offset: 0,
            src_id: 1,
            src_offset: 8 * number,
            size: 8,
            semaphore: KEPT.0,
        };
        self.queue.take(Request { position: number, trigger }, &self.tables, limit);
    }

    fn finish(&mut self) {
        let deadline = soon();
        while self.queue.progress() || self.queue.is_leaving() {
            assert!(!deadline.expired(), "the puts are not done");
        }
    }
}

/// Four puts to one place, of which the last is made when there is room again and two still wait: as many as may. Meanwhile a
/// semaphore is removed whose number somebody may still need.
#[test]
fn a_request_does_not_pass_those_that_wait_for_room() {
    const LIMIT: usize = 2;
    gated(4, |end| {
        end.put(1, TriggerKind::DATA, LIMIT);
        assert!(end.queue.is_busy(), "held back until the end of the burst");
        [2, 3].into_iter().for_each(|number| end.put(number, TriggerKind::DATA, LIMIT));
        end.queue.remove(REMOVED);
        end.queue.progress();
        assert_eq!((end.queue.deferred.len(), end.ports.deferred()), (2, 2), "there was no room");
        assert_eq!((&end.queue.semaphores[..], end.queue.is_leaving()), (&[KEPT][..], true));
        assert!(matches!(end.queue.leaving[..], [(Leaving::Waiting(3), _)]), "{:?}", end.queue.leaving);
        assert!(end.ports.number(REMOVED).is_some(), "the puts may need it");
        end.open.send(()).unwrap();
        let deadline = soon();
        while !end.connection.has_room().unwrap() {
            assert!(!deadline.expired(), "there is no room again");
        }
        end.put(4, TriggerKind::DATA, LIMIT);
        end.finish();
        assert!(end.ports.number(KEPT).is_some() && end.ports.number(REMOVED).is_none());
        let counted = PortCounters { puts: 4, bytes: 32, ..PortCounters::default() };
        assert_eq!(end.ports.counters(KEPT), counted);
    });
}

/// They were taken before: neither the memories nor the semaphore, whose number they keep, are theirs to lose.
#[test]
fn requests_that_wait_for_room_are_served_although_what_they_name_is_removed() {
    gated(3, |end| {
        [1, 2].into_iter().for_each(|number| end.put(number, TriggerKind::DATA, 16));
        end.put(3, TriggerKind::DATA.with(TriggerKind::FLAG), 16);
        assert_eq!(end.queue.deferred.len(), 2, "there was no room");
        end.queue.remove(KEPT);
        end.tables = Tables::default();
        end.queue.progress();
        assert!(end.ports.number(KEPT).is_some(), "its requests have not been made");
        end.open.send(()).unwrap();
        end.finish();
        assert!(end.queue.failure.is_none() && end.ports.number(KEPT).is_none());
        let counted = PortCounters { puts: 3, bytes: 24, signals: 1, ..PortCounters::default() };
        assert_eq!((end.ports.counters(KEPT), end.ports.dropped()), (counted, 0));
    });
}

/// A removed semaphore waits until its last request is made, not only until that is the next.
#[test]
fn a_number_is_given_back_only_behind_the_last_request_that_waited_for_room() {
    gated(2, |end| {
        [1, 2].into_iter().for_each(|number| end.put(number, TriggerKind::DATA, 16));
        end.queue.remove(REMOVED);
        end.queue.progress();
        assert_eq!(end.queue.deferred.len(), 1, "there was no room");
        assert!(matches!(end.queue.leaving[..], [(Leaving::Waiting(2), _)]), "{:?}", end.queue.leaving);
        end.open.send(()).unwrap();
        end.finish();
        assert!(end.ports.number(REMOVED).is_none());
    });
}

/// Removed before, removed afterwards, and added afterwards.
#[test]
fn a_queue_that_has_failed_keeps_no_number_and_tells_everybody() {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let config = CommunicatorConfig::default().with_local_address(Ipv4Addr::LOCALHOST.into());
    let comm = Communicator::new(&bootstrap::local(1)[0], &context, config, soon()).unwrap();
    let connection = comm.connect(0, 0, Transport::CudaIpc).unwrap();
    comm.setup(soon()).unwrap();
    let ports = Ports::new(&context, 0, 3).unwrap();
    let claim = Arc::new(connection.get().unwrap().claim().unwrap());
    let mut queue = ConnectionQueue::new(claim, ports.clone());
    let mut numbers = Numbers::new(&context, 3);
    let [leaving, present, later] = [0, 1, 2].map(SemaphoreId);
    [leaving, present, later].into_iter().for_each(|id| ports.open(id, numbers.take(0..1).unwrap()));
    [leaving, present].into_iter().for_each(|id| queue.add(id));
    let request = Request { position: 0, trigger: ChannelTrigger::default() };
    queue.deferred.push_back(Deferred::new(request, &Tables::default()));
    queue.remove(leaving);
    assert!(queue.is_leaving() && ports.number(leaving).is_some(), "a request may need it");
    queue.fail(&Error::usage("test", "on purpose"), true);
    assert_eq!((queue.is_busy(), ports.dropped()), (false, 1), "the request that waited for room");
    assert!(!queue.is_leaving() && ports.number(leaving).is_none(), "no request is left");
    assert!(ports.check(present).is_err() && ports.number(present).is_some());
    queue.remove(present);
    assert!(ports.number(present).is_none());
    queue.add(later);
    assert!(ports.check(later).is_err(), "its kernels would wait for ever");
    queue.remove(later);
    assert!(queue.is_spent() && ports.number(later).is_none());
}

/// A kernel that pushes to a peer that takes nothing must come to a stop, and not fill the host's memory.
#[test]
fn a_request_above_the_limit_waits_for_room() {
    gated(3, |end| {
        [1, 2].into_iter().for_each(|number| end.put(number, TriggerKind::DATA, 1));
        assert_eq!(end.queue.deferred.len(), 1);
        let open = end.open.clone();
        let opener = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            open.send(()).unwrap();
        });
        end.put(3, TriggerKind::DATA, 1);
        assert_eq!(end.queue.deferred.len(), 1, "as many as may wait");
        opener.join().unwrap();
        end.finish();
    });
}
