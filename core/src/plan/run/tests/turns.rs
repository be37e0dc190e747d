//! Several executors at once, on several streams.

use std::sync::Arc;
use std::time::Duration;

use super::super::super::pass::{Policy, replicate};
use super::super::super::{Block, Channel, ChannelKind, Op, Plan, samples};
use super::{Element, Executor, ExecutorConfig, LIMIT, alone, close, everywhere, ranks};
use crate::comm::Communicator;
use crate::deadline::Deadline;
use crate::error::{ErrorKind, Result};
use crate::gpu::{GpuBuffer, Stream};
use crate::plan::{PlanBuffers, Reduction};

pub(super) const ELEMENTS: usize = 4096;

pub(super) fn settings(config: ExecutorConfig) -> ExecutorConfig {
    let variants = [Reduction::Sum, Reduction::Max].map(|reduction| (Element::I32, Some(reduction)));
    config.with_variants(variants).with_max_bytes(1 << 20)
}

/// An all-reduce whose blocks all wait for those of the peer.
pub(super) fn plan(blocks: u32) -> Plan {
    let plan = replicate(&samples::two_shot(2), blocks, Policy::Interleaved).unwrap();
    assert_eq!(plan.ranks[0].blocks.len(), blocks as usize);
    plan
}

/// A rank's executor with buffers and a stream of its own.
pub(super) struct One {
    pub(super) executor: Executor,
    pub(super) shown: PlanBuffers,
    pub(super) buffer: Arc<GpuBuffer>,
    pub(super) stream: Stream,
}

impl One {
    pub(super) fn new(comm: &Communicator, plan: &Plan, config: ExecutorConfig) -> Result<Self> {
        let buffer = Arc::new(GpuBuffer::new(comm.context(), 4 * ELEMENTS)?);
        buffer.upload(0, &vec![1 + comm.rank(); ELEMENTS], LIMIT)?;
        Self::on(comm, plan, config, &buffer)
    }

    pub(super) fn on(
        comm: &Communicator,
        plan: &Plan,
        config: ExecutorConfig,
        buffer: &Arc<GpuBuffer>,
    ) -> Result<Self> {
        let executor = Executor::prepare(comm, plan, settings(config), LIMIT)?;
        let shown = executor.prepare_buffers(buffer, buffer, LIMIT)?;
        Ok(Self { executor, shown, buffer: buffer.clone(), stream: Stream::new(comm.context())? })
    }

    pub(super) fn call(&self, reduction: Reduction) -> Result<()> {
        self.executor.execute_on(&self.stream, &self.shown, ELEMENTS, Element::I32, reduction)
    }

    pub(super) fn is_right(&self) -> Result<bool> {
        self.stream.synchronize(LIMIT)?;
        let mut seen = vec![0_u32; ELEMENTS];
        self.buffer.download(0, &mut seen, LIMIT)?;
        Ok(seen == [3; ELEMENTS])
    }
}

/// The most blocks of this plan that the device runs at once.
pub(super) fn most(comms: &[Communicator]) -> u32 {
    let fits = |blocks: u32| {
        everywhere(comms, |comm| One::new(comm, &plan(blocks), ExecutorConfig::default()).map(drop))
            .iter()
            .all(Result::is_ok)
    };
    let (mut low, mut high) = (1, 512);
    while high - low > 1 {
        let middle = u32::midpoint(low, high);
        *(if fits(middle) { &mut low } else { &mut high }) = middle;
    }
    low
}

#[test]
fn executors_that_fit_the_device_run_in_any_order() {
    let _alone = alone();
    let comms = ranks(2);
    let plan = plan(most(&comms) / 2);
    let right = everywhere(&comms, |comm| {
        let pair = [
            One::new(comm, &plan, ExecutorConfig::default().in_any_order())?,
            One::new(comm, &plan, ExecutorConfig::default().in_any_order())?,
        ];
        // Each rank begins with the other one, which waits for the peer's.
        let first = comm.rank() as usize;
        pair[first].call(Reduction::Sum)?;
        pair[1 - first].call(Reduction::Sum)?;
        Ok(pair[0].is_right()? && pair[1].is_right()?)
    });
    assert_eq!(right.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [true; 2]);
    close(&comms);
}

/// Two executors on one buffer, of which each fills the device. On rank 1 the first call cannot begin, and so the second one must
/// not: (1, 2) become 3 by a sum and stay 3 by a maximum; the other way around they become 2 and then 4. On the software device,
/// which bounds the blocks of each launch and not of all together, the second call would otherwise end before the first.
#[test]
fn executors_in_call_order_that_fill_the_device_follow_each_other() {
    let _alone = alone();
    let comms = ranks(2);
    let plan = plan(most(&comms));
    let right = everywhere(&comms, |comm| {
        let first = One::new(comm, &plan, ExecutorConfig::default().in_call_order())?;
        let second = One::on(comm, &plan, ExecutorConfig::default().in_call_order(), &first.buffer)?;
        let gate = Arc::new(GpuBuffer::new(comm.context(), 64)?);
        gate.upload(0, &[0_u64; 8], LIMIT)?;
        if comm.rank() == 1 {
            first.stream.wait_value64(&gate.slice(0..8)?, 1)?;
        }
        first.call(Reduction::Sum)?;
        second.call(Reduction::Max)?;
        if comm.rank() == 1 {
            // Time for a second call that does not wait for its turn.
            let patience = Deadline::after(Duration::from_secs(1));
            while !second.stream.is_idle()? && !patience.expired() {
                std::thread::yield_now();
            }
            gate.upload(0, &[1_u64], LIMIT)?;
        }
        second.stream.synchronize(LIMIT)?;
        first.is_right()
    });
    assert_eq!(right.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [true; 2]);
    close(&comms);
}

#[test]
fn executors_that_do_not_fit_the_device_have_an_order() {
    let _alone = alone();
    let comms = ranks(2);
    let plan = plan(most(&comms));
    let refused = everywhere(&comms, |comm| {
        let first = One::new(comm, &plan, ExecutorConfig::default().in_any_order())?;
        // Neither one that wants the same nor one that would take the room of the first.
        let mut errors = Vec::new();
        for config in [ExecutorConfig::default().in_any_order(), ExecutorConfig::default()] {
            errors.push(Executor::prepare(comm, &plan, settings(config), LIMIT).unwrap_err());
        }
        first.call(Reduction::Sum)?;
        assert!(first.is_right()?);
        drop(first);
        One::new(comm, &plan, ExecutorConfig::default().in_any_order())?;
        Ok(errors)
    });
    for error in refused.into_iter().flat_map(Result::unwrap) {
        assert!(matches!(error.kind(), ErrorKind::InvalidUsage | ErrorKind::Remote), "{error}");
        assert!(error.to_string().contains("cannot run in any order"), "{error}");
    }
    close(&comms);
}

/// The plan of so many blocks, and a block beside them that a copy engine runs: it meets the peer by a channel of its own.
pub(super) fn with_a_copy_engine(blocks: u32) -> Plan {
    let mut plan = plan(blocks);
    for (rank, peer) in [(0, 1), (1, 0)] {
        let rank = &mut plan.ranks[rank];
        let channel = Channel { kind: ChannelKind::Memory, index: rank.memory_channels.len() as u32 };
        rank.memory_channels.push(peer);
        let ops = [Op::Signal { channel, relaxed: false }, Op::Wait { channel }];
        let ops = (0..).zip(ops).map(|(origin, op)| op.at(origin)).collect();
        rank.blocks.push(Block { copy_engine: true, ..Block::new(ops) });
    }
    plan
}

/// What a copy engine's stream waits for, a block of one warp waits for, beside the kernel's blocks.
#[test]
fn a_block_of_a_copy_engine_takes_room_beside_the_kernel() {
    let _alone = alone();
    let comms = ranks(2);
    let most = most(&comms);
    let prepare = |blocks| {
        everywhere(&comms, |comm| {
            let one = One::new(comm, &with_a_copy_engine(blocks), ExecutorConfig::default().in_any_order())?;
            one.call(Reduction::Sum)?;
            one.is_right()
        })
    };
    for error in prepare(most).into_iter().map(Result::unwrap_err) {
        assert!(matches!(error.kind(), ErrorKind::InvalidUsage | ErrorKind::Remote), "{error}");
        let says = format!("would have {} blocks, and it runs {most} at once", most + 1);
        assert!(error.to_string().contains(&says), "{error} does not say {says}");
    }
    assert!(prepare(most - 1).into_iter().all(Result::unwrap));
    close(&comms);
}
