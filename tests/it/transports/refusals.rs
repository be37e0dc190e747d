//! Refusals and failures of verbs connections, with the text of their errors, and their number of doorbells and
//! completions. Uses the stand-in, which can be told to fail.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use aqueduct::comm::{Connection, EndpointConfig, HostBuffer, IbSignal, Transport};
use aqueduct::internals::rdma::Verbs;
use aqueduct::{Error, ErrorKind, Result};
use rdma_core_sys::{ibv_event_type, ibv_wc_status};

use super::pair::{Kind, Pair};
use super::peer_connection::peer_connections;
use crate::group::{Machine, Rank, config, soon, threads_with};
use crate::standin;

/// Number of the first queue pair that the stand-in makes; later ones count up.
const FIRST: u32 = 17;

/// Runs ranks whose NICs are the stand-in's `devices`.
fn ranks(size: u32, devices: &str, test: &str, run: impl Fn(Rank) + Sync) {
    let config = config().with_verbs(Verbs::from_table(standin::table(), "stand-in"));
    threads_with(Machine::Software, size, test, &config, &[("AQUEDUCT_IB_DEVICES", devices)], run);
    assert_eq!(standin::violations(), 0, "something was destroyed while it was in use");
    let until = soon();
    while standin::opened() > 0 {
        assert!(!until.expired(), "a NIC is still open after everything was dropped");
        std::thread::yield_now();
    }
}

/// The result of connecting two ranks with this endpoint, at `rank`.
fn connect(rank: &Rank, endpoint: EndpointConfig) -> Result<Connection> {
    let connection = rank.comm.connect(1 - rank.me(), 0, endpoint)?;
    rank.comm.setup(soon()).and_then(|()| connection.get())
}

fn says(result: Result<impl Sized>, words: &[&str]) -> Error {
    let error = result.err().expect("it is refused");
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{words:?} in: {text}");
    error
}

fn ib(number: u8) -> EndpointConfig {
    EndpointConfig::new(Transport::Ib(number))
}

#[test]
fn ends_that_do_not_fit() {
    ranks(2, "null0", "transports::refusals::ends_that_do_not_fit", |rank| {
        let first = rank.me() == 0;
        let transport = if first { ib(0) } else { EndpointConfig::new(Transport::CudaIpc) };
        let error =
            says(connect(&rank, transport), &["asked for", "Ib0", "CudaIpc", "same transport at both ends"]);
        assert_eq!((error.kind(), error.peer()), (ErrorKind::InvalidUsage, Some(1 - rank.me())));
        rank.barrier();
        let number = if first { 2 } else { 3 };
        let error = says(
            connect(&rank, ib(0).with_queue_pairs(number)),
            &["queue pairs", "same number at both ends"],
        );
        assert_eq!((error.kind(), error.peer()), (ErrorKind::InvalidUsage, Some(1 - rank.me())));
        rank.barrier();
        let signal = if first { IbSignal::Immediate } else { IbSignal::Write };
        let error = says(
            connect(&rank, ib(0).with_ib_signal(signal)),
            &["IbSignal::Immediate", "IbSignal::Write", "same at both ends", "with_ib_signal"],
        );
        assert_eq!((error.kind(), error.peer()), (ErrorKind::InvalidUsage, Some(1 - rank.me())));
        rank.barrier();
        drop(connect(&rank, ib(0)).expect("ends that fit connect after those that did not"));
    });
}

#[test]
fn nics_that_cannot_be_used() {
    ranks(2, "null0,dark0,bare0", "transports::refusals::nics_that_cannot_be_used", |rank| {
        let error =
            says(connect(&rank, ib(7)), &["no Ib7", "Ib0 = null0, Ib1 = dark0", "AQUEDUCT_IB_DEVICES"]);
        assert_eq!(error.kind(), ErrorKind::InvalidUsage);
        rank.barrier();
        says(connect(&rank, ib(1)), &["dark0 has no active port", "check the cable"]);
        rank.barrier();
        says(connect(&rank, ib(2)), &["no RoCE address", "give the network interface"]);
        rank.barrier();
        drop(connect(&rank, ib(0)).expect("the one that can"));
    });
}

#[test]
fn a_name_that_no_nic_has() {
    ranks(2, "null0,nope3", "transports::refusals::a_name_that_no_nic_has", |rank| {
        says(connect(&rank, ib(0)), &["no RDMA device `nope3`", "there are", "null0"]);
        rank.barrier();
    });
}

#[test]
fn memory_that_cannot_be_locked() {
    ranks(1, "null0", "transports::refusals::memory_that_cannot_be_locked", |rank| {
        let buffer = Arc::new(HostBuffer::new(rank.comm.context(), 4096).unwrap());
        standin::refuse("ibv_reg_mr", libc::ENOMEM);
        let refused = rank.comm.register_host(&buffer, Transport::Ib(0));
        assert_eq!(standin::not_called(), 0);
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a live output.
        unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
        // Without a limit the error cannot name it.
        let word =
            if limit.rlim_cur == libc::RLIM_INFINITY { "out of resources" } else { "ulimit -l unlimited" };
        says(refused, &[word]);
        drop(rank.comm.register_host(&buffer, Transport::Ib(0)).expect("it was refused once"));
    });
}

/// Memory that another rank of this process, or another communicator over verbs, has registered is refused before anything is posted, so
/// that the connection goes on.
#[test]
fn memory_that_is_not_the_ranks_own() {
    let registered = [const { Mutex::new(None) }; 2];
    ranks(2, "null0", "transports::refusals::memory_that_is_not_the_ranks_own", |rank| {
        let me = rank.me();
        let another = rank.comm.duplicate(soon()).unwrap();
        for transport in [Transport::CudaIpc, Transport::Ethernet, Transport::Ib(0)] {
            let end = peer_connections(&rank, &[1 - me], transport).remove(0);
            *registered[me as usize].lock().unwrap() = Some(end.source.clone());
            rank.barrier();
            let theirs = registered[1 - me as usize].lock().unwrap().clone().unwrap();
            let error = says(
                end.connection.write(&end.target, 0, &theirs, 0, 64),
                &["registered by another rank of this process"],
            );
            assert_eq!(error.kind(), ErrorKind::InvalidUsage);
            says(rank.comm.send_memory(&theirs, 1 - me, 7), &["registered by another rank of this process"]);
            if transport == Transport::CudaIpc {
                // On a connection to oneself, one's own memory is the peer's.
                let own = rank.comm.connect(me, 1, transport).unwrap();
                rank.comm.setup(soon()).unwrap();
                let written = own.get().unwrap().write(&theirs, 0, &end.source, 0, 64);
                says(written, &["registered by another rank of this process"]);
            }
            if let Transport::Ib(_) = transport {
                let buffer = Arc::new(HostBuffer::new(another.context(), 4096).unwrap());
                let foreign = another.register_host(&buffer, transport).unwrap();
                let error = says(
                    end.connection.write(&end.target, 0, &foreign, 0, 64),
                    &["registered with another communicator", "that made the connection"],
                );
                assert_eq!(error.kind(), ErrorKind::InvalidUsage);
            }
            end.works(me);
            rank.barrier();
            registered[me as usize].lock().unwrap().take();
            drop(theirs);
            rank.barrier();
        }
        drop(another);
    });
}

/// Rank 0 is connected to 1 and 2, and the first connection fails.
#[test]
fn a_failed_request_fails_one_connection() {
    ranks(3, "null0", "transports::refusals::a_failed_request_fails_one_connection", |rank| {
        let me = rank.me();
        // The queue pairs of ranks 0 and 1 are made first.
        let first = if me < 2 { peer_connections(&rank, &[1 - me], ib(0)) } else { Vec::new() };
        rank.barrier();
        let peers: &[u32] = [&[2_u32][..], &[], &[0]][me as usize];
        let second = peer_connections(&rank, peers, ib(0));
        if me == 0 {
            [FIRST, FIRST + 1]
                .into_iter()
                .for_each(|number| standin::fail_next(number, ibv_wc_status::IBV_WC_RETRY_EXC_ERR));
        }
        rank.barrier();
        for end in &first {
            let error = end.fails();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::Verbs, Some(1 - me)), "{error}");
            assert!(error.to_string().contains("did not answer"), "{error}");
            let waited = end.semaphore.wait(soon()).unwrap_err();
            assert_eq!(waited.peer(), Some(1 - me), "a waiting thread gets the error: {waited}");
        }
        second.iter().for_each(|end| end.works(me));
        rank.comm.check().unwrap();
        rank.barrier();
    });
}

#[test]
fn a_lost_nic_fails_its_outstanding_requests() {
    ranks(2, "null0", "transports::refusals::a_lost_nic_fails_its_outstanding_requests", |rank| {
        let end = peer_connections(&rank, &[1 - rank.me()], ib(0)).remove(0);
        rank.barrier();
        if rank.me() == 0 {
            [FIRST, FIRST + 1].into_iter().for_each(standin::hold);
        }
        rank.barrier();
        // The stand-in accepts the request and never executes it.
        end.connection.write(&end.target, 0, &end.source, 0, 4096).unwrap();
        let error = end.connection.flush(Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        rank.barrier();
        if rank.me() == 0 {
            [FIRST, FIRST + 1]
                .into_iter()
                .for_each(|number| standin::raise(number, ibv_event_type::IBV_EVENT_DEVICE_FATAL));
        }
        let error = end.fails();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Verbs, Some(1 - rank.me())), "{error}");
        assert!(error.to_string().contains("removed or failed"), "{error}");
        rank.barrier();
    });
}

/// Large data goes over all queue pairs of a connection, and the signal behind it over the first.
#[test]
fn a_signal_waits_for_data_on_other_queue_pairs() {
    ranks(2, "null0", "transports::refusals::a_signal_waits_for_data_on_other_queue_pairs", |rank| {
        let me = rank.me();
        let end = peer_connections(&rank, &[1 - me], ib(0).with_queue_pairs(2)).remove(0);
        // Small data goes over the first, too.
        end.works(me);
        rank.barrier();
        if me == 0 {
            let second = |number: &u32| standin::counts(*number).requests == 0;
            let held: Vec<u32> = (FIRST..FIRST + 4).filter(second).collect();
            assert_eq!(held.len(), 2, "one of each rank: {held:?}");
            held.into_iter().for_each(standin::hold);
            end.connection.write(&end.target, 0, &end.source, 0, 1 << 20).unwrap();
            end.semaphore.signal().unwrap();
            let error = end.connection.flush(Duration::from_millis(100)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        }
        rank.barrier();
        assert!(!end.semaphore.poll().unwrap(), "the signal has come before the data");
        rank.barrier();
        if me == 0 {
            let fatal = ibv_event_type::IBV_EVENT_DEVICE_FATAL;
            (FIRST..FIRST + 4).for_each(|number| standin::raise(number, fatal));
        }
        assert_eq!(end.fails().kind(), ErrorKind::Verbs);
        rank.barrier();
    });
}

/// A batch needs at most one doorbell and one completion per 16 requests.
#[test]
fn batches_are_cheap() {
    ranks(2, "null0", "transports::refusals::batches_are_cheap", |rank| {
        const WRITES: u64 = 16 * 1000;
        let pair = Pair::new(rank, ib(0), Kind::Host, Kind::Host);
        pair.connection.flush(soon()).unwrap();
        pair.rank.barrier();
        let seen = || {
            let both = [FIRST, FIRST + 1].map(standin::counts);
            let sum = |of: fn(&standin::Counts) -> u64| both.iter().map(of).sum::<u64>();
            (sum(|c| c.requests), sum(|c| c.doorbells), sum(|c| c.completions))
        };
        let round = || {
            let before = seen();
            pair.rank.barrier();
            {
                let _batch = pair.connection.batch();
                for _ in 0..WRITES {
                    pair.connection.write(&pair.target, 0, &pair.source, 0, 8).unwrap();
                }
            }
            pair.connection.flush(soon()).unwrap();
            pair.rank.barrier();
            let after = seen();
            pair.rank.barrier();
            (after.0 - before.0, after.1 - before.1, after.2 - before.2)
        };
        // A flush after a signalled request needs no request of its own. Only a thread that is held up for 5 ms in between has
        // one made that asks for completions, so the best of some rounds is exact.
        let rounds: Vec<_> = (0..10).map(|_| round()).collect();
        let exact = (2 * WRITES, 2 * WRITES / 16, 2 * WRITES / 16);
        let best = |&(requests, doorbells, completions): &(u64, u64, u64)| {
            requests == exact.0 && doorbells <= exact.1 && completions <= exact.2
        };
        assert!(
            rounds.iter().any(best),
            "requests, doorbells, completions: {rounds:?}, and at most {exact:?}"
        );
    });
}

/// A thread that waits for signals with an immediate sleeps until they arrive.
#[test]
fn waiters_sleep() {
    ranks(2, "null0", "transports::refusals::waiters_sleep", |rank| {
        let me = rank.me();
        let end = peer_connections(&rank, &[1 - me], ib(0).with_ib_signal(IbSignal::Immediate)).remove(0);
        rank.barrier();
        if me == 0 {
            std::thread::sleep(Duration::from_secs(1));
            end.semaphore.signal().unwrap();
        } else {
            let before = switches();
            end.semaphore.wait(soon()).unwrap();
            // It polls and yields two hundred times, then sleeps. Polling every half millisecond would give 2000.
            let looks = switches() - before;
            assert!(looks < 600, "this thread slept {looks} times");
        }
        rank.barrier();
        end.works(me);
        rank.barrier();
    });
}

/// Number of voluntary context switches of this thread so far.
fn switches() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: a live output, of which all zeros is a value.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_nvcsw
}

/// The owner's NIC would refuse it, and that would end the connection.
#[test]
fn a_signal_by_atomics_to_memory_without_that_right() {
    ranks(2, "null0", "transports::refusals::a_signal_by_atomics_to_memory_without_that_right", |rank| {
        let pair = Pair::new(rank, ib(0).with_ib_signal(IbSignal::Atomic), Kind::Host, Kind::Host);
        let mut counter = 0;
        let signal = pair.connection.update_and_sync(&pair.target, 0, &mut counter, 1);
        assert_eq!(says(signal, &["REMOTE_ATOMIC"]).kind(), ErrorKind::InvalidUsage);
        pair.connection.write(&pair.target, 0, &pair.source, 0, 8).unwrap();
        pair.connection.flush(soon()).unwrap();
        pair.rank.barrier();
    });
}
