//! Device memory in messages, over the software device and every wire.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pool::Pool;
use crate::env::Selection;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{BufferOptions, Context, Device, Driver, GpuBuffer, HandlePolicy};
use crate::message::{
    Delivery, Exposed, Memory, Messenger, MessengerConfig, Peer, Secret, Sent, SharedMemory,
};
use crate::rdma::{Verbs, standin};
use crate::sync::{Mutex, lock};

mod captures;
mod ends;
mod owners;
mod staging;
mod threads;

const SOON: Duration = Duration::from_secs(60);

/// What carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wire {
    Tcp,
    SharedMemory,
    Verbs,
}

const WIRES: [Wire; 3] = [Wire::Tcp, Wire::SharedMemory, Wire::Verbs];

fn config(wire: Wire) -> MessengerConfig {
    let interfaces = Selection { names: Some("lo".into()), ..Selection::default() };
    let config =
        MessengerConfig::default().with_secret(Secret::from_bytes([8; 32])).with_interfaces(interfaces);
    let library = Verbs::from_table(standin::table(), "stand-in");
    let config = config.with_verbs_library(library).with_ib_devices("null0").with_verbs(wire == Wire::Verbs);
    config.with_shared_memory(wire == Wire::SharedMemory)
}

fn driver() -> Driver {
    Driver::software(cuda_soft::driver_table()).unwrap()
}

fn context(device: u32) -> Context {
    Context::new(&Device::new(&driver(), device).unwrap()).unwrap()
}

/// An owner, a reader, and the reader's peer.
struct Pair {
    owner: Messenger,
    reader: Messenger,
    peer: Peer,
}

fn pair(wire: Wire) -> Pair {
    let [owner, reader] = [0, 1].map(|rank| Messenger::new(rank, config(wire)).unwrap());
    let peer = reader.connect(owner.address(), SOON).unwrap();
    let name = match wire {
        Wire::Tcp => "tcp",
        Wire::SharedMemory => "shared memory",
        Wire::Verbs => "verbs",
    };
    assert_eq!(peer.transport(), name);
    Pair { owner, reader, peer }
}

type Log<T> = Arc<Mutex<Vec<T>>>;

impl Pair {
    #[track_caller]
    fn until(&self, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            self.owner.poll().unwrap();
            self.reader.poll().unwrap();
            assert!(start.elapsed() < SOON, "not in time");
        }
    }

    /// Reads all of `into` from `offset` on.
    #[track_caller]
    fn read_into(&self, exposed: &Exposed, offset: u64, into: &Arc<GpuBuffer>) -> Result<()> {
        let outcome = Log::<Result<()>>::default();
        let told = outcome.clone();
        let done = move |ended| lock(&told).push(ended);
        self.peer.read_into(&exposed.token(), offset, into, SOON, done).unwrap().posted().unwrap();
        self.until(|| !lock(&outcome).is_empty());
        lock(&outcome).pop().unwrap()
    }

    #[track_caller]
    fn read(&self, exposed: &Exposed, offset: u64, length: usize) -> Result<Vec<u8>> {
        let outcome = Log::<Result<Vec<u8>>>::default();
        let told = outcome.clone();
        let done = move |ended| lock(&told).push(ended);
        self.peer.read(&exposed.token(), offset, vec![0; length], SOON, done).unwrap().posted().unwrap();
        self.until(|| !lock(&outcome).is_empty());
        lock(&outcome).pop().unwrap()
    }
}

/// Bytes that differ at each place, by `seed`.
fn bytes(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|n| (n.wrapping_mul(31) + (n >> 9) + seed) as u8).collect()
}

fn buffer(context: &Context, bytes: &[u8]) -> Arc<GpuBuffer> {
    let buffer = Arc::new(GpuBuffer::new(context, bytes.len()).unwrap());
    buffer.upload(0, bytes, SOON).unwrap();
    buffer
}

fn contents(buffer: &GpuBuffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.download(0, &mut bytes, SOON).unwrap();
    bytes
}

fn kind<T>(outcome: Result<T>) -> Option<ErrorKind> {
    outcome.err().as_ref().map(Error::kind)
}

/// Every kind of memory into every other one, with lengths about the bounds of what is staged at a time.
#[test]
fn any_memory_is_read_into_any_other() {
    let contexts = [context(0), context(1)];
    for wire in WIRES {
        let pair = pair(wire);
        for length in [1, 4095, 512 << 10, (512 << 10) + 1, 5_000_001] {
            let data = bytes(length, length);
            let shared = SharedMemory::allocate(length).unwrap();
            shared.write(0, &data).unwrap();
            let owners: [Memory; 3] =
                [data.clone().into(), (&shared).into(), buffer(&contexts[0], &data).into()];
            for (number, memory) in owners.into_iter().enumerate() {
                let exposed = pair.owner.expose(memory).unwrap();
                assert_eq!(pair.read(&exposed, 0, length).unwrap(), data, "{wire:?} {number} {length}");
                for context in &contexts {
                    let into = Arc::new(GpuBuffer::new(context, length).unwrap());
                    pair.read_into(&exposed, 0, &into).unwrap();
                    assert!(contents(&into) == data, "{wire:?} {number} {length}");
                }
                // A part into a part.
                let (from, part) = (length / 3, length / 2);
                let into = buffer(&contexts[1], &vec![9; length]);
                let outcome = Log::<Result<()>>::default();
                let told = outcome.clone();
                let slice = into.slice(length - part..).unwrap();
                let done = move |ended| lock(&told).push(ended);
                pair.peer
                    .read_into(&exposed.token(), from as u64, slice, SOON, done)
                    .unwrap()
                    .posted()
                    .unwrap();
                pair.until(|| !lock(&outcome).is_empty());
                lock(&outcome).pop().unwrap().unwrap();
                let seen = contents(&into);
                assert!(seen[..length - part].iter().all(|byte| *byte == 9), "nothing beside the part");
                assert!(seen[length - part..] == data[from..from + part], "{wire:?} {number} {length}");
            }
        }
        // Both can sleep: nothing waits for another turn.
        pair.until(|| ![&pair.reader, &pair.owner].map(|messenger| messenger.arm().unwrap()).contains(&true));
    }
}

/// Device memory of this host is mapped, once for each device that reads it, and never staged.
#[test]
fn a_device_maps_the_memory_of_another_process_once() {
    let pair = pair(Wire::SharedMemory);
    let (context, other) = (context(0), context(1));
    let data = bytes(3 << 20, 1);
    let exposed = pair.owner.expose(buffer(&context, &data)).unwrap();
    let pool = Pool::of(&context).unwrap();
    let others = Pool::of(&other).unwrap();
    // Nobody can stage anything.
    let taken: Vec<_> =
        std::iter::from_fn(|| pool.block()).chain(std::iter::from_fn(|| others.block())).collect();
    let before = pair.peer.mappings();
    for (context, mappings) in [(&context, 1), (&other, 2), (&context, 2)] {
        let into = Arc::new(
            GpuBuffer::with_options(
                context,
                data.len(),
                BufferOptions { zeroed: false, handles: HandlePolicy::Auto },
            )
            .unwrap(),
        );
        pair.read_into(&exposed, 0, &into).unwrap();
        assert!(contents(&into) == data);
        assert_eq!(pair.peer.mappings() - before, mappings);
    }
    drop(taken);
    // Revoked: unmapped when the reader looks, about once a second.
    drop(exposed);
    pair.until(|| pair.peer.mappings() == before);
}

/// Reads of all kinds end in the order of the calls, whatever takes longer.
#[test]
fn reads_of_all_kinds_end_in_order() {
    let context = context(0);
    for wire in WIRES {
        let pair = pair(wire);
        let large = pair.owner.expose(buffer(&context, &bytes(4 << 20, 3))).unwrap();
        let small = pair.owner.expose(bytes(100, 4)).unwrap();
        let shared = SharedMemory::allocate(100).unwrap();
        let mapped = pair.owner.expose(&shared).unwrap();
        let into: Vec<Arc<GpuBuffer>> =
            (0..10).map(|_| Arc::new(GpuBuffer::new(&context, 4 << 20).unwrap())).collect();
        let log = Log::<usize>::default();
        for (number, buffer) in into.iter().enumerate() {
            let note = |at: usize| {
                let log = log.clone();
                move |ok: bool| {
                    assert!(ok);
                    lock(&log).push(at);
                }
            };
            let told = note(4 * number);
            pair.peer
                .read(&small.token(), 0, vec![0; 100], SOON, move |ended| told(ended.is_ok()))
                .unwrap()
                .posted()
                .unwrap();
            let told = note(4 * number + 1);
            pair.peer
                .read_into(&large.token(), 0, buffer, SOON, move |ended| told(ended.is_ok()))
                .unwrap()
                .posted()
                .unwrap();
            let told = note(4 * number + 2);
            pair.peer
                .read(&mapped.token(), 0, vec![0; 100], SOON, move |ended| told(ended.is_ok()))
                .unwrap()
                .posted()
                .unwrap();
            let told = note(4 * number + 3);
            let slice = buffer.slice(..100).unwrap();
            pair.peer
                .read_into(&small.token(), 0, slice, SOON, move |ended| told(ended.is_ok()))
                .unwrap()
                .posted()
                .unwrap();
        }
        pair.until(|| lock(&log).len() == 40);
        assert!(lock(&log).iter().copied().eq(0..40), "{wire:?}: {:?}", lock(&log));
        for buffer in into {
            let seen = contents(&buffer);
            assert!(seen[..100] == bytes(100, 4) && seen[100..] == bytes(4 << 20, 3)[100..], "{wire:?}");
        }
    }
}

/// Nobody gets anything of memory that is not exposed any more, also if it was mapped.
#[test]
fn revoked_memory_is_read_by_nobody() {
    let context = context(0);
    for wire in WIRES {
        let pair = pair(wire);
        let owned = buffer(&context, &bytes(2 << 20, 5));
        let (exposed, kept) = (pair.owner.expose(&owned).unwrap(), pair.owner.expose(&owned).unwrap());
        let into = Arc::new(GpuBuffer::new(&context, 2 << 20).unwrap());
        pair.read_into(&exposed, 0, &into).unwrap();
        pair.read_into(&kept, 0, &into).unwrap();
        let token = exposed.token();
        drop(exposed);
        owned.fill(7, SOON).unwrap();
        let outcome = Log::<Option<ErrorKind>>::default();
        for _ in 0..2 {
            let told = outcome.clone();
            pair.peer
                .read_into(&token, 0, &into, SOON, move |ended| lock(&told).push(kind(ended)))
                .unwrap()
                .posted()
                .unwrap();
        }
        let told = outcome.clone();
        pair.peer
            .read(&token, 0, vec![0; 10], SOON, move |ended| lock(&told).push(kind(ended)))
            .unwrap()
            .posted()
            .unwrap();
        pair.until(|| lock(&outcome).len() == 3);
        assert_eq!(*lock(&outcome), [Some(ErrorKind::Remote); 3], "{wire:?}");
        assert!(contents(&into) == bytes(2 << 20, 5), "{wire:?}: nothing came of it");
        // The other token is good.
        pair.read_into(&kept, 0, &into).unwrap();
        assert!(contents(&into) == vec![7; 2 << 20], "{wire:?}");
    }
}

/// Threads that sleep otherwise see what their devices have copied.
#[test]
fn threads_that_sleep_move_reads_on() {
    let context = context(0);
    for wire in WIRES {
        let pair = pair(wire);
        pair.owner.start_thread().unwrap();
        pair.reader.start_thread().unwrap();
        let exposed = pair.owner.expose(buffer(&context, &bytes(6 << 20, 8))).unwrap();
        let into = Arc::new(GpuBuffer::new(&context, 6 << 20).unwrap());
        for _ in 0..3 {
            let (done, ended) = std::sync::mpsc::channel();
            let told = move |outcome| done.send(outcome).unwrap();
            pair.peer.read_into(&exposed.token(), 0, &into, SOON, told).unwrap().posted().unwrap();
            ended.recv_timeout(SOON).unwrap().unwrap();
        }
        assert!(contents(&into) == bytes(6 << 20, 8), "{wire:?}");
    }
}

/// Long data of a device is read into a device; the sender learns of it.
#[test]
fn long_data_goes_from_device_to_device() {
    let context = context(0);
    for wire in WIRES {
        let pair = pair(wire);
        let into = Arc::new(GpuBuffer::new(&context, 1 << 20).unwrap());
        let (target, failed) = (into.clone(), Log::<Option<ErrorKind>>::default());
        let seen = failed.clone();
        pair.reader
            .on(1, move |mut message| {
                let long = message.long().unwrap();
                let seen = seen.clone();
                long.read_into(&target, SOON, move |ended| lock(&seen).push(kind(ended)))
                    .unwrap()
                    .posted()
                    .unwrap();
            })
            .unwrap();
        let back = Log::<Option<Peer>>::default();
        let known = back.clone();
        pair.owner.on(2, move |message| lock(&known).push(Some(message.peer().clone()))).unwrap();
        assert_eq!(pair.peer.send(2, b"").unwrap(), Sent::Done);
        pair.until(|| !lock(&back).is_empty());
        let to_reader = lock(&back).pop().unwrap().unwrap();
        let delivered = Log::<Delivery>::default();
        let told = delivered.clone();
        let data = buffer(&context, &bytes(1 << 20, 9));
        let done = move |outcome: Result<Delivery>| lock(&told).push(outcome.unwrap());
        assert!(to_reader.send_long(1, b"", &data, SOON, done).unwrap().is_posted());
        pair.until(|| !lock(&delivered).is_empty());
        assert_eq!((lock(&delivered).pop(), lock(&failed).pop()), (Some(Delivery::Delivered), Some(None)));
        assert!(contents(&into) == bytes(1 << 20, 9), "{wire:?}");
    }
}

#[test]
fn reads_of_different_deadlines_end_one_after_the_other() {
    let (context, pair) = (context(0), pair(Wire::Tcp));
    let exposed = pair.owner.expose(buffer(&context, &bytes(1 << 20, 7))).unwrap();
    let into = Arc::new(GpuBuffer::new(&context, 1 << 20).unwrap());
    let log = Log::<Option<ErrorKind>>::default();
    // The owner serves neither.
    let reads = [0, 100].map(|millis| {
        let log = log.clone();
        let done = move |ended| lock(&log).push(kind(ended));
        pair.peer
            .read_into(&exposed.token(), 0, &into, Duration::from_millis(millis), done)
            .unwrap()
            .posted()
            .unwrap()
    });
    let start = Instant::now();
    while lock(&log).len() < reads.len() {
        pair.reader.poll().unwrap();
        assert!(start.elapsed() < SOON, "the second deadline is not looked at");
    }
    assert_eq!(*lock(&log), [Some(ErrorKind::Timeout); 2]);
}

#[test]
fn few_mappings_of_device_memory_are_kept() {
    let (pair, context) = (pair(Wire::SharedMemory), context(0));
    let into = Arc::new(GpuBuffer::new(&context, 4096).unwrap());
    let before = pair.peer.mappings();
    let exposed = |seed| pair.owner.expose(buffer(&context, &bytes(4096, seed))).unwrap();
    let all: Vec<Exposed> = (0..66).map(exposed).collect();
    for (seed, exposed) in all.iter().enumerate() {
        pair.read_into(exposed, 0, &into).unwrap();
        assert!(contents(&into) == bytes(4096, seed), "{seed}");
    }
    assert_eq!(pair.peer.mappings() - before, 64);
}
