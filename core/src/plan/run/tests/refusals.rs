//! Ranks that fail, and ranks that have nothing to do.

use std::cell::Cell;
use std::sync::Arc;

use cuda_driver_sys::CUresult;

use super::super::super::program::{CollectiveProgram, Pattern, SyncType};
use super::super::super::{Kind, Plan, Reduction, samples};
use super::super::buffers::Window;
use super::{
    Driver, Element, Executor, ExecutorConfig, LIMIT, Rig, Stream, alone, close, everywhere, ranks, ranks_on,
};
use crate::comm::{Communicator, Transport};
use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, ErrorKind};
use crate::gpu::{Context, GpuBuffer, Hooks};

thread_local! {
    /// There is no device memory for this thread.
    pub(super) static FULL: Cell<bool> = const { Cell::new(false) };
}

pub(super) struct Full;

impl Hooks for Full {
    fn before_allocation(&self, _: &'static str, _: usize) -> Option<CUresult> {
        FULL.get().then_some(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }
}

fn sums() -> ExecutorConfig {
    ExecutorConfig::default().with_variants([(Element::I32, Some(Reduction::Sum))]).with_max_bytes(1 << 16)
}

/// Rank 1 has an error of its own kind, and the others say what it said.
fn all_say<T>(results: Vec<Result<T, Error>>, own: ErrorKind, says: &str) {
    for (rank, result) in results.into_iter().enumerate() {
        let error = result.err().unwrap_or_else(|| panic!("rank {rank} hears of no error"));
        assert_eq!(error.kind(), if rank == 1 { own } else { ErrorKind::Remote }, "rank {rank}: {error}");
        assert!(error.to_string().contains(says), "rank {rank}: {error}");
        assert_eq!(error.peer(), (rank != 1).then_some(1), "rank {rank}: {error}");
    }
}

#[test]
fn ranks_without_operations_take_part() {
    let _alone = alone();
    let mut plan = samples::two_shot(2);
    plan.collective.kind = Kind::Custom("two of three".into());
    let mut idle = plan.ranks[0].clone();
    (idle.blocks, idle.memory_channels, idle.scratch_chunks) = (Vec::new(), Vec::new(), 0);
    plan.ranks.push(idle);
    let comms = ranks(3);
    let mut rig = Rig::new(&comms, &plan, 480, &[Some(Reduction::Sum)]).unwrap();
    for elements in [96, 480] {
        rig.as_simulated(elements, Some(Reduction::Sum));
    }
    drop(rig);
    close(&comms);
}

#[test]
fn a_buffer_that_one_rank_cannot_show_is_an_error_of_all() {
    let _alone = alone();
    let comms = ranks(3);
    let plan = samples::two_shot(3);
    let mut rig = Rig::new(&comms, &plan, 480, &[Some(Reduction::Sum)]).unwrap();
    let other = Context::new(comms[0].context().device()).unwrap();
    let foreign = Arc::new(GpuBuffer::new(&other, 4096).unwrap());
    let show = |comm: &Communicator| {
        let rank = comm.rank() as usize;
        let buffer = if rank == 1 { &foreign } else { &rig.sides[rank].input };
        rig.executors[rank].prepare_buffers(buffer, buffer, LIMIT)
    };
    all_say(everywhere(&comms, show), ErrorKind::InvalidUsage, "context");
    // Nothing of it is left.
    rig.as_simulated(480, Some(Reduction::Sum));
    drop(rig);
    close(&comms);
}

/// Memory for scratch is allocated after the ranks have agreed about the plan.
#[test]
fn a_rank_without_memory_is_an_error_of_all() {
    let _alone = alone();
    let driver = Driver::software(cuda_soft::driver_table()).unwrap().with_hooks(Arc::new(Full));
    let comms = ranks_on(&driver, 3);
    let plan = samples::one_shot(3, true);
    let prepare = |comm: &Communicator| {
        FULL.set(comm.rank() == 1);
        Executor::prepare(comm, &plan, sums(), LIMIT)
    };
    all_say(everywhere(&comms, prepare), ErrorKind::Cuda, "OUT_OF_MEMORY");
    Rig::new(&comms, &plan, 480, &[Some(Reduction::Sum)]).unwrap().as_simulated(480, Some(Reduction::Sum));
    close(&comms);
}

/// Also under a tag that the library uses for the plan.
#[test]
fn a_plan_that_fails_to_prepare_takes_nothing_with_it_that_the_program_has_asked_for() {
    let _alone = alone();
    let driver = Driver::software(cuda_soft::driver_table()).unwrap().with_hooks(Arc::new(Full));
    let comms = ranks_on(&driver, 2);
    let connect = |comm: &Communicator| {
        (0..4).map(|tag| comm.connect(1 - comm.rank(), tag, Transport::CudaIpc)).collect()
    };
    let asked: Vec<Vec<_>> = comms.iter().map(connect).collect::<Result<_, Error>>().unwrap();
    let plan = samples::one_shot(2, true);
    let prepare = |comm: &Communicator| {
        FULL.set(comm.rank() == 1);
        Executor::prepare(comm, &plan, sums(), LIMIT)
    };
    all_say(everywhere(&comms, prepare), ErrorKind::Cuda, "OUT_OF_MEMORY");
    everywhere(&comms, |comm| comm.setup(LIMIT)).into_iter().for_each(Result::unwrap);
    for connection in asked.iter().flatten() {
        assert!(connection.get().is_ok(), "tag {}", connection.tag());
    }
    drop(asked);
    close(&comms);
}

#[test]
fn a_plan_that_reduces_needs_variants() {
    let _alone = alone();
    let comms = ranks(2);
    let plan = samples::two_shot(2);
    for refused in everywhere(&comms, |comm| Executor::prepare(comm, &plan, ExecutorConfig::default(), LIMIT))
    {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
        assert!(error.to_string().contains("with_variants"), "{error}");
    }
    close(&comms);
}

/// As `PortChannel::with_packets` does.
#[test]
fn packets_through_ports_over_a_nic_are_refused() {
    let _alone = alone();
    let comms = ranks(2);
    let (packets, plain) = (samples::port_packets(), samples::port_all_gather());
    let prepare = |plan| {
        let config = ExecutorConfig::default().with_max_bytes(1 << 16).with_port_transport(Transport::Ib(0));
        everywhere(&comms, |comm| Executor::prepare(comm, plan, config.clone(), LIMIT))
    };
    for refused in prepare(&packets) {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("a NIC may write a packet's flag before its data"), "{error}");
    }
    for refused in prepare(&plain) {
        assert!(!refused.unwrap_err().to_string().contains("packet"), "there is no NIC, but that is all");
    }
    close(&comms);
}

/// An all-gather of two ranks in place: each reads its peer's part.
fn pull() -> Plan {
    let program = CollectiveProgram::new("pull", Pattern::all_gather(2, 1).in_place());
    for (me, peer) in [(0, 1), (1, 0)] {
        let (mine, theirs) = (program.rank(me), program.rank(peer));
        let channel = mine.memory_channel(peer);
        channel.signal(0, SyncType::None);
        channel.wait(0, SyncType::After);
        channel.get(mine.output().chunk(peer), theirs.input().chunk(0), 0);
        channel.signal(0, SyncType::Before);
        channel.wait(0, SyncType::None);
    }
    program.build().unwrap()
}

/// In place the input of rank 1 begins in the middle of its buffer, which ends there: what its peer would read is not its own.
#[test]
fn a_buffer_of_a_peer_that_ends_before_its_part_is_refused() {
    let _alone = alone();
    let comms = ranks(2);
    let plan = pull();
    let results = everywhere(&comms, |comm| {
        let executor = Executor::prepare(comm, &plan, ExecutorConfig::default().with_max_bytes(1024), LIMIT)?;
        let bytes = if comm.rank() == 0 { 2048 } else { 1024 };
        let buffer = Arc::new(GpuBuffer::new(comm.context(), bytes)?);
        let shown = executor.prepare_buffers(&buffer, &buffer, LIMIT)?;
        let stream = Stream::new(comm.context())?;
        Ok((executor.execute_on(&stream, &shown, 256, Element::I32, None), executor, stream))
    });
    let results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    // If one of them was launched, all the same, it has no partner.
    comms[0].abort("the test is over");
    let error = results[0].0.as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
    assert!(error.message().contains("rank 1 has shown has 1024 bytes; this call needs 2048"), "{error}");
}

/// The first slice would be under way when the buffer's end is found.
#[test]
fn a_buffer_of_a_peer_that_ends_before_the_last_slice_is_refused_with_the_first() {
    let _alone = alone();
    let comms = ranks(2);
    let plan = pull();
    let errors = everywhere(&comms, |comm| {
        let executor = Executor::prepare(comm, &plan, ExecutorConfig::default().with_max_bytes(1024), LIMIT)?;
        let buffer = Arc::new(GpuBuffer::new(comm.context(), 2048)?);
        let shown = executor.prepare_buffers(&buffer, &buffer, LIMIT)?;
        let stream = Stream::new(comm.context())?;
        let slice = |from: u64, whole: u64| {
            let part = 512 * comm.rank() as usize + from as usize;
            let input = buffer.slice(part..part + 512)?;
            let output = buffer.slice(from as usize..from as usize + 1024)?;
            let of = (&shown, Window { from, whole });
            executor.execute_within(&stream, of, [&input, &output], 128, (Element::I32, None))
        };
        let refused = slice(0, 2049).unwrap_err();
        slice(0, 2048)?;
        slice(1024, 2048)?;
        stream.synchronize(LIMIT)?;
        Ok(refused)
    });
    for (peer, error) in [1, 0].into_iter().zip(errors) {
        let error = error.unwrap();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::InvalidUsage, Some(peer)), "{error}");
        assert!(error.message().contains("has 2048 bytes; this call needs 2049"), "{error}");
    }
    close(&comms);
}

#[test]
fn buffers_of_ports_are_let_go_with_what_was_shown() {
    let _alone = alone();
    let comms = ranks(2);
    let plan = samples::port_all_gather();
    let left = everywhere(&comms, |comm| {
        let executor = Executor::prepare(comm, &plan, ExecutorConfig::default(), LIMIT)?;
        let buffer = Arc::new(GpuBuffer::new(comm.context(), 4096)?);
        let shown = executor.prepare_buffers(&buffer, &buffer, LIMIT)?;
        let weak = Arc::downgrade(&buffer);
        drop((shown, buffer));
        let (soon, mut backoff) = (Deadline::after(LIMIT), Backoff::new());
        while weak.upgrade().is_some() && !soon.expired() {
            comm.context().reap();
            backoff.pause(soon);
        }
        Ok((weak.upgrade().is_none(), executor))
    });
    assert!(left.into_iter().all(|left| left.unwrap().0), "a proxy holds them as long as the executor lives");
    close(&comms);
}
