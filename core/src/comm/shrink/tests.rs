//! Shrinking twice without the same ranks.

use std::cell::Cell;
use std::net::Ipv4Addr;
use std::sync::Arc;

use cuda_driver_sys::CUresult;

use super::*;
use crate::bootstrap;
use crate::comm::CommunicatorConfig;
use crate::gpu::{Context, Device, Driver, Hooks};
use crate::sync::{AtomicU32, Ordering};

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

thread_local! {
    /// What happens on this thread once all members have made the communicator.
    static MET: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

pub(super) fn met() {
    MET.take().into_iter().for_each(|run| run());
}

/// Counts a driver's allocations of abort words, which a communicator makes before it says anything to other ranks.
#[derive(Debug, Default)]
struct Allocations(AtomicU32);

const WORK: u32 = 0;
/// The next one fails, and sets `FAILED`.
const FAIL: u32 = 1;
const FAILED: u32 = 2;
/// The next one waits until it is told to work.
const WAIT: u32 = 3;

impl Hooks for Allocations {
    fn before_allocation(&self, function: &'static str, _: usize) -> Option<CUresult> {
        if function != "cuMemHostAlloc" {
            return None;
        }
        if self.0.compare_exchange(FAIL, FAILED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let deadline = soon();
        while self.0.load(Ordering::Acquire) == WAIT && !deadline.expired() {
            std::thread::yield_now();
        }
        None
    }
}

/// Three ranks. The second fails to make the communicator of the first generation, and only then the first sends it that
/// generation's seed. The second generation has the same members, and takes no message of the first for its own.
#[test]
fn a_shrink_that_is_called_again_without_the_same_ranks_hears_nothing_of_the_one_before() {
    let hooks: [Arc<Allocations>; 3] = Default::default();
    std::thread::scope(|scope| {
        for bootstrap in bootstrap::local(3) {
            let hooks = &hooks;
            scope.spawn(move || {
                let rank = bootstrap.rank();
                let mine = hooks[rank as usize].clone();
                let driver = Driver::software(cuda_soft::driver_table()).unwrap().with_hooks(mine.clone());
                let context = Context::new(&Device::new(&driver, rank).unwrap()).unwrap();
                let config = CommunicatorConfig::default().with_local_address(Ipv4Addr::LOCALHOST.into());
                let comm = Communicator::new(&bootstrap, &context, config, soon()).unwrap();
                mine.0.store([WAIT, FAIL, WORK][rank as usize], Ordering::Release);
                bootstrap.barrier(soon()).unwrap();
                if rank == 1 {
                    let error = comm.shrink(&[2], soon()).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Cuda, "{error}");
                    assert_eq!(mine.0.load(Ordering::Acquire), FAILED);
                    hooks[0].0.store(WORK, Ordering::Release);
                    // Rank 0 sends it meanwhile. If it is slower, it sends nothing for the first generation.
                    std::thread::sleep(Duration::from_millis(300));
                }
                if rank < 2 {
                    let made = comm.shrink(&[2], soon()).unwrap();
                    assert_eq!((made.rank(), made.size()), (rank, 2));
                    made.duplicate(soon()).unwrap();
                    bootstrap.barrier(soon()).unwrap();
                } else {
                    bootstrap.barrier(soon()).unwrap();
                }
            });
        }
    });
}

/// Between the meeting and its end a rank may have bound itself to another group: it may not go on in both.
#[test]
fn a_generation_that_is_not_this_calls_to_complete_is_not_returned() {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    std::thread::scope(|scope| {
        for bootstrap in bootstrap::local(3) {
            let driver = driver.clone();
            scope.spawn(move || {
                let rank = bootstrap.rank();
                let context = Context::new(&Device::new(&driver, rank).unwrap()).unwrap();
                let config = CommunicatorConfig::default().with_local_address(Ipv4Addr::LOCALHOST.into());
                let comm = Communicator::new(&bootstrap, &context, config, soon()).unwrap();
                bootstrap.barrier(soon()).unwrap();
                if rank == 0 {
                    let other = comm.clone();
                    // As a rank that can complete nothing any more.
                    MET.set(Some(Box::new(move || drop(other.group().control().leave()))));
                    assert!(comm.shrink(&[2], soon()).is_err(), "it goes on all the same");
                } else if rank == 1 {
                    // It has met rank 0 before that one left, or begins anew without it.
                    let _ = comm.shrink(&[2], soon());
                }
                bootstrap.barrier(soon()).unwrap();
            });
        }
    });
}
