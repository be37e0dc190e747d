//! Calls of libibverbs that fail once: at the start and while a link is made, TCP carries the messages; later, the link ends with the
//! reason, or the pair for reads does and the owner sends the data. What a device does not destroy stays, and its memory with it.
//!
//! `refused` and `falling_back` have others, of reads and of the way to TCP.

use super::falling_back::config;
use super::logged::logged;
use super::reading::{Both, bytes};
use super::refused::{connect, devices, read};
use super::*;
use crate::error::ErrorKind;
use crate::message::lent::Lent;
use crate::message::one_sided::PIECE;
use crate::message::{Messenger, MessengerConfig, Sent, SharedMemory};

/// What joins two messengers of which the first is made on this thread, and then connects.
fn transport(from: MessengerConfig, prepare: impl FnOnce()) -> &'static str {
    let to = Messenger::new(1, config("null0")).unwrap();
    let from = Messenger::new(0, from).unwrap();
    prepare();
    let peer = from.connect(to.address(), SOON).unwrap();
    let queue = to.queue(5).unwrap();
    assert_eq!(peer.send(5, b"hello").unwrap(), Sent::Done);
    let deadline = Deadline::after(SOON);
    while queue.try_recv().is_none() {
        from.poll().unwrap();
        to.poll().unwrap();
        assert!(!deadline.expired());
    }
    peer.transport()
}

#[test]
fn a_device_that_cannot_be_opened_leaves_messages_to_tcp() {
    for function in [
        "ibv_get_device_list",
        "ibv_open_device",
        "ibv_query_device",
        "ibv_query_port",
        "_ibv_query_gid_table",
        "ibv_alloc_pd",
    ] {
        let to = Messenger::new(1, config("null0")).unwrap();
        standin::refuse(function, libc::EIO);
        let lines = logged(|| {
            let from = Messenger::new(0, config("null0")).unwrap();
            assert_eq!(from.connect(to.address(), SOON).unwrap().transport(), "tcp", "{function}");
        });
        assert_eq!(standin::not_called(), 0, "{function}");
        let said = |(_, line): &(log::Level, String)| line.contains("messages go over TCP");
        assert!(lines.iter().any(said), "{function}: {lines:?}");
    }
}

/// The first refusal of a queue pair is one of its inline data.
#[test]
fn a_link_that_cannot_be_made_is_over_tcp() {
    let calls: [(&str, usize); 7] = [
        ("ibv_reg_mr", 0),
        ("ibv_create_comp_channel", 0),
        ("ibv_create_cq", 0),
        ("ibv_modify_qp", 0),
        ("ibv_modify_qp", 2),
        ("ibv_post_recv", 0),
        ("ibv_post_recv", 17),
    ];
    for (function, after) in calls {
        let refuse = || standin::refuse_after(function, after, libc::ENOMEM);
        assert_eq!(transport(config("null0"), refuse), "tcp", "{function} after {after}");
        assert_eq!(standin::not_called(), 0, "{function}");
    }
    let refuse = || (0..9).for_each(|_| standin::refuse("ibv_create_qp", libc::ENOMEM));
    assert_eq!(transport(config("null0"), refuse), "tcp");
    (0..standin::not_called()).for_each(|_| assert!(Draft::new(&nic("null0"), 100).is_ok()));
    let less = || standin::refuse("ibv_create_qp", libc::EINVAL);
    assert_eq!(transport(config("null0"), less), "verbs", "with fewer inline bytes");
}

/// The error says which call it was, and everything later says the same.
#[test]
fn a_call_that_fails_on_a_link_ends_it_with_the_reason() {
    let sends = |wire: &VerbsWire| wire.push(head(1, b"a"), b"a").and_then(|_| wire.kick());
    for function in ["ibv_post_send", "ibv_poll_cq"] {
        let [one, _two] = pair();
        standin::refuse(function, libc::EIO);
        let error = sends(&one).and_then(|_| one.pull(&mut Kept::default()).map(|_| true)).unwrap_err();
        assert_eq!((standin::not_called(), error.kind()), (0, ErrorKind::Verbs), "{function}");
        assert!(error.to_string().contains(function), "{error}");
        assert_eq!(sends(&one).unwrap_err().message(), error.message());
        assert_eq!(end_of(&one, &mut Kept::default()).message(), error.message());
    }
    // A receive that was used is posted again.
    let [one, two] = pair();
    sends(&one).unwrap();
    standin::refuse("ibv_post_recv", libc::EIO);
    let mut kept = Kept::default();
    let error = end_of(&two, &mut kept);
    assert_eq!((standin::not_called(), kept.frames.len(), error.kind()), (0, 1, ErrorKind::Verbs));
    assert!(error.to_string().contains("ibv_post_recv"), "{error}");
    // Events.
    let [one, _two] = pair();
    standin::refuse("ibv_req_notify_cq", libc::EIO);
    let error = one.arm().unwrap_err();
    assert!(standin::not_called() == 0 && error.to_string().contains("ibv_req_notify_cq"), "{error}");
    assert!(one.arm().is_ok(), "it may be asked for again");
    standin::refuse("ibv_get_cq_event", libc::EIO);
    let error = one.pull(&mut Kept::default()).unwrap_err();
    assert!(standin::not_called() == 0 && error.to_string().contains("ibv_get_cq_event"), "{error}");
    standin::refuse("ibv_get_async_event", libc::EIO);
    let error = one.check().unwrap_err();
    assert!(standin::not_called() == 0 && error.to_string().contains("ibv_get_async_event"), "{error}");
}

/// Whoever sleeps is told, and so is each operation.
#[test]
fn operations_end_with_a_link_whose_call_failed() {
    for function in ["ibv_post_send", "ibv_poll_cq", "ibv_get_async_event"] {
        let quick = config("null0").with_checks_every(Duration::from_millis(1));
        let both = Both::with(quick, config("null0"));
        both.settle();
        let exposed = both.owner.expose(bytes(100)).unwrap();
        both.read(&exposed.token(), 0, 100, 1);
        standin::refuse(function, libc::EIO);
        if function == "ibv_post_send" {
            let _ = both.peer.send(3, b"refused");
        }
        let deadline = Deadline::after(SOON);
        while both.peer.lost().is_none() {
            both.reader.poll().unwrap();
            assert!(!deadline.expired(), "{function}");
        }
        assert_eq!(standin::not_called(), 0, "{function}");
        let lost = both.peer.lost().unwrap();
        let error = both.until(1, false).pop().unwrap().1.unwrap_err();
        assert_eq!(
            (lost.kind(), error.kind()),
            (ErrorKind::PeerLost, ErrorKind::PeerLost),
            "{lost}; {error}"
        );
    }
}

/// The pair goes, and the link stays.
#[test]
fn a_request_that_a_pair_for_reads_refuses_ends_the_pair() {
    for function in ["ibv_post_send", "ibv_poll_cq"] {
        let [one, two] = pair();
        let (reader, owner) = (devices(&one), devices(&two));
        let region = owner.register(&Lent::of(body(100))).unwrap();
        connect(reader, owner);
        let pair = reader.number().unwrap();
        standin::refuse(function, libc::EIO);
        let error = read(reader, &region.remote()).unwrap_err();
        assert!(standin::not_called() == 0 && error.to_string().contains(function), "{error}");
        assert!(!standin::exists(pair) && reader.is_able(), "{function}");
        connect(reader, owner);
        assert_eq!(read(reader, &region.remote()).unwrap(), body(100)[..8], "another one is made");
    }
    let both = Both::new();
    let memory = bytes(2 * PIECE);
    let exposed = both.exposed(&memory);
    let pair = both.pair().unwrap();
    standin::refuse("ibv_post_send", libc::EIO);
    both.read(&exposed.token(), 0, memory.len(), 1);
    assert!(both.until(1, true)[0].1.as_ref().unwrap() == &*memory, "the owner sends it");
    assert_eq!((standin::not_called(), standin::exists(pair)), (0, false));
    assert!(both.peer.lost().is_none());
}

/// One request shows memory to the reader, and another one takes it back.
#[test]
fn a_request_for_a_window_that_is_refused_ends_the_pair() {
    let both = Both::new();
    let memory = bytes(2 * PIECE);
    let owners_end = |both: &Both| both.pair().map(standin::peer_of).expect("there is a pair");
    let exposed = both.owner.expose(memory.clone()).unwrap();
    both.exposed(&memory);
    let end = owners_end(&both);
    both.read(&exposed.token(), 0, PIECE, 1);
    standin::refuse("ibv_post_send", libc::EIO);
    assert!(both.until(1, true)[0].1.is_ok());
    assert_eq!((standin::not_called(), standin::exists(end)), (0, false));
    let (both, memory) = (Both::new(), bytes(2 * PIECE));
    let exposed = both.exposed(&memory);
    let end = owners_end(&both);
    standin::refuse("ibv_post_send", libc::EIO);
    drop(exposed);
    assert_eq!((standin::not_called(), standin::exists(end)), (0, false), "it may read nothing more");
}

/// No memory goes that the device may still reach, and nothing panics or hangs.
#[test]
fn what_the_device_does_not_destroy_stays() {
    for function in [
        "ibv_destroy_qp",
        "ibv_dereg_mr",
        "ibv_dealloc_mw",
        "ibv_destroy_cq",
        "ibv_destroy_comp_channel",
        "ibv_dealloc_pd",
        "ibv_close_device",
    ] {
        let both = Both::new();
        let shared = SharedMemory::allocate(PIECE).unwrap();
        let exposed = both.owner.expose(&shared).unwrap();
        both.read(&exposed.token(), 0, PIECE, 1);
        assert!(both.until(1, true)[0].1.is_ok());
        drop((exposed, shared));
        let Both { reader, owner, peer, .. } = both;
        drop((reader, peer));
        standin::refuse(function, libc::EBUSY);
        let lines = logged(|| drop(owner));
        assert_eq!(standin::not_called(), 0, "{function}");
        let said = |(_, line): &(log::Level, String)| line.contains("cannot be destroyed");
        assert!(lines.iter().any(said), "{function}: {lines:?}");
    }
}

/// The memory of a link whose registration does not end is not unmapped: a device that writes there finds what it has registered.
#[test]
fn memory_that_stays_registered_stays() {
    let nic = nic("null0");
    let slots = memory::Slots::new(&nic.domain, &nic.regions, 2, PIECE).unwrap();
    let address = slots.slot(0).as_ptr();
    standin::refuse("ibv_dereg_mr", libc::EBUSY);
    drop(slots);
    assert_eq!(standin::not_called(), 0);
    let mut resident = [0_u8; 2 * PIECE / 4096];
    // SAFETY: the call reads no memory at the address, and writes one byte per page to the array.
    let mapped = unsafe { libc::mincore(address.cast(), 2 * PIECE, resident.as_mut_ptr()) } == 0;
    assert!(mapped, "the memory is gone, and the device may write to it");
    std::mem::forget(nic);
}
