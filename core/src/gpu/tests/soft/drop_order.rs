//! Streams, events, graphs, buffers and contexts are dropped in random order while work waits to use them.

use std::any::Any;
use std::sync::Arc;

use super::captures::{Pair, buffer, is_gone};
use super::{Calls, Gate, driver, eventually};
use crate::gpu::{CaptureMode, Context, Device, GraphExec};

#[test]
fn in_whatever_order_everything_is_dropped_nothing_is_freed_early_and_nothing_is_left() {
    let pairs = [
        ("cuStreamCreate", "cuStreamDestroy_v2"),
        ("cuEventCreate", "cuEventDestroy_v2"),
        ("cuMemCreate", "cuMemRelease"),
        ("cuMemMap", "cuMemUnmap"),
        ("cuMemHostAlloc", "cuMemFreeHost"),
        ("cuGraphInstantiateWithFlags", "cuGraphExecDestroy"),
        ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"),
    ];
    for seed in 0..40_u64 {
        let calls = Arc::new(Calls::default());
        let driver = driver().with_hooks(calls.clone());
        let device = Device::new(&driver, 2).unwrap();
        let observer = Context::new(&device).unwrap();
        let pair = Pair::new(&observer);
        let (buffer, weak, address) = buffer(&observer);
        let gate = Gate::close(&pair.joined);
        pair.joined.fill(&buffer.slice(..).unwrap(), 1).unwrap();
        let graph = GraphExec::capture(&pair.origin, CaptureMode::ThreadLocal, |origin| {
            origin.fill(&buffer.slice(..)?, 2)
        })
        .unwrap();
        graph.launch(&pair.joined).unwrap();
        let Pair { origin, joined, fork, join } = pair;
        let slice = buffer.slice(7..).unwrap();
        let mut all: Vec<Box<dyn Any + Send>> = vec![
            Box::new(origin),
            Box::new(joined),
            Box::new(fork),
            Box::new(join),
            Box::new(graph),
            Box::new(buffer),
            Box::new(slice),
            Box::new(observer.clone()),
        ];
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(random >> 33).unwrap()
        };
        // Half of them on another thread.
        while !all.is_empty() {
            let one = all.swap_remove(next() % all.len());
            if next().is_multiple_of(2) {
                drop(one);
            } else {
                std::thread::spawn(move || drop(one)).join().unwrap();
            }
            observer.reap();
            assert!(
                weak.upgrade().is_some() && address.is_mapped(),
                "seed {seed}: work is waiting to use it"
            );
        }
        gate.open();
        is_gone(&observer, &weak, &address);
        drop((gate, address));
        eventually("the end of everything", || {
            observer.reap();
            observer.unreaped() == 0
        });
        drop(observer);
        let calls = calls.0.lock().unwrap();
        for (make, free) in pairs {
            assert_eq!(calls.get(make), calls.get(free), "seed {seed}: {make} and {free}");
        }
    }
}
