//! Failures: ranks hear of them, believe them or not, and pass them on.

use super::*;
use crate::group::frames;
use crate::sync::AtomicUsize;

/// Three ranks, of which the first has ended the communicator for a reason of its own.
fn aborted() -> Vec<Links> {
    let links = group(3, 1);
    links[0].control.abort().abort(AbortCause::requested(0, "enough"));
    for one in &links {
        wait_for("the abort did not come", || one.control.abort().is_aborted());
    }
    links
}

/// Tells rank `to` that rank `lost` was lost to rank `from`.
fn tell(links: &[Links], from: usize, to: u32, lost: u32) {
    let payload = frames::encode_failure(&AbortCause::peer_lost(lost, "it is said"));
    links[from].control.post(to, frames::FAILURE, &payload, Vec::new()).unwrap();
}

#[test]
fn a_loss_after_another_failure_is_told_and_passed_on_too() {
    let links = aborted();
    links[0].control.lose(2, "it has gone");
    wait_for("rank 1 was not told", || links[1].control.lost() == [2]);
    // Heard from one rank, passed on to all others.
    let links = aborted();
    tell(&links, 1, 0, 2);
    wait_for("nobody heard of it", || links[0].control.lost() == [2]);
    wait_for("it was not passed on", || links[1].control.lost() == [2]);
}

#[test]
fn nobody_is_lost_who_has_left_or_whom_this_rank_has_left() {
    let mut links = group(3, 1);
    drop(links.pop());
    wait_for("BYE did not come", || links[0].control.check_peer("x", 2).is_err());
    links[0].control.lose(2, "late");
    links[0].control.abort().check("x").unwrap();
    links[0].control.leave();
    links[0].control.lose(1, "later");
    links[0].control.abort().check("x").unwrap();
}

#[test]
fn a_rank_that_was_given_up_blames_nobody() {
    let (links, recorders) = recorded(3);
    tell(&links, 1, 0, 0);
    wait_for("it did not hear of it", || links[0].control.abort().is_aborted());
    links[0].control.lose(2, "it has gone");
    links[0].control.post(1, KIND, b"behind that", Vec::new()).unwrap();
    wait_for("the frame did not come", || recorders[1].has(0, b"behind that", 0));
    assert!(!links[1].control.lost().contains(&2));
}

/// It could tell of its loss, and not why.
#[test]
fn a_rank_that_was_given_up_leaves_it_to_others_to_say_so() {
    let (links, recorders) = recorded(3);
    tell(&links, 1, 0, 0);
    links[1].control.post(0, KIND, b"behind that", Vec::new()).unwrap();
    wait_for("it did not hear of it", || recorders[0].has(1, b"behind that", 0));
    links[0].control.abort().check("x").unwrap_err();
    links[0].control.post(2, KIND, b"behind all that it says", Vec::new()).unwrap();
    wait_for("the frame did not come", || recorders[2].has(0, b"behind all that it says", 0));
    links[2].control.abort().check("x").expect("only rank 1 knows why");
}

/// Nobody is watched for silence here: nothing else is said.
#[test]
fn a_loss_that_was_passed_on_is_not_told_again_by_who_notices_it_later() {
    let links = group_with(20, 1, config(None), |network| network);
    let control = &links[0].control;
    let tap = Tap::open(&links[11], 0);
    tell(&links, 4, 0, 2);
    assert_eq!(tap.next(), frames::FAILURE);
    wait_for("it was not heard", || control.check_peer("x", 2).is_err());
    control.lose(2, "it has gone");
    control.check_reach("x", 2).unwrap_err();
    control.post(11, KIND, b"behind that", Vec::new()).unwrap();
    assert_eq!(tap.next(), KIND, "it was told twice");
}

#[test]
fn a_path_is_given_up_only_if_it_is_silent_too() {
    const TIMEOUT: Duration = Duration::from_secs(8);
    let mute = Arc::new(AtomicBool::new(false));
    let layer = Arc::new(unreachable::Mute { rank: 2, on: mute.clone() });
    let links = group_with(20, 1, config(Some(TIMEOUT)), |network| network.with_layer(layer.clone()));
    let control = &links[0].control;
    // Rank 1 has a link that is not silent, rank 11 has none.
    for lost in [1, 11] {
        tell(&links, 4, 0, lost);
        wait_for("it was not heard", || control.lost().contains(&lost));
        control.check_reach("x", lost).expect("the path from rank 4 may be all that is broken");
    }
    assert_eq!((control.links(1).len(), control.links(2).len()), (1, 1));
    mute.store(true, Ordering::Relaxed);
    std::thread::sleep(TIMEOUT / 2 + Duration::from_millis(600));
    tell(&links, 4, 0, 2);
    wait_for("it was not heard", || control.lost().contains(&2));
    control.check_reach("x", 2).unwrap_err();
}

/// Holds its service thread in the first frame, until the other end of the channel is dropped.
struct Stuck(Mutex<std::sync::mpsc::Receiver<()>>);

impl Subscriber for Stuck {
    fn frame(&self, _: u32, _: &[u8], _: Vec<OwnedFd>, _: &mut Reaction) -> Result<()> {
        let _ = lock(&self.0).recv();
        Ok(())
    }

    fn gone(&self, _: u32, _: &mut Vec<Deferred>) {}

    fn changed(&self) {}
}

#[test]
fn a_peer_that_reads_nothing_is_lost_when_too_much_waits_for_it_and_keeps_who_leaves() {
    let (stuck, waits) = std::sync::mpsc::channel::<()>();
    let subscriber = Arc::new(Stuck(Mutex::new(waits)));
    let subscribe = |_| Subscribers::default().with(KIND, subscriber.clone());
    let config = config(None);
    let [one, two] = [(); 2].map(|()| group_of(2, 1, config.clone(), |network| network, subscribe));
    // From here on dropped before the groups, which wait for their service threads.
    let stuck = stuck;
    let mut posts = (0..1000).map(|_| one[0].control.post(1, KIND, &[0; 100 << 10], Vec::new()));
    let error = posts.find_map(Result::err).expect("there is a bound");
    assert_eq!((error.kind(), error.peer()), (ErrorKind::Remote, Some(1)), "{error}");
    assert_eq!(one[0].control.lost(), [1]);
    (0..100).for_each(|_| two[0].control.post(1, KIND, &[0; 100 << 10], Vec::new()).unwrap());
    let late = two[0].leave(Deadline::after(Duration::ZERO)).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Timeout, "{late}");
    drop(stuck);
}

#[test]
fn a_rank_that_is_blamed_counts_as_lost_unless_it_has_left() {
    for (blamed, lost) in [(1, &[1][..]), (2, &[])] {
        let mut links = group(3, 1);
        drop(links.pop());
        let control = &links[0].control;
        wait_for("BYE did not come", || control.check_peer("x", 2).is_err());
        control.abort().abort(AbortCause::peer_lost(blamed, "it is said"));
        assert_eq!(control.lost(), lost);
    }
}

/// A rank that is killed later would leave the file of a socket behind.
#[test]
fn ranks_that_are_all_linked_listen_no_more() {
    for size in [2, 3] {
        let links = group(size, 1);
        for peer in &*links[0].peers {
            wait_for("it still listens", || !peer.unix.exists());
        }
    }
    let links = group(20, 1);
    assert!(links[0].peers.iter().all(|peer| peer.unix.exists()), "others may still open links to it");
}

/// Counts how often it is told that the group has changed.
#[derive(Default)]
struct Changes(AtomicUsize);

impl Subscriber for Changes {
    fn frame(&self, _: u32, _: &[u8], _: Vec<OwnedFd>, _: &mut Reaction) -> Result<()> {
        Ok(())
    }

    fn gone(&self, _: u32, _: &mut Vec<Deferred>) {}

    fn changed(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn subscribers_hear_that_a_peer_has_left() {
    let changes = [(); 2].map(|()| Arc::new(Changes::default()));
    let subscribe = |rank: u32| Subscribers::default().with(KIND, changes[rank as usize].clone());
    let mut links = group_of(2, 1, config(None), |network| network, subscribe);
    let before = changes[0].0.load(Ordering::Relaxed);
    drop(links.pop());
    wait_for("nobody was told", || changes[0].0.load(Ordering::Relaxed) > before);
}
