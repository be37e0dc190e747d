//! The memory channel's kernels against their oracles: every alignment and size, both ends, aborts, functions called
//! from a user's kernel.

mod device;

use crate::device::LaunchShape;
use aqueduct_ptx::abi::{
    ABORT_RECORD_COMPLETE, ABORT_RECORD_EMPTY, GridBarrierHandle, MemoryChannelHandle, NO_PEER, Operation,
    SemaphoreHandle,
};
use aqueduct_ptx::oracle::channel::{copy, put_packets, unpack_packets};
use aqueduct_ptx::oracle::{paint, sizes};
use aqueduct_ptx::{Target, functions};
use cuda_driver_sys::CUfunction;
use device::{Args, Machine};
use std::collections::HashMap;

/// Bytes around every buffer that must not change.
const CANARY: usize = 64;
/// Bytes of each buffer between its canaries.
const CAPACITY: usize = 1 << 17;
/// Value of the canary bytes.
const CANARY_BYTE: u8 = 0xa5;

/// Two ranks joined by a channel; index 0 is the sender in what follows.
struct Pair {
    machine: Machine,
    handles: [MemoryChannelHandle; 2],
    /// Every entry by rank, kernel, variant and index. Loaded before anything runs: loading a module waits for running
    /// kernels, and one that waits for a later launch would never end.
    functions: HashMap<(usize, &'static str, &'static str, usize), CUfunction>,
}

/// Kernels under test: name, template parameter, value, entries.
const KERNELS: &[(&str, &str, &str, usize)] = &[
    ("channel", "UNROLL", "4", 2),
    ("channel", "UNROLL", "8", 2),
    ("channel", "COPY", "words", 2),
    ("semaphore", "", "", 5),
    ("packet", "FORMAT", "ll8", 2),
    ("packet", "FORMAT", "ll16", 2),
    ("element", "TYPE", "u32", 2),
    ("element", "TYPE", "u64", 2),
];

impl Pair {
    fn new() -> Self {
        let machine = Machine::new(2);
        let buffers = [0, 1].map(|rank| machine.alloc(rank, CAPACITY + 2 * CANARY) + CANARY as u64);
        let packets = [0, 1].map(|rank| machine.alloc(rank, 2 * CAPACITY));
        let counters = [0, 1].map(|rank| machine.alloc(rank, 64));
        let handles = [0, 1].map(|rank: usize| {
            let peer = 1 - rank;
            MemoryChannelHandle {
                semaphore: SemaphoreHandle {
                    inbound: counters[rank],
                    expected_inbound: counters[rank] + 8,
                    outbound: counters[rank] + 16,
                    remote_inbound: counters[peer],
                    abort: machine.abort_handle(rank, peer as u32),
                },
                dst: buffers[peer],
                dst_bytes: CAPACITY as u64,
                src: buffers[rank],
                src_bytes: CAPACITY as u64,
                packets: packets[rank],
                packet_bytes: 2 * CAPACITY as u64,
                arrived: counters[rank] + 24,
            }
        });
        let mut functions = HashMap::new();
        for rank in 0..2 {
            for &(kernel, param, value, entries) in KERNELS {
                let given = [(param, value)];
                let params = if param.is_empty() { &[] } else { &given[..] };
                for index in 0..entries {
                    functions
                        .insert((rank, kernel, value, index), machine.function(rank, kernel, params, index));
                }
            }
        }
        Self { machine, handles, functions }
    }

    /// Like `handles[rank]`, with the peer's packet buffer as destination.
    fn to_packets(&self, rank: usize) -> MemoryChannelHandle {
        MemoryChannelHandle { dst: self.handles[1 - rank].packets, ..self.handles[rank] }
    }

    /// Starts entry `index` of a kernel; `variant` is the value of its template parameter, or empty.
    fn run(
        &self,
        rank: usize,
        kernel: &'static str,
        variant: &'static str,
        index: usize,
        shape: LaunchShape,
        args: &Args,
    ) {
        self.machine.launch(rank, self.functions[&(rank, kernel, variant, index)], shape, args);
    }

    /// Fills the buffer of `rank`: its canaries, and `data` between them.
    fn fill(&self, rank: usize, data: &[u8]) {
        let mut image = vec![CANARY_BYTE; CAPACITY + 2 * CANARY];
        image[CANARY..CANARY + data.len()].copy_from_slice(data);
        self.machine.write(rank, self.handles[rank].src - CANARY as u64, &image);
    }

    /// The buffer of `rank`, whose canaries must be whole.
    fn contents(&self, rank: usize, context: &str) -> Vec<u8> {
        let image = self.machine.read(rank, self.handles[rank].src - CANARY as u64, CAPACITY + 2 * CANARY);
        let (head, rest) = image.split_at(CANARY);
        let (data, tail) = rest.split_at(CAPACITY);
        assert!(
            head.iter().chain(tail).all(|&byte| byte == CANARY_BYTE),
            "{context}: wrote outside the buffer"
        );
        data.to_vec()
    }

    fn counter(&self, rank: usize, address: u64) -> u64 {
        u64::from_le_bytes(self.machine.read(rank, address, 8).try_into().expect("eight bytes"))
    }
}

fn shape(grid: u32, block: u32) -> LaunchShape {
    LaunchShape { grid, block }
}

#[test]
fn put_and_get_move_exactly_the_bytes_asked_for() {
    let pair = Pair::new();
    // Aligned alike, source ahead, destination ahead, words apart, bytes apart.
    let skews = [(0, 0), (5, 5), (1, 0), (0, 3), (8, 0), (4, 12), (15, 14)];
    for (turn, &bytes) in sizes(CAPACITY / 2).iter().enumerate() {
        let unroll = if turn % 2 == 0 { "4" } else { "8" };
        put_and_get(&pair, unroll, turn, bytes, skews[turn % skews.len()]);
    }
    assert_eq!(pair.counter(1, pair.handles[1].semaphore.inbound), 0, "a put without signal must not signal");
}

#[test]
fn whole_words_are_moved_exactly_too() {
    let pair = Pair::new();
    let skews = [(0, 0), (16, 0), (0, 48), (32, 16)];
    let mut all: Vec<usize> = sizes(CAPACITY / 2).iter().map(|bytes| bytes.next_multiple_of(16)).collect();
    all.dedup();
    for (turn, bytes) in all.into_iter().enumerate() {
        put_and_get(&pair, "words", turn, bytes, skews[turn % skews.len()]);
    }
}

/// A put of rank 0 to rank 1, then a get the other way, each compared with its oracle.
fn put_and_get(
    pair: &Pair,
    variant: &'static str,
    turn: usize,
    bytes: usize,
    (src_skew, dst_skew): (usize, usize),
) {
    let (grid, block) = [(1, 32), (2, 64), (3, 128)][turn % 3];
    for (entry, name) in ["put", "get"].iter().enumerate() {
        let context =
            format!("{name} of {bytes} bytes from +{src_skew} to +{dst_skew}, {grid} x {block}, {variant}");
        let seed = (2 * turn + entry) as u64;
        // A put goes from rank 0 to rank 1, a get from rank 1 to rank 0; rank 0 runs both.
        let (from, to) = (entry, 1 - entry);
        let source = paint(seed, CAPACITY);
        let mut expected = paint(seed + 1000, CAPACITY);
        pair.fill(from, &source);
        pair.fill(to, &expected);
        copy(&mut expected, dst_skew, &source, src_skew, bytes);
        let (first, second) = if entry == 0 { (dst_skew, src_skew) } else { (src_skew, dst_skew) };
        let mut args = Args::default().structure(&pair.handles[0]);
        args = args.u64(first as u64).u64(second as u64).u64(bytes as u64);
        if entry == 0 {
            args = args.u32(0);
        }
        pair.run(0, "channel", variant, entry, shape(grid, block), &args);
        pair.machine.finish();
        assert!(pair.contents(to, &context) == expected, "{context}: wrong bytes");
        assert!(pair.contents(from, &context) == source, "{context}: changed its source");
    }
}

#[test]
fn a_put_of_many_blocks_signals_once_after_all_of_them() {
    let pair = Pair::new();
    for (turn, grid) in [1u32, 2, 7, 1, 4].into_iter().enumerate() {
        let bytes = 40_000 + turn * 1001;
        let source = paint(turn as u64, CAPACITY);
        pair.fill(0, &source);
        pair.fill(1, &[0; CAPACITY]);
        // The receiver waits while the sender has not even started, then takes the data away.
        pair.run(1, "semaphore", "", 2, shape(1, 32), &Args::default().structure(&pair.handles[1]));
        let back = MemoryChannelHandle { dst: pair.handles[1].packets, ..pair.handles[1] };
        let away = Args::default().structure(&back).u64(0).u64(0).u64(bytes as u64).u32(0);
        pair.run(1, "channel", "4", 0, shape(2, 64), &away);
        let args = Args::default().structure(&pair.handles[0]).u64(3).u64(1).u64(bytes as u64 - 3).u32(1);
        pair.run(0, "channel", "4", 0, shape(grid, 64), &args);
        pair.machine.finish();
        let seen = pair.machine.read(1, pair.handles[1].packets, bytes);
        assert!(seen[3..] == source[1..bytes - 2], "grid {grid}: the signal overtook the data");
        assert_eq!(pair.counter(1, pair.handles[1].semaphore.inbound), turn as u64 + 1);
        assert_eq!(pair.counter(0, pair.handles[0].arrived), 0, "the block counter returns to zero");
    }
}

#[test]
fn packets_arrive_whole_whichever_rank_starts_first() {
    let pair = Pair::new();
    for (format, words) in [("ll8", 1usize), ("ll16", 2)] {
        let unit = 4 * words;
        let mut counts: Vec<usize> = sizes(8192).iter().map(|bytes| bytes / unit).collect();
        counts.dedup();
        for (turn, count) in counts.into_iter().enumerate() {
            let bytes = count * unit;
            let context = format!("{format}, {bytes} bytes");
            let flag = u32::MAX - turn as u32;
            let source = paint(turn as u64 + 7, CAPACITY);
            let mut expected = paint(turn as u64 + 500, CAPACITY);
            pair.fill(0, &source);
            pair.fill(1, &expected);
            let unpack =
                Args::default().structure(&pair.handles[1]).u64(32).u64(8).u64(bytes as u64).u32(flag);
            let put =
                Args::default().structure(&pair.to_packets(0)).u64(32).u64(16).u64(bytes as u64).u32(flag);
            let (senders, receivers) = [(shape(1, 32), shape(2, 64)), (shape(3, 64), shape(1, 96))][turn % 2];
            if turn % 2 == 0 {
                pair.run(1, "packet", format, 1, receivers, &unpack);
                pair.run(0, "packet", format, 0, senders, &put);
            } else {
                pair.run(0, "packet", format, 0, senders, &put);
                pair.run(1, "packet", format, 1, receivers, &unpack);
            }
            pair.machine.finish();
            let image = pair.machine.read(1, pair.handles[1].packets + 32, 2 * bytes);
            assert!(image == put_packets(&source[16..16 + bytes], words, flag), "{context}: wire image");
            let data = unpack_packets(&image, flag).expect("all flags");
            copy(&mut expected, 8, &data, 0, bytes);
            assert!(pair.contents(1, &context) == expected, "{context}: data");
        }
    }
}

#[test]
fn signals_are_counted_and_taken_once() {
    let pair = Pair::new();
    let taken = pair.machine.alloc(1, 4);
    let on = |rank: usize, entry| {
        let args = Args::default().structure(&pair.handles[rank]);
        pair.run(rank, "semaphore", "", entry, shape(1, 64), &args);
        pair.machine.finish();
    };
    let poll = || {
        let args = Args::default().structure(&pair.handles[1]).u64(taken);
        pair.run(1, "semaphore", "", 4, shape(1, 32), &args);
        pair.machine.finish();
        pair.machine.read(1, taken, 4)[0]
    };
    assert_eq!(poll(), 0);
    for entry in [0, 1, 0, 1, 0] {
        on(0, entry);
    }
    on(1, 2);
    on(1, 3);
    assert_eq!([poll(), poll(), poll(), poll()], [1, 1, 1, 0]);
    assert_eq!(pair.counter(0, pair.handles[0].semaphore.outbound), 5);
    assert_eq!(pair.counter(1, pair.handles[1].semaphore.expected_inbound), 5);
}

#[test]
fn elements_are_read_and_written_in_place() {
    let pair = Pair::new();
    let value = pair.machine.alloc(0, 8);
    for (ty, bytes) in [("u32", 4usize), ("u64", 8)] {
        let mut expected = paint(9, CAPACITY);
        pair.fill(1, &expected);
        let index = CAPACITY / bytes - 1;
        let read = Args::default().structure(&pair.handles[0]).u64(index as u64).u64(value);
        pair.run(0, "element", ty, 0, shape(1, 32), &read);
        pair.machine.finish();
        assert_eq!(pair.machine.read(0, value, bytes), expected[CAPACITY - bytes..]);
        let write = Args::default().structure(&pair.handles[0]).u64(1).u64(0x8877_6655_4433_2211);
        pair.run(0, "element", ty, 1, shape(1, 32), &write);
        pair.machine.finish();
        copy(&mut expected, bytes, &0x8877_6655_4433_2211u64.to_le_bytes(), 0, bytes);
        assert!(pair.contents(1, ty) == expected, "{ty}");
    }
}

#[test]
fn every_wait_leaves_when_asked_and_says_what_it_waited_for() {
    let cases: [(&'static str, &'static str, usize, Operation); 4] = [
        ("semaphore", "", 2, Operation::WAIT),
        ("semaphore", "", 3, Operation::WAIT),
        ("packet", "ll8", 1, Operation::UNPACK_LL8),
        ("packet", "ll16", 1, Operation::UNPACK_LL16),
    ];
    for (kernel, variant, entry, operation) in cases {
        let pair = Pair::new();
        let mut args = Args::default().structure(&pair.handles[1]);
        if kernel == "packet" {
            args = args.u64(0).u64(0).u64(4096).u32(77);
        }
        pair.run(1, kernel, variant, entry, shape(1, 64), &args);
        assert_eq!(pair.machine.record(1).state, ABORT_RECORD_EMPTY);
        pair.machine.abort();
        pair.machine.finish();
        let record = pair.machine.record(1);
        assert_eq!(record.state, ABORT_RECORD_COMPLETE);
        assert_eq!((record.rank, record.peer, record.block), (1, 0, 0));
        assert_eq!(Operation(record.operation), operation);
        let awaited = if kernel == "packet" { (77, 0) } else { (0, 1) };
        assert_eq!((record.epoch, record.awaited, record.seen), (awaited.0, awaited.1, 0));
    }
}

/// A user's kernel: `rounds` times, each block stores its round, passes the grid barrier, and checks its neighbour's
/// round.
const ROUNDS: &str = r"
.visible .entry rounds(
    .param .align 8 .b8 grid[32], .param .u64 said, .param .u64 errors, .param .u32 rounds, .param .u32 groups
)
{
    .reg .u64 %grid, %said, %errors, %mine, %next;
    .reg .u32 %rounds, %groups, %round, %block, %lane, %width, %heard, %aborted, %t;
    .reg .pred %p, %first;
    ld.param.u64 %said, [said];
    ld.param.u64 %errors, [errors];
    ld.param.u32 %rounds, [rounds];
    mov.b64 %grid, grid;
    cvta.param.u64 %grid, %grid;
    ld.param.u32 %groups, [groups];
    mov.u32 %block, %ctaid.x;
    mov.u32 %lane, %tid.x;
    mov.u32 %width, %ntid.x;
    mad.wide.u32 %mine, %block, 4, %said;
    add.u32 %t, %block, 1;
    rem.u32 %t, %t, %groups;
    mad.wide.u32 %next, %t, 4, %said;
    setp.eq.u32 %first, %lane, 0;
    mov.u32 %aborted, 0;
    mov.u32 %round, 0;
ROUND:
    add.u32 %round, %round, 1;
    @%first st.weak.global.u32 [%mine], %round;
    CALL
    setp.ne.u32 %p, %aborted, 0;
    @%p bra LEAVE;
    ld.weak.global.u32 %heard, [%next];
    setp.ne.u32 %p, %heard, %round;
    @%p red.relaxed.gpu.global.add.u32 [%errors], 1;
    CALL
    setp.lt.u32 %p, %round, %rounds;
    @%p bra ROUND;
LEAVE:
    ret;
}
";

const CALL: &str = "{
        .param .u64 a0; .param .u32 a1; .param .u32 a2; .param .u32 a3; .param .u32 a4; .param .u32 a5;
        .param .u32 r;
        st.param.u64 [a0], %grid;
        st.param.u32 [a1], %aborted;
        st.param.u32 [a2], %groups;
        st.param.u32 [a3], %lane;
        st.param.u32 [a4], %width;
        st.param.u32 [a5], 1;
        call.uni (r), aqueduct_device_grid_barrier, (a0, a1, a2, a3, a4, a5);
        ld.param.u32 %aborted, [r];
    }";

/// The least that knows `cvta.param`.
const CVTA_PARAM: Target = Target { sm: 70, ptx: 77 };

#[test]
fn a_users_kernel_calls_the_grid_barrier_as_a_function() {
    let pair = Pair::new();
    let machine = &pair.machine;
    let text = format!("{}{}", functions(CVTA_PARAM).expect("fragments").text, ROUNDS.replace("CALL", CALL));
    let function = machine.load(0, &text, "rounds");
    let (said, errors) = (machine.alloc(0, 256), machine.alloc(0, 8));
    let grid = GridBarrierHandle { state: machine.alloc(0, 8), abort: machine.abort_handle(0, NO_PEER) };
    let launch = |blocks: u32, groups: u32, rounds: u32| {
        let args = Args::default().structure(&grid).u64(said).u64(errors).u32(rounds).u32(groups);
        machine.launch(0, function, shape(blocks, 64), &args);
    };
    // The barrier's word is never reset between grids of different sizes, with odd and even numbers of rounds.
    for (blocks, rounds) in [(1, 3), (4, 5), (3, 4), (2, 1), (4, 2)] {
        launch(blocks, blocks, rounds);
        machine.finish();
        assert_eq!(pair.counter(0, errors), 0, "{blocks} blocks: a block ran ahead");
    }
    // A block that never comes: the others leave when asked.
    launch(2, 3, 1);
    machine.abort();
    machine.finish();
    let record = machine.record(0);
    assert_eq!((record.state, Operation(record.operation)), (ABORT_RECORD_COMPLETE, Operation::GRID_BARRIER));
    // The record is that of the first block to leave, which may do so before the second one arrives.
    assert_eq!((record.peer, record.awaited), (NO_PEER, 3));
    assert!((1..=2).contains(&record.seen), "{} blocks arrived", record.seen);
}
