//! What kernels ask for that cannot be: caught before it is pushed, or when a proxy sees it. Nothing is lost, nothing hangs.

use aqueduct::ErrorKind;
use aqueduct::comm::Transport;
use aqueduct::gpu::{CaptureMode, GraphExec};
use aqueduct::proxy::{ProxyService, ProxyServiceConfig};
use aqueduct_ptx::abi::{ChannelTrigger, LEFT_CLOSED, LEFT_NOT, LEFT_REFUSED, LEFT_TOLD, TriggerKind};

use super::kernels::{Kernels, Report};
use super::lane::{Lane, lanes};
use crate::group::{Rank, soon};

on_machines! { "ports::refusals", crate::ports::pair:
    a_put_past_the_end_is_refused_before_it_is_pushed;
    a_trigger_past_the_end_fails_one_connection;
    numbers_that_nobody_has;
    what_is_no_request_ends_one_proxy;
    a_recorded_flush_for_a_removed_semaphore;
}

const LEN: usize = 64 << 10;
const WAYS: [(u64, Transport); 2] = [(0, Transport::CudaIpc), (10, Transport::Ethernet)];

fn two(
    rank: &Rank,
    (tag, transport): (u64, Transport),
    proxies: usize,
) -> (ProxyService, [Lane; 2], Kernels) {
    let config = ProxyServiceConfig { proxies, ..ProxyServiceConfig::default() };
    let service = ProxyService::start(&rank.comm, config).unwrap();
    let peer = 1 - rank.me();
    let lanes = lanes(rank, &service, &[(peer, tag), (peer, tag + 1)], transport, LEN);
    let lanes = lanes.try_into().unwrap_or_else(|_| unreachable!("two were asked for"));
    (service, lanes, Kernels::load(rank.comm.context()))
}

/// A put of 8 bytes through a lane, as its channel would push it.
fn put(lane: &Lane) -> ChannelTrigger {
    ChannelTrigger {
        kind: TriggerKind::DATA,
        dst_id: lane.dst.0,
        src_id: lane.src.0,
        size: 8,
        semaphore: lane.semaphore.0,
        ..ChannelTrigger::default()
    }
}

/// Pushes a trigger that no channel would, unchecked.
fn push(kernels: &Kernels, lane: &Lane, trigger: ChannelTrigger) {
    let report = Report::new(lane.stream.context());
    kernels.trigger(&lane.stream, &lane.channel, trigger.encode(false).unwrap(), &report);
    lane.stream.synchronize(soon()).unwrap();
    assert_eq!(report.status(), LEFT_NOT, "it was pushed");
}

fn a_put_past_the_end_is_refused_before_it_is_pushed(rank: &Rank) {
    const FIT: usize = LEN / 8;
    for way in WAYS {
        let (service, [lane, _other], kernels) = two(rank, way, 1);
        let words: Vec<u64> = (0..FIT as u64).map(|i| i * 3 + 1).collect();
        lane.local.upload(0, &words, soon()).unwrap();
        rank.barrier();
        // The kernel goes on until it is refused, which is at the first word that does not fit.
        let report = Report::new(rank.comm.context());
        kernels.storm(&lane.stream, &lane.channel, 1, FIT as u32 + 1000, &report);
        lane.done();
        assert_eq!((report.status(), report.number(0)), (LEFT_REFUSED, FIT as u64));
        lane.channel.signal(&lane.stream).unwrap();
        lane.channel.flush(&lane.stream).unwrap();
        lane.channel.wait(&lane.stream).unwrap();
        lane.done();
        assert_eq!(lane.channel.counters().unwrap().puts, FIT as u64, "nothing was pushed past the end");
        assert_eq!(Lane::words(&lane.inbox, FIT), words, "what fits has arrived");
        rank.barrier();
        service.stop(soon()).unwrap();
    }
}

fn a_trigger_past_the_end_fails_one_connection(rank: &Rank) {
    let far = |lane: &Lane| {
        [
            ChannelTrigger { dst_offset: LEN as u64 - 7, ..put(lane) },
            ChannelTrigger { src_offset: (1 << 48) - 1, ..put(lane) },
            ChannelTrigger { size: (1 << 40) - 1, ..put(lane) },
        ]
    };
    for (tag, transport) in WAYS {
        for index in 0..3 {
            let (service, [lane, other], kernels) = two(rank, (tag * 10 + index * 2, transport), 1);
            if rank.me() == 0 {
                push(&kernels, &lane, far(&lane)[index as usize]);
                let error = lane.reason();
                assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
                assert!(error.message().contains("past the end"), "{error}");
                // Whoever asks for more there is told, on the device as well.
                let flush = Report::new(rank.comm.context());
                kernels.flush(&lane.stream, &lane.channel, &flush);
                lane.stream.synchronize(soon()).unwrap();
                assert_eq!(flush.status(), LEFT_TOLD);
            }
            other.works(rank.me());
            rank.barrier();
            assert!(Lane::words(&lane.inbox, LEN / 8).iter().all(|&word| word == 0), "nothing was written");
            service.stop(soon()).unwrap();
            rank.barrier();
        }
    }
}

fn numbers_that_nobody_has(rank: &Rank) {
    for way in WAYS {
        let (service, [lane, other], kernels) = two(rank, way, 1);
        if rank.me() == 0 {
            // A semaphore of which there may be one, and one of which there may not.
            for semaphore in [4000, 60_000] {
                push(&kernels, &lane, ChannelTrigger { semaphore, ..put(&lane) });
            }
            // Nothing at all is asked for, which is fine.
            push(&kernels, &lane, ChannelTrigger::default());
            let deadline = soon();
            while service.counters().dropped < 2 {
                deadline.check("counters", "dropped requests").unwrap();
                std::thread::yield_now();
            }
        }
        [&lane, &other].into_iter().for_each(|lane| lane.works(rank.me()));
        if rank.me() == 0 {
            assert_eq!(service.counters().dropped, 2);
            push(&kernels, &lane, ChannelTrigger { dst_id: 7777, ..put(&lane) });
            assert!(lane.reason().message().contains("no memory 7777"));
            // Not the other way round either: the number of one's own memory does not name the peer's.
            push(&kernels, &other, ChannelTrigger { dst_id: other.src.0, ..put(&other) });
            assert!(other.reason().message().contains("own"), "{}", other.reason());
        }
        rank.barrier();
        service.stop(soon()).unwrap();
    }
}

/// It names no connection, so that nobody can say what was meant: everything of its proxy ends, and only that.
fn what_is_no_request_ends_one_proxy(rank: &Rank) {
    for way in WAYS {
        let (service, [lane, other], kernels) = two(rank, way, 2);
        [&lane, &other].into_iter().for_each(|lane| lane.works(rank.me()));
        assert!(service.counters().proxies.iter().all(|proxy| proxy.triggers > 0), "each has its proxy");
        rank.barrier();
        if rank.me() == 0 {
            let waiting = aqueduct::gpu::Stream::new(rank.comm.context()).unwrap();
            let [wait, report] = [(); 2].map(|()| Report::new(rank.comm.context()));
            kernels.wait(&waiting, &lane.channel, &wait);
            let words = [u64::MAX >> 1, 0, 0, 0];
            kernels.raw(&lane.stream, &lane.channel.device_handle().fifo, words, &report);
            waiting.synchronize(soon()).unwrap();
            assert_eq!(wait.status(), LEFT_TOLD);
            let error = lane.channel.check().unwrap_err();
            assert!(error.message().contains("not a request of a port channel"), "{error}");
            lane.stream.synchronize(soon()).unwrap();
            kernels.raw(&lane.stream, &lane.channel.device_handle().fifo, words, &report);
            lane.stream.synchronize(soon()).unwrap();
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

/// The host no longer lets it be asked for; a graph that was recorded before still asks.
fn a_recorded_flush_for_a_removed_semaphore(rank: &Rank) {
    for way in WAYS {
        let (service, [lane, other], _) = two(rank, way, 1);
        let graph = GraphExec::capture(&lane.stream, CaptureMode::Global, |stream| {
            lane.channel.put_with_signal_and_flush(stream, 0, 0, 8)?;
            lane.channel.flush(stream)
        })
        .unwrap();
        service.remove_semaphore(lane.semaphore).unwrap();
        let dropped = service.counters().dropped;
        graph.launch(&lane.stream).unwrap();
        lane.stream.synchronize(soon()).unwrap();
        other.works(rank.me());
        assert_eq!(service.counters().dropped - dropped, 2, "every request is counted");
        rank.barrier();
        assert_eq!(Lane::words(&lane.inbox, 1), [0]);
        service.stop(soon()).unwrap();
    }
}
