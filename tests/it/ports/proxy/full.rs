//! A full FIFO, with thousands of threads that want to push.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use aqueduct::gpu::Context;
use aqueduct::proxy::{ProxyConfig, ProxyTrigger};
use aqueduct_ptx::abi::LEFT_NOT;
use aqueduct_ptx::oracle::fifo::Arrivals;

use super::{Job, noting};
use crate::group::soon;

on_machines! { "ports::proxy::full", crate::ports::alone:
    thousands_of_threads_wait_for_room;
}

fn thousands_of_threads_wait_for_room(context: &Context) {
    const THREADS: u32 = 4096;
    const EACH: u32 = 3;
    for size in [32, 512] {
        let arrivals = Arc::new(Mutex::new(Arrivals::new(THREADS)));
        let (open, mut note) = (Arc::new(AtomicBool::new(false)), noting(&arrivals));
        let gate = open.clone();
        let handler = move |trigger: &ProxyTrigger| {
            while !gate.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            note(trigger)
        };
        let job = Job::new(context, ProxyConfig::default().with_fifo_size(size), handler);
        assert_eq!(job.taken(), 0);
        job.push(THREADS / 128, 128, EACH);
        // The handler is held, so all slots are taken, and every thread with pushes left waits for room.
        let (size, threads) = (size as u64, u64::from(THREADS));
        let deadline = soon();
        while job.taken() < size + threads - size / u64::from(EACH) {
            deadline.check("head", "all threads").unwrap();
        }
        assert_eq!(job.proxy.counters().triggers, 0);
        open.store(true, Ordering::Release);
        assert_eq!(job.left(), LEFT_NOT);
        job.proxy.stop(soon()).unwrap();
        assert_eq!(arrivals.lock().unwrap().per_thread(), Some(EACH), "{size} slots");
    }
}
