//! The bare loops of `aqueduct perf` order what the library's own operations order, or they would be no match for them.

use crate::device::LaunchShape;
use aqueduct_ptx::abi::FifoHandle;

use crate::clock::{IMPATIENT, PATIENT, looking_at_the_clock};
use crate::device::{Args, Machine};
use crate::standins::CONSUMER;
use crate::{ONE, turn, with_seeds};

const HEAD: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";

/// A FIFO of rank 0 with a kernel of rank 1 as its consumer: its slots are memory that kernels see weakly.
fn fifo(machine: &Machine, capacity: u32) -> FifoHandle {
    let counters = machine.alloc(0, 256);
    FifoHandle {
        slots: machine.alloc(1, 32 * capacity as usize),
        tail: machine.alloc(1, 8),
        head: counters,
        tail_cache: counters + 128,
        capacity,
        capacity_log2: capacity.ilog2(),
        ..FifoHandle::default()
    }
}

fn pushes(fifo: &FifoHandle, count: u32, patience: u64, status: u64) -> Args {
    let args = Args::default().u64(fifo.slots).u64(fifo.head).u64(fifo.tail).u64(fifo.tail_cache);
    args.u32(fifo.capacity).u32(fifo.capacity_log2).u32(count).u64(patience).u64(status)
}

#[test]
fn bare_pushes_arrive_whole_and_lose_none() {
    const SHAPE: LaunchShape = LaunchShape { grid: 2, block: 32 };
    const COUNT: u32 = 3;
    let _turn = turn();
    let machine = Machine::new(2);
    let push = machine.function(0, "perf_fifo_bare", &[], 0);
    let consume = machine.load(1, &format!("{HEAD}{CONSUMER}"), "consume");
    with_seeds(|seed| {
        let fifo = fifo(&machine, 32);
        let [status, wrong] = [machine.alloc(0, 4), machine.alloc(1, 4)];
        machine.write(1, wrong, &[1; 4]);
        let args = Args::default().u64(fifo.slots).u64(fifo.tail).u64(0).u64(wrong);
        let args = args.u32(fifo.capacity).u32(fifo.capacity_log2).u32(SHAPE.grid * SHAPE.block * COUNT);
        machine.launch(1, consume, ONE, &args);
        machine.launch(0, push, SHAPE, &pushes(&fifo, COUNT, PATIENT, status));
        machine.finish();
        assert_eq!(machine.read(1, wrong, 4), [0; 4], "seed {seed}");
        assert_eq!(machine.read(0, status, 4), [0; 4], "seed {seed}");
    });
}

#[test]
fn blocks_that_give_up_bare_pushes_store_one_status() {
    let _turn = turn();
    let machine = Machine::new(2);
    let push = looking_at_the_clock(&machine, "perf_fifo_bare");
    let (fifo, status) = (fifo(&machine, 8), machine.alloc(0, 4));
    machine.launch(0, push, LaunchShape { grid: 2, block: 32 }, &pushes(&fifo, 1, IMPATIENT, status));
    machine.finish();
    assert_eq!(machine.read(0, status, 4), 1_u32.to_ne_bytes());
}

/// Writes data and then the flag; or waits for a value of a word and copies the data; or copies it at once.
const NEIGHBOURS: &str = "
.visible .entry before(.param .u64 data, .param .u64 flag, .param .u64 value)
{
    .reg .u64 %to, %value;
    ld.param.u64 %value, [value];
    ld.param.u64 %to, [data];
    st.weak.global.u64 [%to], %value;
    ld.param.u64 %to, [flag];
    st.release.sys.global.u64 [%to], %value;
    ret;
}
.visible .entry behind(.param .u64 word, .param .u64 data, .param .u64 copy, .param .u64 value)
{
    .reg .u64 %word, %data, %copy, %value, %seen;
    .reg .pred %p;
    ld.param.u64 %word, [word];
    ld.param.u64 %data, [data];
    ld.param.u64 %copy, [copy];
    ld.param.u64 %value, [value];
    setp.eq.u64 %p, %word, 0;
    @%p bra COPY;
POLL:
    ld.acquire.sys.global.u64 %seen, [%word];
    setp.ne.u64 %p, %seen, %value;
    @%p bra POLL;
COPY:
    ld.weak.global.u64 %seen, [%data];
    st.weak.global.u64 [%copy], %seen;
    ret;
}
";

/// Data that rank 1 wrote before the flag is visible to rank 2 behind the word of a fenced hop, and rank 0 behind a hop of either
/// kind.
#[test]
fn a_bare_hop_hands_on_what_it_waited_for() {
    const VALUE: u64 = 7;
    let _turn = turn();
    let machine = Machine::new(3);
    let text = format!("{HEAD}{NEIGHBOURS}");
    let hop = machine.function(0, "perf_port_bare", &[], 0);
    let before = machine.load(1, &text, "before");
    let behind = [0, 2].map(|rank| machine.load(rank, &text, "behind"));
    with_seeds(|seed| {
        for fenced in [true, false] {
            let [word, flag, data] = [(); 3].map(|()| machine.alloc(1, 8));
            let copies = [0, 2].map(|rank| machine.alloc(rank, 8));
            let result = machine.alloc(0, 24);
            let args = Args::default().u64(word).u64(flag).u32(0).u64(VALUE);
            let args = args.u32(0).u32(fenced.into()).u64(PATIENT).u64(result);
            machine.launch(0, hop, ONE, &args);
            // Nothing is read by rank 2 behind a hop that does not fence.
            if fenced {
                let args = Args::default().u64(word).u64(data).u64(copies[1]).u64(VALUE);
                machine.launch(2, behind[1], ONE, &args);
            } else {
                let args = Args::default().u64(0).u64(data).u64(copies[0]).u64(VALUE);
                machine.launch(0, behind[0], ONE, &args);
            }
            machine.launch(1, before, ONE, &Args::default().u64(data).u64(flag).u64(VALUE));
            machine.finish();
            let (rank, copy) = if fenced { (2, copies[1]) } else { (0, copies[0]) };
            assert_eq!(machine.read(rank, copy, 8), VALUE.to_ne_bytes(), "seed {seed}, fenced: {fenced}");
            assert_eq!(machine.read(1, word, 8), VALUE.to_ne_bytes());
        }
    });
}
