//! Calls that all ranks make together, after one that some of them gave up, and from several threads.

use std::time::Duration;

use aqueduct::collective::{Barrier, Collective, CollectiveConfig};
use aqueduct::gpu::GpuBuffer;
use aqueduct::plan::Kind;
use aqueduct::{Error, ErrorKind, Result};
use std::sync::Arc;

use super::{F32_SUM, config};
use crate::group::{Machine, Rank, soon, threads};

type Call<'a> = &'a dyn Fn(Duration) -> Result<()>;

/// A rank is late once, and then all make the call again.
fn late_once(rank: &Rank, late: u32, call: Call<'_>) {
    const SHORT: Duration = Duration::from_millis(300);
    if rank.me() == late {
        std::thread::sleep(2 * SHORT);
    }
    let first = call(SHORT);
    // As many calls at each rank. The barrier is another communicator's.
    rank.barrier();
    let kind = first.as_ref().err().map(Error::kind);
    assert!(matches!(kind, None | Some(ErrorKind::Timeout | ErrorKind::Remote)), "{first:?}");
    for round in 0..3 {
        let again = call(Duration::from_secs(60));
        assert!(again.is_ok(), "call {round} after rank {late} was late: {again:?}");
    }
    rank.barrier();
}

#[test]
fn all_ranks_can_go_on_after_one_was_late() {
    let test = "built_in::retried::all_ranks_can_go_on_after_one_was_late";
    threads(Machine::Software, 3, test, |rank| {
        let comm = &rank.comm;
        let usual = || CollectiveConfig::default().with_variants([F32_SUM]);
        let collective = Collective::prepare(comm, Kind::AllReduce, config(), soon()).unwrap();
        let [input, output] = [(); 2].map(|()| Arc::new(GpuBuffer::new(comm.context(), 4096).unwrap()));
        let calls: [Call<'_>; 4] = [
            &|limit| Collective::prepare(comm, Kind::AllReduce, usual(), limit).map(drop),
            &|limit| collective.buffers(&input, &output, limit).map(drop),
            &|limit| Barrier::prepare(comm, limit).map(drop),
            &|limit| comm.duplicate(limit).map(drop),
        ];
        for call in calls {
            (0..3).for_each(|late| late_once(&rank, late, call));
        }
    });
}

/// Each pairs with one of the other rank, whichever comes first.
#[test]
fn the_same_call_may_come_from_several_threads_at_once() {
    let test = "built_in::retried::the_same_call_may_come_from_several_threads_at_once";
    threads(Machine::Software, 2, test, |rank| {
        for _ in 0..4 {
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        Collective::prepare(&rank.comm, Kind::AllGather, CollectiveConfig::default(), soon())
                            .unwrap();
                    });
                }
            });
            rank.barrier();
        }
    });
}

/// A call that got no turn in time counts as one that this rank has made.
#[test]
fn a_call_that_got_no_turn_is_one_of_those_that_a_rank_has_made() {
    let test = "built_in::retried::a_call_that_got_no_turn_is_one_of_those_that_a_rank_has_made";
    threads(Machine::Software, 2, test, |rank| {
        let prepare = |limit| Barrier::prepare(&rank.comm, Duration::from_millis(limit)).map(drop);
        if rank.me() == 0 {
            std::thread::scope(|scope| {
                let first = scope.spawn(|| prepare(1000));
                std::thread::sleep(Duration::from_millis(200));
                assert_eq!(prepare(10).unwrap_err().kind(), ErrorKind::Timeout);
                assert_eq!(first.join().unwrap().unwrap_err().kind(), ErrorKind::Timeout);
            });
        } else {
            std::thread::sleep(Duration::from_millis(1200));
            (0..2).for_each(|_| drop(prepare(10)));
        }
        rank.barrier();
        prepare(60_000).unwrap();
        rank.barrier();
    });
}
