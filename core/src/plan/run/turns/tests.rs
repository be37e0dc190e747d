//! What ranks agree on, and calls that come while they do.

use std::time::Duration;

use super::*;
use crate::comm::CommunicatorConfig;
use crate::gpu::{Context, Device, Driver};

const LIMIT: Duration = Duration::from_secs(60);

fn alone() -> (Communicator, Arc<Turns>) {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let mut comms =
        Communicator::local(std::slice::from_ref(&context), CommunicatorConfig::default(), LIMIT).unwrap();
    (comms.pop().unwrap(), Turns::new(&context))
}

/// A preparation waits for calls that have begun, and calls wait for a preparation that has begun to agree on turns.
#[test]
fn calls_and_the_beginning_of_turns_do_not_overlap() {
    let (comm, turns) = alone();
    let first = turns.begin("test", &comm, None).unwrap();
    drop(turns.begin("test", &comm, None).unwrap());
    let refused = turns.close(1, LIMIT.into()).unwrap_err();
    assert!(refused.to_string().contains("was called during the preparation"), "{refused}");
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| turns.close(2, LIMIT.into()).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!closing.is_finished(), "a call is being enqueued");
        drop(first);
        let mut closed = closing.join().unwrap();
        let calling = scope.spawn(|| drop(turns.begin("test", &comm, None).unwrap()));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!calling.is_finished(), "the ranks have not agreed");
        closed.open(0);
        calling.join().unwrap();
    });
    assert!(!turns.are_taken());
    let mut closed = turns.close(3, LIMIT.into()).unwrap();
    closed.open(BROKEN);
    assert_eq!(turns.begin("test", &comm, None).unwrap_err().kind(), ErrorKind::Timeout);
}

/// Numbers are free again once all ranks have dropped their callers.
#[test]
fn numbers_are_given_out_that_no_rank_has_in_use() {
    let (comm, turns) = alone();
    let numbers = |bits| Agreed { same: true, begins: false, numbers: vec![bits] };
    let given = |places: &[Place]| -> Vec<Option<u32>> {
        places.iter().map(|place| place.caller.as_ref().map(|caller| caller.number)).collect()
    };
    let [one, two] = [comm.context().new_series(), turns.company];
    let wanted = [Some(None), Some(Some(one)), None, Some(Some(one)), Some(Some(two)), Some(None)];
    let places = turns.places(&numbers(0b101), wanted.into_iter()).unwrap();
    assert_eq!(given(&places), [Some(1), Some(3), None, Some(3), Some(4), Some(5)]);
    assert_eq!(*lock(&turns.numbers), [0b11_1010]);
    drop(places);
    assert_eq!(*lock(&turns.numbers), [0]);
    let full = Agreed { same: true, begins: false, numbers: vec![u64::MAX; CALLERS as usize / 64] };
    assert!(turns.places(&full, [None].into_iter()).is_ok());
    assert!(turns.places(&full, [Some(None)].into_iter()).is_err());
}

#[test]
fn ranks_take_turns_if_one_is_crowded_and_all_can() {
    let calm = Facts { history: 5, calls: 3, able: true, numbers: vec![1], ..Facts::default() };
    let agree = |all: &[Facts]| all[0].agree(all).map(|agreed| (agreed.same, agreed.begins, agreed.numbers));
    let crowded = Facts { crowded: true, numbers: vec![2, 4], ..calm.clone() };
    assert_eq!(agree(&[calm.clone(), calm.clone()]).unwrap(), (true, false, vec![1]));
    assert_eq!(agree(&[calm.clone(), crowded.clone()]).unwrap(), (true, true, vec![3, 4]));
    let unable = Facts { able: false, ..calm.clone() };
    assert_eq!(agree(&[unable, crowded.clone()]).unwrap(), (true, false, vec![3, 4]));
    // Other calls matter only where turns begin.
    let late = Facts { calls: 2, ..calm.clone() };
    assert_eq!(agree(&[calm.clone(), late.clone()]).unwrap(), (true, false, vec![1]));
    assert!(agree(&[crowded.clone(), late]).unwrap_err().to_string().contains("make each call before this"));
    // A rank that has dropped all its executors: all begin anew.
    let anew = Facts { history: 0, calls: 0, numbers: Vec::new(), ..calm.clone() };
    assert_eq!(agree(&[crowded.clone(), anew.clone()]).unwrap(), (false, true, Vec::new()));
    assert_eq!(agree(&[anew.clone(), anew]).unwrap(), (false, false, Vec::new()));
    let taken = Facts { taken: true, ..crowded.clone() };
    assert_eq!(agree(&[taken.clone(), taken.clone()]).unwrap(), (true, false, vec![2, 4]));
    assert_eq!(agree(&[taken, crowded]).unwrap_err().kind(), ErrorKind::Timeout);
}
