//! A rank that gets no memory while it prepares tells the others, whichever allocation it is.

use std::cell::Cell;
use std::time::Instant;

use cuda_driver_sys::CUresult;

use super::super::{Barrier, PointToPoint, VariableCollective};
use super::*;
use crate::error::ErrorKind;
use crate::gpu::Hooks;

thread_local! {
    /// Allocations of this thread so far, and the one that fails.
    static ALLOCATIONS: Cell<(u32, u32)> = const { Cell::new((0, u32::MAX)) };
}

struct OneFails;

impl Hooks for OneFails {
    fn before_allocation(&self, _: &'static str, _: usize) -> Option<CUresult> {
        let (seen, fails) = ALLOCATIONS.get();
        ALLOCATIONS.set((seen + 1, fails));
        (seen == fails).then_some(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }
}

/// Rank 0 hears of it at once: it would otherwise find out at its deadline, or in a call that never ends.
fn every_failure_is_told<T>(prepare: impl Fn(&Communicator) -> Result<T> + Sync) {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap().with_hooks(Arc::new(OneFails));
    let device = &Device::all(&driver).unwrap()[0];
    let contexts = [(); 2].map(|()| Context::new(device).unwrap());
    let config = CommunicatorConfig::default().with_peer_timeout(None);
    let comms = Communicator::local(&contexts, config, LIMIT).unwrap();
    let attempt = |fails: u32| {
        together(&comms, |comm| {
            ALLOCATIONS.set((0, if comm.rank() == 1 { fails } else { u32::MAX }));
            let since = Instant::now();
            let kind = prepare(comm).map(drop).map_err(|error| error.kind());
            assert!(
                since.elapsed() < LIMIT / 4,
                "rank {}: {kind:?} after {:?}",
                comm.rank(),
                since.elapsed()
            );
            Ok((kind, ALLOCATIONS.get().0))
        })
        .unwrap()
    };
    let count = attempt(u32::MAX)[1].1;
    assert!(count > 0, "there is something to fail");
    for fails in 0..count {
        let kinds = attempt(fails).into_iter().map(|(kind, _)| kind.unwrap_err()).collect::<Vec<_>>();
        assert_eq!(kinds, [ErrorKind::Remote, ErrorKind::Cuda], "allocation {fails} of {count}");
    }
    assert_eq!(attempt(u32::MAX)[0].0, Ok(()), "the ranks still agree");
    close(&comms);
}

#[test]
fn of_a_barrier() {
    every_failure_is_told(|comm| Barrier::prepare(comm, LIMIT));
}

#[test]
fn of_sends_and_receives() {
    every_failure_is_told(|comm| PointToPoint::prepare(comm, LIMIT));
}

#[test]
fn of_a_collective_of_variable_sizes() {
    every_failure_is_told(|comm| {
        let config = CollectiveConfig::default().with_staging_bytes(1 << 20);
        VariableCollective::prepare(comm, Kind::AllGather, config, LIMIT)
    });
}

#[test]
fn of_a_collective() {
    every_failure_is_told(|comm| prepare(comm, CollectiveConfig::default()));
}
