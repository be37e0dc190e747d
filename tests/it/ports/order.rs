//! Over every transport, as kernels see it: a flush returns after all outstanding puts, and a signal arrives after its
//! data.

use aqueduct::comm::EndpointConfig;
use aqueduct::gpu::{Event, Stream};
use aqueduct::proxy::{ProxyService, ProxyServiceConfig};
use aqueduct_ptx::abi::LEFT_NOT;

use super::kernels::{Kernels, Report};
use super::peer_channel::peer_channels;
use crate::data::{assert_same, bytes};
use crate::group::{Rank, soon};

const LEN: usize = 64 << 10;

/// An event holds back the connection, and the flush waits with it. When the flush returns, the earlier puts have
/// arrived.
pub(super) fn a_flush_waits_for_outstanding_puts(rank: &Rank, endpoint: &EndpointConfig) {
    let (comm, peer) = (&rank.comm, 1 - rank.me());
    let service = ProxyService::start(comm, ProxyServiceConfig::default()).unwrap();
    let ends = peer_channels(rank, &service, &[(peer, 200), (peer, 201)], endpoint.clone(), LEN);
    let [end, gate] = [&ends[0], &ends[1]];
    end.local.upload(0, &bytes(rank.me(), 1, LEN), soon()).unwrap();
    let (closed, opened) = (Stream::new(comm.context()).unwrap(), Event::new(comm.context()).unwrap());
    rank.barrier();
    gate.channel.wait(&closed).unwrap();
    opened.record(&closed).unwrap();
    end.connection.wait_event(&opened).unwrap();
    end.channel.put(&end.stream, 0, 0, LEN).unwrap();
    end.channel.flush(&end.stream).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(30));
    assert!(!end.stream.is_idle().unwrap(), "the kernel is still flushing");
    rank.barrier();
    // Over another connection, which is not held back.
    gate.channel.signal(&gate.stream).unwrap();
    end.done();
    rank.barrier();
    let mut seen = vec![0; LEN];
    end.inbox.download(0, &mut seen, soon()).unwrap();
    assert_same(&seen, &bytes(peer, 1, LEN), format_args!("behind the flush"));
    rank.barrier();
    service.stop(soon()).unwrap();
    rank.barrier();
}

/// A kernel that receives the signal sees the first and the last word of the put at once.
pub(super) fn signals_follow_data(rank: &Rank, endpoint: &EndpointConfig) {
    const COUNT: u32 = 100;
    let service = ProxyService::start(&rank.comm, ProxyServiceConfig::default()).unwrap();
    let end = peer_channels(rank, &service, &[(1 - rank.me(), 210)], endpoint.clone(), LEN).remove(0);
    let (kernels, report) = (Kernels::load(rank.comm.context()), Report::new(rank.comm.context()));
    rank.barrier();
    kernels.exchange(&end.stream, &end, (LEN / 8) as u32, COUNT, &report);
    end.done();
    assert_eq!(report.status(), LEFT_NOT);
    assert_eq!(report.number(0), 0, "times of {COUNT} that a signal came before its data");
    rank.barrier();
    service.stop(soon()).unwrap();
    rank.barrier();
}
