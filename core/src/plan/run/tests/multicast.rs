//! Switches on multicast, which the software device has in the processes that these tests start.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cuda_driver_sys::CUresult;

use super::super::super::lower::Address;
use super::super::super::programs::all_reduce;
use super::super::super::{Plan, Reduction, file, samples};
use super::{Driver, Element, Executor, ExecutorConfig, LIMIT, Rig, close, everywhere, ranks, ranks_on};
use crate::comm::Communicator;
use crate::gpu::{GpuBuffer, Hooks, Stream};
use crate::own_process::is_own_process;

const SOFT: &str = "AQUEDUCT_SOFT_MULTICAST";
const SUM: Option<Reduction> = Some(Reduction::Sum);

/// Starts `test` again in a process whose devices have multicast, or none. True in that process.
fn alone(test: &str, multicast: bool) -> bool {
    is_own_process(module_path!(), test, &[(SOFT, Some(if multicast { "1" } else { "0" }))])
}

fn with(multicast: bool) -> ExecutorConfig {
    ExecutorConfig::default().with_multicast(multicast)
}

/// Plans with switches: over users' buffers, over scratch, of packets, and two of different ranks.
fn plans() -> Vec<Plan> {
    let mut pair = samples::all().into_iter().find(|plan| plan.name == "switch").unwrap();
    // Two switches of the same ranks are one team.
    pair.ranks.iter_mut().for_each(|rank| rank.switches.extend_from_within(..));
    let mut packets = samples::all().into_iter().find(|plan| plan.name == "switch packets").unwrap();
    // Its control area is longer, and its scratch begins where that of the other rank does all the same.
    packets.ranks[1].semaphores = vec![0; 64];
    let compiled = [all_reduce::switch(3), all_reduce::switch_pipelined(2)];
    [pair, packets].into_iter().chain(compiled.map(|program| program.compile().unwrap())).collect()
}

impl Rig<'_> {
    /// Whether a call goes by multicast addresses, on all ranks alike.
    fn goes_by_multicast(&self, elements: usize, reduction: Option<Reduction>) -> bool {
        let rank = |(rank, executor): (usize, &Executor)| {
            let inner = &executor.inner;
            let bytes = 4 * elements as u64;
            let shown = self.shown.as_ref().map(|shown| &*shown[rank].inner);
            let chunk = inner.chunks.distance(bytes, 4).unwrap();
            let goes = inner.goes_by_multicast(shown, true, bytes, chunk);
            let kernel = inner.kernel((Element::I32, reduction), goes).unwrap().unwrap();
            kernel.addresses.iter().any(|address| matches!(address, Address::Multicast(..)))
        };
        let all: Vec<bool> = self.executors.iter().enumerate().map(rank).collect();
        assert!(all.iter().all(|goes| *goes == all[0]), "{}: {all:?}", self.plan.name);
        all[0]
    }
}

#[test]
fn switches_give_the_same_on_multicast() {
    if !alone("switches_give_the_same_on_multicast", true) {
        return;
    }
    for plan in plans() {
        let comms = ranks(plan.ranks.len());
        let reductions = [SUM, Some(Reduction::Max), Some(Reduction::Avg), Some(Reduction::Prod)];
        let mut rig = Rig::of_config(&comms, &plan, 4800, &reductions, |_| with(true)).unwrap();
        assert!(rig.executors.iter().all(Executor::uses_multicast), "{}", plan.name);
        let reduces = plan.reductions().next().is_some();
        let over_buffers = rig.executors[0].reaches_buffers();
        for (elements, reduction) in [960, 4800, 96, 7, 48].into_iter().zip(reductions.into_iter().cycle()) {
            let reduction = reduction.filter(|_| reduces);
            // Scratch takes any size, users' buffers whole vectors.
            let goes = !over_buffers || elements % 4 == 0;
            assert_eq!(rig.goes_by_multicast(elements, reduction), goes, "{} of {elements}", plan.name);
            rig.as_simulated(elements, reduction);
        }
        drop(rig);
        close(&comms);
    }
}

/// The plans that MSCCL++ itself has written, as far as they have switches.
#[test]
#[ignore = "needs the folder of MSCCL++'s plans in AQUEDUCT_TEST_PLANS"]
fn plans_of_mscclpp_run_on_multicast() {
    if !alone("plans_of_mscclpp_run_on_multicast", true) {
        return;
    }
    let folder = std::env::var("AQUEDUCT_TEST_PLANS").expect("AQUEDUCT_TEST_PLANS names the folder");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut ran = 0;
    for path in paths.filter(|path| path.extension().is_some_and(|extension| extension == "json")) {
        let plan = file::read(&std::fs::read_to_string(path).unwrap()).unwrap();
        if plan.ranks.iter().all(|rank| rank.switches.is_empty()) {
            continue;
        }
        let comms = ranks(plan.ranks.len());
        let reduction = plan.reductions().next();
        let mut rig = Rig::of_config(&comms, &plan, 16_320, &[reduction], |_| with(true)).unwrap();
        for elements in [96, 1, 7, 1000, 16_320, 33] {
            assert!(rig.goes_by_multicast(elements, reduction), "{} of {elements}", plan.name);
            rig.as_simulated(elements, reduction);
        }
        ran += 1;
        drop(rig);
        close(&comms);
    }
    assert!(ran > 0, "a plan with switches");
}

/// Small whole numbers as elements of a type, and their sum over so many ranks.
fn floats(element: Element, rank: Option<u8>, ranks: u8, count: usize) -> Vec<u8> {
    let value = |rank: u8, at: usize| f32::from(rank + 1) * f32::from(u8::try_from(at % 13).unwrap());
    let all = |at| match rank {
        Some(rank) => value(rank, at),
        None => (0..ranks).map(|rank| value(rank, at)).sum(),
    };
    let bytes = |value: f32| match element {
        Element::F64 => f64::from(value).to_le_bytes().to_vec(),
        Element::F32 => value.to_le_bytes().to_vec(),
        Element::F16 => aqueduct_ptx::oracle::half::f16_from_f32(value).to_le_bytes().to_vec(),
        _ => aqueduct_ptx::oracle::half::bf16_from_f32(value).to_le_bytes().to_vec(),
    };
    (0..count).map(all).flat_map(bytes).collect()
}

#[test]
fn sums_of_floats_are_exact_where_they_can_be() {
    if !alone("sums_of_floats_are_exact_where_they_can_be", true) {
        return;
    }
    const COUNT: usize = 3 * 64;
    let elements = [Element::F32, Element::F64, Element::F16, Element::Bf16];
    let plan = all_reduce::switch(3).compile().unwrap();
    let comms = ranks(3);
    let result = everywhere(&comms, |comm| {
        let config = with(true).with_variants(elements.map(|element| (element, SUM))).with_max_bytes(1 << 12);
        let executor = Executor::prepare(comm, &plan, config, LIMIT)?;
        let buffer = Arc::new(GpuBuffer::new(comm.context(), 1 << 12)?);
        let shown = executor.prepare_buffers(&buffer, &buffer, LIMIT)?;
        let stream = Stream::new(comm.context())?;
        for element in elements {
            let bytes = (COUNT * element.bytes()) as u64;
            let chunk = executor.inner.chunks.distance(bytes, element.bytes() as u64)?;
            assert!(executor.inner.goes_by_multicast(Some(&shown.inner), true, bytes, chunk));
            let mine = floats(element, Some(u8::try_from(comm.rank()).unwrap()), 3, COUNT);
            buffer.upload(0, &mine, LIMIT)?;
            executor.execute_on(&stream, &shown, COUNT, element, SUM)?;
            stream.synchronize(LIMIT)?;
            let mut seen = vec![0_u8; mine.len()];
            buffer.download(0, &mut seen, LIMIT)?;
            assert!(seen == floats(element, None, 3, COUNT), "{element:?}, rank {}", comm.rank());
        }
        Ok(())
    });
    result.into_iter().for_each(Result::unwrap);
    close(&comms);
}

/// Lines of the log.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Lines;

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LINES.lock().unwrap_or_else(PoisonError::into_inner).push(record.args().to_string());
    }

    fn flush(&self) {}
}

/// Runs plans by loads and stores, whatever they ask for. The log says why.
fn falls_back(driver: &Driver, plans: &[Plan], config: impl Fn(u32) -> ExecutorConfig + Sync, says: &str) {
    for plan in plans {
        let comms = ranks_on(driver, plan.ranks.len());
        LINES.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let reduction = plan.reductions().next();
        let mut rig = Rig::of_config(&comms, plan, 960, &[reduction], &config).unwrap();
        let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert!(lines.iter().any(|line| line.contains(says)), "{}: {lines:?} without {says}", plan.name);
        assert!(!rig.executors.iter().any(Executor::uses_multicast), "{}", plan.name);
        assert!(!rig.goes_by_multicast(960, reduction));
        rig.as_simulated(960, reduction);
        // Nothing of the attempt is left in the way of what is set up next.
        let mut next = Rig::of_config(&comms, plan, 960, &[reduction], |_| with(false)).unwrap();
        next.as_simulated(960, reduction);
        drop((rig, next));
        close(&comms);
    }
}

thread_local! {
    /// A function that fails in this thread.
    static FAILS: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Calls of each function.
#[derive(Default)]
struct Watch(Mutex<HashMap<&'static str, usize>>);

impl Watch {
    fn count(&self, function: &str) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(function).copied().unwrap_or(0)
    }
}

impl Hooks for Watch {
    fn before(&self, function: &'static str) -> Option<CUresult> {
        (FAILS.get() == Some(function)).then_some(CUresult::CUDA_ERROR_NOT_SUPPORTED)
    }

    fn after(&self, function: &'static str, result: CUresult) {
        if result == CUresult::CUDA_SUCCESS {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(function).or_default() += 1;
        }
    }
}

fn software() -> (Arc<Watch>, Driver) {
    let watch = Arc::new(Watch::default());
    (watch.clone(), Driver::software(cuda_soft::driver_table()).unwrap().with_hooks(watch))
}

fn collect_lines() {
    log::set_logger(&Lines).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
}

#[test]
fn a_rank_that_does_not_ask_sends_all_to_loads_and_stores() {
    if !alone("a_rank_that_does_not_ask_sends_all_to_loads_and_stores", true) {
        return;
    }
    collect_lines();
    let (watch, driver) = software();
    falls_back(&driver, &plans(), |rank| with(rank != 1), "which rank 1 does not offer");
    assert_eq!(watch.count("cuMulticastCreate"), 0);
}

#[test]
fn devices_without_multicast_use_loads_and_stores() {
    if !alone("devices_without_multicast_use_loads_and_stores", false) {
        return;
    }
    collect_lines();
    falls_back(&software().1, &plans(), |_| with(true), "has none");
}

/// Whatever fails at whichever rank, all ranks go on alike, and nothing is left.
#[test]
fn a_rank_that_fails_sends_all_to_loads_and_stores() {
    if !alone("a_rank_that_fails_sends_all_to_loads_and_stores", true) {
        return;
    }
    collect_lines();
    let (watch, driver) = software();
    let over_scratch: Vec<_> = plans().into_iter().filter(|plan| plan.name == "switch packets").collect();
    // Only the lowest rank makes objects, and only others import them.
    for (rank, function) in [
        (0, "cuMulticastCreate"),
        (0, "cuMemExportToShareableHandle"),
        (1, "cuMemImportFromShareableHandle"),
        (0, "cuMulticastAddDevice"),
        (1, "cuMulticastBindMem"),
    ] {
        let config = |me| {
            FAILS.set((me == rank).then_some(function));
            with(true)
        };
        falls_back(&driver, &over_scratch, config, &format!("rank {rank} cannot have"));
        assert_eq!(watch.count("cuMulticastBindMem"), watch.count("cuMulticastUnbind"), "{function}");
    }
    assert!(watch.count("cuMulticastBindMem") > 0, "another rank had bound before");
}

/// A buffer that cannot be bound sends calls on it to loads and stores, on all ranks.
#[test]
fn buffers_without_shareable_memory_use_loads_and_stores() {
    use crate::gpu::BufferOptions;
    if !alone("buffers_without_shareable_memory_use_loads_and_stores", true) {
        return;
    }
    let plan = all_reduce::switch(2).compile().unwrap();
    let comms = ranks(2);
    let mut rig = Rig::of_config(&comms, &plan, 960, &[SUM], |_| with(true)).unwrap();
    let plain = BufferOptions { zeroed: true, handles: crate::env::HandlePolicy::Legacy };
    let bytes = rig.sides[1].input.len();
    let buffer = Arc::new(GpuBuffer::with_options(comms[1].context(), bytes, plain).unwrap());
    (rig.sides[1].input, rig.sides[1].output) = (buffer.clone(), buffer);
    assert!(rig.goes_by_multicast(960, SUM));
    let show = |comm: &Communicator| {
        let rank = comm.rank() as usize;
        rig.executors[rank].prepare_buffers(&rig.sides[rank].input, &rig.sides[rank].output, LIMIT)
    };
    let shown: Vec<_> = everywhere(&comms, show).into_iter().map(Result::unwrap).collect();
    rig.shown = Some(shown);
    assert!(!rig.goes_by_multicast(960, SUM));
    rig.as_simulated(960, SUM);
    drop(rig);
    close(&comms);
}

/// Ranks need not show buffers of one length: as much of each is bound as the shortest has.
#[test]
fn buffers_of_different_lengths_go_by_multicast() {
    if !alone("buffers_of_different_lengths_go_by_multicast", true) {
        return;
    }
    let plan = all_reduce::switch(2).compile().unwrap();
    for longer in 0..2 {
        let comms = ranks(2);
        let mut rig = Rig::of_config(&comms, &plan, 960, &[SUM], |_| with(true)).unwrap();
        let bytes = 2 * rig.sides[longer].input.len().max(8 << 20);
        let buffer = Arc::new(GpuBuffer::new(comms[longer].context(), bytes).unwrap());
        (rig.sides[longer].input, rig.sides[longer].output) = (buffer.clone(), buffer);
        let show = |comm: &Communicator| {
            let rank = comm.rank() as usize;
            rig.executors[rank].prepare_buffers(&rig.sides[rank].input, &rig.sides[rank].output, LIMIT)
        };
        let shown: Vec<_> = everywhere(&comms, show).into_iter().map(Result::unwrap).collect();
        rig.shown = Some(shown);
        assert!(rig.goes_by_multicast(960, SUM), "rank {longer} has the longer buffer");
        rig.as_simulated(960, SUM);
        drop(rig);
        close(&comms);
    }
}

/// A binding lasts until the last peer has dropped its executor: its kernels might still access the memory.
#[test]
fn bindings_end_when_no_peer_uses_them() {
    if !alone("bindings_end_when_no_peer_uses_them", true) {
        return;
    }
    let (watch, driver) = software();
    let plan = all_reduce::switch_pipelined(2).compile().unwrap();
    let comms = ranks_on(&driver, 2);
    let mut rig = Rig::of_config(&comms, &plan, 960, &[SUM], |_| with(true)).unwrap();
    rig.as_simulated(960, SUM);
    let unbound = |wanted: usize| {
        let deadline = crate::Deadline::after(LIMIT);
        while watch.count("cuMulticastUnbind") < wanted && !deadline.expired() {
            comms.iter().for_each(|comm| comm.context().reap());
            std::thread::yield_now();
        }
        watch.count("cuMulticastUnbind")
    };
    drop(rig.executors.remove(0));
    // Rank 1 still may access what rank 0 has bound.
    comms.iter().for_each(|comm| comm.context().reap());
    assert_eq!(unbound(0), 0);
    drop(rig.executors.remove(0));
    assert_eq!(unbound(2), 2);
    drop(rig);
    close(&comms);
}
