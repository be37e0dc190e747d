//! Everything is made and dropped in random order while traffic runs; in the end nothing is left: no descriptor, no device
//! memory, no grant, no semaphore slot.
//!
//! `AQUEDUCT_TEST_ROUNDS` is how many rounds are run (60), `AQUEDUCT_TEST_SEED` chooses them (1).

use std::sync::Arc;
use std::time::Duration;

use aqueduct::comm::{
    Connection, EndpointConfig, Host2HostSemaphore, HostBuffer, RegisteredMemory, Transport,
};
use aqueduct::gpu::{Event, GpuBuffer, Stream};
use aqueduct::internals::rdma::Verbs;
use aqueduct_tests::ranks;

use crate::group::{Machine, Rank, config, processes_with, soon, threads_with};
use crate::standin;

/// Semaphores that a rank may have.
const SLOTS: u32 = 16;
/// Ways between the ranks at a time.
const WAYS: usize = 6;
const LEN: usize = 256 << 10;

/// Splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % below as u64) as usize
    }

    fn once_in(&mut self, count: usize) -> bool {
        self.next(count) == 0
    }
}

/// Objects that are made together and dropped one by one.
struct Way {
    connection: Option<Connection>,
    source: Option<RegisteredMemory>,
    inbox: Option<RegisteredMemory>,
    target: Option<RegisteredMemory>,
    semaphore: Option<Host2HostSemaphore>,
}

impl Way {
    fn drop_part(&mut self, part: usize) {
        match part {
            0 => self.source = None,
            1 => self.inbox = None,
            2 => self.target = None,
            _ => self.semaphore = None,
        }
    }

    /// Writes of all sizes and signals, some behind an event of a stream, some together.
    fn traffic(&self, rank: &Rank, random: &mut Random) {
        let Some(connection) = &self.connection else { return };
        if random.once_in(8) {
            let stream = Stream::new(rank.comm.context()).unwrap();
            let event = Event::new(rank.comm.context()).unwrap();
            event.record(&stream).unwrap();
            connection.wait_event(&event).unwrap();
        }
        let batch = random.once_in(3).then(|| connection.batch());
        for _ in 0..random.next(6) {
            if let (Some(source), Some(target)) = (&self.source, &self.target) {
                let size = [8, 64, 600, 5000, LEN][random.next(5)];
                let offset = random.next(LEN - size + 1) & !7;
                connection.write(target, offset, source, offset, size).unwrap();
            }
            if let Some(semaphore) = &self.semaphore {
                semaphore.signal().unwrap();
            }
        }
        drop(batch);
        if random.once_in(5) {
            connection.flush(soon()).unwrap();
        }
    }
}

fn memory(rank: &Rank, transport: Transport, random: &mut Random) -> RegisteredMemory {
    memory_of(rank, transport, random.once_in(2))
}

fn memory_of(rank: &Rank, transport: Transport, host: bool) -> RegisteredMemory {
    if host {
        let buffer = Arc::new(HostBuffer::new(rank.comm.context(), LEN).unwrap());
        rank.comm.register_host(&buffer, transport).unwrap()
    } else {
        let buffer = Arc::new(GpuBuffer::new(rank.comm.context(), LEN).unwrap());
        rank.comm.register_memory(&buffer, transport).unwrap()
    }
}

/// New ways between the two ranks; the first tag is `tag`. While no slot is free, their signals are still on their way.
fn make(rank: &Rank, endpoint: &EndpointConfig, tag: u64, count: usize, random: &mut Random) -> Vec<Way> {
    let (comm, peer) = (&rank.comm, 1 - rank.me());
    let pending: Vec<_> = (tag..tag + count as u64)
        .map(|tag| {
            let [source, inbox] = [(); 2].map(|()| memory(rank, endpoint.transport, random));
            comm.send_memory(&inbox, peer, tag).unwrap();
            let connection = comm.connect(peer, tag, endpoint.clone()).unwrap();
            let semaphore = comm.build_host2host_semaphore(&connection, tag).unwrap();
            (source, inbox, comm.recv_memory(peer, tag).unwrap(), connection, semaphore)
        })
        .collect();
    comm.setup(soon()).unwrap();
    let ways: Vec<Way> = pending
        .into_iter()
        .map(|(source, inbox, target, connection, semaphore)| Way {
            connection: Some(connection.get().unwrap()),
            source: Some(source),
            inbox: Some(inbox),
            target: Some(target.get().unwrap()),
            semaphore: Some(semaphore.get().unwrap()),
        })
        .collect();
    rank.barrier();
    for semaphore in ways.iter().filter_map(|way| way.semaphore.as_ref()) {
        assert!(!semaphore.poll().unwrap(), "a signal of another semaphore has arrived at a new one");
    }
    rank.barrier();
    ways
}

/// Resources in use by this process and its device.
#[derive(Debug, PartialEq, Eq)]
struct Usage {
    descriptors: usize,
    memory: usize,
}

impl Usage {
    fn now(rank: &Rank) -> Self {
        let context = rank.comm.context();
        // Calls drop what service threads may not.
        rank.comm.check().unwrap();
        context.reap();
        let (free, total) = context.memory_info().unwrap();
        Self { descriptors: descriptors(), memory: total - free }
    }

    /// Once it does not change any more: sockets are closed in the background.
    fn at_rest(rank: &Rank) -> Self {
        let (mut now, mut same) = (Self::now(rank), 0);
        while same < 50 {
            std::thread::sleep(Duration::from_millis(2));
            let next = Self::now(rank);
            same = if next == now { same + 1 } else { 0 };
            now = next;
        }
        now
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Waits until `left` says that nothing is left, or says what is.
fn until_nothing_is_left(what: &str, left: impl Fn() -> Option<String>) {
    let deadline = soon();
    while let Some(left) = left() {
        assert!(!deadline.expired(), "{what}: {left}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// All rounds. `agrees`: both ranks drop a connection only when neither uses it any more, as verbs need.
fn churn(rank: Rank, endpoint: &EndpointConfig, agrees: bool) {
    let rounds = number("AQUEDUCT_TEST_ROUNDS", 60);
    let seed = number("AQUEDUCT_TEST_SEED", 1);
    // Both ranks do the same at the same time where they must; where they need not, each what it likes.
    let id = rank.bootstrap.all_gather(&seed.to_le_bytes(), soon()).unwrap();
    let seed = u64::from_le_bytes(id[0][..].try_into().unwrap());
    println!("{rounds} rounds of AQUEDUCT_TEST_SEED={seed}");
    let (mut both, mut mine) = (Random(seed), Random(seed ^ (u64::from(rank.me()) + 1) << 32));
    // The first ways make what communicator and context keep: pools, threads, staging memory.
    for kind in [true, false] {
        drop(memory_of(&rank, endpoint.transport, kind));
    }
    rank.buffer(1).upload(0, &[0_u8], soon()).unwrap();
    let warm = make(&rank, endpoint, 0, 1, &mut mine);
    warm[0].connection.as_ref().unwrap().flush(soon()).unwrap();
    rank.barrier();
    drop(warm);
    settle(&rank);
    let before = Usage::at_rest(&rank);
    rank.barrier();
    let (mut ways, mut tag) = (Vec::new(), 1);
    for _ in 0..rounds {
        let count = both.next(3).min(WAYS - ways.len());
        // Slots of dropped semaphores are free once their signals have arrived.
        settle_slots(&rank, &ways);
        ways.extend(make(&rank, endpoint, tag, count, &mut mine));
        tag += count as u64;
        ways.iter().for_each(|way| way.traffic(&rank, &mut mine));
        for _ in 0..mine.next(4) {
            if !ways.is_empty() {
                let way = mine.next(ways.len());
                ways[way].drop_part(mine.next(4));
            }
        }
        for _ in 0..both.next(3) {
            if !ways.is_empty() {
                let mut way: Way = ways.swap_remove(both.next(ways.len()));
                if agrees {
                    way.connection.as_ref().unwrap().flush(soon()).unwrap();
                    rank.barrier();
                }
                if mine.once_in(2) {
                    way.connection = None;
                }
                (0..4).for_each(|_| way.drop_part(mine.next(4)));
            }
        }
    }
    if agrees {
        ways.iter().for_each(|way| way.connection.as_ref().unwrap().flush(soon()).unwrap());
    }
    rank.barrier();
    drop(ways);
    settle(&rank);
    until_nothing_is_left("a communicator whose objects were dropped", || {
        let held = still_held(&rank, 0);
        let now = Usage::now(&rank);
        let more = held.is_some() || now.descriptors > before.descriptors || now.memory > before.memory;
        more.then(|| format!("{now:?} and at first {before:?}; {held:?}"))
    });
    rank.barrier();
    // Every slot is free: as many semaphores as there are can be made.
    let connection = rank.comm.connect(1 - rank.me(), u64::MAX >> 1, endpoint.clone()).unwrap();
    let all: Vec<_> = (0..u64::from(SLOTS))
        .map(|tag| rank.comm.build_host2host_semaphore(&connection, tag).unwrap())
        .collect();
    rank.comm.setup(soon()).unwrap();
    connection.get().unwrap().flush(soon()).unwrap();
    rank.barrier();
    drop((all, connection));
    rank.comm.close(soon()).unwrap();
}

/// Waits until neither rank keeps anything for the other.
fn settle(rank: &Rank) {
    until_nothing_is_left("the peer's holds", || still_held(rank, 0));
    rank.barrier();
}

/// Reaps finished work, and describes the rest: objects held for the peer, if there are more than `most`, and cleanup that waits
/// for this rank's work.
fn still_held(rank: &Rank, most: usize) -> Option<String> {
    rank.comm.context().reap();
    // Calls drop what service threads may not.
    rank.comm.check().unwrap();
    let (held, own) = (rank.comm.held_by_peers(), rank.comm.context().unreaped());
    (held > most || own > 0)
        .then(|| format!("{held} things are kept for the peer, {own} for work of this rank"))
}

/// Waits until few enough slots are in use for the next round.
fn settle_slots(rank: &Rank, ways: &[Way]) {
    // A semaphore in use is kept as memory, and as a slot.
    until_nothing_is_left("slots", || still_held(rank, 3 * (ways.len() + 2)));
    rank.barrier();
}

fn of_processes(transport: Transport, test: &str) {
    let before = descriptors();
    let config = config().with_max_semaphores(SLOTS);
    processes_with(Machine::Software, 2, test, config, |rank| churn(rank, &transport.into(), false));
    if ranks::rank().is_some() {
        until_nothing_is_left("a dropped communicator", || {
            let now = descriptors();
            // The device of the process stays.
            (now > before + DEVICE).then(|| format!("{now} descriptors, {before} at first"))
        });
    }
}

/// Descriptors that the software device and the bootstrap keep for the process.
const DEVICE: usize = 8;

#[test]
fn cuda_ipc() {
    of_processes(Transport::CudaIpc, "churn::cuda_ipc");
}

#[test]
fn ethernet() {
    of_processes(Transport::Ethernet, "churn::ethernet");
}

#[test]
fn stand_in() {
    let config =
        config().with_max_semaphores(SLOTS).with_verbs(Verbs::from_table(standin::table(), "stand-in"));
    let environment = [("AQUEDUCT_IB_DEVICES", "null0")];
    threads_with(Machine::Software, 2, "churn::stand_in", &config, &environment, |rank| {
        churn(rank, &Transport::Ib(0).into(), true);
    });
    assert_eq!(standin::violations(), 0, "something was destroyed while it was in use");
    until_nothing_is_left("dropped communicators", || {
        (standin::opened() > 0).then(|| format!("{} NICs are open", standin::opened()))
    });
}
