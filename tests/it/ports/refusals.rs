//! Invalid requests of kernels, refused before the push or by the proxy. Nothing is lost, nothing hangs.

use aqueduct::ErrorKind;
use aqueduct::comm::Transport;
use aqueduct::proxy::{ProxyService, ProxyServiceConfig};
use aqueduct_ptx::abi::{ChannelTrigger, LEFT_CLOSED, LEFT_NOT, LEFT_REFUSED, LEFT_TOLD, TriggerKind};

use super::kernels::{Kernels, Report};
use super::peer_channel::{PeerChannel, peer_channels};
use crate::group::{Rank, soon};

on_machines! { "ports::refusals", crate::ports::pair:
    a_put_past_the_end_is_refused_before_it_is_pushed;
    a_trigger_past_the_end_fails_one_connection;
    unknown_ids;
    a_malformed_trigger_ends_one_proxy;
    a_recorded_flush_for_a_removed_semaphore;
}

const LEN: usize = 64 << 10;
const CASES: [(u64, Transport); 2] = [(0, Transport::CudaIpc), (10, Transport::Ethernet)];

fn two(
    rank: &Rank,
    (tag, transport): (u64, Transport),
    proxies: usize,
) -> (ProxyService, [PeerChannel; 2], Kernels) {
    let config = ProxyServiceConfig { proxies, ..ProxyServiceConfig::default() };
    let service = ProxyService::start(&rank.comm, config).unwrap();
    let peer = 1 - rank.me();
    let ends = peer_channels(rank, &service, &[(peer, tag), (peer, tag + 1)], transport, LEN);
    let ends = ends.try_into().unwrap_or_else(|_| unreachable!("two were asked for"));
    (service, ends, Kernels::load(rank.comm.context()))
}

/// A put of 8 bytes, as the channel would push it.
fn put(end: &PeerChannel) -> ChannelTrigger {
    ChannelTrigger {
        kind: TriggerKind::DATA,
        dst_id: end.dst.0,
        src_id: end.src.0,
        size: 8,
        semaphore: end.semaphore.0,
        ..ChannelTrigger::default()
    }
}

/// Pushes a trigger without the checks that a channel makes.
fn push(kernels: &Kernels, end: &PeerChannel, trigger: ChannelTrigger) {
    let report = Report::new(end.stream.context());
    kernels.trigger(&end.stream, &end.channel, trigger.encode(false).unwrap(), &report);
    end.stream.synchronize(soon()).unwrap();
    assert_eq!(report.status(), LEFT_NOT, "it was pushed");
}

fn a_put_past_the_end_is_refused_before_it_is_pushed(rank: &Rank) {
    const FIT: usize = LEN / 8;
    for case in CASES {
        let (service, [end, _other], kernels) = two(rank, case, 1);
        let words: Vec<u64> = (0..FIT as u64).map(|i| i * 3 + 1).collect();
        end.local.upload(0, &words, soon()).unwrap();
        rank.barrier();
        // The kernel puts word by word until the first word that does not fit is refused.
        let report = Report::new(rank.comm.context());
        kernels.storm(&end.stream, &end.channel, 1, FIT as u32 + 1000, &report);
        end.done();
        assert_eq!((report.status(), report.number(0)), (LEFT_REFUSED, FIT as u64));
        end.channel.signal(&end.stream).unwrap();
        end.channel.flush(&end.stream).unwrap();
        end.channel.wait(&end.stream).unwrap();
        end.done();
        assert_eq!(end.channel.counters().unwrap().puts, FIT as u64, "nothing was pushed past the end");
        assert_eq!(PeerChannel::words(&end.inbox, FIT), words, "what fits has arrived");
        rank.barrier();
        service.stop(soon()).unwrap();
    }
}

fn a_trigger_past_the_end_fails_one_connection(rank: &Rank) {
    let far = |end: &PeerChannel| {
        [
            ChannelTrigger { dst_offset: LEN as u64 - 7, ..put(end) },
            ChannelTrigger { src_offset: (1 << 48) - 1, ..put(end) },
            ChannelTrigger { size: (1 << 40) - 1, ..put(end) },
        ]
    };
    for (tag, transport) in CASES {
        for index in 0..3 {
            let (service, [end, other], kernels) = two(rank, (tag * 10 + index * 2, transport), 1);
            if rank.me() == 0 {
                push(&kernels, &end, far(&end)[index as usize]);
                let error = end.reason();
                assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
                assert!(error.message().contains("past the end"), "{error}");
                // Later requests there fail too, on the host and on the device.
                let flush = Report::new(rank.comm.context());
                kernels.flush(&end.stream, &end.channel, &flush);
                let told = end.stream.synchronize(soon()).unwrap_err();
                assert_eq!((flush.status(), told.message()), (LEFT_TOLD, error.message()));
            }
            other.works(rank.me());
            rank.barrier();
            assert!(
                PeerChannel::words(&end.inbox, LEN / 8).iter().all(|&word| word == 0),
                "nothing was written"
            );
            service.stop(soon()).unwrap();
            rank.barrier();
        }
    }
}

fn unknown_ids(rank: &Rank) {
    for case in CASES {
        let (service, [end, other], kernels) = two(rank, case, 1);
        if rank.me() == 0 {
            // An id within the table without a semaphore, and an id beyond the table.
            for semaphore in [4000, 60_000] {
                push(&kernels, &end, ChannelTrigger { semaphore, ..put(&end) });
            }
            // A trigger without any operation is valid.
            push(&kernels, &end, ChannelTrigger::default());
            let deadline = soon();
            while service.counters().dropped < 2 {
                deadline.check("counters", "dropped requests").unwrap();
                std::thread::yield_now();
            }
        }
        [&end, &other].into_iter().for_each(|end| end.works(rank.me()));
        if rank.me() == 0 {
            assert_eq!(service.counters().dropped, 2);
            push(&kernels, &end, ChannelTrigger { dst_id: 7777, ..put(&end) });
            assert!(end.reason().message().contains("no memory 7777"));
            // The id of this rank's own memory is not valid as a destination.
            push(&kernels, &other, ChannelTrigger { dst_id: other.src.0, ..put(&other) });
            assert!(other.reason().message().contains("own"), "{}", other.reason());
        }
        rank.barrier();
        service.stop(soon()).unwrap();
    }
}

/// The trigger names no connection, so the proxy cannot tell whose it is: the whole proxy ends, and nothing else.
fn a_malformed_trigger_ends_one_proxy(rank: &Rank) {
    for case in CASES {
        let (service, [end, other], kernels) = two(rank, case, 2);
        [&end, &other].into_iter().for_each(|end| end.works(rank.me()));
        assert!(service.counters().proxies.iter().all(|proxy| proxy.triggers > 0), "each has its proxy");
        rank.barrier();
        if rank.me() == 0 {
            let waiting = aqueduct::gpu::Stream::new(rank.comm.context()).unwrap();
            let [wait, report] = [(); 2].map(|()| Report::new(rank.comm.context()));
            kernels.wait(&waiting, &end.channel, &wait);
            let words = [u64::MAX >> 1, 0, 0, 0];
            kernels.raw(&end.stream, &end.channel.device_handle().fifo, words, &report);
            let told = waiting.synchronize(soon()).unwrap_err();
            assert_eq!(wait.status(), LEFT_TOLD);
            for error in [told, end.channel.check().unwrap_err()] {
                assert!(error.message().contains("not a request of a port channel"), "{error}");
            }
            end.stream.synchronize(soon()).unwrap();
            kernels.raw(&end.stream, &end.channel.device_handle().fifo, words, &report);
            end.stream.synchronize(soon()).unwrap();
            let left = report.status();
            assert!([LEFT_CLOSED, LEFT_TOLD].contains(&left), "{left}");
        }
        rank.barrier();
        other.works(rank.me());
        rank.barrier();
        let stopped = service.stop(soon());
        assert_eq!(stopped.is_err(), rank.me() == 0, "{stopped:?}");
    }
}

/// The host refuses a flush for a removed semaphore, but a graph recorded before still pushes one.
fn a_recorded_flush_for_a_removed_semaphore(rank: &Rank) {
    for case in CASES {
        let (service, [end, other], _) = two(rank, case, 1);
        let graph = rank.capture(&end.stream, |stream| {
            end.channel.put_with_signal_and_flush(stream, 0, 0, 8)?;
            end.channel.flush(stream)
        });
        service.remove_semaphore(end.semaphore).unwrap();
        let dropped = service.counters().dropped;
        graph.launch(&end.stream).unwrap();
        let told = end.stream.synchronize(soon()).unwrap_err();
        let words = format!("no semaphore {}", end.semaphore.0);
        assert!(told.kind() == ErrorKind::InvalidUsage && told.message().contains(&words), "{told}");
        other.works(rank.me());
        assert_eq!(service.counters().dropped - dropped, 2, "every request is counted");
        rank.barrier();
        assert_eq!(PeerChannel::words(&end.inbox, 1), [0]);
        service.stop(soon()).unwrap();
    }
}
