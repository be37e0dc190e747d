//! Every failure is reported once, with a description.

use rdma_core_sys::ibv_wc_status;

use super::rig::{Memory, open, pair, standin_pair};
use super::standin;
use crate::ErrorKind;
use crate::rdma::*;

fn status(completion: &Completion) -> Option<Status> {
    completion.result.err().map(|failure| failure.status)
}

#[test]
fn wrong_keys_ranges_and_rights_fail_and_the_rest_is_flushed() {
    let memory = Memory::new(64, 0);
    type Forge = fn(RemoteRegion) -> RemoteRegion;
    let cases: [(Access, Forge); 4] = [
        (Access::FLAGS, |region| RemoteRegion { key: region.key ^ 0x100, ..region }),
        (Access::FLAGS, |region| RemoteRegion { key: region.key ^ 1, ..region }),
        (Access::FLAGS, |region| RemoteRegion { length: region.length + 8, ..region }),
        (Access::LOCAL_WRITE | Access::REMOTE_READ, |region| region),
    ];
    for (access, forge) in cases {
        let (a, b) = standin_pair();
        let region = memory.register(&b.pd, access);
        let forged = forge(region.remote());
        let mut batch = Batch::default();
        batch.write_inline(&[1; 8], forged.range(forged.len() - 8, 8).unwrap()).unwrap().id(1);
        batch.write_inline(&[2; 8], region.remote().range(0, 8).unwrap()).unwrap().id(2);
        a.qp.post(&mut batch).unwrap();
        batch.immediate(0).id(3);
        a.qp.post(&mut batch).unwrap();
        let ends: Vec<_> = a.completions().iter().map(|c| (c.id, status(c))).collect();
        let flushed = Some(Status::FLUSHED);
        assert_eq!(ends, [(1, Some(Status::REMOTE_ACCESS)), (2, flushed), (3, flushed)], "signalled or not");
        assert_eq!(memory.word(0), 0);
        drop(region);
    }
}

#[test]
fn a_region_that_is_gone_is_a_failed_completion_at_both_ends() {
    let (a, b) = standin_pair();
    let (here, there) = (Memory::new(64, 1), Memory::new(64, 2));
    let local = here.register(&a.pd, Access::DATA);
    let remote = there.register(&b.pd, Access::DATA);
    let (from, to) = (local.range(0, 8).unwrap(), remote.remote().range(0, 8).unwrap());
    drop(local);
    let mut batch = Batch::default();
    batch.write(from, to).unwrap().id(1);
    a.qp.post(&mut batch).unwrap();
    let completion = a.completion();
    assert_eq!(status(&completion), Some(Status::LOCAL_PROTECTION));
    let error = completion.result.unwrap_err().to_error("write");
    assert_eq!((error.kind(), error.op()), (ErrorKind::Verbs, "write"));
    assert!(error.message().contains("keep the region until the request has completed"), "{error}");
    drop(remote);
    let (a, _b) = standin_pair();
    batch.write_inline(&[1; 8], to).unwrap();
    a.qp.post(&mut batch).unwrap();
    assert_eq!(status(&a.completion()), Some(Status::REMOTE_ACCESS));
}

#[test]
fn a_peer_that_is_gone_is_noticed() {
    let (a, b) = standin_pair();
    let region = Memory::new(64, 0).register(&b.pd, Access::FLAGS);
    drop(b.qp);
    let mut batch = Batch::default();
    batch.write_inline(&[1; 8], region.remote().range(0, 8).unwrap()).unwrap().id(4);
    a.qp.post(&mut batch).unwrap();
    let completion = a.completion();
    assert_eq!((completion.id, status(&completion)), (4, Some(Status::RETRIES_EXCEEDED)));
}

#[test]
fn a_receiver_without_receives_is_noticed() {
    let (a, _b) = standin_pair();
    let mut batch = Batch::default();
    batch.immediate(1);
    a.qp.post(&mut batch).unwrap();
    assert_eq!(status(&a.completion()), Some(Status::RECEIVER_NOT_READY));
}

#[test]
fn a_full_queue_leaves_the_rest_in_the_batch() {
    let (a, b) = pair(&open("null0"), &open("null0"), &QpOptions::default().with_max_send(4));
    let there = Memory::new(64, 0);
    let region = there.register(&b.pd, Access::FLAGS);
    let mut batch = Batch::default();
    for i in 0..6_u64 {
        let to = region.remote().range(8 * i, 8).unwrap();
        batch.write_inline(&(i + 1).to_ne_bytes(), to).unwrap().id(i).signalled_if(i % 2 == 1);
    }
    let error = a.qp.post(&mut batch).unwrap_err();
    assert!(error.full && error.error.message().contains("poll completions first"), "{error}");
    assert_eq!((error.accepted, batch.len(), there.word(4)), (4, 2, 0));
    assert!(a.qp.post(&mut batch).unwrap_err().full);
    assert_eq!(a.completions().len(), 2);
    a.qp.post(&mut batch).unwrap();
    assert_eq!(a.completion().id, 5);
    assert_eq!((there.word(4), there.word(5)), (5, 6));
    assert_eq!(a.qp.counters().requests, 6);
}

#[test]
fn abort_ends_everything_outstanding_once() {
    let (a, b) = standin_pair();
    let region = Memory::new(8, 0).register(&b.pd, Access::FLAGS);
    standin::hold(a.qp.number());
    a.qp.post_receive(100, None).unwrap();
    let mut batch = Batch::default();
    for id in 0..10 {
        batch.write_inline(&[0; 8], region.remote().range(0, 8).unwrap()).unwrap().id(id);
    }
    a.qp.post(&mut batch).unwrap();
    assert!(a.completions().is_empty());
    a.qp.abort().unwrap();
    let mut ids: Vec<_> =
        a.completions().iter().map(|c| (c.id, c.result.unwrap_err().is_flushed())).collect();
    ids.sort_unstable();
    let expected: Vec<_> = (0..10).chain([100]).map(|id| (id, true)).collect();
    assert_eq!(ids, expected);
    a.qp.abort().unwrap();
    assert!(a.completions().is_empty());
}

#[test]
fn a_failure_of_the_nic_is_given_with_its_words() {
    let (a, b) = standin_pair();
    let region = Memory::new(8, 0).register(&b.pd, Access::FLAGS);
    standin::fail_next(a.qp.number(), ibv_wc_status::IBV_WC_FATAL_ERR);
    let mut batch = Batch::default();
    batch.write_inline(&[0; 8], region.remote().range(0, 8).unwrap()).unwrap();
    a.qp.post(&mut batch).unwrap();
    let text = a.completion().result.unwrap_err().to_string();
    assert!(
        text.contains("the NIC failed (completion status 19, vendor code 0x130); look at the kernel's log"),
        "{text}"
    );
}
