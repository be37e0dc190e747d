//! Faults of the network: bootstrap and control links that end, stall or carry corrupted bytes, at many places.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct::Result;
use aqueduct::bootstrap::{BootstrapConfig, TcpBootstrap};
use aqueduct::comm::CommunicatorConfig;
use aqueduct::gpu::{Context, Device, Driver};
use aqueduct::internals::fault::{LinkKind, NetAction, NetFault, NetFaults};
use aqueduct_tests::ranks;

use super::{PATIENCE, descriptors, job, judge, reap, settles};
use crate::group::{Machine, start_rendezvous};

const ACTIONS: [NetAction; 7] = [
    NetAction::Drop,
    NetAction::Truncate,
    NetAction::Stall,
    NetAction::Delay(Duration::from_millis(20)),
    NetAction::Lose(3),
    NetAction::Duplicate(5),
    NetAction::Corrupt(4),
];

/// Runs two ranks as threads that connect over TCP. Both have the same `faults`.
fn run(driver: &Driver, faults: &Arc<NetFaults>) -> Vec<Result<Vec<f32>>> {
    let rendezvous = start_rendezvous(Some(2));
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                let (id, faults) = (rendezvous.unique_id(), faults.clone());
                scope.spawn(move || {
                    let context = Context::new(&Device::new(driver, rank)?)?;
                    let settings = BootstrapConfig::from_env()?.with_layer(faults.clone());
                    let bootstrap = TcpBootstrap::with_config(rank, 2, id, &settings, PATIENCE)?;
                    let config = CommunicatorConfig::from_env()
                        .expect("the environment is valid")
                        .with_local_address(Ipv4Addr::LOCALHOST.into())
                        .with_max_semaphores(64)
                        .with_layer(faults);
                    job(&bootstrap, &context, config)
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("no fault makes a rank panic")).collect()
    })
}

fn sweep(test: &str, actions: &[NetAction], places: &[u64], kinds: &[LinkKind]) {
    if ranks::start(1, test).is_none() {
        return;
    }
    let driver = Machine::Software.driver();
    let _kept: Vec<Context> =
        (0..2).map(|rank| Context::new(&Device::new(&driver, rank).unwrap()).unwrap()).collect();
    let ends = run(&driver, &Arc::default());
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    for &kind in kinds {
        let mut fired = 0;
        for (action, place) in
            actions.iter().flat_map(|action| places.iter().map(move |place| (*action, *place)))
        {
            let case = format!("{action:?} after byte {place} of {kind:?}");
            let open = descriptors();
            let rule = NetFault::new(action).from_rank(1).on(kind).after_bytes(place);
            let faults = Arc::new(NetFaults::new([rule], place));
            let since = Instant::now();
            let ends = run(&driver, &faults);
            judge(&case, since, &ends);
            fired += faults.fired();
            let harmless = faults.fired() == 0 || matches!(action, NetAction::Delay(_));
            assert!(!harmless || ends.iter().all(Result::is_ok), "{case}: {ends:?}");
            settles(&case, "descriptors", open, || {
                reap([&driver; 2]);
                descriptors()
            });
        }
        assert!(fired > 0, "no fault took effect on {kind:?}");
    }
}

/// Every message arrives in pieces, the pieces of several messages together, or both.
#[test]
fn messages_in_pieces_and_together() {
    if ranks::start(1, "faults::net::messages_in_pieces_and_together").is_none() {
        return;
    }
    let driver = Machine::Software.driver();
    let actions = [NetAction::Fragment, NetAction::Coalesce];
    for (seed, actions) in (0..).zip([&actions[..1], &actions[1..], &actions].repeat(3)) {
        let faults = Arc::new(NetFaults::new(actions.iter().map(|action| NetFault::new(*action)), seed));
        let (since, ends) = (Instant::now(), run(&driver, &faults));
        judge(&format!("seed {seed}"), since, &ends);
        assert!(ends.iter().all(Result::is_ok), "seed {seed}: {ends:?}");
        // Rank 0 sends to rank 1 in the bootstrap and the control link, rank 1 to the rendezvous, too; and receives from each.
        let streams = 5 * actions.len() as u64;
        assert!(faults.fired() >= streams, "seed {seed}: {} streams", faults.fired());
    }
}

const KINDS: [LinkKind; 3] = [LinkKind::Rendezvous, LinkKind::Bootstrap, LinkKind::Control];
/// Offsets in the header of the first message, in its payload, and after it.
const PLACES: [u64; 6] = [0, 7, 15, 21, 60, 200];

#[test]
fn some_places_of_each_link() {
    let actions = [NetAction::Drop, NetAction::Truncate];
    sweep("faults::net::some_places_of_each_link", &actions, &[0, 21], &KINDS);
}

#[test]
#[ignore = "minutes long; ci/deep.sh faults"]
fn many_places_of_the_rendezvous() {
    sweep("faults::net::many_places_of_the_rendezvous", &ACTIONS, &PLACES, &KINDS[..1]);
}

#[test]
#[ignore = "minutes long; ci/deep.sh faults"]
fn many_places_of_the_bootstrap() {
    sweep("faults::net::many_places_of_the_bootstrap", &ACTIONS, &PLACES, &KINDS[1..2]);
}

#[test]
#[ignore = "minutes long; ci/deep.sh faults"]
fn many_places_of_control_links() {
    sweep("faults::net::many_places_of_control_links", &ACTIONS, &PLACES, &KINDS[2..]);
}
