//! Numbers of semaphores that are given out again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use aqueduct::ErrorKind;
use aqueduct::channel::PortChannel;
use aqueduct::comm::{Host2DeviceSemaphore, Transport};
use aqueduct::gpu::{Event, PinnedBuffer, Stream};
use aqueduct::proxy::{ProxyService, ProxyServiceConfig, SemaphoreId};

use super::{BOTH, LEN, add_once_free, two};
use crate::group::{Rank, soon};
use crate::ports::peer_channel::peer_channels;

/// The service has one number only. Its second user works, and streams that waited for the first are still told.
pub(super) fn a_number_used_again_does_not_hide_a_failure(rank: &Rank) {
    let (service, [_other, end]) = two(rank, BOTH[0]);
    service.remove_semaphore(end.semaphore).unwrap();
    let config = ProxyServiceConfig { max_semaphores: 1, ..ProxyServiceConfig::default() };
    let small = ProxyService::start(&rank.comm, config).unwrap();
    let [dst, src] = [&end.theirs, &end.mine].map(|memory| small.add_memory(memory).unwrap());
    let first = add_once_free(&small, &end.host);
    let channel = PortChannel::new(&small, first, dst, src).unwrap();
    channel.wait(&end.stream).unwrap();
    small.remove_semaphore(first).unwrap();
    let deadline = soon();
    while end.stream.is_idle().is_ok() {
        deadline.check("is_idle", "the removal").unwrap();
    }
    // It would keep the number.
    drop(channel);
    let second = loop {
        match small.add_semaphore(&end.spare) {
            Ok(second) => break second,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}"),
        }
        deadline.check("add_semaphore", "the number").unwrap();
    };
    assert_eq!(second, first);
    let error = end.stream.synchronize(soon()).unwrap_err();
    assert!(error.message().contains("no semaphore 0"), "{error}");
    small.check(second).unwrap();
    rank.barrier();
    [service, small].into_iter().for_each(|service| service.stop(soon()).unwrap());
}

/// Adds a semaphore as soon as that can be done, within a fifth of a second.
fn try_to_add(service: &ProxyService, spare: &Host2DeviceSemaphore) -> aqueduct::Result<SemaphoreId> {
    let start = Instant::now();
    loop {
        let added = service.add_semaphore(spare);
        if added.is_ok() || start.elapsed() >= std::time::Duration::from_millis(200) {
            return added;
        }
    }
}

/// A stream may still write the position of the earlier one's flush.
pub(super) fn a_number_is_free_only_once_its_requests_are_done(rank: &Rank) {
    let context = rank.comm.context();
    for (tag, transport) in BOTH {
        let config = ProxyServiceConfig { max_semaphores: 1, ..ProxyServiceConfig::default() };
        let service = ProxyService::start(&rank.comm, config).unwrap();
        let end = peer_channels(rank, &service, &[(1 - rank.me(), tag)], transport, LEN).remove(0);
        let gate = Arc::new(PinnedBuffer::new(context, 8).unwrap());
        let (stream, event) = (Stream::new(context).unwrap(), Event::new(context).unwrap());
        stream.wait_value64(&gate.slice(..).unwrap(), 1).unwrap();
        event.record(&stream).unwrap();
        end.connection.wait_event(&event).unwrap();
        end.channel.put(&end.stream, 0, 0, 1000).unwrap();
        end.done();
        let deadline = soon();
        while end.channel.counters().unwrap().puts == 0 {
            assert!(!deadline.expired(), "the put was not taken");
        }
        service.remove_semaphore(end.semaphore).unwrap();
        drop(end.channel);
        let added = try_to_add(&service, &end.spare);
        gate.memory().word64(0).unwrap().store(1, Ordering::Release);
        assert_eq!(added.unwrap_err().kind(), ErrorKind::Exhausted, "over {transport}");
        while service.add_semaphore(&end.spare).is_err() {
            assert!(!deadline.expired(), "the number is never free");
        }
        rank.barrier();
        service.stop(soon()).unwrap();
    }
}

/// The service has one number only. A kernel that is queued behind other work has not looked at the abort word when its semaphore
/// is removed, and leaves all the same; nor can a graph run for the number's next user.
pub(super) fn a_number_is_free_only_once_no_kernel_can_look_at_its_words(rank: &Rank) {
    let context = rank.comm.context();
    let config = ProxyServiceConfig { max_semaphores: 1, ..ProxyServiceConfig::default() };
    let service = ProxyService::start(&rank.comm, config).unwrap();
    let end = peer_channels(rank, &service, &[(1 - rank.me(), 0)], Transport::CudaIpc, LEN).remove(0);
    let (gate, stream) = (Arc::new(PinnedBuffer::new(context, 8).unwrap()), Stream::new(context).unwrap());
    let graph = rank.capture(&stream, |stream| end.channel.wait(stream));
    stream.wait_value64(&gate.slice(..).unwrap(), 1).unwrap();
    end.channel.wait(&stream).unwrap();
    service.remove_semaphore(end.semaphore).unwrap();
    drop(end.channel);
    let added = try_to_add(&service, &end.spare);
    gate.memory().word64(0).unwrap().store(1, Ordering::Release);
    let told = stream.synchronize(std::time::Duration::from_secs(10)).unwrap_err();
    assert!(told.message().contains("no semaphore 0"), "{told}");
    let error = added.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    assert!(error.message().contains("drop their channels"), "{error}");
    // The graph holds a channel.
    context.reap();
    assert_eq!(service.add_semaphore(&end.spare).unwrap_err().kind(), ErrorKind::Exhausted);
    drop(graph);
    let deadline = soon();
    while service.add_semaphore(&end.spare).is_err() {
        assert!(!deadline.expired(), "the number is never free");
    }
    rank.barrier();
    service.stop(soon()).unwrap();
}
