//! Interleavings and reorderings that a GPU hardly ever shows: memory as weak as the PTX model allows, by many seeds, with the
//! race detector on. They configure the software device and are for it alone.

#[path = "../library/calls.rs"]
#[expect(dead_code, unused_imports, unused_macros, reason = "few operations are called here, in one form")]
mod calls;
#[path = "../perf/clock.rs"]
mod clock;
#[path = "../device/mod.rs"]
mod device;
mod perf;
#[path = "../ring/mod.rs"]
#[expect(dead_code, reason = "nothing is consumed here")]
mod ring;
#[path = "../standins/mod.rs"]
#[expect(dead_code, reason = "the others are other tests'")]
mod standins;

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::device::LaunchShape;
use aqueduct_ptx::abi::{
    ABORT_RECORD_COMPLETE, AbortHandle, GridBarrierHandle, LEFT_CLOSED, MemoryChannelHandle, NO_PEER,
    SPINS_FREE, SPINS_PER_ABORT_READ, SemaphoreHandle,
};
use aqueduct_ptx::oracle::paint;
use aqueduct_ptx::{Target, declarations, instantiate};
use calls::{Calls, Form, TOLD, linked};
use cuda_driver_sys::CUfunction;
use cuda_soft::{Check, Config, Lines, Weak};
use device::{Args, Machine};
use ring::{Ring, word32};

const ONE: LaunchShape = LaunchShape { grid: 1, block: 1 };
const SEEDS: u64 = 40;

/// Signals, and then tells a waiting kernel to leave.
const SIGNAL: &str = ".version 7.0
.target sm_70
.address_size 64
.visible .entry signal(.param .u64 counter, .param .u64 abort)
{
    .reg .u64 %to, %one;
    ld.param.u64 %to, [counter];
    mov.u64 %one, 1;
    st.relaxed.sys.global.u64 [%to], %one;
    ld.param.u64 %to, [abort];
    st.release.sys.global.u32 [%to], 1;
    ret;
}
";

/// A machine with weak memory. Tests use it one after another, or their choices would mix.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    static WEAK: OnceLock<()> = OnceLock::new();
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    WEAK.get_or_init(|| {
        let check = Check { races: true, weak: Some(Weak::default()), ..Check::default() };
        let config = Config::from_env().expect("the variables of the software device");
        cuda_soft::configure(Config { check, sms: 2, ..config }).expect("nothing has used the device yet");
    });
    turn
}

/// Tries `program` with each seed.
fn with_seeds(mut program: impl FnMut(u64)) {
    for seed in 0..SEEDS {
        cuda_soft::weaken(Weak { seed, lines: Lines::Ascending });
        program(seed);
    }
}

/// The module with waits that look at the abort word in every round, not once in a thousand.
fn impatient(text: &str) -> String {
    const { assert!(SPINS_FREE == SPINS_PER_ABORT_READ) };
    let changed = text.replace(&format!(", {SPINS_FREE};"), ", 1;");
    assert_ne!(text, changed, "a wait of {SPINS_FREE} rounds");
    changed
}

/// Such an entry of rank 0.
fn impatient_entry(machine: &Machine, row: &str, index: usize) -> CUfunction {
    let instance = instantiate(row, Target::new(70), &[]).expect("a row of the catalog");
    machine.load(0, &impatient(&instance.text), &instance.entries[index])
}

/// A channel of rank 0 whose abort word lies in the memory of rank 1, where kernels reach it by weak loads.
fn channel(machine: &Machine) -> MemoryChannelHandle {
    let counters = machine.alloc(0, 64);
    let abort = AbortHandle { word: machine.alloc(1, 4), ..machine.abort_handle(0, 1) };
    let [src, packets] = [(); 2].map(|()| machine.alloc(0, 8192));
    MemoryChannelHandle {
        semaphore: SemaphoreHandle {
            inbound: counters,
            expected_inbound: counters + 8,
            abort,
            ..SemaphoreHandle::default()
        },
        src,
        src_bytes: 8192,
        packets,
        packet_bytes: 8192,
        ..MemoryChannelHandle::default()
    }
}

fn not_told(machine: &Machine, seed: u64) {
    let record = machine.record(0);
    assert_ne!(record.state, ABORT_RECORD_COMPLETE, "seed {seed}: it gave up: {record:?}");
}

#[test]
fn a_signal_that_came_before_the_abort_word_is_taken() {
    let _turn = turn();
    let machine = Machine::new(2);
    let waits = [2, 3].map(|index| impatient_entry(&machine, "semaphore", index));
    let signal = machine.load(1, SIGNAL, "signal");
    with_seeds(|seed| {
        for wait in waits {
            let channel = channel(&machine);
            machine.launch(0, wait, ONE, &Args::default().structure(&channel));
            let args = Args::default().u64(channel.semaphore.inbound).u64(channel.semaphore.abort.word);
            machine.launch(1, signal, ONE, &args);
            machine.finish();
            not_told(&machine, seed);
        }
    });
}

/// Lines of `data` from rank 1 to rank 0.
struct Sending {
    channel: MemoryChannelHandle,
    data: Vec<u8>,
    args: Args,
}

const FLAG: u32 = 9;

fn sending(machine: &Machine) -> Sending {
    let channel = channel(machine);
    let data = paint(3, 1920);
    let src = machine.alloc(1, data.len());
    machine.write(1, src, &data);
    let sender = MemoryChannelHandle {
        src,
        src_bytes: data.len() as u64,
        dst: channel.packets,
        dst_bytes: channel.packet_bytes,
        ..MemoryChannelHandle::default()
    };
    let args = Args::default().structure(&sender).u64(0).u64(0).u64(data.len() as u64).u32(FLAG);
    Sending { channel, data, args }
}

#[test]
fn lines_that_came_before_the_abort_word_are_taken() {
    let _turn = turn();
    let machine = Machine::new(2);
    let put = machine.function(1, "ll128", &[], 0);
    let unpack = impatient_entry(&machine, "ll128", 1);
    let signal = machine.load(1, SIGNAL, "signal");
    let unused = machine.alloc(1, 8);
    with_seeds(|seed| {
        let Sending { channel, data, args } = sending(&machine);
        let shape = LaunchShape { grid: 1, block: 32 };
        let waits = Args::default().structure(&channel).u64(0).u64(0).u64(data.len() as u64).u32(FLAG);
        machine.launch(0, unpack, shape, &waits);
        machine.launch(1, put, shape, &args);
        machine.launch(1, signal, ONE, &Args::default().u64(unused).u64(channel.semaphore.abort.word));
        machine.finish();
        not_told(&machine, seed);
        assert!(machine.read(0, channel.src, data.len()) == data, "seed {seed}");
    });
}

#[test]
fn lanes_leave_together_whoever_sees_the_abort_word_first() {
    let _turn = turn();
    let machine = Machine::new(2);
    let put = machine.function(1, "ll128", &[], 0);
    let calls = Calls::new(&machine, 0, Form::Linked);
    let signal = machine.load(1, SIGNAL, "signal");
    let unused = machine.alloc(1, 8);
    with_seeds(|seed| {
        let Sending { channel, data, args } = sending(&machine);
        let waits = Args::default().u64(channel.packets).u64(channel.src).u64(data.len() as u64).u32(FLAG);
        calls.start(&machine, "unpack_packets_ll128", 1, 32, waits.structure(&channel.semaphore.abort));
        machine.launch(1, signal, ONE, &Args::default().u64(unused).u64(channel.semaphore.abort.word));
        machine.launch(1, put, LaunchShape { grid: 1, block: 32 }, &args);
        machine.finish();
        let left: Vec<u64> = (0..32).map(|lane| calls.result(lane, 0)).collect();
        assert!(left.iter().all(|status| *status == left[0]), "seed {seed}: {left:?}");
    });
}

#[test]
fn lines_arrive_whole_or_in_order() {
    let _turn = turn();
    let machine = Machine::new(2);
    let put = machine.function(1, "ll128", &[], 0);
    let unpack = machine.function(0, "ll128", &[], 1);
    with_seeds(|seed| {
        let Sending { channel, data, args } = sending(&machine);
        let shape = LaunchShape { grid: 1, block: 32 };
        let waits = Args::default().structure(&channel).u64(0).u64(0).u64(data.len() as u64).u32(FLAG);
        machine.launch(0, unpack, shape, &waits);
        machine.launch(1, put, shape, &args);
        machine.finish();
        assert!(machine.read(0, channel.src, data.len()) == data, "seed {seed}");
    });
}

#[test]
fn a_grid_barrier_that_was_given_up_counts_nobody() {
    let _turn = turn();
    let machine = Machine::new(2);
    let calls = Calls::of(&machine, 0, &impatient(&linked(&declarations().expect("the library"))));
    let signal = machine.load(1, SIGNAL, "signal");
    let unused = machine.alloc(1, 8);
    with_seeds(|seed| {
        let abort = AbortHandle { word: machine.alloc(1, 4), ..machine.abort_handle(0, NO_PEER) };
        let grid = GridBarrierHandle { state: machine.alloc(0, 8), abort };
        // One group more than there are.
        let args = Args::default().structure(&grid).u32(0).u32(5).u32(0);
        calls.start(&machine, "grid_barrier", 4, 32, args);
        machine.launch(1, signal, ONE, &Args::default().u64(unused).u64(abort.word));
        machine.finish();
        assert!((0..4 * 32).all(|thread| calls.result(thread, 0) == TOLD), "seed {seed}");
        assert_eq!(machine.read(0, grid.state, 8), [0; 8], "seed {seed}: arrivals that were not taken back");
    });
}

#[test]
fn blocks_that_find_a_fifo_closed_take_their_positions_back() {
    let _turn = turn();
    let ring = Ring::new(4, 0);
    let machine = &ring.machine;
    let push = machine.function(0, "fifo", &[], 0);
    ring.close();
    with_seeds(|seed| {
        let status = machine.host(4) as u64;
        let args = Args::default().structure(&ring.handle).u32(1).u64(0).u64(status);
        machine.launch(0, push, LaunchShape { grid: 3, block: 32 }, &args);
        machine.finish();
        let left = word32(status).load(std::sync::atomic::Ordering::Acquire);
        assert_eq!((left, ring.head()), (LEFT_CLOSED, 1 << 63), "seed {seed}");
    });
}
