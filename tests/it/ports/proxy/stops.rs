//! A proxy that is stopped or dropped while kernels push: accepted triggers are handled, later ones refused.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aqueduct::gpu::{Context, DeviceSlice, PinnedBuffer};
use aqueduct::proxy::{ProxyConfig, ProxyHandlerResult, ProxyTrigger};
use aqueduct::{Deadline, ErrorKind};
use aqueduct_ptx::abi::{LEFT_CLOSED, LEFT_NOT};
use aqueduct_ptx::oracle::fifo::Arrivals;

use super::{Job, noting};
use crate::group::soon;

on_machines! { "ports::proxy::stops", crate::ports::alone:
    stopping_under_load_loses_nothing;
    every_accepted_push_is_handled;
    stopping_twice_and_at_the_same_time;
    stop_times_out_if_the_handler_does_not_return;
    dropped_while_a_kernel_pushes;
}

fn stopping_under_load_loses_nothing(context: &Context) {
    for size in [2, 1024] {
        let arrivals = Arc::new(Mutex::new(Arrivals::new(256)));
        let job = Job::new(context, ProxyConfig::default().with_fifo_size(size), noting(&arrivals));
        job.push(2, 128, u32::MAX);
        job.handled(500);
        job.proxy.stop(soon()).unwrap();
        assert_eq!(job.left(), LEFT_CLOSED, "a push after the stop says so");
        // The head counts exactly the accepted triggers.
        assert_eq!(job.taken(), job.proxy.counters().triggers, "taken and handled");
        let text = format!("{:?}", arrivals.lock().unwrap());
        assert!(job.proxy.counters().triggers >= 500, "{text}");
    }
}

/// Each thread counts its pushes in a cell and waits until each is handled.
fn every_accepted_push_is_handled(context: &Context) {
    const THREADS: usize = 128;
    let handled: Arc<[AtomicU64; THREADS]> = Arc::new([const { AtomicU64::new(0) }; THREADS]);
    let counts = handled.clone();
    let job = Job::new(context, ProxyConfig::default().with_fifo_size(32), move |trigger: &ProxyTrigger| {
        counts[trigger.payload()[0] as usize].fetch_add(1, Ordering::Relaxed);
        Ok(ProxyHandlerResult::Continue)
    });
    let cells = Arc::new(PinnedBuffer::new(context, 4 * THREADS).unwrap());
    job.push_with(2, 64, u32::MAX, cells.device_ptr());
    job.stream.retain(cells.clone()).unwrap();
    job.handled(1000);
    job.proxy.stop(soon()).unwrap();
    assert_eq!(job.left(), LEFT_CLOSED, "every trigger that a thread waited for was handled");
    for thread in 0..THREADS {
        let mut cell = [0; 4];
        cells.memory().read(4 * thread, &mut cell).unwrap();
        // The last push was refused.
        let taken = u64::from(u32::from_ne_bytes(cell)) - 1;
        assert_eq!(handled[thread].load(Ordering::Relaxed), taken, "thread {thread}");
    }
}

fn stopping_twice_and_at_the_same_time(context: &Context) {
    const COUNT: u64 = 128;
    let handled = Arc::new(AtomicU64::new(0));
    let count = handled.clone();
    let job = Job::new(context, ProxyConfig::default(), move |_: &ProxyTrigger| {
        std::thread::sleep(Duration::from_millis(2));
        count.fetch_add(1, Ordering::Relaxed);
        Ok(ProxyHandlerResult::Continue)
    });
    job.push(1, COUNT as u32, 1);
    assert_eq!(job.left(), LEFT_NOT);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                job.proxy.stop(soon()).unwrap();
                assert_eq!(
                    handled.load(Ordering::Relaxed),
                    COUNT,
                    "every caller of stop waits until the proxy has ended"
                );
            });
        }
    });
    job.proxy.stop(soon()).unwrap();
    assert!(job.proxy.check().unwrap_err().message().contains("stopped"));
}

fn stop_times_out_if_the_handler_does_not_return(context: &Context) {
    let release = Arc::new(AtomicBool::new(false));
    let released = release.clone();
    let job = Job::new(context, ProxyConfig::default(), move |_: &ProxyTrigger| {
        while !released.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(ProxyHandlerResult::Continue)
    });
    job.push(1, 1, 1);
    assert_eq!(job.left(), LEFT_NOT);
    for _ in 0..2 {
        // The handler does not return, so nothing but the deadline ends this.
        let error = job.proxy.stop(Deadline::after(Duration::from_millis(50))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    }
    release.store(true, Ordering::Relaxed);
    // The second stop may reach its own deadline or succeed; the proxy has ended in both cases.
    let _ = job.proxy.stop(soon());
    job.proxy.check().unwrap_err();
    assert_eq!(job.proxy.counters().triggers, 1);
}

fn dropped_while_a_kernel_pushes(context: &Context) {
    let handled = Arc::new(AtomicU64::new(0));
    let (count, alive) = (handled.clone(), handled.clone());
    let job = Job::new(context, ProxyConfig::default().with_fifo_size(16), move |_: &ProxyTrigger| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(ProxyHandlerResult::Continue)
    });
    drop(alive);
    job.push(2, 64, u32::MAX);
    job.handled(100);
    let (head, [keep, _]) = (job.proxy.fifo().head, job.proxy.keep_alive());
    // SAFETY: as above; read when the kernel has ended.
    let head = unsafe { DeviceSlice::from_raw(context, head, 8, keep) };
    let Job { proxy, stream, report, .. } = job;
    drop(proxy);
    stream.synchronize(soon()).unwrap();
    assert_eq!(report.status(), LEFT_CLOSED);
    // The handler is dropped with its thread.
    let deadline = soon();
    while Arc::strong_count(&handled) > 1 {
        deadline.check("drop", "the thread").unwrap();
        std::thread::yield_now();
    }
    let mut words = [0_u32; 2];
    head.download(0, &mut words, soon()).unwrap();
    assert_eq!(u64::from(words[0]), handled.load(Ordering::Relaxed), "taken and handled");
}
