//! Plans with blocks that copy engines run: their streams fork from a call's stream and join it again.

use std::sync::Arc;

use super::super::super::samples::copies;
use super::super::super::{Buffer, Element, Kind, Op, Place, Plan, Reduction};
use super::{LIMIT, Rig, alone, close, everywhere, ranks};
use crate::collective::{Collective, CollectiveConfig};
use crate::comm::Communicator;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind};
use crate::gpu::{CaptureMode, GpuBuffer, GraphExec, Stream};

const ELEMENTS: usize = 96;

fn rig<'c>(comms: &'c [Communicator], plan: &Plan) -> Rig<'c> {
    Rig::new(comms, plan, ELEMENTS, &[plan.reductions().next()]).unwrap()
}

fn call(rig: &Rig<'_>, rank: usize, stream: &Stream) -> crate::Result<()> {
    let shown = &rig.shown.as_ref().unwrap()[rank];
    rig.executors[rank].execute_on(stream, shown, ELEMENTS, Element::I32, rig.plan.reductions().next())
}

/// A kernel and the streams of copy engines are captured together, and a call beside the capture does not break it.
#[test]
fn a_capture_takes_all_streams_and_keeps_others_out() {
    let _alone = alone();
    for plan in [copies::all_reduce(2), copies::all_gather(2)] {
        let comms = ranks(2);
        let mut rig = rig(&comms, &plan);
        let right = rig.call(ELEMENTS, None).outputs;
        let graphs: Vec<GraphExec> = (0..2)
            .map(|rank| {
                let stream = &rig.sides[rank].stream;
                GraphExec::capture(stream, CaptureMode::ThreadLocal, |stream| {
                    call(&rig, rank, stream)?;
                    if plan.ranks[0].blocks.len() > 1 {
                        let other = Stream::new(comms[rank].context())?;
                        let refused = |error: Error| {
                            assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
                            assert!(error.to_string().contains("end the capture before"), "{error}");
                        };
                        refused(call(&rig, rank, &other).unwrap_err());
                        // Another capture is outside of this one, too.
                        let captured = GraphExec::capture(&other, CaptureMode::ThreadLocal, |other| {
                            refused(call(&rig, rank, other).unwrap_err());
                            Ok(())
                        });
                        captured.unwrap();
                    }
                    call(&rig, rank, stream)
                })
                .unwrap()
            })
            .collect();
        for _ in 0..3 {
            rig.sides.iter().for_each(|side| side.output.fill(0, LIMIT).unwrap());
            graphs.iter().zip(&rig.sides).for_each(|(graph, side)| graph.launch(&side.stream).unwrap());
            for (rank, side) in rig.sides.iter().enumerate() {
                side.stream.synchronize(LIMIT).unwrap();
                let mut seen = vec![0_i32; right[rank].len()];
                side.output.download(0, &mut seen, LIMIT).unwrap();
                assert_eq!(seen, right[rank], "{} rank {rank}", plan.name);
            }
        }
        // Calls without a graph go on.
        rig.as_simulated(ELEMENTS, None);
        drop((graphs, rig));
        close(&comms);
    }
}

/// Ranks of a collective of the user's own may have buffers of different lengths; here one has no output. A copy is as long as the
/// buffer of the rank that it goes to, whoever enqueues it.
#[test]
fn copies_are_as_long_as_the_buffers_of_the_ranks_that_have_them() {
    let _alone = alone();
    let mut plan = copies::all_gather(2);
    (plan.name, plan.collective.kind) = ("copied gather".into(), Kind::Custom("gather".into()));
    plan.ranks[1].output_chunks = 0;
    for (rank, plan) in (0..).zip(&mut plan.ranks) {
        let is_to_the_root = |op: &Op| match op {
            Op::Move(moved) => match moved.targets[0].place {
                Place::Local(Buffer::Output) => rank == 0,
                Place::Remote { rank, .. } => rank == 0,
                _ => false,
            },
            _ => true,
        };
        plan.blocks[0].ops.retain(|operation| is_to_the_root(&operation.op));
    }
    let comms = ranks(2);
    let mut rig = rig(&comms, &plan);
    for elements in [ELEMENTS, 5, ELEMENTS - 1] {
        rig.as_simulated(elements, None);
    }
    drop(rig);
    close(&comms);
}

/// A rank that finds out that a peer's buffer is too short enqueues nothing, or its stream would wait for what it did not enqueue.
#[test]
fn a_call_that_is_refused_leaves_the_stream_idle() {
    const COUNT: usize = 100_000;
    let _alone = alone();
    let comms = ranks(2);
    for kind in [Kind::AllReduce, Kind::AllGather] {
        let config = CollectiveConfig::default().with_variants([(Element::U32, Reduction::Sum)]);
        let config = config.with_packet_bytes(1).with_copy_bytes(1);
        let prepared = everywhere(&comms, |comm| {
            let collective = Collective::prepare(comm, kind.clone(), config.clone(), LIMIT)?;
            let bytes = if comm.rank() == 0 { 8 * COUNT } else { 64 };
            let buffer = || GpuBuffer::new(comm.context(), bytes).map(Arc::new);
            let shown = collective.buffers(&buffer()?, &buffer()?, LIMIT)?;
            Ok((collective, shown))
        });
        let (collective, shown) = prepared[0].as_ref().unwrap();
        let stream = Stream::new(comms[0].context()).unwrap();
        let refused = collective.launch_on(&stream, shown, COUNT, Element::U32, Reduction::Sum);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidUsage, "{kind:?}");
        stream.synchronize(LIMIT).unwrap();
    }
    close(&comms);
}

/// A call holds what its copies use: the peer gets the data of a rank that has dropped everything.
#[test]
fn everything_can_be_dropped_behind_a_call() {
    let _alone = alone();
    for plan in [copies::all_reduce(2), copies::all_gather(2)] {
        let comms = ranks(2);
        let mut rig = rig(&comms, &plan);
        let right = rig.call(ELEMENTS, None).outputs;
        rig.sides[1].output.fill(0, LIMIT).unwrap();
        call(&rig, 0, &rig.sides[0].stream).unwrap();
        let held = Arc::downgrade(&rig.executors[0].inner);
        let Rig { executors, sides, shown, .. } = rig;
        let executor = executors.into_iter().nth(1).unwrap();
        let shown = shown.unwrap().into_iter().nth(1).unwrap();
        let side = sides.into_iter().nth(1).unwrap();
        comms[0].context().reap();
        assert!(
            held.upgrade().is_some(),
            "{}: the call waits for its peer and holds what it uses",
            plan.name
        );
        let op: Option<Reduction> = plan.reductions().next();
        executor.execute_on(&side.stream, &shown, ELEMENTS, Element::I32, op).unwrap();
        side.stream.synchronize(LIMIT).unwrap();
        let mut seen = vec![0_i32; right[1].len()];
        side.output.download(0, &mut seen, LIMIT).unwrap();
        assert_eq!(seen, right[1], "{}", plan.name);
        let until = Deadline::from(LIMIT);
        while held.upgrade().is_some() {
            assert!(!until.expired(), "{}: a call that is done holds nothing", plan.name);
            comms[0].context().reap();
            std::thread::yield_now();
        }
        drop((executor, shown, side));
        close(&comms);
    }
}

/// Kernels that wait in a stream of a copy engine leave, and whoever waits for the call's stream is told.
#[test]
fn an_abort_ends_a_call_in_all_its_streams() {
    let _alone = alone();
    for plan in [copies::all_reduce(2), copies::all_gather(2)] {
        let comms = ranks(2);
        let rig = rig(&comms, &plan);
        call(&rig, 0, &rig.sides[0].stream).unwrap();
        comms[0].abort("no more");
        let error = rig.sides[0].stream.synchronize(LIMIT).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
        drop(rig);
        everywhere(&comms, |comm| comm.close(LIMIT));
    }
}
