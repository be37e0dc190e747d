//! One process with several devices and one thread of its own, as programs for NCCL have: `ncclCommInitAll`, then
//! group calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use aqueduct::channel::{MemoryChannel, PortChannel, SignalChannel};
use aqueduct::collective::{Collective, CollectiveConfig};
use aqueduct::comm::{Communicator, CommunicatorConfig, Transport, together};
use aqueduct::gpu::{CUresult, Context, Device, Driver, GpuBuffer, Stream};
use aqueduct::internals::fault::{Calls, DriverFault, DriverFaults};
use aqueduct::plan::{Element, Kind, Reduction};
use aqueduct::proxy::{ProxyService, ProxyServiceConfig};
use aqueduct::{Error, ErrorKind, Result};
use aqueduct_tests::ranks;

use crate::data::{Way, assert_same, bytes, elements, reduced};
use crate::group::{Machine, config, context, soon};

const RANKS: u32 = 4;
const LEN: usize = 12_345;
/// No test may need so long, and none ends because of it: the time limit of ranks is shorter.
const HOUR: Duration = Duration::from_secs(3600);

/// Runs `run` in a process of its own, with the communicators of all ranks.
fn alone(machine: Machine, test: &str, run: impl FnOnce(Vec<Communicator>)) {
    if ranks::start(1, test).is_none() {
        return;
    }
    let driver = machine.driver();
    let contexts: Vec<Context> = (0..RANKS).map(|rank| context(&driver, rank)).collect();
    let comms = Communicator::local(&contexts, config(), soon()).unwrap();
    for (rank, comm) in (0..).zip(&comms) {
        assert_eq!((comm.rank(), comm.size()), (rank, RANKS));
        assert_eq!(comm.context(), &contexts[rank as usize]);
    }
    run(comms);
}

// The example is a file of its own with the document's text. It becomes part of this module.
include!("one_thread_example.rs");

const EXAMPLE: &str = include_str!("one_thread_example.rs");
const DOCUMENT: &str = include_str!("../../docs/porting.md");

#[test]
fn the_document_shows_this_example() {
    let shown = format!("```rust,no_run\n{EXAMPLE}```\n");
    assert!(DOCUMENT.contains(&shown), "copy tests/it/one_thread_example.rs into docs/porting.md");
}

fn the_example(machine: Machine, test: &str) {
    if ranks::start(1, test).is_none() {
        return;
    }
    let inputs: Vec<Vec<f32>> =
        (0..RANKS).map(|rank| (0..999).map(|i| (i * rank) as f32).collect()).collect();
    let expected: Vec<f32> = (0..999).map(|i| (i * RANKS * (RANKS - 1) / 2) as f32).collect();
    assert_eq!(sum(&machine.driver(), &inputs).unwrap(), vec![expected; RANKS as usize]);
}

fn buffers(comms: &[Communicator], len: usize) -> Vec<Arc<GpuBuffer>> {
    comms.iter().map(|comm| Arc::new(GpuBuffer::new(comm.context(), len).unwrap())).collect()
}

fn streams(comms: &[Communicator]) -> Vec<Stream> {
    comms.iter().map(|comm| Stream::new(comm.context()).unwrap()).collect()
}

fn contents(buffer: &GpuBuffer) -> Vec<u8> {
    let mut seen = vec![0; buffer.len()];
    buffer.download(0, &mut seen, soon()).unwrap();
    seen
}

fn all_reduce(machine: Machine, test: &str) {
    alone(machine, test, |comms| {
        const COUNT: usize = 3001;
        let (ty, op) = (Element::F32, Reduction::Sum);
        for (iteration, way) in (0..).zip(Way::ALL) {
            let config = way.config([(ty, op)]);
            let prepare =
                |comm: &Communicator| Collective::prepare(comm, Kind::AllReduce, config.clone(), soon());
            let reduces = together(&comms, prepare).unwrap();
            assert_eq!(reduces[0].algorithm(true, COUNT, ty, None).unwrap(), way.name());
            let (buffers, streams) = (buffers(&comms, COUNT * ty.bytes()), streams(&comms));
            for (rank, buffer) in (0..).zip(&buffers) {
                buffer.upload(0, &elements(ty, rank, iteration, COUNT), soon()).unwrap();
            }
            for ((reduce, stream), buffer) in reduces.iter().zip(&streams).zip(&buffers) {
                let slice = buffer.slice(..).unwrap();
                reduce.launch(stream, &slice, &slice, COUNT, ty, op).unwrap();
            }
            for (stream, buffer) in streams.iter().zip(&buffers) {
                stream.synchronize(soon()).unwrap();
                let expected = reduced(ty, op, RANKS, iteration, COUNT);
                assert_same(&contents(buffer), &expected, format_args!("{way:?}"));
            }
        }
        together(&comms, |comm| comm.close(soon())).unwrap();
    });
}

/// Every rank puts to the next by a memory channel and to the previous by a port channel; the one thread launches all.
fn around_a_ring(machine: Machine, test: &str) {
    alone(machine, test, |comms| {
        let (sources, inboxes, backs) = (buffers(&comms, LEN), buffers(&comms, LEN), buffers(&comms, LEN));
        for (rank, source) in (0..).zip(&sources) {
            source.upload(0, &bytes(rank, 3, LEN), soon()).unwrap();
        }
        let ends = together(&comms, |comm| {
            let me = comm.rank() as usize;
            let (next, previous) = ((comm.rank() + 1) % RANKS, (comm.rank() + RANKS - 1) % RANKS);
            let register = |buffer| comm.register_memory(buffer, Transport::CudaIpc);
            let source = register(&sources[me])?;
            comm.send_memory(&register(&inboxes[me])?, previous, 0)?;
            comm.send_memory(&register(&backs[me])?, next, 1)?;
            let (ahead, behind) = (comm.recv_memory(next, 0)?, comm.recv_memory(previous, 1)?);
            let service = ProxyService::start(comm, ProxyServiceConfig::default())?;
            let connect = |peer| comm.connect(peer, 0, Transport::CudaIpc);
            let (to_next, to_previous) = (connect(next)?, connect(previous)?);
            let forth = [comm.build_semaphore(&to_next, 0)?, comm.build_semaphore(&to_previous, 0)?];
            let back = [
                service.build_and_add_semaphore(&to_next, 1)?,
                service.build_and_add_semaphore(&to_previous, 1)?,
            ];
            comm.setup(soon())?;
            let [dst, src] = [service.add_memory(&behind.get()?)?, service.add_memory(&source)?];
            // The peer of each channel's semaphore must be whose memory it writes; the other end only waits.
            let ahead_of_me = MemoryChannel::new(&forth[0].get()?, &ahead.get()?, &source, None)?;
            let waits_behind = SignalChannel::new(&forth[1].get()?)?;
            let to_behind = PortChannel::new(&service, back[1].get()?, dst, src)?;
            let to_ahead = service.add_memory(&ahead.get()?)?;
            let waits_ahead = PortChannel::new(&service, back[0].get()?, to_ahead, src)?;
            Ok((ahead_of_me, waits_behind, to_behind, waits_ahead))
        })
        .unwrap();
        let streams = streams(&comms);
        for ((put, _, back, _), stream) in ends.iter().zip(&streams) {
            put.put_with_signal(stream, 0, 0, LEN).unwrap();
            back.put_with_signal(stream, 0, 0, LEN).unwrap();
        }
        for ((_, came, _, came_back), stream) in ends.iter().zip(&streams) {
            came.wait(stream).unwrap();
            came_back.wait(stream).unwrap();
        }
        for (rank, stream) in (0..).zip(&streams) {
            stream.synchronize(soon()).unwrap();
            let (from_previous, from_next) = ((rank + RANKS - 1) % RANKS, (rank + 1) % RANKS);
            for (came, from) in [(&inboxes, from_previous), (&backs, from_next)] {
                let what = contents(&came[rank as usize]);
                assert_same(&what, &bytes(from, 3, LEN), format_args!("what came to rank {rank}"));
            }
        }
    });
}

/// Groups made from groups, and the end of all of them.
fn groups_of_groups(machine: Machine, test: &str) {
    alone(machine, test, |comms| {
        let halves = together(&comms, |comm| comm.split(Some(comm.rank() % 2), 0, soon())).unwrap();
        let halves: Vec<Communicator> = halves.into_iter().map(Option::unwrap).collect();
        assert_eq!(
            halves.iter().map(|half| (half.rank(), half.size())).collect::<Vec<_>>(),
            [(0, 2), (0, 2), (1, 2), (1, 2)]
        );
        let copies = together(&halves, |half| half.duplicate(soon())).unwrap();
        // Some of the ranks, in another order.
        let some = [copies[3].clone(), copies[1].clone()];
        assert_eq!(together(&some, |comm| Ok(comm.rank())).unwrap(), [1, 0]);
        assert!(together(&[], |_| Ok(())).unwrap().is_empty());
        for comms in [copies, halves, comms] {
            together(&comms, |comm| comm.close(soon())).unwrap();
            // A failure leaves a closed communicator closed.
            let error = together(&comms, |comm| comm.setup(soon())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Stopped, "{error}");
            for error in comms.iter().map(|comm| comm.check().unwrap_err()) {
                assert_eq!(
                    (error.kind(), error.message()),
                    (ErrorKind::Stopped, "the communicator was closed")
                );
            }
        }
    });
}

/// Rank 2 fails before it does what the others wait for, and a kernel of rank 0 waits, too.
fn one_fails(machine: Machine, test: &str) {
    alone(machine, test, |comms| {
        let ways = together(&comms, |comm| {
            let peer = (comm.rank() + 2) % RANKS;
            let connection = comm.connect(peer, 0, Transport::CudaIpc)?;
            let semaphore = comm.build_semaphore(&connection, 0)?;
            comm.setup(soon())?;
            SignalChannel::new(&semaphore.get()?)
        })
        .unwrap();
        let stream = Stream::new(comms[0].context()).unwrap();
        ways[0].wait(&stream).unwrap();
        let error = together(&comms, |comm| {
            if comm.rank() == 2 {
                return Err(Error::new(ErrorKind::Plan, "the test", "rank 2 has no plan"));
            }
            comm.connect((comm.rank() + 1) % RANKS, 7, Transport::CudaIpc)?;
            comm.setup(HOUR)
        })
        .unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::Plan, "rank 2 has no plan"));
        let told = |error: Error| {
            assert_eq!((error.kind(), error.peer()), (ErrorKind::Aborted, Some(2)), "{error}");
            assert!(error.message().contains("rank 2 failed in together"), "{error}");
            assert!(error.message().contains("rank 2 has no plan"), "{error}");
        };
        comms.iter().for_each(|comm| told(comm.check().unwrap_err()));
        told(stream.synchronize(HOUR).unwrap_err());
        let values = together(&comms, |comm| Ok(comm.setup(HOUR))).unwrap();
        values.into_iter().for_each(|value| told(value.unwrap_err()));
    });
}

/// A failure that is returned as a value leaves the group as it is.
fn a_failure_as_a_value(machine: Machine, test: &str) {
    alone(machine, test, |comms| {
        let late = Duration::from_millis(200);
        let values = together(&comms, |comm| {
            if comm.rank() < 2 {
                comm.connect(3, 0, Transport::CudaIpc)?;
            }
            Ok(comm.setup(late))
        })
        .unwrap();
        let kinds: Vec<_> = values.into_iter().map(|value| value.err().map(|error| error.kind())).collect();
        assert_eq!(kinds, [Some(ErrorKind::Timeout), Some(ErrorKind::Timeout), None, None]);
        together(&comms, |comm| comm.check()).unwrap();
    });
}

fn one_panics(machine: Machine, test: &str) {
    alone(machine, test, |comms| {
        let ended = AtomicU32::new(0);
        let panics = || {
            together(&comms, |comm| {
                assert!(comm.rank() != 1, "rank 1 panics");
                // Rank 1 may have ended the group before this rank asks for the connection.
                let connected = comm.connect((comm.rank() + 1) % RANKS, 7, Transport::CudaIpc);
                let result: Result<()> = connected.and_then(|_| comm.setup(HOUR));
                ended.fetch_add(1, Ordering::Relaxed);
                result
            })
        };
        let panic = catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"rank 1 panics"));
        assert_eq!(ended.load(Ordering::Relaxed), RANKS - 1, "it goes on when all others have ended");
        let error = comms[0].check().unwrap_err();
        assert!(error.message().contains("the call of a rank panicked"), "{error}");
    });
}

/// Inside the closure the driver's own calls are for the rank's device.
fn current_contexts(machine: Machine, test: &str) {
    alone(machine, test, |comms| {
        let current = |comm: &Communicator| {
            let mut current = std::ptr::null_mut();
            // SAFETY: `current` is a live output.
            let result = unsafe { (comm.context().driver().table().cuCtxGetCurrent)(&raw mut current) };
            assert_eq!(result, CUresult::CUDA_SUCCESS);
            // A pointer is not `Send`.
            Ok(current as usize)
        };
        let contexts: Vec<usize> = comms.iter().map(|comm| comm.context().raw() as usize).collect();
        assert_eq!(together(&comms, current).unwrap(), contexts);
    });
}

/// The error is that of the rank that fails, not what the others make of it.
#[test]
fn a_rank_that_cannot_join_fails_all_of_them() {
    let calls = Calls::Function("cuDeviceGetName".to_owned());
    let rule = DriverFault::nth(calls, 1, CUresult::CUDA_ERROR_ECC_UNCORRECTABLE).and_after();
    let faults = Arc::new(DriverFaults::new([rule]));
    let (driver, faulty) = (Machine::Software.driver(), Machine::Software.driver().with_hooks(faults));
    let of = |rank| if rank == 2 { &faulty } else { &driver };
    let contexts: Vec<Context> =
        (0..RANKS).map(|rank| Context::new(&Device::new(of(rank), rank).unwrap()).unwrap()).collect();
    let error = Communicator::local(&contexts, config(), HOUR).unwrap_err();
    assert_eq!((error.kind(), error.op()), (ErrorKind::Cuda, "cuDeviceGetName"), "{error}");
    let error = Communicator::local(&[], CommunicatorConfig::default(), soon()).unwrap_err();
    assert_eq!((error.kind(), error.op()), (ErrorKind::InvalidUsage, "Communicator::local"), "{error}");
    assert!(error.message().contains("give one for each rank"), "{error}");
    let error = Communicator::local(&contexts[..2], config(), Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
}

macro_rules! on_both {
    ($($name:ident: $body:expr;)*) => {
        mod soft {
            use super::*;
            $(#[test]
            fn $name() {
                $body(Machine::Software, concat!("one_thread::soft::", stringify!($name)));
            })*
        }
        mod hardware {
            use super::*;
            $(#[test]
            #[ignore = "needs four NVIDIA GPUs, or fewer that ranks share"]
            fn $name() {
                $body(Machine::Hardware, concat!("one_thread::hardware::", stringify!($name)));
            })*
        }
    };
}

on_both! {
    all_reduce_is_right: all_reduce;
    the_documented_example: the_example;
    channels_around_a_ring: around_a_ring;
    groups_made_from_groups: groups_of_groups;
    each_closure_has_its_context: current_contexts;
    a_failing_rank_is_an_error_for_all_and_nothing_hangs: one_fails;
    a_failure_returned_as_a_value_harms_nothing: a_failure_as_a_value;
    a_panicking_rank_lets_the_others_end: one_panics;
}
