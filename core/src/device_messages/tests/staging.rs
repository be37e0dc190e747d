//! Data on its way through the host's memory, of which there is little for all.

use super::*;

/// Nothing that a test waits for takes so long.
const HOUR: Duration = Duration::from_secs(3600);

/// Memory without a descriptor is staged, although the link could carry one.
#[test]
fn memory_that_cannot_be_mapped_is_staged() {
    let pair = pair(Wire::SharedMemory);
    let context = context(0);
    let options = BufferOptions { zeroed: true, handles: HandlePolicy::Legacy };
    let plain = Arc::new(GpuBuffer::with_options(&context, 1 << 20, options).unwrap());
    let data = bytes(1 << 20, 2);
    plain.upload(0, &data, SOON).unwrap();
    let (exposed, before) = (pair.owner.expose(&plain).unwrap(), pair.peer.mappings());
    let into = Arc::new(GpuBuffer::new(&context, data.len()).unwrap());
    for _ in 0..2 {
        pair.read_into(&exposed, 0, &into).unwrap();
        assert!(contents(&into) == data);
    }
    assert_eq!(pair.peer.mappings(), before);
}

/// Copies of which nobody asks whether they have ended, as their messenger is not called, take nothing from others either.
#[test]
fn staging_memory_of_copies_that_have_ended_is_free() {
    let context = context(0);
    let (pool, into) = (Pool::of(&context).unwrap(), GpuBuffer::new(&context, 100).unwrap());
    let into = Arc::new(into).slice(..).unwrap();
    let blocks: Vec<_> = std::iter::from_fn(|| pool.block()).collect();
    let copies: Vec<_> = blocks.into_iter().map(|block| pool.store(&into, block).unwrap()).collect();
    let start = Instant::now();
    while pool.block().is_none() {
        assert!(start.elapsed() < SOON, "none of {} is free", copies.len());
    }
}

/// Copies from mapped memory ask for no staging memory, and nothing may be dispatched for long.
#[test]
fn few_copies_that_have_ended_keep_what_they_used() {
    let context = context(0);
    let (pool, into) = (Pool::of(&context).unwrap(), buffer(&context, &[0; 100]));
    let (from, to) = (buffer(&context, &[1; 100]).slice(..).unwrap(), into.slice(..).unwrap());
    let start = Instant::now();
    for _ in 0..200 {
        let copy = pool.copy(&to, &from).unwrap().expect("nobody frees");
        while !copy.is_done().unwrap() {
            assert!(start.elapsed() < SOON, "a copy does not end");
        }
    }
    let shares = Arc::strong_count(&into);
    assert!(shares < 50, "{shares} shares in the memory");
}

/// Whoever asks for memory of a device and does not read the answer takes no staging memory from others.
#[test]
fn peers_that_do_not_read_hold_no_staging_memory() {
    let context = context(0);
    for wire in [Wire::SharedMemory, Wire::Verbs] {
        let owner = Messenger::new(0, config(wire)).unwrap();
        let exposed = owner.expose(buffer(&context, &bytes(4 << 20, 1))).unwrap();
        let read = |rank: u32, told: Log<bool>| {
            let reader = Messenger::new(rank, config(wire)).unwrap();
            let peer = reader.connect(owner.address(), SOON).unwrap();
            let done = move |ended: Result<Vec<u8>>| lock(&told).push(ended.is_ok());
            // No read ends by its deadline here.
            peer.read(&exposed.token(), 0, vec![0; 4 << 20], HOUR, done).unwrap().posted().unwrap();
            (0..10).for_each(|_| assert!(reader.progress().is_ok()));
            reader
        };
        let (stuck, done) = (Log::default(), Log::default());
        let readers: Vec<Messenger> = (1..9).map(|rank| read(rank, stuck.clone())).collect();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(300) {
            owner.poll().unwrap();
        }
        let other = read(9, done.clone());
        let start = Instant::now();
        while lock(&done).is_empty() {
            owner.poll().unwrap();
            other.poll().unwrap();
            assert!(start.elapsed() < SOON, "{wire:?}: nothing is left for it");
        }
        assert!(lock(&stuck).is_empty() && *lock(&done) == [true]);
        // Nothing of it is under way in a device: the owner sleeps until somebody reads.
        while owner.arm().unwrap() {
            owner.poll().unwrap();
            assert!(start.elapsed() < SOON, "{wire:?}: it does not sleep");
        }
        drop(readers);
    }
}
