//! Launches, and drops of streams and memory, that come while another thread is in the midst of a launch.

use std::sync::Mutex;

use super::super::STALL;
use super::*;
use crate::gpu::PinnedBuffer;

type Then = Box<dyn FnOnce() + Send>;

/// Counts waits for events, and does something before the next call of a function.
struct Meanwhile {
    function: &'static str,
    waits: AtomicUsize,
    then: Mutex<Option<Then>>,
}

impl Meanwhile {
    fn at(function: &'static str) -> Arc<Self> {
        Arc::new(Self { function, waits: AtomicUsize::new(0), then: Mutex::default() })
    }

    fn next(&self, then: impl FnOnce() + Send + 'static) {
        *self.then.lock().unwrap() = Some(Box::new(then));
    }

    fn has_happened(&self) -> bool {
        self.then.lock().unwrap().is_none()
    }
}

impl Hooks for Meanwhile {
    fn before(&self, function: &'static str) -> Option<CUresult> {
        let then = (function == self.function).then(|| self.then.lock().unwrap().take()).flatten();
        if let Some(then) = then {
            then();
        }
        self.waits.fetch_add(usize::from(function == "cuStreamWaitEvent"), Ordering::Relaxed);
        None
    }
}

/// A context of which something happens before the next call of `function`, and a kernel that does not fit it twice.
fn held_at(function: &'static str) -> (Arc<Meanwhile>, Context, Arc<Room>) {
    let meanwhile = Meanwhile::at(function);
    let context = Context::new(&Device::new(&driver().with_hooks(meanwhile.clone()), 6).unwrap()).unwrap();
    let [room] = rooms(&context, [11]).map(Arc::new);
    (meanwhile, context, room)
}

/// Two threads launch at once: the turn that began first ends last.
#[test]
fn a_turn_that_another_has_overtaken_spares_the_next_launch_nothing() {
    let meanwhile = Meanwhile::at("cuEventCreate");
    let context = Context::new(&Device::new(&driver().with_hooks(meanwhile.clone()), 6).unwrap()).unwrap();
    let (rooms, streams) =
        (rooms(&context, [6, 6]).map(Arc::new), [(); 2].map(|()| Stream::new(&context).unwrap()));
    rooms[0].stand_behind_others(&streams[0], false).unwrap();
    rooms[1].stand_behind_others(&streams[1], false).unwrap();
    let (room, stream) = (rooms[1].clone(), streams[1].clone());
    meanwhile.next(move || room.stand_behind_others(&stream, false).unwrap());
    rooms[0].stand_behind_others(&streams[0], false).unwrap();
    assert!(meanwhile.has_happened(), "nothing came between");
    let before = meanwhile.waits.load(Ordering::Relaxed);
    rooms[0].stand_behind_others(&streams[0], false).unwrap();
    let waits = meanwhile.waits.load(Ordering::Relaxed) - before;
    assert_eq!(waits, 1, "the launch on the other stream may be on the device");
}

/// The driver may delay whoever tells a stream to wait, for as long as that stream's queue is full.
#[test]
fn a_drop_does_not_wait_for_a_launch_that_is_held_up() {
    let (meanwhile, context, room) = held_at("cuStreamWaitEvent");
    let [first, second] = [(); 2].map(|()| Stream::new(&context).unwrap());
    room.stand_behind_others(&first, false).unwrap();
    let gate = Gate::close(&first);
    drop(first);
    let memory = PinnedBuffer::new(&context, 64).unwrap();
    let returned = Arc::new(AtomicBool::new(false));
    let result = returned.clone();
    meanwhile.next(move || {
        let (done, dropped) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(memory);
            done.send(())
        });
        result.store(dropped.recv_timeout(STALL).is_ok(), Ordering::Relaxed);
    });
    room.stand_behind_others(&second, false).unwrap();
    assert!(
        meanwhile.has_happened() && returned.load(Ordering::Relaxed),
        "it waited until the stream was told"
    );
    gate.open();
    second.synchronize(SOON).unwrap();
    context.settle();
}

/// Two threads launch at once behind a stream that is gone.
#[test]
fn launches_at_once_stand_behind_a_dropped_stream() {
    let (meanwhile, context, room) = held_at("cuStreamWaitEvent");
    let [first, second, third] = [(); 3].map(|()| Stream::new(&context).unwrap());
    room.stand_behind_others(&first, false).unwrap();
    let gate = Gate::close(&first);
    drop(first);
    let (other, stream) = (room.clone(), third.clone());
    meanwhile.next(move || other.stand_behind_others(&stream, true).unwrap());
    room.stand_behind_others(&second, true).unwrap();
    assert!(meanwhile.has_happened(), "nothing came between");
    for stream in [&second, &third] {
        assert!(!stream.is_idle().unwrap(), "the launch on the dropped stream has not ended");
    }
    gate.open();
    second.synchronize(SOON).unwrap();
    third.synchronize(SOON).unwrap();
    context.settle();
}

/// Whoever drops a stream first asks the driver about its work. A launch at that moment waits until that is known.
#[test]
fn a_launch_stands_behind_a_stream_that_another_thread_is_dropping() {
    let (meanwhile, context, room) = held_at("cuStreamQuery");
    let [first, second] = [(); 2].map(|()| Stream::new(&context).unwrap());
    room.stand_behind_others(&first, false).unwrap();
    let gate = Gate::close(&first);
    let (tell, told) = std::sync::mpsc::channel();
    let (launch, stream) = (room.clone(), second.clone());
    meanwhile.next(move || {
        let launching = std::thread::spawn(move || launch.stand_behind_others(&stream, false));
        // Long enough for a launch that waits for nobody.
        std::thread::sleep(std::time::Duration::from_millis(100));
        tell.send(launching).unwrap();
    });
    drop(first);
    assert!(meanwhile.has_happened(), "nothing came between");
    told.recv().unwrap().join().unwrap().unwrap();
    assert!(!second.is_idle().unwrap(), "the launch on the dropped stream has not ended");
    gate.open();
    second.synchronize(SOON).unwrap();
    context.settle();
}

/// The driver makes whoever enqueues wait while a stream's queue is full, and what is in it may wait for a launch of another thread.
#[test]
fn a_launch_does_not_wait_for_another_that_is_held_up() {
    let (meanwhile, context, room) = held_at("cuStreamWaitEvent");
    let [first, second, third] = [(); 3].map(|()| Stream::new(&context).unwrap());
    room.stand_behind_others(&first, false).unwrap();
    let gate = Gate::close(&first);
    let (other, stream) = (room.clone(), third.clone());
    let launched = Arc::new(AtomicBool::new(false));
    let result = launched.clone();
    meanwhile.next(move || {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            other.stand_behind_others(&stream, true).unwrap();
            tell.send(())
        });
        result.store(told.recv_timeout(SOON).is_ok(), Ordering::Relaxed);
    });
    room.stand_behind_others(&second, true).unwrap();
    assert!(meanwhile.has_happened() && launched.load(Ordering::Relaxed), "it waited for the other launch");
    gate.open();
    second.synchronize(SOON).unwrap();
    third.synchronize(SOON).unwrap();
    context.settle();
}

/// A stream gets its first launch with a turn just before another one records what it had.
#[test]
fn a_launch_that_takes_a_turn_meanwhile_is_not_stood_behind() {
    let (meanwhile, context, room) = held_at("cuEventCreate");
    let [first, second] = [(); 2].map(|()| Stream::new(&context).unwrap());
    room.stand_behind_others(&first, false).unwrap();
    let (tell, closed) = std::sync::mpsc::channel();
    let (other, stream) = (room.clone(), first.clone());
    meanwhile.next(move || {
        other.stand_behind_others(&stream, true).unwrap();
        tell.send(Gate::close(&stream)).unwrap();
    });
    room.stand_behind_others(&second, true).unwrap();
    let gate = closed.recv_timeout(SOON).unwrap();
    assert!(second.is_idle().unwrap(), "it stands behind a launch that takes turns with it");
    gate.open();
    first.synchronize(SOON).unwrap();
    context.settle();
}
