//! The order of launches that rank 0 decides: kernels of several devices of one process, with host words in place of streams' waits.

mod device;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use aqueduct_ptx::abi::{
    ABORT_RECORD_COMPLETE, AbortHandle, DeviceStruct, NO_PEER, Operation, TURN_FREE, TurnQueue,
};
use cuda_driver_sys::CUfunction;
use device::{Args, LaunchShape, Machine};

const CALLERS: usize = 4;

/// A queue of some ranks, and all words.
struct Line {
    machine: Machine,
    ranks: usize,
    ask: CUfunction,
    end: CUfunction,
    leave: CUfunction,
    queue: u64,
    /// By rank, then by caller.
    granted: Vec<u64>,
    /// By caller, then by rank.
    ready: u64,
    done: u64,
}

fn word<'a>(base: u64, at: usize) -> &'a AtomicU32 {
    // SAFETY: pinned memory of the machine, which lives as long as the process; aligned, and accessed atomically only.
    unsafe { AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(base as usize + 4 * at)) }
}

impl Line {
    fn new(ranks: usize) -> Self {
        let machine = Machine::new(ranks);
        let host = |words: usize| machine.host(4 * words).expose_provenance() as u64;
        let granted: Vec<u64> = (0..ranks).map(|_| host(CALLERS)).collect();
        let (ready, done) = (host(CALLERS * ranks), host(ranks));
        let table = size_of::<TurnQueue>() + 4 * CALLERS;
        let queue = machine.alloc(0, table + 8 * ranks);
        let state = TurnQueue {
            words: queue + table as u64,
            ready,
            done,
            ranks: ranks as u32,
            mask: CALLERS as u32 - 1,
            ..TurnQueue::zeroed()
        };
        let mut bytes = state.as_bytes().to_vec();
        bytes.extend(TURN_FREE.to_le_bytes());
        bytes.resize(table, 0);
        bytes.extend(granted.iter().flat_map(|word| word.to_le_bytes()));
        machine.write(0, queue, &bytes);
        let [ask, end] = [0, 2].map(|entry| machine.function(0, "turn", &[], entry));
        let leave = machine.function(ranks - 1, "turn", &[], 1);
        Self { machine, ranks, ask, end, leave, queue, granted, ready, done }
    }

    fn launch(&self, function: CUfunction, threads: u32, caller: u32) {
        let args =
            Args::default().u64(self.queue).u32(caller).structure(&self.machine.abort_handle(0, NO_PEER));
        self.machine.launch(0, function, LaunchShape { grid: 1, block: threads }, &args);
    }

    /// As the streams of all ranks have waited.
    fn ask(&self, caller: u32) {
        (0..self.ranks).for_each(|rank| self.ready(caller, rank).store(1, Ordering::Release));
        self.launch(self.ask, 32, caller);
        self.machine.finish();
    }

    fn ready(&self, caller: u32, rank: usize) -> &AtomicU32 {
        word(self.ready, caller as usize * self.ranks + rank)
    }

    /// A bit for each caller that a rank was granted.
    fn granted(&self, rank: usize) -> u32 {
        (0..CALLERS).map(|caller| word(self.granted[rank], caller).load(Ordering::Acquire) << caller).sum()
    }

    fn assert_granted(&self, callers: u32) {
        for rank in 0..self.ranks {
            assert_eq!(self.granted(rank), callers, "rank {rank}");
        }
    }

    /// All other ranks say that their call is done.
    fn done(&self, caller: u32) {
        for rank in 1..self.ranks {
            word(self.granted[rank], caller as usize).store(0, Ordering::Relaxed);
            word(self.done, rank).store(1, Ordering::Release);
        }
    }
}

/// Callers that ask while another one has its turn get theirs in the order in which they asked, each once, for more calls than there are positions.
#[test]
fn callers_get_their_turns_in_order() {
    let line = Line::new(2);
    for round in 0..3 * CALLERS as u32 {
        let [first, second, third] = [0, 1, 2].map(|nth| (round + nth) % CALLERS as u32);
        line.ask(first);
        line.assert_granted(1 << first);
        assert!((0..2).all(|rank| line.ready(first, rank).load(Ordering::Acquire) == 0), "taken back");
        line.ask(second);
        line.ask(third);
        line.assert_granted(1 << first);
        for (caller, next) in [(first, 1 << second), (second, 1 << third), (third, 0)] {
            line.done(caller);
            line.launch(line.end, 32, caller);
            line.machine.finish();
            line.assert_granted(next);
            assert_eq!(word(line.done, 1).load(Ordering::Acquire), 0, "taken back");
        }
    }
}

/// The next call begins only when the last one is done on every rank, also where a thread looks at several.
#[test]
fn a_turn_ends_when_all_ranks_are_done() {
    const RANKS: usize = 40;
    let line = Line::new(RANKS);
    line.ask(0);
    line.ask(3);
    let late = [1, 33, 39];
    line.done(0);
    late.iter().for_each(|&rank| word(line.done, rank).store(0, Ordering::Release));
    line.launch(line.end, 32, 0);
    for rank in late {
        let since = Instant::now();
        while since.elapsed().as_millis() < 30 {
            assert_eq!(line.granted(0) & 8, 0, "rank {rank} is not done");
        }
        word(line.done, rank).store(1, Ordering::Release);
    }
    line.machine.finish();
    line.assert_granted(8);
}

/// What a rank other than rank 0 does behind its call.
#[test]
fn a_rank_takes_back_its_grant_and_says_that_it_is_done() {
    let line = Line::new(2);
    line.ask(2);
    let handle = line.machine.abort_handle(1, NO_PEER);
    let args =
        |caller: u64| Args::default().u64(line.granted[1] + 4 * caller).u64(line.done + 4).structure(&handle);
    line.machine.launch(1, line.leave, LaunchShape { grid: 1, block: 32 }, &args(2));
    line.machine.finish();
    assert_eq!((line.granted(0), line.granted(1)), (4, 0));
    assert_eq!(word(line.done, 1).load(Ordering::Acquire), 1);
}

/// Once the host has ended all waits, no kernel clears a word, and a turn ends without the others.
#[test]
fn after_an_abort_no_word_is_cleared() {
    let line = Line::new(2);
    line.ask(0);
    line.ask(3);
    line.launch(line.end, 32, 0);
    line.machine.abort();
    line.machine.finish();
    let record = line.machine.record(0);
    assert_eq!((record.state, record.operation, record.peer), (ABORT_RECORD_COMPLETE, Operation::TURN.0, 1));
    line.assert_granted(1);
    line.ask(1);
    assert!((0..2).all(|rank| line.ready(1, rank).load(Ordering::Acquire) == 1));
    let handle = line.machine.abort_handle(1, NO_PEER);
    let args = Args::default().u64(line.granted[1]).u64(line.done + 4).structure(&handle);
    line.machine.launch(1, line.leave, LaunchShape { grid: 1, block: 32 }, &args);
    line.machine.finish();
    assert_eq!(line.granted(1) & 1, 1);
    // The other rank is done, so the turn ends; rank 0 keeps its word all the same.
    line.launch(line.end, 32, 0);
    line.machine.finish();
    assert_eq!(line.granted(0) & 1, 1);
}

/// Writes a word, or reads it.
const TOUCH: &str = ".version 6.0
.target sm_70
.address_size 64
.visible .entry touch(.param .u64 at, .param .u32 value)
{
    .reg .u64 %at;
    .reg .u32 %value;
    .reg .pred %p;
    ld.param.u64 %at, [at];
    ld.param.u32 %value, [value];
    setp.ne.u32 %p, %value, 0;
    @%p st.weak.global.u32 [%at], %value;
    @!%p ld.weak.global.u32 %value, [%at];
    ret;
}
";

/// The race detector sees whether the end of a turn orders what another rank did before it and what rank 0 does behind it. The rank is looked
/// at by another warp than the one that goes on.
#[test]
fn what_ranks_did_before_a_turn_ended_is_seen_behind_it() {
    const LAST: usize = 39;
    let line = Line::new(LAST + 1);
    let [write, read] = [LAST, 0].map(|rank| line.machine.load(rank, TOUCH, "touch"));
    let data = line.machine.alloc(LAST, 64);
    let one = LaunchShape { grid: 1, block: 1 };
    line.ask(0);
    line.done(0);
    word(line.done, LAST).store(0, Ordering::Release);
    word(line.granted[LAST], 0).store(1, Ordering::Release);
    line.machine.launch(LAST, write, one, &Args::default().u64(data).u32(7));
    let handle = line.machine.abort_handle(LAST, NO_PEER);
    let args = Args::default().u64(line.granted[LAST]).u64(line.done + 4 * LAST as u64).structure(&handle);
    line.machine.launch(LAST, line.leave, LaunchShape { grid: 1, block: 32 }, &args);
    line.launch(line.end, 64, 0);
    line.machine.launch(0, read, one, &Args::default().u64(data).u32(0));
    line.machine.finish();
    line.assert_granted(0);
}

/// What the host does when it ends all waits: the abort word, a fence, the words for which streams wait.
const RAISE: &str = ".version 6.0
.target sm_70
.address_size 64
.visible .entry raise(.param .u64 told, .param .u64 word)
{
    .reg .u64 %told, %word;
    ld.param.u64 %told, [told];
    ld.param.u64 %word, [word];
    st.relaxed.sys.global.u32 [%told], 1;
    fence.sc.sys;
    st.relaxed.sys.global.u32 [%word], 1;
    ret;
}
";

/// A kernel of another device takes the host's place, whose accesses the race detector does not see.
#[test]
fn a_word_that_is_cleared_while_the_host_ends_all_waits_stays_set() {
    let line = Line::new(2);
    let raise = line.machine.load(0, RAISE, "raise");
    let one = LaunchShape { grid: 1, block: 1 };
    for _ in 0..20 {
        let told = line.machine.alloc(1, 64);
        let handle = AbortHandle { word: told, ..line.machine.abort_handle(1, NO_PEER) };
        let args = Args::default().u64(line.granted[1]).u64(line.done + 4).structure(&handle);
        line.machine.launch(1, line.leave, LaunchShape { grid: 1, block: 32 }, &args);
        line.machine.launch(0, raise, one, &Args::default().u64(told).u64(line.granted[1]));
        line.machine.finish();
        assert_eq!(line.granted(1) & 1, 1);
        word(line.granted[1], 0).store(0, Ordering::Release);
    }
}
