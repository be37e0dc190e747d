//! Connections at rest, dropped, aborted, or without their NIC.

use std::time::Duration;

use rdma_core_sys::ibv_wc_status;

use super::*;
use crate::rdma::{About, AsyncEvent, EventKind};

/// The memory of what nobody flushes is let go all the same, by threads that may block.
#[test]
fn what_nobody_flushes_is_let_go_once_it_is_done() {
    with_ends(&endpoint(), |rig| {
        let (memory, told) = rig.telling();
        let holders = rig.holders();
        rig.hold();
        let (dst, src) = (span(&rig.target, 0, LARGE), span(&memory, 0, LARGE));
        assert!(rig.near.post(&Asked::Write { dst, src }).unwrap());
        drop(memory);
        rig.near.kick().unwrap();
        wait_for("nobody asks for its end", || rig.requests() == [2]);
        wait_for("nobody listens for its end", || match rig.near.set.progress() {
            Next::Told(_) | Next::Again => false,
            next => {
                assert_eq!(next, LISTENS);
                true
            }
        });
        assert!(told.try_recv().is_err() && rig.holders() > holders, "it is not done");
        rig.release();
        wait_for("the peer's memory is kept", || rig.holders() == holders);
        assert!(told.try_recv().is_err(), "the service thread frees nothing");
        wait_for("our memory is kept", || {
            rig.comm.check().unwrap();
            told.try_recv().is_ok_and(|thread| thread == thread::current().id())
        });
        wait_for("it does not rest", || rig.near.set.progress() == RESTS);
    });
}

/// When the connection is found idle, its queue is full, and ends in requests that no completion covers.
#[test]
fn what_fills_the_queue_is_let_go_once_it_is_done() {
    with_ends(&endpoint(), |rig| {
        let holders = rig.holders();
        rig.hold();
        assert!((0..4).all(|_| rig.write(0, 0, 8)));
        // From here on every sixteenth request is signalled.
        assert!(!rig.near.set.is_delivered());
        assert!((5..QUEUE).all(|_| rig.write(0, 0, 8)));
        rig.near.kick().unwrap();
        assert_eq!(rig.requests().iter().sum::<u64>(), u64::from(QUEUE));
        // Many times as long as the connection takes to be found idle.
        thread::sleep(Duration::from_millis(100));
        rig.release();
        wait_for("the peer's memory is kept", || rig.holders() == holders);
    });
}

/// A thread that waits for something else polls, and so posts what another one has not sent yet.
#[test]
fn what_another_threads_poll_has_posted_is_let_go_once_it_is_done() {
    with_ends(&endpoint(), |rig| {
        let holders = rig.holders();
        assert!(rig.write(0, 0, 8));
        assert!(!rig.near.set.is_done(u64::MAX).unwrap());
        rig.near.kick().unwrap();
        wait_for("the peer's memory is kept", || rig.holders() == holders);
    });
}

#[test]
fn the_service_thread_rests_where_callers_poll() {
    with_ends(&endpoint(), |rig| {
        assert_eq!(rig.near.set.progress(), RESTS, "nothing was asked for");
        rig.hold();
        assert!(rig.write(0, 0, LARGE));
        let mark = rig.near.set.mark();
        let looks = rig.near.set.progress();
        assert!(matches!(looks, Next::Told(Some(_))), "whoever flushes polls: {looks:?}");
        let event = Event::new(rig.comm.context()).unwrap();
        rig.near.set.record(&event, mark).unwrap();
        wait_for("a stream polls nothing", || rig.near.set.progress() == LISTENS);
        rig.release();
        event.synchronize(soon()).unwrap();
        wait_for("it does not rest", || rig.near.set.progress() == RESTS);
        rig.near.set.unserved(&Error::new(ErrorKind::Internal, "x", "no thread"));
        assert!(rig.near.check().is_err(), "nobody would move anything on");
        assert_eq!(rig.near.set.progress(), RESTS);
        rig.near.set.close();
        assert_eq!(rig.near.set.progress(), Next::Done);
    });
}

/// The service thread has found nothing, and sleeps until an event tells of the next completion.
#[test]
fn what_completes_after_a_look_wakes_the_service_thread() {
    with_ends(&endpoint().with_ib_signal(IbSignal::Immediate), |rig| {
        let signal = |value| {
            assert!(rig.signal(value));
            rig.near.kick().unwrap();
            standin::settle();
        };
        let before = rig.far.arrivals();
        signal(1);
        wait_for("the first signal is not noticed", || rig.far.arrivals() > before);
        let ((tell, looked), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel::<()>());
        standin::once_empty(standin::peer_of(rig.numbers[0]), move || {
            let _ = tell.send(());
            let _ = may_go_on.recv();
        });
        rig.far.set.registration.nudge();
        looked.recv().unwrap();
        let before = rig.far.arrivals();
        signal(2);
        go_on.send(()).unwrap();
        wait_for("the service thread sleeps", || rig.far.arrivals() > before);
    });
}

/// Nobody has called it since.
#[test]
fn what_a_connection_had_taken_and_lost_is_told() {
    with_ends(&endpoint(), |rig| {
        rig.hold();
        assert!(rig.write(0, 0, LARGE));
        rig.near.set.unserved(&Error::new(ErrorKind::Internal, "x", "no thread"));
        // The service thread finds it in the middle of a turn.
        rig.near.set.look(&mut lock(&rig.near.set.state), true).unwrap_err();
        let lost = rig.near.set.lost().map(|lost| lost.to_string());
        rig.release();
        assert!(lost.is_some_and(|lost| lost.contains("no thread")), "closing says nothing");
    });
}

/// Its owner drops it with operations that are not done.
#[test]
fn a_dropped_connection_lingers_until_everything_is_done() {
    with_ends(&endpoint(), |rig| {
        let set = rig.near.set.clone();
        assert_eq!(Delivery::peer(&*set), PEER);
        assert!(set.is_delivered() && !set.is_undelivered(), "nothing was asked for");
        rig.hold();
        assert!(rig.write(0, 0, LARGE));
        assert!(!set.is_delivered());
        assert_eq!(rig.requests(), [2], "its end is asked for");
        assert!(!set.is_undelivered() && !set.lingers(), "its owner is there");
        set.close();
        assert!(set.is_undelivered() && set.lingers());
        assert_eq!(set.progress(), LISTENS);
        rig.release();
        wait_for("the service thread does not finish", || !set.is_undelivered());
        assert!(set.is_delivered() && !set.lingers() && set.lost().is_none());
        assert_eq!(set.progress(), Next::Done);
    });
}

#[test]
fn a_dropped_connection_is_gone_once_everything_is_done() {
    for operations in [0, 1] {
        with_ends(&endpoint().with_ib_signal(IbSignal::Atomic), |rig| {
            let holders = rig.holders();
            let kernels = Arc::downgrade(rig.near.kernel_abort().expect("kernels may wait for signals"));
            let set = Arc::downgrade(&rig.near.set);
            (0..operations).for_each(|_| assert!(rig.write(0, 0, LARGE)));
            let Rig { near, comm, target, .. } = rig;
            drop(near);
            wait_for("it stays", || set.strong_count() == 0);
            wait_for("its device memory stays", || {
                comm.check().unwrap();
                kernels.strong_count() == 0
            });
            wait_for("the peer's memory stays", || Arc::strong_count(target.remote().unwrap().0) == holders);
        });
    }
}

#[test]
fn after_an_abort_a_dropped_connection_gives_up() {
    with_ends(&endpoint(), |rig| {
        let set = rig.near.set.clone();
        rig.hold();
        rig.begin();
        set.close();
        wait_for("nobody asks for its end", || rig.requests() == [2]);
        rig.comm.exchange().group.abort().abort(AbortCause::requested(0, "enough"));
        wait_for("it lingers", || !set.is_undelivered());
        assert!(set.is_delivered() && set.check().is_err());
    });
}

/// Two connections use the same NIC.
#[test]
fn an_event_of_the_nic_ends_those_that_it_is_about() {
    use rdma_core_sys::ibv_event_type as kind;
    for event in [kind::IBV_EVENT_QP_FATAL, kind::IBV_EVENT_CQ_ERR] {
        with_ends(&endpoint().with_queue_pairs(2), |rig| {
            standin::raise(rig.numbers[1], event);
            wait_for("it goes on", || rig.near.check().is_err());
            rig.far.check().unwrap();
        });
    }
    with_ends(&endpoint(), |rig| {
        standin::raise(rig.numbers[0], kind::IBV_EVENT_DEVICE_FATAL);
        wait_for("one goes on", || rig.near.check().is_err() && rig.far.check().is_err());
        assert!(rig.resources.nic(NIC).is_ok());
    });
}

/// A failed queue pair completes everything that it holds, at once and while nobody polls.
#[test]
fn a_failure_is_told_also_where_a_nic_holds_more_than_it_was_asked_for() {
    let nic = || standin::multiply_sends(4);
    with_ends_on(&endpoint().with_max_outstanding(1), nic, |rig| {
        rig.hold();
        standin::fail_next(rig.numbers[0], ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
        while rig.write(0, 0, LARGE) {}
        rig.release();
        let mut told = None;
        wait_for("nobody is told", || {
            told = rig.near.has_room().err();
            told.is_some()
        });
        let told = told.map(|error| error.to_string()).unwrap_or_default();
        assert!(told.contains("refused the access"), "{told}");
    });
}

/// Over both queue pairs, which are held up. The first one's part is to fail.
fn begin_a_write_that_fails(rig: &Rig<'_>) {
    rig.hold();
    standin::fail_next(rig.numbers[0], ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
    assert!(rig.write(0, 0, 2 * STRIPE));
    rig.near.kick().unwrap();
}

/// Queue pairs complete in any order.
#[test]
fn what_was_flushed_hides_no_failure_behind_it() {
    with_ends(&endpoint().with_queue_pairs(2), |rig| {
        let set = &rig.near.set;
        begin_a_write_that_fails(&rig);
        // With the state locked, so that nobody polls meanwhile.
        let mut state = lock(&set.state);
        state.queues[1].queue_pair.abort().unwrap();
        standin::release(rig.numbers[0]);
        standin::settle();
        let failure = set.look(&mut state, true).unwrap_err();
        drop(state);
        let _ = set.fail(&failure);
        assert!(failure.to_string().contains("refused the access"), "{failure}");
    });
}

/// A thread has taken the failure, and another one what was flushed, before the connection is told.
#[test]
fn what_is_flushed_while_a_failure_is_told_does_not_take_its_place() {
    with_ends(&endpoint().with_queue_pairs(2), |rig| {
        let set = &rig.near.set;
        begin_a_write_that_fails(&rig);
        let mut state = lock(&set.state);
        standin::release(rig.numbers[0]);
        standin::settle();
        let first = set.look(&mut state, true).unwrap_err();
        state.queues[1].queue_pair.abort().unwrap();
        standin::settle();
        let second = set.look(&mut state, true).unwrap_err();
        drop(state);
        let _ = set.fail(&second);
        assert!(first.to_string().contains("refused the access"), "{first}");
        assert_eq!(second.to_string(), first.to_string());
    });
}

/// It fails once its owner has gone, and is gone itself when somebody asks.
#[test]
fn what_a_dropped_connection_loses_is_told_to_who_closes_the_communicator() {
    with_ends(&endpoint(), |rig| {
        let (set, numbers) = (rig.near.set.clone(), rig.numbers.clone());
        rig.hold();
        assert!(rig.write(0, 0, LARGE));
        drop(rig);
        set.unserved(&Error::new(ErrorKind::Internal, "x", "no thread"));
        numbers.into_iter().for_each(standin::release);
        let (gone, outstanding) = (Arc::downgrade(&set), set.outstanding.clone());
        drop(set);
        wait_for("it stays", || gone.strong_count() == 0);
        let told = outstanding.wait(|| Ok(()), soon());
        assert!(told.is_err_and(|lost| lost.to_string().contains("no thread")), "closing says nothing");
    });
}

#[test]
fn a_stream_does_not_wait_for_a_connection_that_has_failed_before() {
    with_ends(&endpoint(), |rig| {
        rig.hold();
        rig.begin();
        let mark = rig.near.set.mark();
        rig.near.set.unserved(&Error::new(ErrorKind::Internal, "x", "no thread"));
        let event = Event::new(rig.comm.context()).unwrap();
        rig.near.set.record(&event, mark).unwrap();
        rig.release();
        event.synchronize(soon()).unwrap();
        assert!(rig.resources.wait_streams.count() > 0, "the stream that it waited by stays lent");
    });
}

/// A NIC tells each connection over it of each event.
#[test]
fn an_event_ends_the_connection_that_it_is_about() {
    with_ends(&endpoint(), |rig| {
        let fatal = |number| {
            let about = About::QueuePair(number);
            rig.near.set.heard(&AsyncEvent { kind: EventKind::QP_FATAL, about, words: String::new() });
            rig.near.check()
        };
        let other = (0..).find(|number| !rig.numbers.contains(number)).unwrap();
        fatal(other).unwrap();
        let own = *rig.numbers.last().unwrap();
        assert_eq!(fatal(own).unwrap_err().kind(), ErrorKind::Verbs);
    });
}
