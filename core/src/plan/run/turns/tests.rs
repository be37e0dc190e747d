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
    (comms.pop().unwrap(), Turns::new())
}

fn calls_of(callers: &[u32]) -> Calls {
    callers.iter().fold(Calls::default(), |calls, &caller| calls.and(caller))
}

/// A preparation waits for calls that have begun, and calls wait for a preparation that has begun to agree on turns.
#[test]
fn calls_and_the_beginning_of_turns_do_not_overlap() {
    let (comm, turns) = alone();
    let caller = turns.caller(2);
    let begin = || turns.begin("test", &comm, Some(&caller));
    let first = begin().unwrap();
    drop(begin().unwrap());
    let refused = turns.close(calls_of(&[2]), LIMIT.into()).unwrap_err();
    assert!(refused.to_string().contains("was called during the preparation"), "{refused}");
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| turns.close(calls_of(&[2, 2]), LIMIT.into()).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!closing.is_finished(), "a call is being enqueued");
        drop(first);
        let mut closed = closing.join().unwrap();
        let calling = scope.spawn(|| drop(begin().unwrap()));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!calling.is_finished(), "the ranks have not agreed");
        closed.open(Outcome::Unchanged);
        calling.join().unwrap();
    });
    assert!(!turns.are_taken());
    let mut closed = turns.close(calls_of(&[2, 2, 2]), LIMIT.into()).unwrap();
    closed.open(Outcome::Broken);
    assert_eq!(begin().unwrap_err().kind(), ErrorKind::Timeout);
}

/// Ranks may have made as many of them as they like, and nobody waits for one or keeps it waiting.
#[test]
fn calls_that_never_take_turns_do_not_count() {
    let (comm, turns) = alone();
    let before = turns.begin("test", &comm, None).unwrap();
    let mut closed = turns.close(Calls::default(), LIMIT.into()).unwrap();
    assert!(turns.begin("test", &comm, None).unwrap().turn.is_none());
    closed.open(Outcome::Broken);
    assert!(turns.begin("test", &comm, None).unwrap().turn.is_none());
    drop(before);
    assert_eq!(turns.count.calls(), Calls::default());
}

/// A rank that comes to the last meeting with a failure knows that no rank has succeeded.
#[test]
fn turns_break_only_where_others_may_have_begun_them() {
    let (comm, turns) = alone();
    let timeout = || Err::<(), _>(Error::timeout("test", "for the test"));
    let caller = turns.caller(0);
    let begin = || turns.begin("test", &comm, Some(&caller)).map(drop);
    for (failed, met, goes_on) in [
        (true, timeout(), true),
        (false, Err(Error::usage("test", "of another rank")), true),
        (false, timeout(), false),
    ] {
        let closed = turns.close(turns.count.calls(), LIMIT.into()).unwrap();
        Beginning { closed, pending: None, line: None }.end(failed, &met);
        assert_eq!(begin().is_ok(), goes_on, "{failed} {met:?}");
        assert!(!turns.are_taken());
    }
}

/// Numbers are free again once all ranks have dropped their callers.
#[test]
fn numbers_are_given_out_that_no_rank_has_in_use() {
    let (comm, turns) = alone();
    let numbers = |bits| Agreed { same: true, begins: false, numbers: vec![bits] };
    let given = |places: &[Place]| -> Vec<Option<u32>> {
        places.iter().map(|place| place.caller.as_ref().map(|caller| caller.number)).collect()
    };
    let [one, two] = [(); 2].map(|()| comm.context().new_series());
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
    let calm =
        Facts { history: 5, calls: calls_of(&[0, 1, 1]), able: true, numbers: vec![1], ..Facts::default() };
    let agree = |all: &[Facts]| all[0].agree(all).map(|agreed| (agreed.same, agreed.begins, agreed.numbers));
    let crowded = Facts { crowded: true, numbers: vec![2, 4], ..calm.clone() };
    assert_eq!(agree(&[calm.clone(), calm.clone()]).unwrap(), (true, false, vec![1]));
    assert_eq!(agree(&[calm.clone(), crowded.clone()]).unwrap(), (true, true, vec![3, 4]));
    let unable = Facts { able: false, ..calm.clone() };
    assert_eq!(agree(&[unable, crowded.clone()]).unwrap(), (true, false, vec![3, 4]));
    // Other calls matter only where turns begin.
    for (calls, says) in [
        (&[0, 1][..], "rank 1 has called executors 2 times, and rank 0 3 times"),
        (&[0, 0, 1], "rank 1 has called other executors than rank 0"),
    ] {
        let other = Facts { calls: calls_of(calls), ..calm.clone() };
        assert_eq!(agree(&[calm.clone(), other.clone()]).unwrap(), (true, false, vec![1]));
        let refused = agree(&[crowded.clone(), other]).unwrap_err().to_string();
        assert!(refused.contains(says) && refused.contains("make each call before this"), "{refused}");
    }
    let reordered = Facts { calls: calls_of(&[1, 0, 1]), ..calm.clone() };
    assert!(agree(&[crowded.clone(), reordered]).unwrap().1);
    // A rank that has dropped all its executors: all begin anew.
    let anew = Facts { history: 0, calls: Calls::default(), numbers: Vec::new(), ..calm.clone() };
    assert_eq!(agree(&[crowded.clone(), anew.clone()]).unwrap(), (false, true, Vec::new()));
    assert_eq!(agree(&[anew.clone(), anew]).unwrap(), (false, false, Vec::new()));
    let taken = Facts { taken: true, ..crowded.clone() };
    assert_eq!(agree(&[taken.clone(), taken.clone()]).unwrap(), (true, false, vec![2, 4]));
    assert_eq!(agree(&[taken, crowded]).unwrap_err().kind(), ErrorKind::Timeout);
    // Also where there is room for the new plan, because no call succeeds.
    let broken = Facts { broken: true, ..calm.clone() };
    assert_eq!(agree(&[calm.clone(), broken.clone()]).unwrap_err().kind(), ErrorKind::Timeout);
    let other = Facts { history: 6, ..broken };
    assert_eq!(agree(&[calm, other]).unwrap(), (false, false, Vec::new()), "all begin anew");
}
