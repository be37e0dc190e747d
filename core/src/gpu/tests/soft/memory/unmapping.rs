//! Memory is unmapped only when no device that may use it works.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use cuda_driver_sys::CUresult;

use super::super::{Address, Gate, SOON, STALL, context, driver};
use super::{FD, PLAIN};
use crate::ErrorKind;
use crate::gpu::{BufferOptions, Context, Device, DeviceSlice, GpuBuffer, Hooks, PinnedBuffer, Stream};
use crate::sync::{AtomicBool, Ordering};

/// The driver unmaps memory only when no device that has access to it works. With ranks as threads, a kernel there may be
/// waiting for the very thread that drops the memory.
#[test]
fn memory_is_not_unmapped_while_another_device_that_has_access_works() {
    let [owner, user] = [0, 5].map(context);
    assert!(
        !owner.device().driver().is_same(user.device().driver()),
        "each rank may have loaded the driver itself"
    );
    for options in [FD, PLAIN] {
        memory_outlives_work_of_another(&owner, &user, options);
    }
}

fn memory_outlives_work_of_another(owner: &Context, user: &Context, options: BufferOptions) {
    let stream = Stream::new(user).unwrap();
    let theirs = GpuBuffer::with_options(owner, 64, options).unwrap();
    theirs.allow(user.device()).unwrap();
    let gate = Gate::close(&stream);
    let address = Address::of(&theirs);
    let (done, dropped) = std::sync::mpsc::channel();
    let dropping = std::thread::spawn(move || {
        drop(theirs);
        done.send(()).unwrap();
    });
    // The stream goes on only when the gate opens, so a drop that waits for it never returns before.
    let returned = dropped.recv_timeout(STALL);
    let waiting = (owner.unreaped(), address.is_mapped());
    owner.reap();
    let still = address.is_mapped();
    gate.open();
    dropping.join().unwrap();
    assert!(returned.is_ok(), "drop waited for a kernel of another device");
    assert_eq!((waiting, still), ((1, true), true), "a device that may be using it works");
    stream.synchronize(SOON).unwrap();
    owner.reap();
    assert_eq!((owner.unreaped(), address.is_mapped()), (0, false));
}

/// Stops the thread that unmaps until another one has enqueued a wait. If that has to wait for this one, as it should, a
/// bounded time passes instead.
#[derive(Default)]
struct Unmapping {
    /// Whether memory is being unmapped; whether a wait is enqueued.
    seen: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Unmapping {
    fn see(&self, change: impl FnOnce(&mut (bool, bool))) {
        change(&mut self.seen.lock().unwrap());
        self.changed.notify_all();
    }

    fn wait(&self, enough: impl Fn((bool, bool)) -> bool, time: Duration) {
        let seen = self.seen.lock().unwrap();
        drop(self.changed.wait_timeout_while(seen, time, |seen| !enough(*seen)).unwrap());
    }
}

impl Hooks for Unmapping {
    fn before(&self, function: &'static str) -> Option<CUresult> {
        if function == "cuMemUnmap" {
            self.see(|seen| seen.0 = true);
            self.wait(|(_, enqueued)| enqueued, Duration::from_millis(300));
        }
        None
    }

    fn after(&self, function: &'static str, _: CUresult) {
        if function == "cuStreamWaitValue64_v2" {
            self.see(|seen| seen.1 = true);
        }
    }
}

#[test]
fn nothing_is_enqueued_between_the_look_that_finds_a_context_quiet_and_the_unmapping() {
    let unmapping = Arc::new(Unmapping::default());
    let driver = driver().with_hooks(unmapping.clone());
    let context = Context::new(&Device::new(&driver, 5).unwrap()).unwrap();
    let stream = Stream::new(&context).unwrap();
    let buffer = GpuBuffer::with_options(&context, 64, FD).unwrap();
    let word = Arc::new(PinnedBuffer::new(&context, 8).unwrap());
    let slice = word.slice(..).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            unmapping.wait(|(unmapping, _)| unmapping, SOON);
            stream.wait_value64(&slice, 1).unwrap();
        });
        let (done, dropped) = std::sync::mpsc::channel();
        scope.spawn(move || {
            drop(buffer);
            done.send(()).unwrap();
        });
        let returned = dropped.recv_timeout(STALL);
        word.memory().word64(0).unwrap().store(1, Ordering::Release);
        assert!(returned.is_ok(), "drop waited for work enqueued after its look");
    });
    stream.synchronize(SOON).unwrap();
    assert_eq!(unmapping.seen.lock().map(|seen| *seen).unwrap(), (true, true));
}

/// Says "not ready" to every question about a stream while that is wished.
#[derive(Default)]
struct Busy(AtomicBool);

impl Hooks for Busy {
    fn before(&self, function: &'static str) -> Option<CUresult> {
        let busy = function == "cuStreamQuery" && self.0.load(Ordering::Relaxed);
        busy.then_some(CUresult::CUDA_ERROR_NOT_READY)
    }
}

#[test]
fn a_copy_that_was_given_up_keeps_memory_of_another_device_until_it_is_done() {
    let busy = Arc::new(Busy::default());
    let driver = driver().with_hooks(busy.clone());
    let [here, there] = [0, 1].map(|n| Context::new(&Device::new(&driver, n).unwrap()).unwrap());
    type Copy = fn(&DeviceSlice) -> crate::Result<()>;
    let copies: [Copy; 3] = [
        |slice| slice.fill(3, Duration::from_millis(1)),
        |slice| slice.upload(0, &[1_u8; 64], Duration::from_millis(1)),
        |slice| slice.download(0, &mut [0_u8; 64], Duration::from_millis(1)),
    ];
    for copy in copies {
        let buffer = Arc::new(GpuBuffer::with_options(&there, 64, FD).unwrap());
        buffer.allow(here.device()).unwrap();
        let (weak, address) = (Arc::downgrade(&buffer), Address::of(&buffer));
        // SAFETY: `here` was given access to the buffer, which the slice keeps.
        let slice = unsafe { DeviceSlice::from_raw(&here, buffer.ptr(), 64, buffer) };
        // A block and a stream to copy with, as after an earlier copy.
        slice.fill(0, SOON).unwrap();
        busy.0.store(true, Ordering::Relaxed);
        assert_eq!(copy(&slice).unwrap_err().kind(), ErrorKind::Timeout);
        drop(slice);
        there.reap();
        assert!(weak.upgrade().is_some() && address.is_mapped(), "a stream of the other device is at it");
        assert_eq!(here.unreaped(), 1);
        busy.0.store(false, Ordering::Relaxed);
        here.reap();
        there.reap();
        assert!(weak.upgrade().is_none() && !address.is_mapped());
        assert_eq!((here.unreaped(), there.unreaped()), (0, 0));
    }
}
