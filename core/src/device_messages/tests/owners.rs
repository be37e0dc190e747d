//! What copies use is let go of once they have ended, whether others follow or not, where no lock is held.

use std::sync::Weak;

use cuda_driver_sys::CUresult;

use super::*;
use crate::gpu::{DeviceSlice, Hooks, PinnedBuffer, Stream};
use crate::message::{Target, Token};
use crate::own_process::is_own_process;
use crate::sync::{AtomicBool, AtomicUsize, Ordering};

/// Memory of the program's own. Looks when it is dropped whether the peer can be called, and does so.
struct Owner {
    memory: Arc<GpuBuffer>,
    peer: Peer,
    token: Token,
    free: Log<bool>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let free = self.peer.has_free_locks();
        if free {
            drop(self.peer.read(&self.token, 0, vec![0], SOON, drop));
        }
        lock(&self.free).push(free);
    }
}

impl Owner {
    fn slice(self) -> DeviceSlice {
        let memory = self.memory.slice(..).unwrap();
        let (context, at, length) = (self.memory.context().clone(), memory.ptr(), memory.len());
        // SAFETY: the buffer, which the owner holds, is readable and writable as long as it lives.
        unsafe { DeviceSlice::from_raw(&context, at, length, Arc::new(self)) }
    }
}

/// The stream of a pool would retain about 64 owners, and drop the first of them in the midst of a later read.
#[test]
fn owners_of_memory_that_is_read_into_are_dropped_in_dispatch() {
    const READS: usize = 150;
    let context = context(0);
    for wire in WIRES {
        let pair = pair(wire);
        let exposed = pair.owner.expose(buffer(&context, &bytes(4096, 1))).unwrap();
        let (free, ended) = (Log::<bool>::default(), Log::<Option<ErrorKind>>::default());
        let memory = Arc::new(GpuBuffer::new(&context, 4096).unwrap());
        let begin = || {
            let (memory, peer) = (memory.clone(), pair.peer.clone());
            let into = Owner { memory, peer, token: exposed.token(), free: free.clone() }.slice();
            let told = ended.clone();
            let done = move |outcome| lock(&told).push(kind(outcome));
            pair.peer.read_into(&exposed.token(), 0, into, SOON, done).unwrap().posted().unwrap();
        };
        for n in 1..=READS {
            begin();
            pair.until(|| lock(&ended).len() == n);
        }
        assert!(!lock(&free).contains(&false), "{wire:?}: an owner is dropped with locks");
        pair.until(|| lock(&free).len() == READS);
        (0..READS).for_each(|_| begin());
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(300) {
            pair.owner.progress().unwrap();
            pair.reader.progress().unwrap();
        }
        assert_eq!(lock(&free).len(), READS, "{wire:?}: progress runs no code of the program's");
        pair.until(|| lock(&ended).len() == 2 * READS && lock(&free).len() == 2 * READS);
        assert_eq!(
            (&*lock(&free), &*lock(&ended)),
            (&vec![true; 2 * READS], &vec![None; 2 * READS]),
            "{wire:?}"
        );
        assert!(contents(&memory) == bytes(4096, 1), "{wire:?}");
    }
}

/// As long as the owner of memory holds it, no other program gets that memory.
#[test]
fn memory_that_was_read_goes_with_its_exposure_although_no_copy_follows() {
    let (of_owner, of_reader) = (context(0), context(1));
    for wire in WIRES {
        let pair = pair(wire);
        let owned = buffer(&of_owner, &bytes(1 << 20, 2));
        let into = Arc::new(GpuBuffer::new(&of_reader, 1 << 20).unwrap());
        let exposed = pair.owner.expose(&owned).unwrap();
        pair.read_into(&exposed, 0, &into).unwrap();
        let left: Vec<Weak<GpuBuffer>> = [&owned, &into].map(Arc::downgrade).into();
        drop((owned, into, exposed));
        pair.until(|| left.iter().all(|left| left.strong_count() == 0));
    }
}

/// Counts what a driver value has mapped, and fails to record the next event if it is told to.
#[derive(Default)]
struct Watch {
    mapped: AtomicUsize,
    fails: AtomicBool,
}

impl Watch {
    fn context(self: &Arc<Self>) -> Context {
        let driver = driver().with_hooks(self.clone());
        Context::new(&Device::new(&driver, 0).unwrap()).unwrap()
    }

    fn mapped(&self) -> usize {
        self.mapped.load(Ordering::Acquire)
    }
}

impl Hooks for Watch {
    fn before(&self, function: &'static str) -> Option<CUresult> {
        let fails = function == "cuEventRecord" && self.fails.swap(false, Ordering::AcqRel);
        fails.then_some(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    fn after(&self, function: &'static str, result: CUresult) {
        match function {
            "cuMemMap" if result == CUresult::CUDA_SUCCESS => _ = self.mapped.fetch_add(1, Ordering::AcqRel),
            "cuMemUnmap" if result == CUresult::CUDA_SUCCESS => {
                self.mapped.fetch_sub(1, Ordering::AcqRel);
            }
            _ => {}
        }
    }
}

/// Work of the program's, which goes on until it is told to end. The software device waits for work of all contexts before it unmaps
/// memory, so tests that unmap meanwhile have a process of their own, and the owner has a device of its own.
struct Work {
    word: Arc<PinnedBuffer>,
}

impl Work {
    fn begin(stream: &Stream) -> Self {
        let word = Arc::new(PinnedBuffer::new(stream.context(), 8).unwrap());
        stream.wait_value64(&word.slice(..).unwrap(), 1).unwrap();
        Self { word }
    }

    fn end(&self) {
        self.word.memory().word64(0).unwrap().store(1, Ordering::Release);
    }
}

/// A test that fails does not wait for it.
impl Drop for Work {
    fn drop(&mut self) {
        self.end();
    }
}

/// A mapping keeps the memory of its owner allocated. While the device is at work, unmapping would wait for that.
#[test]
fn memory_that_is_revoked_is_unmapped_although_no_copy_follows() {
    if !is_own_process(module_path!(), "memory_that_is_revoked_is_unmapped_although_no_copy_follows", &[]) {
        return;
    }
    for busy in [false, true] {
        let watch = Arc::new(Watch::default());
        let (pair, other, context) = (pair(Wire::SharedMemory), context(1), watch.context());
        let exposed = pair.owner.expose(buffer(&other, &bytes(1 << 20, 3))).unwrap();
        let into = Arc::new(GpuBuffer::new(&context, 1 << 20).unwrap());
        let stream = Stream::new(&context).unwrap();
        let (before, listed) = (watch.mapped(), pair.peer.mappings());
        pair.read_into(&exposed, 0, &into).unwrap();
        assert_eq!((watch.mapped(), pair.peer.mappings()), (before + 1, listed + 1));
        let work = busy.then(|| Work::begin(&stream));
        drop(exposed);
        pair.until(|| pair.peer.mappings() == listed);
        if let Some(work) = &work {
            assert_eq!(watch.mapped(), before + 1, "it would wait for the program's work");
            work.end();
        }
        pair.until(|| watch.mapped() == before);
    }
}

/// As above; nothing wakes a messenger without peers but the clock.
#[test]
fn memory_of_a_peer_that_has_ended_is_unmapped_although_no_copy_follows() {
    if !is_own_process(
        module_path!(),
        "memory_of_a_peer_that_has_ended_is_unmapped_although_no_copy_follows",
        &[],
    ) {
        return;
    }
    for busy in [false, true] {
        let watch = Arc::new(Watch::default());
        let (pair, other, context) = (pair(Wire::SharedMemory), context(1), watch.context());
        let exposed = pair.owner.expose(buffer(&other, &bytes(1 << 20, 4))).unwrap();
        let into = Arc::new(GpuBuffer::new(&context, 1 << 20).unwrap());
        let stream = Stream::new(&context).unwrap();
        let before = watch.mapped();
        pair.read_into(&exposed, 0, &into).unwrap();
        // Freeing its pinned memory would wait for the work below.
        let _of_owner = Pool::of(&other).unwrap();
        let work = busy.then(|| Work::begin(&stream));
        let Pair { owner, reader, peer } = pair;
        drop((owner, exposed));
        let start = Instant::now();
        while peer.send(1, b"").is_ok() {
            reader.poll().unwrap();
            assert!(start.elapsed() < SOON, "the end is not noticed");
        }
        if let Some(work) = &work {
            assert_eq!(watch.mapped(), before + 1, "it would wait for the program's work");
            assert!(reader.next_deadline().is_some(), "it looks again");
            work.end();
        }
        while watch.mapped() > before {
            reader.poll().unwrap();
            assert!(start.elapsed() < SOON, "it stays mapped");
        }
        assert!(reader.next_deadline().is_none(), "nothing is left");
    }
}

/// The completion runs when the device writes nothing more.
#[test]
fn a_copy_of_which_no_event_tells_ends_with_its_stream() {
    if !is_own_process(module_path!(), "a_copy_of_which_no_event_tells_ends_with_its_stream", &[]) {
        return;
    }
    for wire in [Wire::Tcp, Wire::SharedMemory] {
        let watch = Arc::new(Watch::default());
        let (pair, other, context) = (pair(wire), context(1), watch.context());
        let data = bytes(100_000, 5);
        let exposed = pair.owner.expose(buffer(&other, &data)).unwrap();
        let into = Arc::new(GpuBuffer::new(&context, data.len()).unwrap());
        pair.read_into(&exposed, 0, &into).unwrap();
        into.fill(0, SOON).unwrap();
        let pool = Pool::of(&context).unwrap();
        let work = Work::begin(pool.inward());
        watch.fails.store(true, Ordering::Release);
        let outcome = Log::<Option<ErrorKind>>::default();
        let told = outcome.clone();
        let done = move |ended| lock(&told).push(kind(ended));
        pair.peer.read_into(&exposed.token(), 0, Target::from(&into), SOON, done).unwrap().posted().unwrap();
        pair.until(|| !watch.fails.load(Ordering::Acquire));
        let start = Instant::now();
        pair.until(|| start.elapsed() > Duration::from_millis(200));
        assert_eq!(*lock(&outcome), [], "{wire:?}: the device has still to write");
        work.end();
        pair.until(|| !lock(&outcome).is_empty());
        assert_eq!(*lock(&outcome), [None], "{wire:?}");
        assert!(contents(&into) == data, "{wire:?}");
        let blocks: Vec<_> = std::iter::from_fn(|| pool.block()).collect();
        assert_eq!(blocks.len(), 8, "{wire:?}: all staging memory is free again");
    }
}

/// The last messenger may go while the device copies.
#[test]
fn what_a_copy_uses_outlives_its_pool() {
    let context = context(0);
    let into = Arc::new(GpuBuffer::new(&context, 100).unwrap());
    let pool = Pool::of(&context).unwrap();
    let work = Work::begin(pool.inward());
    let block = pool.block().unwrap();
    block.fill(&[7; 100]);
    drop(pool.store(&into.slice(..).unwrap(), block).unwrap());
    drop(pool);
    let left = Arc::downgrade(&into);
    drop(into);
    context.reap();
    assert_eq!(left.strong_count(), 1, "the device has still to write");
    work.end();
    context.settle();
    assert_eq!(left.strong_count(), 0);
}
