//! Calls on buffers that the peers do not reach, of plans that want them to.

use super::super::super::programs::ALGORITHMS;
use super::super::super::{Kind, Plan, samples};
use super::super::arena::reaches_users;
use super::*;
use crate::error::ErrorKind;
use crate::gpu::PinnedBuffer;
use crate::plan::program::{CollectiveProgram, Pattern, SyncType};
use crate::sync::Ordering;

const BYTES: usize = 1 << 16;

fn staged(bytes: usize) -> ExecutorConfig {
    ExecutorConfig::default().with_staging_bytes(bytes)
}

/// Calls of [`Rig`] pass buffers of which the peers know nothing.
fn hidden<'c>(comms: &'c [Communicator], plan: &Plan, reduction: Option<Reduction>) -> Rig<'c> {
    let mut rig = Rig::of_config(comms, plan, 1024, &[reduction], |_| staged(4 * BYTES)).unwrap();
    assert!(rig.shown.take().is_some(), "{} reaches no buffer", plan.name);
    rig
}

/// A collective of its own that writes every other chunk of an output.
fn half_of_an_output() -> Plan {
    let program = CollectiveProgram::new("half", Pattern::custom("half", 2, 1, 2));
    for rank in program.ranks() {
        let (peer, channel) = (program.rank(1 - rank.index()), rank.memory_channel(1 - rank.index()));
        channel.signal(0, SyncType::None);
        channel.wait(0, SyncType::After);
        channel.put(peer.output().chunk(rank.index()), rank.input().chunk(0), 0);
        channel.signal(0, SyncType::Before);
        channel.wait(0, SyncType::None);
    }
    program.compile().unwrap()
}

#[test]
fn calls_are_as_on_shown_buffers() {
    let _alone = alone();
    let mut kinds = std::collections::BTreeSet::new();
    let programs = ALGORITHMS.iter().map(|algorithm| algorithm.program(4, &Default::default()).unwrap());
    let mut plans: Vec<Plan> = programs.map(|program| program.compile().unwrap()).collect();
    let mut custom = samples::two_shot(4);
    (custom.name, custom.collective.kind) = ("of its own".into(), Kind::Custom("mine".into()));
    plans.extend([custom, half_of_an_output()]);
    for plan in plans {
        let comms = ranks(plan.ranks.len());
        let reduction = plan.reductions().next();
        if plan.ranks.iter().any(reaches_users) {
            kinds.insert((plan.collective.kind.name().to_owned(), plan.collective.in_place));
            let mut rig = hidden(&comms, &plan, reduction);
            [96, 960, 48].into_iter().for_each(|elements| rig.as_simulated(elements, reduction));
        }
        close(&comms);
    }
    let count = |in_place| kinds.iter().filter(|kind| kind.1 == in_place).count();
    assert!(count(true) > 2 && count(false) > 2, "{kinds:?}");
}

/// Rank 0 puts its input into the input of rank 1, half as long as its own, whose output nobody touches.
fn into_an_input() -> Plan {
    let program = CollectiveProgram::new("into", Pattern::custom("into", 2, 2, 1));
    let [from, to] = [program.rank(0), program.rank(1)];
    let channels = [from.memory_channel(1), to.memory_channel(0)];
    channels[1].signal(0, SyncType::None);
    channels[0].wait(0, SyncType::After);
    channels[0].put(to.input().chunk(0), from.input().chunk(1), 0);
    channels[0].signal(0, SyncType::Before);
    channels[1].wait(0, SyncType::None);
    let mut plan = program.compile().unwrap();
    plan.ranks[1].input_chunks = 1;
    plan
}

/// Results in an input are copied out; a rank passes nothing where no operation comes; and a message is too long for all ranks or for none.
#[test]
fn plans_of_ones_own_find_all_of_their_buffers() {
    let _alone = alone();
    let (comms, plan) = (ranks(2), into_an_input());
    let run = |comm: &Communicator, elements: usize| {
        let config = staged(256).with_variants([(Element::I32, None)]).with_max_bytes(1 << 16);
        let executor = Executor::prepare(comm, &plan, config, LIMIT)?;
        let (stream, buffer) =
            (Stream::new(comm.context())?, Arc::new(GpuBuffer::new(comm.context(), 1024)?));
        let mine: Vec<i32> = (0..256).map(|element| element + 1000 * comm.rank().cast_signed()).collect();
        buffer.upload(0, &mine, LIMIT)?;
        let none = buffer.slice(..0)?;
        executor.execute(&stream, &buffer.slice(..)?, &none, elements, Element::I32, None)?;
        stream.synchronize(LIMIT)?;
        let mut seen = vec![0_i32; 64];
        buffer.download(0, &mut seen, LIMIT)?;
        Ok(seen)
    };
    let seen: Vec<_> = everywhere(&comms, |comm| run(comm, 64)).into_iter().map(Result::unwrap).collect();
    let expected =
        |rank: i32| (0..64).map(move |at| if rank == 1 && at < 32 { 32 + at } else { 1000 * rank + at });
    assert_eq!(seen, [expected(0).collect::<Vec<_>>(), expected(1).collect()]);
    for refused in everywhere(&comms, |comm| run(comm, 66)) {
        assert!(refused.unwrap_err().message().contains("with_staging_bytes(264)"));
    }
    close(&comms);
}

/// The memory stays a part of the scratch as long as a call uses it.
#[test]
fn memory_of_a_call_counts_until_the_call_ends() {
    let _alone = alone();
    let (comms, plan) = (ranks(2), samples::two_shot(2));
    let taken = everywhere(&comms, |comm| {
        let config =
            staged(1 << 16).with_variants([(Element::I32, Some(Reduction::Sum))]).with_max_bytes(1 << 16);
        let executor = Executor::prepare(comm, &plan, config, LIMIT)?;
        let (stream, words) = (Stream::new(comm.context())?, Arc::new(PinnedBuffer::new(comm.context(), 8)?));
        stream.wait_value64(&words.slice(..)?, 1)?;
        let buffer = Arc::new(GpuBuffer::new(comm.context(), 4096)?).slice(..)?;
        executor.execute(&stream, &buffer, &buffer, 128, Element::I32, None)?;
        drop(executor);
        let during = comm.scratch().taken();
        words.memory().word64(0)?.store(1, Ordering::Release);
        stream.synchronize(LIMIT)?;
        comm.context().reap();
        Ok((during, comm.scratch().taken()))
    });
    for (during, after) in taken.into_iter().map(Result::unwrap) {
        assert!(during >= 1 << 16 && after == 0, "{during} bytes in the call, {after} behind it");
    }
    close(&comms);
}

/// A message that is too long, a rank that asks for another amount, and one that has too little scratch left.
#[test]
fn what_has_no_room_is_refused() {
    let _alone = alone();
    let (comms, plan) = (ranks(2), samples::two_shot(2));
    let config = |bytes| {
        let sum = (Element::I32, Some(Reduction::Sum));
        staged(bytes).with_variants([sum]).with_max_bytes(1 << 16)
    };
    let prepare = |comm: &Communicator, bytes| Executor::prepare(comm, &plan, config(bytes), LIMIT);
    let call = |comm: &Communicator, executor: &Executor, elements: usize| {
        let buffer = GpuBuffer::new(comm.context(), 4096)?;
        buffer.fill(1, LIMIT)?;
        let (stream, slice) = (Stream::new(comm.context())?, Arc::new(buffer).slice(..)?);
        executor.execute(&stream, &slice, &slice, elements, Element::I32, None)?;
        stream.synchronize(LIMIT)
    };
    let taken = comms[0].scratch().taken();
    for result in everywhere(&comms, |comm| {
        let (none, some) = (prepare(comm, 0)?, prepare(comm, 512)?);
        let errors = [call(comm, &none, 128), call(comm, &some, 129)].map(Result::unwrap_err);
        call(comm, &some, 128)?;
        Ok(errors)
    }) {
        let [none, long] = result.unwrap();
        assert!(
            none.message().contains("ask for memory") && none.message().contains("with_staging_bytes"),
            "{none}"
        );
        assert!(long.message().contains("with_staging_bytes(516)"), "{long}");
    }
    assert_eq!(comms[0].scratch().taken(), taken, "what was dropped is free");
    for result in everywhere(&comms, |comm| prepare(comm, 512 << comm.rank()).map(drop)) {
        assert!(result.unwrap_err().message().contains("other settings"));
    }
    // In place: one buffer for both.
    let left = comms[1].scratch().left();
    let held = comms[1].scratch().take(left - (1 << 20) + 1);
    let results = everywhere(&comms, |comm| prepare(comm, 1 << 20).map(drop));
    let kinds: Vec<_> = results.into_iter().map(|result| result.unwrap_err()).collect();
    assert_eq!(
        kinds.iter().map(|error| error.kind()).collect::<Vec<_>>(),
        [ErrorKind::Remote, ErrorKind::InvalidUsage]
    );
    assert!(kinds[1].message().contains("AQUEDUCT_SCRATCH_BYTES"), "{}", kinds[1]);
    drop(held);
    everywhere(&comms, |comm| prepare(comm, 1 << 20).map(drop)).into_iter().for_each(Result::unwrap);
    close(&comms);
}
