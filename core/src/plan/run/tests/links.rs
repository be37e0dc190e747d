//! The proxy and the connections that plans of a communicator share.

use std::sync::Arc;

use super::super::super::{Element, Plan, samples};
use super::super::links::Links;
use super::{Communicator, Executor, ExecutorConfig, LIMIT, Rig, alone, close, everywhere, ranks};
use crate::error::ErrorKind;

const ELEMENTS: usize = 256;

fn links_of(executor: &Executor) -> &Arc<Links> {
    &executor.inner.ports.as_ref().unwrap().0.links
}

fn rig<'c>(comms: &'c [Communicator], plan: &Plan) -> Rig<'c> {
    Rig::new(comms, plan, ELEMENTS, &[None]).unwrap()
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
    assert!(links.can_take(4096 - 3) && !links.can_take(4096 - 2));
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
fn ranks_that_did_not_agree_on_a_plan_keep_those_that_they_had() {
    let _alone = alone();
    let comms = ranks(2);
    let mut first = rig(&comms, &samples::port_all_gather());
    let errors = everywhere(&comms, |comm| {
        let plan = if comm.rank() == 0 { samples::port_all_gather() } else { samples::port_packets() };
        let config = ExecutorConfig::default().with_variants([(Element::I32, None)]).with_max_bytes(4096);
        Ok(Executor::prepare(comm, &plan, config, LIMIT).unwrap_err().kind())
    });
    assert!(errors.into_iter().all(|kind| kind.unwrap() == ErrorKind::InvalidUsage));
    let mut second = rig(&comms, &samples::port_packets());
    assert_shared(&first, &second, true);
    for rig in [&mut first, &mut second] {
        rig.as_simulated(ELEMENTS, None);
    }
    drop((first, second));
    close(&comms);
}
