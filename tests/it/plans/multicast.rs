//! Switches on multicast, which the software device has in these processes. Never on hardware, which has not confirmed it.

use std::sync::Arc;

use aqueduct::ErrorKind;
use aqueduct::comm::Communicator;
use aqueduct::gpu::{CUresult, Context, Device};
use aqueduct::internals::hooks::Hooks;
use aqueduct::plan::program::{BufferType, CollectiveProgram, Pattern, SyncType};
use aqueduct::plan::{Executor, Plan, Reduction, programs};
use aqueduct_tests::ranks;

use super::{Bench, config};
use crate::group::{Machine, Rank, processes_each, soon};

/// Variables that ask for multicast, and that give the software device some.
fn environment(asks: bool) -> Vec<(&'static str, String)> {
    let asks = if asks { "1" } else { "0" };
    vec![("AQUEDUCT_SOFT_MULTICAST", "1".into()), ("AQUEDUCT_MULTICAST", asks.into())]
}

fn over_buffers(ranks: u32) -> Plan {
    let program = programs::find("all-reduce", Some("switch")).unwrap();
    program.program(ranks, &programs::Choices::default()).unwrap().compile().unwrap()
}

/// All-reduce: copies into scratch, reduces a part of all ranks' scratch there, broadcasts it and copies out.
fn over_scratch(ranks: u32) -> Plan {
    let program = CollectiveProgram::new("scratch", Pattern::all_reduce(ranks, 1)).threads_per_block(128);
    let switch = program.switch_channel(0..ranks, BufferType::Scratch);
    let scratch: Vec<_> = program.ranks().map(|rank| rank.scratch(ranks)).collect();
    for rank in program.ranks() {
        let (me, scratch) = (rank.index(), scratch[rank.index() as usize]);
        let channels: Vec<_> = rank.peers().map(|peer| rank.memory_channel(peer)).collect();
        let meet = || {
            channels.iter().for_each(|channel| channel.signal(0, SyncType::Before));
            channels.iter().for_each(|channel| channel.wait(0, SyncType::After));
        };
        rank.copy(scratch.chunks(..), rank.input().chunks(..), 0);
        meet();
        switch.at_rank(me).reduce(scratch.chunk(me), me, Reduction::Sum, 0);
        switch.at_rank(me).broadcast(me, scratch.chunk(me), 0);
        meet();
        rank.copy(rank.output().chunks(..), scratch.chunks(..), 0);
        // The peers may write scratch of the next call when all have read that of this one.
        meet();
    }
    program.compile().unwrap()
}

fn run(rank: &Rank, multicast: bool) {
    for plan in [over_buffers(3), over_scratch(3)] {
        let mut bench = Bench::new(rank, &plan, config());
        assert_eq!(bench.executor.uses_multicast(), multicast, "{}", plan.name);
        bench.sizes();
        bench.replays();
    }
    rank.barrier();
}

#[test]
fn three_processes() {
    let test = "plans::multicast::three_processes";
    let settings = crate::group::config();
    processes_each(Machine::Software, 3, test, settings, |_| environment(true), |rank| run(&rank, true));
}

#[test]
fn one_of_three_processes_does_not_ask() {
    let test = "plans::multicast::one_of_three_processes_does_not_ask";
    let settings = crate::group::config();
    let environment = |rank| environment(rank != 1);
    processes_each(Machine::Software, 3, test, settings, environment, |rank| run(&rank, false));
}

/// Kills this process when the driver is asked for something.
struct Dies(&'static str);

impl Hooks for Dies {
    fn before(&self, function: &'static str) -> Option<CUresult> {
        if function == self.0 {
            ranks::die();
        }
        None
    }
}

/// A rank is killed between the steps by which the ranks make their objects: the others hear of it and do not wait.
#[test]
fn a_rank_is_killed_while_objects_are_made() {
    let test = "plans::multicast::a_rank_is_killed_while_objects_are_made";
    processes_each(
        Machine::Software,
        3,
        test,
        crate::group::config(),
        |_| environment(true),
        |rank| {
            let mut driver = Machine::Software.driver();
            if rank.me() == 1 {
                driver = driver.with_hooks(Arc::new(Dies("cuMulticastBindMem")));
            }
            let context = Context::new(&Device::new(&driver, rank.me()).unwrap()).unwrap();
            let comm = Communicator::new(&rank.bootstrap, &context, crate::group::config(), soon()).unwrap();
            let error = Executor::prepare(&comm, &over_scratch(3), config(), soon()).unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}");
        },
    );
}

/// Kernels that wait for a rank leave when it is killed.
#[test]
fn a_rank_is_killed_whose_peers_use_multicast() {
    let test = "plans::multicast::a_rank_is_killed_whose_peers_use_multicast";
    processes_each(
        Machine::Software,
        3,
        test,
        crate::group::config(),
        |_| environment(true),
        |rank| {
            let bench = Bench::new(&rank, &over_scratch(3), config());
            assert!(bench.executor.uses_multicast());
            bench.begin(480);
            rank.barrier();
            if rank.me() == 1 {
                ranks::die();
            }
            let ended = bench.enqueue(480, Reduction::Sum).and_then(|()| bench.stream.synchronize(soon()));
            let error = ended.unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}");
        },
    );
}
