//! The proxy and the connections that plans of a communicator share.

use std::sync::Arc;

use super::super::super::pass::{Policy, replicate};
use super::super::super::{Element, Plan, samples};
use super::super::links::{Demand, Links};
use super::refusals::{FULL, Full};
use super::{
    Communicator, Executor, ExecutorConfig, LIMIT, Rig, alone, close, everywhere, ranks, ranks_on, ranks_with,
};
use crate::comm::CommunicatorConfig;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind};
use crate::gpu::{Driver, PinnedBuffer};
use crate::sync::Ordering;

const ELEMENTS: usize = 256;

fn links_of(executor: &Executor) -> &Arc<Links> {
    &executor.inner.ports.as_ref().unwrap().0.links
}

fn rig<'c>(comms: &'c [Communicator], plan: &Plan) -> Rig<'c> {
    Rig::new(comms, plan, ELEMENTS, &[None]).unwrap()
}

/// How each rank is refused its plan.
fn refused(comms: &[Communicator], plan: impl Fn(u32) -> Plan + Sync, max_bytes: u64) -> Vec<ErrorKind> {
    let kinds = everywhere(comms, |comm| {
        let config =
            ExecutorConfig::default().with_variants([(Element::I32, None)]).with_max_bytes(max_bytes);
        Ok(Executor::prepare(comm, &plan(comm.rank()), config, LIMIT).unwrap_err().kind())
    });
    kinds.into_iter().map(Result::unwrap).collect()
}

fn assert_shared(one: &Rig<'_>, other: &Rig<'_>, shared: bool) {
    for (one, other) in one.executors.iter().zip(&other.executors) {
        assert_eq!(Arc::ptr_eq(links_of(one), links_of(other)), shared);
        assert_eq!(links_of(other).len(), 1, "to the only peer");
    }
}

#[test]
fn all_plans_have_one_connection_to_a_peer() {
    let _alone = alone();
    let comms = ranks(2);
    let mut first = rig(&comms, &samples::port_all_gather());
    // Without ports.
    let mut between = Rig::new(&comms, &samples::one_shot(2, true), ELEMENTS, &[None]).unwrap();
    let mut second = rig(&comms, &samples::port_packets());
    let mut third = rig(&comms, &samples::port_all_gather());
    assert_shared(&first, &second, true);
    assert_shared(&first, &third, true);
    // A channel of each of three plans, of those for which a proxy has room.
    let links = links_of(&first.executors[0]);
    let can_take = |semaphores, memories| links.can_take(Demand { semaphores, memories });
    assert!(can_take(4096 - 3, 0) && !can_take(4096 - 2, 0));
    assert!(!can_take(0, 1 << 16), "each plan has memories");
    for _ in 0..3 {
        for rig in [&mut first, &mut between, &mut second, &mut third] {
            rig.as_simulated(ELEMENTS, None);
        }
    }
    // Those that stay do not need the others.
    drop((first, third));
    second.as_simulated(ELEMENTS, None);
    drop((second, between));
    close(&comms);
}

/// All semaphores of a communicator are as many as it has been given room for.
#[test]
fn a_plan_that_stays_does_not_keep_what_others_had() {
    const SEMAPHORES: u32 = 4;
    let _alone = alone();
    let config = CommunicatorConfig::default().with_max_semaphores(SEMAPHORES);
    let comms = ranks_with(&Driver::software(cuda_soft::driver_table()).unwrap(), 2, config);
    let mut stays = rig(&comms, &samples::port_all_gather());
    let room = || [0, 1].map(|rank: usize| links_of(&stays.executors[rank]).service().room());
    let before = room();
    for _ in 0..3 * SEMAPHORES {
        let mut goes = rig(&comms, &samples::port_packets());
        assert_shared(&stays, &goes, true);
        goes.as_simulated(ELEMENTS, None);
        drop(goes);
    }
    let deadline = Deadline::after(LIMIT);
    while room() != before {
        assert!(!deadline.expired(), "memories, too, leave the proxy");
    }
    stays.as_simulated(ELEMENTS, None);
    drop(stays);
    close(&comms);
}

/// Somebody else finds that a call is done and drops the last of its plan; the stream is asked later. Another plan keeps the proxy or not.
#[test]
fn a_plan_that_goes_when_its_call_is_done_spoils_no_wait() {
    let _alone = alone();
    for stays in [true, false] {
        let comms = ranks(2);
        let other = stays.then(|| rig(&comms, &samples::port_all_gather()));
        let Rig { executors, sides, shown, .. } = rig(&comms, &samples::port_all_gather());
        let links = Arc::downgrade(links_of(&executors[0]));
        let shown = shown.unwrap();
        for (side, (executor, shown)) in sides.iter().zip(executors.iter().zip(&shown)) {
            executor.execute_on(&side.stream, shown, ELEMENTS, Element::I32, None).unwrap();
        }
        // All but the other plan's.
        let room = Demand { semaphores: 4095, memories: 0 };
        assert!(!stays || !links.upgrade().unwrap().can_take(room));
        drop((executors, shown));
        let deadline = Deadline::after(LIMIT);
        let gone = || links.upgrade().map_or(!stays, |links| stays && links.can_take(room));
        while !gone() {
            assert!(!deadline.expired(), "the call ends");
            comms.iter().for_each(|comm| comm.context().reap());
        }
        for side in &sides {
            side.stream.synchronize(LIMIT).unwrap();
        }
        drop(other);
        close(&comms);
    }
}

#[test]
fn a_rank_that_has_none_any_more_makes_new_ones_with_its_peers() {
    let _alone = alone();
    let comms = ranks(2);
    let mut first = rig(&comms, &samples::port_all_gather());
    first.as_simulated(ELEMENTS, None);
    let kept = first.executors[0].clone();
    drop(first);
    let mut second = rig(&comms, &samples::port_all_gather());
    assert!(!Arc::ptr_eq(links_of(&kept), links_of(&second.executors[0])), "the peer has none of these");
    second.as_simulated(ELEMENTS, None);
    let mut third = rig(&comms, &samples::port_packets());
    assert_shared(&second, &third, true);
    third.as_simulated(ELEMENTS, None);
    drop((kept, second, third));
    close(&comms);
}

#[test]
fn those_of_a_proxy_that_has_stopped_are_used_no_more() {
    let _alone = alone();
    let comms = ranks(2);
    let first = rig(&comms, &samples::port_all_gather());
    links_of(&first.executors[1]).service().stop(LIMIT).unwrap();
    let mut second = rig(&comms, &samples::port_all_gather());
    assert_shared(&first, &second, false);
    second.as_simulated(ELEMENTS, None);
    drop((first, second));
    close(&comms);
}

#[test]
fn a_connection_that_had_failed_is_used_no_more_although_its_plan_has_gone() {
    let _alone = alone();
    let comms = ranks(2);
    let [first, second] = [(); 2].map(|()| rig(&comms, &samples::port_all_gather()));
    assert_shared(&first, &second, true);
    let ports = &first.executors[1].inner.ports.as_ref().unwrap().0;
    ports.links.service().fail(ports.semaphores[0].1, &Error::peer_lost("test", 0, "it failed"));
    drop(first);
    let mut third = rig(&comms, &samples::port_all_gather());
    assert_shared(&second, &third, false);
    third.as_simulated(ELEMENTS, None);
    drop((second, third));
    close(&comms);
}

/// The plan of `port_all_gather` twice, by a channel and a block for each time.
fn two_channels() -> Plan {
    let plan = replicate(&samples::port_all_gather(), 2, Policy::Interleaved).unwrap();
    assert_eq!(plan.ranks[0].port_channels, [1, 1]);
    plan
}

/// Whichever it is: the next call is refused, and a wait for a stream that has had one says why.
#[test]
fn every_channel_of_a_plan_is_asked_whether_it_has_failed() {
    let _alone = alone();
    for fails in [0, 1] {
        let comms = ranks(2);
        let mut rig = rig(&comms, &two_channels());
        rig.as_simulated(ELEMENTS, None);
        let Rig { executors, sides, shown, .. } = &rig;
        let call = |rank: usize| {
            let shown = &shown.as_ref().unwrap()[rank];
            executors[rank].execute_on(&sides[rank].stream, shown, ELEMENTS, Element::I32, None)
        };
        [0, 1].into_iter().for_each(|rank| call(rank).unwrap());
        // The stream has work behind the call, which has ended.
        let words = Arc::new(PinnedBuffer::new(comms[1].context(), 16).unwrap());
        let word = |at: usize| words.memory().word64(at).unwrap();
        sides[1].stream.write_value64(&words.slice(..8).unwrap(), 1).unwrap();
        sides[1].stream.wait_value64(&words.slice(8..).unwrap(), 1).unwrap();
        let deadline = Deadline::after(LIMIT);
        while word(0).load(Ordering::Acquire) == 0 {
            assert!(!deadline.expired(), "the call ends");
        }
        let ports = &executors[1].inner.ports.as_ref().unwrap().0;
        ports.links.service().fail(ports.semaphores[fails].1, &Error::peer_lost("test", 0, "it failed"));
        word(8).store(1, Ordering::Release);
        for error in [sides[1].stream.synchronize(LIMIT).unwrap_err(), call(1).unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::PeerLost, "channel {fails}: {error}");
            assert!(error.to_string().contains("it failed"), "channel {fails}: {error}");
        }
        drop(rig);
        close(&comms);
    }
}

/// Objects may then be there on some ranks and not on others.
#[test]
fn ranks_of_which_one_had_no_memory_begin_anew() {
    let _alone = alone();
    let driver = Driver::software(cuda_soft::driver_table()).unwrap().with_hooks(Arc::new(Full));
    let comms = ranks_on(&driver, 2);
    let first = rig(&comms, &samples::port_all_gather());
    let plan = |rank| {
        FULL.set(rank == 0);
        samples::port_packets()
    };
    assert_eq!(refused(&comms, plan, 4096), [ErrorKind::Cuda, ErrorKind::Remote]);
    let mut second = rig(&comms, &samples::port_packets());
    assert_shared(&first, &second, false);
    second.as_simulated(ELEMENTS, None);
    drop((first, second));
    close(&comms);
}

/// A rank says so before any of them has made anything.
#[test]
fn a_plan_that_finds_no_room_costs_no_plan_its_links() {
    let _alone = alone();
    let comms = ranks(2);
    let first = rig(&comms, &samples::port_all_gather());
    // The first plan has a block, and the next one would have another.
    let full = comms[0].company().reserve("test", (1, 2), true, None).unwrap();
    assert_eq!(
        refused(&comms, |_| samples::port_packets(), 4096),
        [ErrorKind::InvalidUsage, ErrorKind::Remote]
    );
    drop(full);
    let second = rig(&comms, &samples::port_packets());
    assert_shared(&first, &second, true);
    drop((first, second));
    close(&comms);
}

/// Every rank finds that a plan's scratch is too large, before any of them has made anything.
#[test]
fn a_plan_that_finds_no_memory_costs_no_plan_its_links() {
    let _alone = alone();
    let comms = ranks(2);
    let first = rig(&comms, &samples::port_all_gather());
    assert_eq!(refused(&comms, |_| samples::port_packets(), 1 << 50), [ErrorKind::InvalidUsage; 2]);
    let second = rig(&comms, &samples::port_packets());
    assert_shared(&first, &second, true);
    drop((first, second));
    close(&comms);
}

#[test]
fn ranks_that_did_not_agree_on_a_plan_keep_those_that_they_had() {
    let _alone = alone();
    let comms = ranks(2);
    let mut first = rig(&comms, &samples::port_all_gather());
    let plan = |rank| if rank == 0 { samples::port_all_gather() } else { samples::port_packets() };
    assert_eq!(refused(&comms, plan, 4096), [ErrorKind::InvalidUsage; 2]);
    let mut second = rig(&comms, &samples::port_packets());
    assert_shared(&first, &second, true);
    for rig in [&mut first, &mut second] {
        rig.as_simulated(ELEMENTS, None);
    }
    drop((first, second));
    close(&comms);
}

/// A rank that leaves closes its connections first.
#[test]
fn a_channel_that_its_peer_closed_to_leave_is_explained_by_its_leaving() {
    let _alone = alone();
    // The goodbye may take longer to come than the library waits for it: any of ten attempts may show it.
    let explained = (0..10).any(|_| {
        let comms = ranks(2);
        let mut rig = rig(&comms, &two_channels());
        rig.as_simulated(ELEMENTS, None);
        let Rig { executors, sides, shown, .. } = &rig;
        for rank in [0, 1] {
            let shown = &shown.as_ref().unwrap()[rank];
            executors[rank].execute_on(&sides[rank].stream, shown, ELEMENTS, Element::I32, None).unwrap();
        }
        sides[0].stream.synchronize(LIMIT).unwrap();
        let ports = &executors[1].inner.ports.as_ref().unwrap().0;
        let closed = Error::new(ErrorKind::Remote, "recv", "rank 0 has closed its end").with_peer(0);
        ports.links.service().fail(ports.semaphores[0].1, &closed);
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(50));
                comms[0].close(LIMIT)
            });
            sides[1].stream.synchronize(LIMIT).unwrap_err()
        });
        comms[1].close(LIMIT).unwrap();
        (error.kind(), error.peer()) == (ErrorKind::PeerLost, Some(0))
    });
    assert!(explained);
}
