//! The end of a link: by the peer, by a failed request, by its device.

use rdma_core_sys::ibv_wc_status;

use super::*;
use crate::error::ErrorKind;

#[test]
fn what_was_pushed_arrives_before_the_end() {
    let [one, two] = pair();
    while two.arm().unwrap() {}
    let long = body(5000);
    assert!(push(&one, head(1, &long), &long) && push(&one, head(1, b"last"), b"last"));
    let deadline = Deadline::after(SOON);
    while !one.has_arrived() {
        assert!(!deadline.expired());
    }
    one.close(false);
    assert_eq!(one.push(head(1, b""), b"").unwrap_err().kind(), ErrorKind::Stopped);
    one.close(true);
    drop(one);
    let mut kept = Kept::default();
    let error = end_of(&two, &mut kept);
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::PeerLost, "its process ended or closed the link")
    );
    assert_eq!(kept.frames.len(), 2);
    assert!(two.push(head(1, b"x"), b"x").is_err() && two.kick().is_ok());
}

#[test]
fn a_failed_request_ends_the_link_with_advice() {
    let [one, two] = pair();
    assert!(push(&one, head(1, b"a"), b"a"));
    pull(&two, &mut Kept::default(), 1);
    standin::fail_next(number(&one), ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
    assert!(push(&one, head(1, b"b"), b"b"));
    let error = end_of(&one, &mut Kept::default());
    assert!(
        error.message().contains("did not answer") && error.message().contains("traffic class"),
        "{error}"
    );
    assert_eq!(one.push(head(1, b"b"), b"b").unwrap_err().message(), error.message());
    assert_eq!(one.kick().unwrap_err().message(), error.message());
    assert!(one.has_arrived(), "nothing is waited for");
}

/// The completion that tells of the failure is taken on the way to sleep, so nothing else would.
#[test]
fn nobody_sleeps_on_a_link_that_has_failed() {
    let [one, _two] = pair();
    standin::fail_next(number(&one), ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
    assert!(push(&one, head(1, b"a"), b"a"));
    standin::settle();
    assert!(one.arm().unwrap());
}

#[test]
fn a_device_that_fails_ends_its_links() {
    let [one, _two] = pair();
    one.check().unwrap();
    standin::raise(number(&one), rdma_core_sys::ibv_event_type::IBV_EVENT_DEVICE_FATAL);
    let error = one.check().unwrap_err();
    assert!(error.message().contains("removed or failed"), "{error}");
}
