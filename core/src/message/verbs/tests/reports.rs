//! Reports of the device about queue pairs and completion queues end their links or pairs, although no request ever completes.

use log::Level;
use rdma_core_sys::ibv_event_type as event;

use super::falling_back::config;
use super::logged::logged;
use super::reading::{Both, bytes};
use super::*;
use crate::error::ErrorKind;
use crate::message::one_sided::PIECE;

/// Two ends on one device.
fn pair_on(nic: &Arc<Nic>) -> [VerbsWire; 2] {
    let (one, two) = UnixStream::pair().unwrap();
    let drafts = [(); 2].map(|()| Draft::new(nic, 8 << 10).unwrap());
    let [first, second] = [drafts[0].offer(), drafts[1].offer()];
    let [one_draft, two_draft] = drafts;
    [(one, one_draft, second), (two, two_draft, first)].map(|(socket, draft, theirs)| {
        socket.set_nonblocking(true).unwrap();
        VerbsWire::new(Box::new(Socket(socket)), draft.connect(&theirs).unwrap(), None)
    })
}

/// Messengers that look at their devices all the time.
fn both() -> Both {
    let config = || config("null0").with_checks_every(Duration::from_millis(1));
    Both::with(config(), config())
}

#[test]
fn an_error_ends_the_link_whose_it_is_whoever_reads_the_report() {
    for (kind, words) in [(event::IBV_EVENT_QP_FATAL, "queue pair"), (event::IBV_EVENT_CQ_ERR, "overflowed")]
    {
        let nic = nic("null0");
        let ([one, two], [other, _far]) = (pair_on(&nic), pair_on(&nic));
        standin::raise(number(&two), kind);
        other.check().unwrap();
        one.check().unwrap();
        let error = two.check().unwrap_err();
        assert!(error.kind() == ErrorKind::Verbs && error.message().contains(words), "{error}");
        assert_eq!(two.push(head(1, b""), b"").unwrap_err().message(), error.message());
        assert_eq!(end_of(&two, &mut Kept::default()).message(), error.message());
        one.check().unwrap();
    }
}

/// A link that is gone, and a number that comes again.
#[test]
fn a_report_of_a_link_that_has_ended_ends_no_other() {
    let nic = nic("null0");
    let [one, two] = pair_on(&nic);
    let number = number(&two);
    let later = nic.reports.link().watch(number, None);
    drop(two);
    assert!(nic.reports.queue_pairs().contains(&number), "the later one goes on");
    standin::raise(super::number(&one), event::IBV_EVENT_QP_FATAL);
    assert!(one.check().is_err() && later.failure().is_none());
    drop(later);
    assert!(!nic.reports.queue_pairs().contains(&number));
}

#[test]
fn operations_end_when_the_device_has_lost_the_queue_pair() {
    for kind in [event::IBV_EVENT_QP_FATAL, event::IBV_EVENT_CQ_ERR] {
        let both = both();
        both.settle();
        let exposed = both.owner.expose(bytes(100)).unwrap();
        let number = both.reader.core.nic.as_ref().unwrap().reports.queue_pairs()[0];
        standin::hold(number);
        both.read(&exposed.token(), 0, 100, 1);
        standin::raise(number, kind);
        let error = both.until(1, true).pop().unwrap().1.unwrap_err();
        assert!(error.kind() == ErrorKind::PeerLost, "{error}");
        let lost = both.peer.lost().expect("its link has ended");
        assert!(lost.to_string().contains("reports"), "{lost}");
    }
}

#[test]
fn a_pair_for_reads_that_the_device_has_lost_is_given_up() {
    for kind in [event::IBV_EVENT_QP_FATAL, event::IBV_EVENT_CQ_ERR] {
        let both = both();
        let memory = bytes(2 * PIECE);
        let exposed = both.exposed(&memory);
        let pair = both.pair().unwrap();
        standin::hold(pair);
        both.read(&exposed.token(), 0, memory.len(), 1);
        both.reader.poll().unwrap();
        standin::raise(pair, kind);
        assert!(both.until(1, true)[0].1.as_ref().unwrap() == &*memory, "the owner sends it");
        assert!(!standin::exists(pair) && both.peer.lost().is_none());
        both.exposed(&memory);
        assert!(both.pair().is_some(), "another one is made");
    }
}

/// A thread that sleeps finds out, too.
#[test]
fn a_thread_gives_up_a_pair_that_the_device_has_lost() {
    let both = both();
    let memory = bytes(2 * PIECE);
    let exposed = both.exposed(&memory);
    let pair = both.pair().unwrap();
    standin::hold(pair);
    [&both.reader, &both.owner].iter().for_each(|messenger| messenger.start_thread().unwrap());
    let (done, came) = std::sync::mpsc::channel();
    let read = both.peer.read(&exposed.token(), 0, vec![0; memory.len()], HOUR, move |read| {
        done.send(read).unwrap();
    });
    assert!(read.unwrap().is_posted());
    standin::raise(pair, event::IBV_EVENT_QP_FATAL);
    assert!(came.recv_timeout(SOON).unwrap().unwrap() == *memory);
}

#[test]
fn an_owner_ends_a_pair_that_its_device_has_lost() {
    for kind in [event::IBV_EVENT_QP_FATAL, event::IBV_EVENT_CQ_ERR] {
        let both = both();
        let memory = bytes(2 * PIECE);
        let exposed = both.exposed(&memory);
        let (pair, owners) = (both.pair().unwrap(), standin::peer_of(both.pair().unwrap()));
        standin::raise(owners, kind);
        let deadline = Deadline::after(SOON);
        while standin::exists(owners) {
            both.owner.poll().unwrap();
            assert!(!deadline.expired(), "the pair stays");
        }
        both.read(&exposed.token(), 0, memory.len(), 1);
        assert!(both.until(1, true)[0].1.as_ref().unwrap() == &*memory);
        assert!(!standin::exists(pair));
    }
}

/// Reads that are refused are reported, each one, and a peer causes as many as it likes.
#[test]
fn a_peer_does_not_fill_the_log() {
    let nic = nic("null0");
    let [one, two] = pair_on(&nic);
    let warnings = |lines: Vec<(Level, String)>| {
        lines.into_iter().filter(|(level, _)| *level <= Level::Warn).map(|(_, line)| line).collect::<Vec<_>>()
    };
    let first = warnings(logged(|| {
        standin::raise(number(&two), event::IBV_EVENT_QP_ACCESS_ERR);
        one.check().unwrap();
    }));
    assert!(first.len() == 1 && first[0].contains("reports"), "{first:?}");
    let others = warnings(logged(|| {
        (0..1000).for_each(|_| standin::raise(number(&two), event::IBV_EVENT_QP_ACCESS_ERR));
        one.check().unwrap();
    }));
    assert!(others.len() < 10, "{} lines", others.len());
    let last = others.last().expect("some lines of many");
    assert!(last.contains("512"), "they say how many there were: {last}");
}
