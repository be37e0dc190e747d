//! A call allocates nothing, once the first ones have.
#![allow(unsafe_code, reason = "counts what the process allocates")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use cuda_driver_sys::CUresult;

use super::super::super::{Element, samples};
use super::{Driver, Rig, alone, close, ranks_on};
use crate::gpu::Hooks;

thread_local! {
    /// Allocations of this thread, if it counts them.
    static COUNT: Cell<Option<u64>> = const { Cell::new(None) };
    /// The count when the thread entered the driver, which allocates on its own account.
    static OUTSIDE: Cell<Option<u64>> = const { Cell::new(None) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: everything is the system allocator's; counting touches a thread-local without a destructor and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get().map(|count| count + 1));
        // SAFETY: the caller's promises are those that are asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// Leaves out what the driver allocates.
struct Border;

impl Hooks for Border {
    fn before(&self, _: &'static str) -> Option<CUresult> {
        OUTSIDE.set(COUNT.take());
        None
    }

    fn after(&self, _: &'static str, _: CUresult) {
        COUNT.set(OUTSIDE.take());
    }
}

/// Allocations of this thread within `run`, without the driver's.
fn allocations(run: impl FnOnce()) -> u64 {
    COUNT.set(Some(0));
    run();
    COUNT.take().expect("the thread counts")
}

#[test]
fn a_call_allocates_nothing_after_the_first_ones() {
    let _alone = alone();
    let driver = Driver::software(cuda_soft::driver_table()).unwrap().with_hooks(Arc::new(Border));
    for plan in samples::all().into_iter().filter(|plan| plan.ranks.len() == 2) {
        let comms = ranks_on(&driver, 2);
        let reduction = plan.reductions().next();
        let rig = Rig::new(&comms, &plan, 96, &[reduction]).unwrap();
        let call = || {
            for (rank, (side, executor)) in rig.sides.iter().zip(&rig.executors).enumerate() {
                match &rig.shown {
                    Some(shown) => {
                        executor.execute_on(&side.stream, &shown[rank], 96, Element::I32, reduction).unwrap()
                    }
                    None => {
                        let all = [side.input.slice(..).unwrap(), side.output.slice(..).unwrap()];
                        executor
                            .execute(&side.stream, &all[0], &all[1], 96, Element::I32, reduction)
                            .unwrap();
                    }
                }
            }
        };
        assert!(allocations(|| drop(std::hint::black_box(Box::new(1)))) == 1, "allocations are counted");
        call();
        let counts: Vec<u64> = (0..100).map(|_| allocations(call)).collect();
        assert_eq!(counts.iter().sum::<u64>(), 0, "{}: {counts:?}", plan.name);
        rig.sides.iter().for_each(|side| side.stream.synchronize(super::LIMIT).unwrap());
        drop(rig);
        close(&comms);
    }
}
