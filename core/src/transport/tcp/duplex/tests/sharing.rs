//! Connections that share the pinned memory of their communicator.

use cuda_driver_sys::CUresult;

use super::*;
use crate::gpu::{Driver, Hooks};
use crate::sync::AtomicU64;
use crate::transport::tests::{resources_with, with_memories_of};

/// Counts the streams that are made, and the bytes that are pinned.
#[derive(Default)]
struct Counted {
    streams: AtomicU64,
    pinned: AtomicU64,
}

impl Hooks for Counted {
    fn before(&self, function: &'static str) -> Option<CUresult> {
        if function == "cuStreamCreate" {
            self.streams.fetch_add(1, Ordering::Relaxed);
        }
        None
    }

    fn before_allocation(&self, function: &'static str, bytes: usize) -> Option<CUresult> {
        if function == "cuMemHostAlloc" {
            self.pinned.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        None
    }
}

#[test]
fn an_idle_connection_has_neither_a_stream_nor_pinned_memory() {
    let counted = Arc::new(Counted::default());
    let driver = Driver::software(cuda_soft::driver_table()).unwrap().with_hooks(counted.clone());
    with_memories_of(&driver, |comm, _| {
        let so_far = || (counted.streams.load(Ordering::Relaxed), counted.pinned.load(Ordering::Relaxed));
        let resources = resources_with(comm, None, 4 << 20);
        let service = resources.service().unwrap();
        let before = so_far();
        let _first = Duplex::new(&resources, &service, 1).unwrap();
        let with_stock = so_far();
        assert_eq!(with_stock.0 - before.0, 2, "a stream for each direction");
        assert_eq!(with_stock.1 - before.1, (4 << 20) + 4096, "the stock, and a page of words");
        let idle = [(); 40].map(|()| Duplex::new(&resources, &service, 1).unwrap());
        assert_eq!(so_far(), with_stock);
        // Nor after it has been used.
        let stock = resources.stock().unwrap();
        let device = Arc::new(GpuBuffer::new(comm.context(), 3 * MAX_PAYLOAD).unwrap());
        let place = Place::Device(device.slice(..).unwrap());
        let grant = resources.regions.grant(1, place, 64, Rights::REMOTE_WRITE);
        let used = so_far();
        let mut far = attach(&idle[0]);
        far.say(&[Frame::Write { region: grant.number(), offset: 0, len: 8 }]);
        far.0.write_all(&[7; 8]).unwrap();
        far.say(&[Frame::Ask]);
        assert_eq!(far.hear(), Frame::Ack { count: 2 });
        assert_eq!((stock.outgoing.free(), stock.incoming.free()), (4, 4));
        assert_eq!([&stock.outgoing, &stock.incoming].map(|half| half.holders()), [0; 2]);
        assert_eq!(so_far(), used);
    });
}

/// Writes `len` bytes of device memory.
fn write(duplex: &Arc<Duplex>, memory: &RegisteredMemory, device: &Arc<GpuBuffer>, len: usize) {
    let remote = memory.remote().unwrap().0;
    let place = Place::Device(device.slice(..len).unwrap());
    duplex.outbox(|outbox| outbox.write(remote, remote.region().unwrap(), 0, place, len));
    duplex.kick().unwrap();
}

/// One peer reads nothing, and has all that can be had.
#[test]
fn a_peer_that_reads_nothing_holds_up_no_other_connection() {
    with_memories(|comm, [memory, _]| {
        let resources = resources_with(comm, None, 2 * MAX_PAYLOAD);
        let (service, stock) = (resources.service().unwrap(), resources.stock().unwrap());
        let duplexes = [(); 4].map(|()| Duplex::new(&resources, &service, 1).unwrap());
        let [stuck, waits, also, hosts] = &duplexes;
        let device = Arc::new(GpuBuffer::new(comm.context(), 8 * MAX_PAYLOAD).unwrap());
        let data: Vec<u8> = (0..8 * MAX_PAYLOAD).map(|at| (at / 1000 % 251) as u8).collect();
        device.upload(0, &data, soon()).unwrap();
        let (mut far, mut near, mut third, mut fourth) =
            (attach(stuck), attach(waits), attach(also), attach(hosts));
        write(stuck, &memory, &device, 8 * MAX_PAYLOAD);
        // Longer than any turn: the socket takes no more, and all threads sleep.
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(stock.outgoing.free(), 0);
        let host = Arc::new(HostBuffer::new(comm.context(), 2 * MAX_PAYLOAD).unwrap());
        let remote = memory.remote().unwrap().0;
        hosts.outbox(|outbox| {
            outbox.write(remote, remote.region().unwrap(), 0, place(&host), 2 * MAX_PAYLOAD);
        });
        hosts.kick().unwrap();
        (0..2).for_each(|_| assert!(matches!(fourth.hear(), Frame::Write { .. })));
        assert_eq!(stock.outgoing.free(), 0, "host memory needs none");
        write(waits, &memory, &device, 8);
        write(also, &memory, &device, MAX_PAYLOAD + 8);
        assert_eq!(near.hear(), Frame::Write { region: remote.region().unwrap(), offset: 0, len: 8 });
        let lens = [MAX_PAYLOAD, 8].map(|len| len as u32);
        assert!(lens.iter().all(|wanted| matches!(third.hear(), Frame::Write { len, .. } if len == *wanted)));
        wait_for("it takes more and more", || stock.outgoing.free() == 1);
        // What was moved meanwhile is the same.
        let mut came = Vec::new();
        while came.len() < data.len() {
            let mut header = [0; HEADER_BYTES];
            far.0.read_exact(&mut header).unwrap();
            if let Frame::Write { len, .. } = Frame::decode(&header).unwrap() {
                let at = came.len();
                came.resize(at + len as usize, 0);
                far.0.read_exact(&mut came[at..]).unwrap();
            }
        }
        assert!(came == data);
        // A lost one gives everything back as well.
        write(stuck, &memory, &device, 8 * MAX_PAYLOAD);
        wait_for("nothing is sent", || stock.outgoing.free() == 0);
        drop(far);
        wait_for("it has not failed", || stuck.check().is_err());
        wait_for("the memory is not given back", || stock.outgoing.free() == 1);
    });
}

/// More of them than there are blocks, before and while another one sends.
#[test]
fn any_number_of_peers_that_read_nothing_holds_up_no_other_connection() {
    with_memories(|comm, [memory, _]| {
        let resources = resources_with(comm, None, 4 * MAX_PAYLOAD);
        let service = resources.service().unwrap();
        let duplexes = [(); 7].map(|()| Duplex::new(&resources, &service, 1).unwrap());
        let [sends, stuck @ ..] = &duplexes;
        let device = Arc::new(GpuBuffer::new(comm.context(), 8 * MAX_PAYLOAD).unwrap());
        let mut near = attach(sends);
        let fars: Vec<_> = stuck.iter().map(attach).collect();
        for (round, late) in [&stuck[..3], &stuck[3..], &[]].into_iter().enumerate() {
            late.iter().for_each(|late| write(late, &memory, &device, 8 * MAX_PAYLOAD));
            write(sends, &memory, &device, 8 * MAX_PAYLOAD);
            // Between rounds it may ask for an acknowledgement.
            let writes = std::iter::repeat_with(|| near.hear()).filter(|frame| *frame != Frame::Ask);
            assert!(writes.take(8).all(|frame| matches!(frame, Frame::Write { .. })), "round {round}");
        }
        assert!(stuck.iter().all(|stuck| !stuck.outbox(|outbox| outbox.is_empty())));
        drop(fars);
    });
}

/// In the middle of what it sends, and of what is sent to it.
#[test]
fn whoever_fails_or_is_dropped_gives_everything_back() {
    for fails in [true, false] {
        with_memories(|comm, [memory, _]| {
            let resources = resources_with(comm, None, 8 * MAX_PAYLOAD);
            let (service, stock) = (resources.service().unwrap(), resources.stock().unwrap());
            let duplex = Duplex::new(&resources, &service, 1).unwrap();
            let device = Arc::new(GpuBuffer::new(comm.context(), 8 * MAX_PAYLOAD).unwrap());
            let place = Place::Device(device.slice(..).unwrap());
            let grant = resources.regions.grant(1, place, device.len(), Rights::REMOTE_WRITE);
            let (near, mut far) = UnixStream::pair().unwrap();
            near.set_nonblocking(true).unwrap();
            duplex.attach_unserved(Box::new(Wire(near)));
            let half = Frame::Write { region: grant.number(), offset: 0, len: 1000 };
            far.write_all(&[&half.encode()[..], &[1; 500]].concat()).unwrap();
            write(&duplex, &memory, &device, device.len());
            let deadline = soon();
            while (stock.outgoing.free() == 4 || stock.incoming.free() == 4) && !deadline.expired() {
                let _ = duplex.progress();
            }
            let held = (stock.outgoing.free() < 4, stock.incoming.free());
            if fails {
                duplex.fail(&Error::new(ErrorKind::PeerLost, "x", "gone"), false);
                let _ = duplex.progress();
                let _ = duplex.kick();
            } else {
                drop(duplex);
            }
            assert_eq!(held, (true, 3));
            let free = || (stock.outgoing.free(), stock.incoming.free());
            wait_for("not everything is given back", || free() == (4, 4));
            assert_eq!([&stock.outgoing, &stock.incoming].map(|half| half.holders()), [0; 2]);
            // The place of its half frame is free, too.
            let parks = [(); 4].map(|()| stock.incoming.park());
            assert_eq!(parks, [true, true, true, false]);
        });
    }
}

/// Whoever waits in line sleeps when the connection fails, and nobody tells it when the device has finished.
#[test]
fn what_a_failed_connection_was_copying_is_waited_for() {
    with_memories(|comm, [memory, _]| {
        let resources = resources_with(comm, None, 2 * MAX_PAYLOAD);
        let (service, stock) = (resources.service().unwrap(), resources.stock().unwrap());
        let duplexes = [(); 2].map(|()| Duplex::new(&resources, &service, 1).unwrap());
        let [fails, waits] = &duplexes;
        let device = Arc::new(GpuBuffer::new(comm.context(), 64).unwrap());
        let word = Arc::new(crate::gpu::PinnedBuffer::new(comm.context(), 8).unwrap());
        let (_far, mut near) = (attach(fails), attach(waits));
        stock.outgoing.stream().wait_value64(&word.slice(..).unwrap(), 1).unwrap();
        write(fails, &memory, &device, 8);
        wait_for("nothing is copied", || stock.outgoing.free() == 0);
        write(waits, &memory, &device, 16);
        std::thread::sleep(Duration::from_millis(20));
        fails.fail(&Error::new(ErrorKind::PeerLost, "x", "gone"), false);
        std::thread::sleep(Duration::from_millis(20));
        let early = waits.outbox(|outbox| outbox.is_empty());
        word.memory().word64(0).unwrap().store(1, Ordering::Release);
        assert!(matches!(near.hear(), Frame::Write { len: 16, .. }));
        assert!(!early, "it has memory that is still written to");
    });
}
