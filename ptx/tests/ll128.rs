//! LL128 put and unpack, and the loops that measure, against their oracles: between two ranks, to the byte.

mod device;

use crate::device::LaunchShape;
use aqueduct_ptx::abi::{ABORT_RECORD_COMPLETE, MemoryChannelHandle, Operation, SemaphoreHandle};
use aqueduct_ptx::oracle::{channel::put_packets, ll128::lines, paint};
use cuda_driver_sys::CUfunction;
use device::{Args, Machine};

const BUFFER: usize = 16_384;
const CANARY: u8 = 0xa5;
/// Long enough for a kernel that does not wait to have ended.
const WHILE: std::time::Duration = std::time::Duration::from_millis(30);

/// Two ranks and a channel between them; rank r's `src` is what the other's HB put writes to.
struct Pair {
    machine: Machine,
    channels: [MemoryChannelHandle; 2],
}

impl Pair {
    fn new() -> Self {
        let machine = Machine::new(2);
        let memory = [0, 1].map(|rank| {
            let data = machine.alloc(rank, BUFFER);
            let packets = machine.alloc(rank, 2 * BUFFER);
            let counters = machine.alloc(rank, 32);
            (data, packets, counters)
        });
        let channels = [0, 1].map(|rank| {
            let (src, packets, counters) = memory[rank];
            let (peer_data, peer_packets, peer_counters) = memory[1 - rank];
            let _ = peer_packets;
            MemoryChannelHandle {
                semaphore: SemaphoreHandle {
                    inbound: counters,
                    expected_inbound: counters + 8,
                    outbound: counters + 16,
                    remote_inbound: peer_counters,
                    abort: machine.abort_handle(rank, 1 - rank as u32),
                },
                dst: peer_data,
                dst_bytes: BUFFER as u64,
                src,
                src_bytes: BUFFER as u64,
                packets,
                packet_bytes: 2 * BUFFER as u64,
                arrived: counters + 24,
            }
        });
        Self { machine, channels }
    }

    /// The channel of `rank` with the peer's packet buffer as destination.
    fn to_packets(&self, rank: usize) -> MemoryChannelHandle {
        MemoryChannelHandle {
            dst: self.channels[1 - rank].packets,
            dst_bytes: self.channels[1 - rank].packet_bytes,
            ..self.channels[rank]
        }
    }
}

fn shape(grid: u32, block: u32) -> LaunchShape {
    LaunchShape { grid, block }
}

#[test]
fn ll128_moves_every_size_to_the_byte() {
    let pair = Pair::new();
    let (put, unpack) =
        (pair.machine.function(0, "ll128", &[], 0), pair.machine.function(1, "ll128", &[], 1));
    let sizes = [
        0, 4, 8, 12, 16, 20, 116, 120, 124, 508, 512, 516, 952, 956, 960, 964, 1916, 1920, 1924, 4096, 7680,
        10_004,
    ];
    for (turn, bytes) in sizes.into_iter().enumerate() {
        let flag = 1000 + turn as u32;
        // Vectors where both ends are 16-byte aligned, words elsewhere.
        let [from, to] = [[0, 0], [4, 0], [0, 8], [12, 4]][turn % 4];
        let data = paint(u64::from(flag), bytes);
        let [sender, receiver] = [&pair.channels[0], &pair.channels[1]];
        let dst_offset = 128 * (turn as u64 % 3);
        pair.machine.write(0, sender.src + from, &data);
        pair.machine.write(1, receiver.src, &[CANARY; BUFFER]);
        let args = |channel: &MemoryChannelHandle, packets, data| {
            Args::default().structure(channel).u64(packets).u64(data).u64(bytes as u64).u32(flag)
        };
        let sends = args(&pair.to_packets(0), dst_offset, from);
        let receives = args(receiver, dst_offset, to + 64);
        // The receiver first, so that it waits.
        pair.machine.launch(1, unpack, shape(1 + turn as u32 % 3, 64), &receives);
        pair.machine.launch(0, put, shape(1 + turn as u32 % 2, 96), &sends);
        pair.machine.finish();
        let expected = lines(&data, flag);
        assert_eq!(expected.len(), 1024 * bytes.div_ceil(960), "units are sent whole");
        assert!(
            pair.machine.read(1, receiver.packets + dst_offset, expected.len()) == expected,
            "lines of {bytes} bytes"
        );
        let mut whole = vec![CANARY; BUFFER];
        whole[to as usize + 64..][..bytes].copy_from_slice(&data);
        let found = pair.machine.read(1, receiver.src, BUFFER);
        assert_eq!(
            found.iter().zip(&whole).position(|(a, b)| a != b),
            None,
            "{bytes} bytes at {from} to {to}"
        );
    }
}

#[test]
fn an_aborted_unpack_says_whom_it_waited_for() {
    let pair = Pair::new();
    let unpack = pair.machine.function(1, "ll128", &[], 1);
    let args = Args::default().structure(&pair.channels[1]).u64(0).u64(0).u64(2000).u32(9);
    pair.machine.launch(1, unpack, shape(2, 64), &args);
    pair.machine.abort();
    pair.machine.finish();
    let record = pair.machine.record(1);
    assert_eq!(record.state, ABORT_RECORD_COMPLETE);
    assert_eq!(
        (record.rank, record.operation, record.peer, record.epoch),
        (1, Operation::UNPACK_LL128.0, 0, 9)
    );
}

/// Contents of a packet buffer behind a hop of `mode`.
fn packets(mode: &str, data: &[u8], flag: u32) -> Vec<u8> {
    match mode {
        "ll128" => lines(data, flag),
        "ll8" => put_packets(data, 1, flag),
        _ => put_packets(data, 2, flag),
    }
}

impl Pair {
    /// The loop of `mode` for `rank`, which sends from its `src` and receives behind that. Flags are the number of round trips,
    /// after one that is not counted, and the first flag.
    fn bounce(
        &self,
        rank: usize,
        mode: &str,
        bytes: usize,
        flags: [u32; 2],
        begins: bool,
        elapsed: u64,
    ) -> (CUfunction, Args) {
        let channel = if mode == "put_signal" { self.channels[rank] } else { self.to_packets(rank) };
        let bytes = bytes as u64;
        let (function, args) = if mode == "bare" {
            let args = Args::default().u64(channel.dst).u64(channel.packets).u64(channel.src);
            (self.machine.function(rank, "perf_bare", &[], 0), args.u64(channel.src + bytes))
        } else {
            let function = self.machine.function(rank, "perf", &[("MODE", mode)], 0);
            (function, Args::default().structure(&channel))
        };
        (function, args.u64(bytes).u32(flags[0]).u32(flags[1]).u32(begins.into()).u64(elapsed))
    }
}

#[test]
fn messages_bounce_in_every_mode() {
    let pair = Pair::new();
    let elapsed = [0, 1].map(|rank| pair.machine.alloc(rank, 8));
    let bytes = 1200;
    let (mut first_flag, mut signals) = (1, [0; 2]);
    for mode in ["ll8", "ll16", "ll128", "signal", "put_signal", "bare"] {
        let iterations = 5;
        let data = [0, 1].map(|rank| paint(u64::from(first_flag) + rank, bytes));
        for rank in [0, 1] {
            let src = pair.channels[rank].src;
            pair.machine.write(rank, src, &[CANARY; BUFFER]);
            pair.machine.write(rank, src, &data[rank]);
            pair.machine.write(rank, elapsed[rank], &[0; 8]);
        }
        // Everything that may synchronise comes before the first launch: kernels wait for each other.
        let launches = [0, 1]
            .map(|rank| pair.bounce(rank, mode, bytes, [iterations, first_flag], rank == 0, elapsed[rank]));
        for (rank, (function, args)) in launches.iter().enumerate() {
            pair.machine.launch(rank, *function, shape(1, 64), args);
        }
        pair.machine.finish();
        for rank in [0, 1] {
            let nanoseconds = pair.machine.read(rank, elapsed[rank], 8);
            assert_ne!(nanoseconds, [0; 8], "{mode}: rank {rank} measured nothing");
            let found = pair.machine.read(rank, pair.channels[rank].src, 2 * bytes);
            // As many hops as were asked for, after one that is not counted.
            let channel = &pair.channels[rank];
            if mode == "signal" || mode == "put_signal" {
                let sent = pair.machine.read(rank, channel.semaphore.outbound, 8);
                signals[rank] += u64::from(iterations) + 1;
                assert_eq!(sent, signals[rank].to_ne_bytes(), "{mode}: rank {rank}");
            } else {
                let image = packets(mode, &data[1 - rank], first_flag + iterations);
                assert!(
                    pair.machine.read(rank, channel.packets, image.len()) == image,
                    "{mode}: rank {rank}"
                );
            }
            match mode {
                "signal" => assert!(found[bytes..].iter().all(|&b| b == CANARY), "{mode}"),
                // Either rank must see the data that rank 0 put.
                "put_signal" => assert!(found[..bytes] == data[0], "{mode}: rank {rank}"),
                _ => assert!(found[bytes..] == data[1 - rank], "{mode}: rank {rank}"),
            }
        }
        first_flag += iterations + 1;
    }
}

/// One loop waits for packets of which the end is missing, or of which words are of another hop: it neither writes data nor
/// answers.
#[test]
fn a_hop_is_answered_when_all_of_it_has_arrived() {
    for mode in ["ll8", "ll16", "ll128", "bare"] {
        let pair = Pair::new();
        let machine = &pair.machine;
        let (flag, elapsed) = (5, machine.alloc(0, 8));
        let bytes = if mode == "ll8" { 256 } else { 1920 };
        let [data, answer] = [3, 4].map(|seed| paint(seed, bytes));
        let image = packets(mode, &data, flag);
        let sender = &pair.channels[0];
        machine.write(0, sender.src, &answer);
        machine.write(0, sender.packets, &image[..image.len() - 8]);
        let (function, args) = pair.bounce(0, mode, bytes, [0, flag], false, elapsed);
        machine.launch(0, function, shape(1, 64), &args);
        let nothing_happens = |why: &str| {
            std::thread::sleep(WHILE);
            let there = pair.channels[1].packets;
            assert!(machine.read(1, there, image.len()).iter().all(|&b| b == 0), "{mode}: answered, {why}");
        };
        nothing_happens("without the last word");
        // The last packet comes with an old flag in its first word, then in its second.
        let end = image.len();
        let size = if mode == "ll8" { 8 } else { 16 };
        if mode != "ll128" {
            for word in (0..size).step_by(8) {
                // Never whole in between.
                machine.write(0, sender.packets + (end - size) as u64, &[0; 16][..size]);
                let mut half = image[end - size..].to_vec();
                half[word + 4..word + 8].copy_from_slice(&(flag - 1).to_ne_bytes());
                machine.write(0, sender.packets + (end - size) as u64, &half);
                nothing_happens("with an old word");
            }
        }
        machine.write(0, sender.packets, &image);
        machine.finish();
        assert!(machine.read(0, sender.src + bytes as u64, bytes) == data, "{mode}");
        assert!(machine.read(1, pair.channels[1].packets, end) == packets(mode, &answer, flag), "{mode}");
    }
}

#[test]
fn a_loop_that_is_told_to_leave_reports_no_time() {
    for mode in ["ll8", "ll16", "ll128", "signal", "put_signal"] {
        let pair = Pair::new();
        let elapsed = pair.machine.alloc(0, 8);
        pair.machine.abort();
        let (function, args) = pair.bounce(0, mode, 960, [5, 1], true, elapsed);
        pair.machine.launch(0, function, shape(1, 64), &args);
        pair.machine.finish();
        assert_eq!(pair.machine.record(0).state, ABORT_RECORD_COMPLETE, "{mode}");
        assert_eq!(pair.machine.read(0, elapsed, 8), [0; 8], "{mode}: it measured nothing");
    }
}

/// A copy to a place before its source moves what lies there: as far as it was repeated.
#[test]
fn bandwidth_loops_repeat_the_copy_as_often_as_they_say() {
    const STEP: usize = 256;
    const BYTES: usize = 1024;
    const ITERATIONS: u32 = 3;
    let pair = Pair::new();
    for index in [0, 1] {
        let here = pair.channels[0].src;
        let places = [here, here + STEP as u64];
        let [src, dst] = if index == 0 { [places[1], places[0]] } else { places };
        let channel = MemoryChannelHandle { src, dst, ..pair.channels[0] };
        let mut expected = paint(7, BYTES + STEP);
        pair.machine.write(0, here, &expected);
        let function = pair.machine.function(0, "perf_bandwidth", &[], index);
        let args = Args::default().structure(&channel).u64(BYTES as u64).u32(ITERATIONS);
        pair.machine.launch(0, function, shape(1, 1), &args);
        pair.machine.finish();
        (0..ITERATIONS).for_each(|_| expected.copy_within(STEP.., 0));
        assert!(pair.machine.read(0, here, expected.len()) == expected, "entry {index}");
    }
}

#[test]
fn bandwidth_loops_copy() {
    let pair = Pair::new();
    let data = paint(3, BUFFER);
    for (index, rank) in [(0, 0), (1, 1)] {
        let function = pair.machine.function(rank, "perf_bandwidth", &[], index);
        pair.machine.write(0, pair.channels[0].src, &data);
        pair.machine.write(1, pair.channels[1].src, &[0; BUFFER]);
        let args = Args::default().structure(&pair.channels[rank]).u64(BUFFER as u64).u32(3);
        pair.machine.launch(rank, function, shape(3, 64), &args);
        pair.machine.finish();
        assert!(pair.machine.read(1, pair.channels[1].src, BUFFER) == data, "entry {index}");
    }
}
