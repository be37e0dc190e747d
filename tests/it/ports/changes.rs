//! Changes to a running service: adding and removing memories and semaphores, stopping, and invalid calls.

mod numbers;

use aqueduct::ErrorKind;
use aqueduct::channel::PortChannel;
use aqueduct::comm::{Host2DeviceSemaphore, Transport};
use aqueduct::gpu::Stream;
use aqueduct::proxy::{MemoryId, ProxyService, ProxyServiceConfig, SemaphoreId};
use aqueduct_ptx::abi::{LEFT_NOT, Operation};

use self::numbers::{
    a_number_is_free_only_once_its_requests_are_done,
    a_number_is_free_only_once_no_kernel_can_look_at_its_words, a_number_used_again_does_not_hide_a_failure,
};
use super::kernels::{Kernels, Report};
use super::peer_channel::{PeerChannel, peer_channels};
use crate::data::{assert_same, bytes};
use crate::group::{Rank, soon};

on_machines! { "ports::changes", crate::ports::pair:
    adding_and_removing_while_kernels_push;
    removing_while_kernels_push;
    a_connection_to_oneself;
    a_removed_memory_fails_one_connection_until_it_is_added_again;
    a_kernel_waiting_for_a_removed_semaphore_leaves;
    a_number_used_again_does_not_hide_a_failure;
    a_number_is_free_only_once_its_requests_are_done;
    a_number_is_free_only_once_no_kernel_can_look_at_its_words;
    a_channel_outlives_its_service;
    a_connection_belongs_to_one_service;
    invalid_calls_are_refused_with_a_reason;
}

const LEN: usize = 64 << 10;
/// Both transports, with tags that no other case uses.
const BOTH: [(u64, Transport); 2] = [(0, Transport::CudaIpc), (10, Transport::Ethernet)];

/// Starts a service with two connections to the other rank.
fn two(rank: &Rank, case: (u64, Transport)) -> (ProxyService, [PeerChannel; 2]) {
    two_of(rank, case, LEN)
}

/// The same with buffers of `len` bytes.
fn two_of(rank: &Rank, (tag, transport): (u64, Transport), len: usize) -> (ProxyService, [PeerChannel; 2]) {
    let service = ProxyService::start(&rank.comm, ProxyServiceConfig::default()).unwrap();
    let peer = 1 - rank.me();
    let ends = peer_channels(rank, &service, &[(peer, tag), (peer, tag + 1)], transport, len);
    (service, ends.try_into().unwrap_or_else(|_| unreachable!("two were asked for")))
}

fn adding_and_removing_while_kernels_push(rank: &Rank) {
    const BLOCKS: usize = 4;
    const PUTS: usize = LEN / 8 / BLOCKS;
    for (tag, transport) in BOTH {
        let (service, [busy, changing]) = two(rank, (tag, transport));
        let pending: Vec<_> = (100..116)
            .map(|n| rank.comm.build_host2device_semaphore(&changing.connection, tag * 100 + n).unwrap())
            .collect();
        rank.comm.setup(soon()).unwrap();
        let semaphores: Vec<_> = pending.iter().map(|semaphore| semaphore.get().unwrap()).collect();
        let (kernels, report) = (Kernels::load(rank.comm.context()), Report::new(rank.comm.context()));
        let data: Vec<u64> = (1..=PUTS as u64).map(|i| i << 8 | u64::from(rank.me())).collect();
        busy.local.upload(0, &data, soon()).unwrap();
        rank.barrier();
        kernels.storm(&busy.stream, &busy.channel, BLOCKS as u32, PUTS as u32, &report);
        for (round, semaphore) in (0..).zip(&semaphores) {
            let id = service.add_semaphore(semaphore).unwrap();
            let [dst, src] =
                [&changing.theirs, &changing.mine].map(|memory| service.add_memory(memory).unwrap());
            let channel = PortChannel::new(&service, id, dst, src).unwrap();
            changing.local.upload(0, &bytes(rank.me(), round, 1000), soon()).unwrap();
            channel.put_with_signal_and_flush(&changing.stream, 0, 0, 1000).unwrap();
            channel.wait(&changing.stream).unwrap();
            changing.done();
            let mut seen = vec![0; 1000];
            changing.inbox.download(0, &mut seen, soon()).unwrap();
            assert_same(&seen, &bytes(changing.peer, round, 1000), format_args!("semaphore {round}"));
            service.remove_semaphore(id).unwrap();
            [dst, src].into_iter().for_each(|memory| service.remove_memory(memory).unwrap());
            let error = channel.check().unwrap_err();
            assert!(error.message().contains(&format!("no semaphore {}", id.0)), "{error}");
            // Neither rank puts again before both have read the data.
            changing.channel.signal(&changing.stream).unwrap();
            changing.channel.wait(&changing.stream).unwrap();
            changing.done();
        }
        busy.channel.flush(&busy.stream).unwrap();
        busy.done();
        assert_eq!(report.status(), LEFT_NOT);
        assert_eq!(busy.channel.counters().unwrap().puts, (BLOCKS * PUTS) as u64);
        // A signal after all puts, because a flush does not mean that they have arrived.
        busy.channel.signal(&busy.stream).unwrap();
        busy.channel.wait(&busy.stream).unwrap();
        busy.done();
        let expected: Vec<u64> = (1..=PUTS as u64).map(|i| i << 8 | u64::from(busy.peer)).collect();
        let seen = PeerChannel::words(&busy.inbox, BLOCKS * PUTS);
        assert!(seen.chunks(PUTS).all(|block| block == expected), "a put is missing or wrong");
        assert_eq!(service.counters().dropped, 0);
        rank.barrier();
        service.stop(soon()).unwrap();
    }
}

/// Removes a memory or semaphore while a kernel pushes. Earlier requests are done, later ones dropped, each is one or
/// the other, and the kernel ends.
fn removing_while_kernels_push(rank: &Rank) {
    const BLOCKS: u32 = 4;
    const LEN: usize = 256 << 10;
    const PUTS: u32 = (LEN / 8) as u32 / BLOCKS;
    for (tag, transport) in BOTH {
        for removes_semaphore in [true, false] {
            let case = (tag + 2 * u64::from(removes_semaphore), transport);
            let (service, [busy, other]) = two_of(rank, case, LEN);
            let (kernels, report) = (Kernels::load(rank.comm.context()), Report::new(rank.comm.context()));
            rank.barrier();
            kernels.storm(&busy.stream, &busy.channel, BLOCKS, PUTS, &report);
            let deadline = soon();
            while service.counters().proxies[0].triggers < 200 {
                deadline.check("counters", "puts").unwrap();
                std::thread::yield_now();
            }
            let puts = || busy.channel.counters().map_or(0, |counters| counters.puts);
            let before = puts();
            if removes_semaphore {
                service.remove_semaphore(busy.semaphore).unwrap();
            } else {
                service.remove_memory(busy.dst).unwrap();
            }
            busy.stream.synchronize(soon()).unwrap();
            assert_eq!(report.status(), LEFT_NOT, "the FIFO accepts every push");
            other.works(rank.me());
            let words = if removes_semaphore { "no semaphore" } else { "no memory" };
            let deadline = soon();
            while busy.channel.check().is_ok() {
                deadline.check("check", "the removal").unwrap();
            }
            assert!(busy.channel.check().unwrap_err().message().contains(words));
            let (all, dropped) = (u64::from(BLOCKS * PUTS), service.counters().dropped);
            assert!(
                dropped > 0 && dropped + before <= all,
                "{dropped} dropped of {all}, {before} done before"
            );
            if !removes_semaphore {
                // The put that named the memory failed: it counts neither as done nor as dropped.
                assert_eq!(puts() + dropped + 1, all);
            }
            rank.barrier();
            service.stop(soon()).unwrap();
        }
    }
}

/// A rank puts to its own memory; no other rank is involved.
fn a_connection_to_oneself(rank: &Rank) {
    let service = ProxyService::start(&rank.comm, ProxyServiceConfig::default()).unwrap();
    let end = peer_channels(rank, &service, &[(rank.me(), 0)], Transport::CudaIpc, LEN).remove(0);
    // This rank is both ends: each wait needs a signal of its own.
    let data = bytes(rank.me(), 9, LEN);
    end.local.upload(0, &data, soon()).unwrap();
    end.channel.put_with_signal_and_flush(&end.stream, 0, 0, LEN).unwrap();
    end.channel.wait(&end.stream).unwrap();
    end.done();
    let mut seen = vec![0; LEN];
    end.inbox.download(0, &mut seen, soon()).unwrap();
    assert_same(&seen, &data, format_args!("to oneself"));
    service.stop(soon()).unwrap();
    rank.barrier();
}

fn a_removed_memory_fails_one_connection_until_it_is_added_again(rank: &Rank) {
    for case in BOTH {
        let (service, [mut end, other]) = two(rank, case);
        [&end, &other].into_iter().for_each(|end| end.works(rank.me()));
        rank.barrier();
        if rank.me() == 0 {
            let waiting = Stream::new(rank.comm.context()).unwrap();
            end.channel.wait(&waiting).unwrap();
            service.remove_memory(end.dst).unwrap();
            let words = format!("no memory {}", end.dst.0);
            let error = service.remove_memory(end.dst).unwrap_err();
            assert!(error.kind() == ErrorKind::InvalidUsage && error.message().contains(&words), "{error}");
            end.channel.put_with_signal_and_flush(&end.stream, 0, 0, 8).unwrap();
            // Both kernels leave: the one whose put failed, and the one that waits for a peer over the failed
            // connection.
            for stream in [&end.stream, &waiting] {
                let told = stream.synchronize(soon()).unwrap_err();
                assert!(told.op() == "synchronize" && told.message().contains(&words), "{told}");
            }
            let error = end.channel.check().unwrap_err();
            assert!(error.message().contains(&words), "{error}");
            let error = end.channel.signal(&end.stream).unwrap_err();
            assert!(error.message().contains(&words), "said again: {error}");
            let report = service.abort_report().expect("a kernel recorded why it left");
            assert!([Operation::FLUSH, Operation::WAIT].contains(&report.operation), "{report:?}");
            assert_eq!((report.rank, report.peer), (0, Some(1)));
        }
        rank.barrier();
        other.works(rank.me());
        if rank.me() == 0 {
            // A semaphore added to a failed connection would never be served, so its check returns the error.
            let late = service.add_semaphore(&end.spare).unwrap();
            let deadline = soon();
            while service.check(late).is_ok() {
                deadline.check("check", "the failure").unwrap();
            }
            service.remove_semaphore(late).unwrap();
        }
        // The connection itself works. Once the failed semaphore is removed, the connection is served again at once.
        service.remove_semaphore(end.semaphore).unwrap();
        end.semaphore = service.add_semaphore(&end.spare).unwrap();
        end.dst = service.add_memory(&end.theirs).unwrap();
        end.channel = PortChannel::new(&service, end.semaphore, end.dst, end.src).unwrap();
        end.works(rank.me());
        rank.barrier();
        service.stop(soon()).unwrap();
    }
}

fn a_kernel_waiting_for_a_removed_semaphore_leaves(rank: &Rank) {
    for case in BOTH {
        let (service, [end, other]) = two(rank, case);
        let late = service.add_semaphore(&end.spare).unwrap();
        let channel = PortChannel::new(&service, late, end.dst, end.src).unwrap();
        channel.wait(&end.stream).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!end.stream.is_idle().unwrap(), "no signal has arrived");
        service.remove_semaphore(late).unwrap();
        let words = format!("no semaphore {}", late.0);
        let said = [
            end.stream.synchronize(soon()).unwrap_err(),
            end.stream.is_idle().unwrap_err(),
            channel.check().unwrap_err(),
            channel.put(&end.stream, 0, 0, 8).unwrap_err(),
            channel.flush(&end.stream).unwrap_err(),
            channel.wait(&end.stream).unwrap_err(),
            channel.counters().unwrap_err(),
            service.check(late).unwrap_err(),
            service.remove_semaphore(late).unwrap_err(),
            PortChannel::new(&service, late, end.dst, end.src).unwrap_err(),
        ];
        for error in said {
            assert!(error.kind() == ErrorKind::InvalidUsage && error.message().contains(&words), "{error}");
        }
        assert_eq!(service.abort_report().expect("a kernel recorded why it left").operation, Operation::WAIT);
        // The other semaphores of the connection, and the other connection, are still served.
        [&end, &other].into_iter().for_each(|end| end.works(rank.me()));
        rank.barrier();
        service.stop(soon()).unwrap();
    }
}

fn a_channel_outlives_its_service(rank: &Rank) {
    for case in BOTH {
        let (service, [end, other]) = two(rank, case);
        end.works(rank.me());
        let graph =
            rank.capture(&end.stream, |stream| end.channel.put_with_signal_and_flush(stream, 0, 0, 8));
        other.channel.wait(&other.stream).unwrap();
        rank.barrier();
        service.stop(soon()).unwrap();
        // It waited when the service stopped. Everything on the other stream was waited for before.
        let told = other.stream.synchronize(soon()).unwrap_err();
        assert!(told.kind() == ErrorKind::Stopped && told.op() == "synchronize", "{told}");
        end.stream.synchronize(soon()).unwrap();
        for end in [&end, &other] {
            let said = [
                end.channel.check().unwrap_err(),
                end.channel.put(&end.stream, 0, 0, 8).unwrap_err(),
                end.channel.signal(&end.stream).unwrap_err(),
                end.channel.wait(&end.stream).unwrap_err(),
                service.check(end.semaphore).unwrap_err(),
                service.add_memory(&end.mine).unwrap_err(),
                service.add_semaphore(&end.spare).unwrap_err(),
                PortChannel::new(&service, end.semaphore, end.dst, end.src).unwrap_err(),
            ];
            for error in said {
                let clear = error.kind() == ErrorKind::Stopped && error.message().contains("stopped");
                assert!(clear, "{error}");
            }
        }
        // A graph recorded before the stop neither hangs nor does anything, and says so.
        graph.launch(&end.stream).unwrap();
        let told = end.stream.synchronize(soon()).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Stopped, "{told}");
        service.stop(soon()).unwrap();
        rank.barrier();
    }
}

/// Adds a semaphore of a connection that another service has given up, whose proxy may still be at requests that it has taken.
fn add_once_free(service: &ProxyService, semaphore: &Host2DeviceSemaphore) -> SemaphoreId {
    let deadline = soon();
    loop {
        match service.add_semaphore(semaphore) {
            Ok(id) => return id,
            Err(error) => assert!(!deadline.expired(), "the connection is never free: {error}"),
        }
    }
}

fn a_connection_belongs_to_one_service(rank: &Rank) {
    let (first, [mut end, other]) = two(rank, BOTH[0]);
    let second = ProxyService::start(&rank.comm, ProxyServiceConfig::default()).unwrap();
    for semaphore in [&end.host, &end.spare] {
        let error = second.add_semaphore(semaphore).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage);
        assert!(error.message().contains("another proxy service"), "{error}");
    }
    end.works(rank.me());
    // The connection is free for another service once the first one has removed all of it, and done what it had taken.
    let spare = first.add_semaphore(&end.spare).unwrap();
    first.remove_semaphore(end.semaphore).unwrap();
    second.add_semaphore(&end.host).unwrap_err();
    first.remove_semaphore(spare).unwrap();
    let moved = |end: &mut PeerChannel| {
        end.semaphore = add_once_free(&second, &end.host);
        [end.dst, end.src] = [&end.theirs, &end.mine].map(|memory| second.add_memory(memory).unwrap());
        end.channel = PortChannel::new(&second, end.semaphore, end.dst, end.src).unwrap();
    };
    moved(&mut end);
    [&end, &other].into_iter().for_each(|end| end.works(rank.me()));
    // Or once the other service has stopped.
    let mut other = other;
    second.add_semaphore(&other.host).unwrap_err();
    first.stop(soon()).unwrap();
    moved(&mut other);
    [&end, &other].into_iter().for_each(|end| end.works(rank.me()));
    rank.barrier();
    second.stop(soon()).unwrap();
}

fn invalid_calls_are_refused_with_a_reason(rank: &Rank) {
    let comm = &rank.comm;
    let refused = |result: aqueduct::Result<()>, words: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
        assert!(error.message().contains(words), "{words}: {error}");
    };
    let config = ProxyServiceConfig::default;
    let start = |config| ProxyService::start(comm, config).map(drop);
    refused(start(ProxyServiceConfig { proxies: 0, ..config() }), "0 proxies");
    refused(start(ProxyServiceConfig { fifo_size: 48, ..config() }), "48 is no power of two");
    refused(start(ProxyServiceConfig { max_semaphores: 0, ..config() }), "16 bits");
    refused(start(ProxyServiceConfig { max_semaphores: 65_537, ..config() }), "16 bits");
    refused(start(ProxyServiceConfig { cpus: vec![100_000], ..config() }), "core 100000");

    let (service, [end, other]) = two(rank, BOTH[0]);
    let (tcp_service, [tcp, _]) = two(rank, BOTH[1]);
    let channel = |semaphore, dst, src| PortChannel::new(&service, semaphore, dst, src).map(drop);
    refused(channel(SemaphoreId(999), end.dst, end.src), "no semaphore 999");
    refused(channel(end.semaphore, MemoryId(999), end.src), "no memory 999");
    refused(channel(end.semaphore, end.dst, MemoryId(999)), "no memory 999");
    refused(channel(end.semaphore, end.src, end.src), "this rank's own");
    refused(channel(end.semaphore, end.dst, end.dst), "must be this rank's own");
    let [dst, src] = [&tcp.theirs, &tcp.mine].map(|memory| service.add_memory(memory).unwrap());
    refused(channel(end.semaphore, dst, end.src), "CudaIpc");
    refused(channel(end.semaphore, end.dst, src), "CudaIpc");
    refused(service.remove_semaphore(SemaphoreId(5000)), "no semaphore 5000");
    refused(service.remove_memory(MemoryId(5000)), "no memory 5000");

    let full = ProxyService::start(comm, ProxyServiceConfig { max_semaphores: 1, ..config() }).unwrap();
    end.works(rank.me());
    service.remove_semaphore(other.semaphore).unwrap();
    add_once_free(&full, &other.host);
    let error = full.add_semaphore(&other.spare).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    assert!(error.message().contains("max_semaphores"), "{error}");

    // One byte past the end, of the source or the target: nothing is launched, nothing is pushed.
    let before = end.channel.counters().unwrap();
    let put = |to, from, bytes| end.channel.put(&end.stream, to, from, bytes);
    refused(put(LEN - 7, 0, 8), "dst");
    refused(put(0, LEN - 7, 8), "src");
    refused(put(usize::MAX - 3, 0, 8), "dst");
    refused(put(0, 0, usize::MAX), "dst");
    refused(end.channel.put_with_signal(&end.stream, 0, LEN, 1), "src");
    put(LEN - 8, LEN - 8, 8).unwrap();
    put(LEN, LEN, 0).unwrap();
    end.channel.flush(&end.stream).unwrap();
    end.done();
    let after = end.channel.counters().unwrap();
    assert_eq!((after.puts - before.puts, after.bytes - before.bytes), (2, 8));
    rank.barrier();
    for service in [service, tcp_service, full] {
        service.stop(soon()).unwrap();
    }
}
