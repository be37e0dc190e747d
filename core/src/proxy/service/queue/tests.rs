//! A connection as a proxy serves it.

use std::net::Ipv4Addr;
use std::sync::mpsc;
use std::time::Duration;

use super::super::state::PortCounters;
use super::*;
use crate::bootstrap::{self, Bootstrap as _};
use crate::comm::{Communicator, CommunicatorConfig, EndpointConfig, HostBuffer, Transport};
use crate::deadline::Deadline;
use crate::gpu::{Context, Device, Driver, Event, PinnedBuffer, Stream};
use crate::sync::Ordering;

/// With nothing under way nobody is told, and later requests are what is lost.
#[test]
fn a_peer_that_has_left_is_no_error_before_something_is_asked_of_it() {
    let soon = || Deadline::after(Duration::from_secs(60));
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
                let queue = || ConnectionQueue::new(&connection, Ports::new(&context, me, 1).unwrap());
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
                busy.deferred.push_back(request);
                busy.examine();
                assert!(busy.failure.is_some() && !busy.untold);
            });
        }
    });
}

/// Four puts to one place, of which the last is made when there is room again and two still wait: as many as may. Meanwhile a
/// semaphore is removed whose number somebody may still need.
#[test]
fn a_request_does_not_pass_those_that_wait_for_room() {
    const LIMIT: usize = 2;
    let [kept, removed] = [0, 1].map(SemaphoreId);
    let soon = || Deadline::after(Duration::from_secs(60));
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    std::thread::scope(|scope| {
        for bootstrap in bootstrap::local(2) {
            let driver = driver.clone();
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
                let connection = connection.get().unwrap();
                if me == 0 {
                    let memories = vec![Some(theirs.get().unwrap()), Some(mine)];
                    let routes = vec![Some(Route { queue: 0, semaphore: semaphore.get().unwrap() })];
                    let tables = Tables { memories, routes };
                    let ports = Ports::new(&context, me, 2).unwrap();
                    let mut queue = ConnectionQueue::new(&connection, ports.clone());
                    for id in [kept, removed] {
                        ports.open(id);
                        queue.add(id);
                    }
                    let put = |queue: &mut ConnectionQueue, number: u64| {
                        let word = source.memory().word64(8 * number as usize).unwrap();
                        word.store(number, Ordering::Relaxed);
                        let trigger = ChannelTrigger {
                            kind: TriggerKind::DATA,
                            dst_id: 0,
                            dst_offset: 0,
                            src_id: 1,
                            src_offset: 8 * number,
                            size: 8,
                            semaphore: 0,
                        };
                        queue.take(Request { position: number, trigger }, &tables, LIMIT);
                    };
                    let gate = Arc::new(PinnedBuffer::new(&context, 8).unwrap());
                    let (stream, event) = (Stream::new(&context).unwrap(), Event::new(&context).unwrap());
                    stream.wait_value64(&gate.slice(..).unwrap(), 1).unwrap();
                    event.record(&stream).unwrap();
                    connection.wait_event(&event).unwrap();
                    // A call that waits for what the gate holds back would wait for ever.
                    let (open, opened) = mpsc::channel();
                    let keeper = {
                        let gate = gate.clone();
                        std::thread::spawn(move || {
                            let in_time = opened.recv_timeout(Duration::from_secs(20)).is_ok();
                            gate.memory().word64(0).unwrap().store(1, Ordering::Release);
                            in_time
                        })
                    };
                    put(&mut queue, 1);
                    assert!(queue.is_busy(), "held back until the end of the burst");
                    [2, 3].into_iter().for_each(|number| put(&mut queue, number));
                    queue.remove(removed);
                    queue.progress(&tables);
                    assert_eq!((queue.deferred.len(), ports.deferred()), (2, 2), "there was no room");
                    assert_eq!((&queue.semaphores[..], queue.is_leaving()), (&[kept][..], true));
                    assert!(ports.number(removed).is_some(), "the puts may need it");
                    open.send(()).unwrap();
                    assert!(keeper.join().unwrap(), "a call waited for room");
                    let deadline = soon();
                    while !connection.has_room().unwrap() {
                        assert!(!deadline.expired(), "there is no room again");
                    }
                    put(&mut queue, 4);
                    while queue.progress(&tables) || queue.is_leaving() {
                        assert!(!deadline.expired(), "the puts are not done");
                    }
                    assert!(ports.number(kept).is_some() && ports.number(removed).is_none());
                    let counted = PortCounters { puts: 4, bytes: 32, ..PortCounters::default() };
                    assert_eq!(ports.counters(kept), counted);
                    connection.flush(deadline).unwrap();
                }
                context.reap();
                bootstrap.barrier(soon()).unwrap();
                if me == 1 {
                    assert_eq!(inbox.memory().word64(0).unwrap().load(Ordering::Acquire), 4);
                }
                bootstrap.barrier(soon()).unwrap();
                drop((connection, comm));
                context.settle();
            });
        }
    });
}
