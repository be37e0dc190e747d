//! Host functions: the start of one is as a wait of the host for what came before it in its stream.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cuda_driver_sys::{CUresult, CUstream};

use crate::device::{Devices, kernel, ok, races, races_on_host};

const WRITE: &str = "    st.weak.global.u32 [%data], 7;";
const READ: &str = "    ld.weak.global.u32 %r0, [%data];";

/// The news that a host function and the thread that submitted it give each other.
#[derive(Default)]
struct Talk {
    began: AtomicBool,
    may_return: AtomicBool,
    /// The address of a word that the function sets to 1 when it begins, or zero.
    word: u64,
}

impl Talk {
    fn new(word: u64) -> &'static Self {
        Box::leak(Box::new(Self { word, ..Self::default() }))
    }

    fn data(&'static self) -> *mut c_void {
        (&raw const *self).cast_mut().cast()
    }

    /// The body of a host function: tells that it has begun, and returns when it may.
    fn function(&self) {
        let word = self.word as *const AtomicU32;
        if !word.is_null() {
            // SAFETY: the test passed an aligned word that lives until its devices are dropped.
            unsafe { (*word).store(1, Ordering::SeqCst) };
        }
        self.began.store(true, Ordering::SeqCst);
        wait_until(|| self.may_return.load(Ordering::SeqCst));
    }

    /// Waits for the function to begin, has `work` done while it runs, and lets it return, also if the test fails.
    fn meanwhile(&self, work: impl FnOnce()) {
        let _returns = Returns(self);
        assert!(wait_until(|| self.began.load(Ordering::SeqCst)), "the function does not begin");
        work();
    }
}

struct Returns<'a>(&'a Talk);

impl Drop for Returns<'_> {
    fn drop(&mut self) {
        self.0.may_return.store(true, Ordering::SeqCst);
    }
}

fn wait_until(done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !done() && start.elapsed() < Duration::from_secs(60) {
        std::thread::yield_now();
    }
    done()
}

unsafe extern "C" fn function(data: *mut c_void) {
    // SAFETY: all tests pass a `Talk` that lives as long as the process.
    unsafe { &*data.cast::<Talk>() }.function();
}

unsafe extern "C" fn callback(_: CUstream, code: CUresult, data: *mut c_void) {
    assert_eq!(code, CUresult::CUDA_SUCCESS);
    // SAFETY: as above.
    unsafe { &*data.cast::<Talk>() }.function();
}

/// Submits a host function to the stream of device 0.
fn submit(devices: &Devices, talk: &'static Talk) {
    devices.enter(0);
    // SAFETY: the stream is alive, and so is what the function uses.
    ok(unsafe { (devices.table.cuLaunchHostFunc)(devices.streams[0], Some(function), talk.data()) });
}

fn submit_callback(devices: &Devices, talk: &'static Talk) {
    devices.enter(0);
    // SAFETY: as above.
    ok(unsafe { (devices.table.cuStreamAddCallback)(devices.streams[0], Some(callback), talk.data(), 0) });
}

#[test]
fn a_running_host_function_tells_what_came_before_it() {
    type Way = dyn Fn(&Devices, &'static Talk);
    let ways: [(&str, &Way); 3] = [
        ("a host function", &|devices, talk| {
            devices.launch(WRITE, 0, 1, 1);
            submit(devices, talk);
        }),
        ("a callback", &|devices, talk| {
            devices.launch(WRITE, 0, 1, 1);
            submit_callback(devices, talk);
        }),
        ("a node of a graph", &|devices, talk| {
            devices.launch_as_graph(|| {
                devices.launch(WRITE, 0, 1, 1);
                submit(devices, talk);
            });
        }),
    ];
    for (name, way) in ways {
        let found = races(|devices| {
            let talk = Talk::new(0);
            way(devices, talk);
            talk.meanwhile(|| {
                devices.launch(READ, 1, 1, 1);
                devices.wait(1);
            });
        });
        assert!(found.is_empty(), "{name}: {found:?}");
    }
}

#[test]
fn a_running_host_function_tells_nothing_of_other_streams_or_of_what_comes_behind_it() {
    let found = races(|devices| {
        let talk = Talk::new(0);
        let write = devices.load(&kernel(WRITE), 0);
        submit(devices, talk);
        devices.launch_loaded(write, 0, 1, 1);
        // The host does not wait for the read, which is what the function would pass on when it returns.
        talk.meanwhile(|| devices.launch(READ, 1, 1, 1));
    });
    assert!(!found.is_empty(), "the write is behind the function");
    let found = races(|devices| {
        let talk = Talk::new(0);
        devices.launch(WRITE, 1, 1, 1);
        submit(devices, talk);
        talk.meanwhile(|| ());
        devices.launch(READ, 0, 1, 1);
    });
    assert!(!found.is_empty(), "the write is in another stream");
}

/// A kernel that runs meanwhile acquires it from a word of the host's.
#[test]
fn a_word_that_a_running_host_function_stores_publishes_what_came_before_it() {
    const HEAR: &str = "
WAIT:
    ld.acquire.sys.global.u32 %r0, [%flag];
    setp.ne.u32 %p0, %r0, 1;
    @%p0 bra WAIT;
    ld.weak.global.u32 %r0, [%data];";
    let found = races_on_host(|devices| {
        devices.launch(HEAR, 1, 1, 1);
        let talk = Talk::new(devices.data + 4096);
        devices.launch(WRITE, 0, 1, 1);
        submit(devices, talk);
        talk.meanwhile(|| devices.wait(1));
    });
    assert!(found.is_empty(), "{found:?}");
}
