//! Asynchronous events, and completion events.

use std::os::fd::{AsFd, AsRawFd};

use rdma_core_sys::ibv_event_type as raw;

use super::rig::{Memory, open, pair, standin_pair};
use super::standin;
use crate::rdma::*;

fn readable(fd: impl AsFd) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live entry; no waiting.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

#[test]
fn events_say_what_they_are_about_and_what_cannot_go_on() {
    let (a, _b) = standin_pair();
    let context = a.pd.context();
    assert_eq!(context.next_event().unwrap(), None, "never waits");
    assert!(!readable(context));
    let number = a.qp.number();
    for (raised, about, fatal, words) in [
        (raw::IBV_EVENT_QP_FATAL, About::QueuePair(number), true, "queue pair"),
        (raw::IBV_EVENT_CQ_ERR, About::CompletionQueue(a.cq.number()), true, "make it larger"),
        (raw::IBV_EVENT_DEVICE_FATAL, About::Device, true, "it was removed or failed"),
        (raw::IBV_EVENT_PORT_ERR, About::Port(1), false, "port 1 reports: port error"),
        (raw::IBV_EVENT_GID_CHANGE, About::Port(1), false, "port 1"),
        (raw::IBV_EVENT_COMM_EST, About::QueuePair(number), false, "queue pair"),
        (raw(999), About::Other, false, "event"),
    ] {
        // The stand-in names a queue pair for these kinds only.
        if raised != raw::IBV_EVENT_COMM_EST {
            standin::raise(number, raised);
            assert!(readable(context));
            let event = context.next_event().unwrap().unwrap();
            assert_eq!((event.kind, event.about), (EventKind(raised.0), about));
            assert_eq!(event.error().is_some(), fatal, "{event}");
            assert!(event.to_string().contains(words), "{event}");
        }
    }
    assert_eq!(context.next_event().unwrap(), None);
    let before = standin::violations();
    drop(a);
    assert_eq!(standin::violations(), before, "every event was acknowledged");
}

#[test]
fn a_completion_queue_that_overflows_is_lost_and_says_so() {
    let context = open("null0");
    let (a, b) = pair(&context, &open("null0"), &QpOptions::default());
    let region = Memory::new(8, 0).register(&b.pd, Access::FLAGS);
    let mut batch = Batch::default();
    for id in 0..257 {
        batch.write_inline(&[0; 8], region.remote().range(0, 8).unwrap()).unwrap().id(id).signalled();
    }
    assert_eq!(a.cq.capacity(), 256);
    a.qp.post(&mut batch).unwrap();
    standin::settle();
    let error = a.cq.poll(1, |_| ()).unwrap_err();
    assert!(error.message().contains("completion queue of device null0 is lost"), "{error}");
    let event = context.next_event().unwrap().unwrap();
    assert_eq!((event.about, event.kind), (About::CompletionQueue(a.cq.number()), EventKind::CQ_ERROR));
}

#[test]
fn a_channel_wakes_once_per_request_for_an_event() {
    let context = open("null0");
    let channel = context.completion_channel().unwrap();
    let pd = context.protection_domain().unwrap();
    let cq = context.completion_queue_with(16, &channel).unwrap();
    let port = context.active_port(&Settings::default()).unwrap();
    let qp = pd.queue_pair(&QpOptions::default(), &cq, &cq).unwrap();
    let qp = qp.init(&port, &Settings::default(), Access::FLAGS).unwrap();
    let own = qp.address();
    // Connected to itself, which RC allows.
    let qp = qp.connect(&own).unwrap().ready_to_send().unwrap();
    let post = |qp: &QueuePair<ReadyToSend>| {
        let mut batch = Batch::default();
        let nothing = RemoteRegion { address: 8, length: 0, key: 0 }.range(0, 0).unwrap();
        batch.write_inline(&[], nothing).unwrap().signalled();
        qp.post(&mut batch).unwrap();
    };
    post(&qp);
    standin::settle();
    assert!(!readable(&channel), "nobody asked");
    cq.request_event().unwrap();
    post(&qp);
    post(&qp);
    standin::settle();
    assert!(readable(&channel));
    assert_eq!((channel.clear().unwrap(), channel.clear().unwrap()), (1, 0));
    assert_eq!(cq.poll(16, |completion| assert!(completion.result.is_ok())).unwrap(), 3);
    let before = standin::violations();
    drop((qp, cq));
    assert_eq!(standin::violations(), before, "every event was acknowledged");
    let plain = context.completion_queue(16).unwrap();
    assert!(plain.request_event().unwrap_err().message().contains("without a channel"));
}
