//! Memory channels, and copies and packets without one.

use std::thread::sleep;

use aqueduct_ptx::abi::{ABORT_RECORD_COMPLETE, MemoryChannelHandle, Operation, SemaphoreHandle};
use aqueduct_ptx::oracle::channel::{copy, put_packets};
use aqueduct_ptx::oracle::ll128::lines;
use aqueduct_ptx::oracle::paint;

use crate::calls::{Calls, Form, NOT, NOTHING, TOLD, WHILE, in_both_forms};
use crate::device::{Args, Machine};

in_both_forms! {
    put_and_get,
    aligned_put_and_get,
    packets,
    a_copy_between_addresses,
    elements_of_the_peer,
    signals_of_a_channel,
    the_last_group_learns_that_it_is,
    who_waits_leaves_when_told,
}

const CAPACITY: usize = 32 << 10;

/// Two ranks and the channel between them, seen from either.
struct Pair {
    machine: Machine,
    calls: [Calls; 2],
    handles: [MemoryChannelHandle; 2],
}

impl Pair {
    fn new(form: Form) -> Self {
        let machine = Machine::new(2);
        let buffers = [0, 1].map(|rank| machine.alloc(rank, CAPACITY));
        let packets = [0, 1].map(|rank| machine.alloc(rank, 2 * CAPACITY));
        let counters = [0, 1].map(|rank| machine.alloc(rank, 64));
        let handles = [0, 1].map(|rank: usize| MemoryChannelHandle {
            semaphore: SemaphoreHandle {
                inbound: counters[rank],
                expected_inbound: counters[rank] + 8,
                outbound: counters[rank] + 16,
                remote_inbound: counters[1 - rank],
                abort: machine.abort_handle(rank, 1 - rank as u32),
            },
            dst: buffers[1 - rank],
            dst_bytes: CAPACITY as u64,
            src: buffers[rank],
            src_bytes: CAPACITY as u64,
            packets: packets[rank],
            packet_bytes: 2 * CAPACITY as u64,
            arrived: counters[rank] + 24,
        });
        let calls = [0, 1].map(|rank| Calls::new(&machine, rank, form));
        Self { machine, calls, handles }
    }

    /// `rank` calls a function of its channel.
    fn run(&self, rank: usize, name: &str, grid: u32, block: u32, args: impl FnOnce(Args) -> Args) -> u64 {
        let args = args(Args::default().structure(&self.handles[rank]));
        self.calls[rank].run(&self.machine, name, grid, block, args)
    }

    /// `rank` starts to call a function of its channel with one warp.
    fn start(&self, rank: usize, name: &str, args: impl FnOnce(Args) -> Args) {
        let args = args(Args::default().structure(&self.handles[rank]));
        self.calls[rank].start(&self.machine, name, 1, 32, args);
    }

    /// Each wait that rank 1 has begun lasts until it is told to leave, and then returns that status.
    fn told(&self, name: &str, operation: Operation) {
        sleep(WHILE);
        assert_eq!(self.calls[1].result(0, 0), NOTHING, "{name} waits");
        self.machine.abort();
        self.machine.finish();
        assert_eq!(self.calls[1].result(0, 0), TOLD, "{name}");
        let record = self.machine.record(1);
        assert_eq!((record.state, record.operation), (ABORT_RECORD_COMPLETE, operation.0), "{name}");
        assert_eq!((record.rank, record.peer), (1, 0), "{name}");
    }

    fn write(&self, rank: usize, data: &[u8]) {
        self.machine.write(rank, self.handles[rank].src, data);
    }

    fn read(&self, rank: usize) -> Vec<u8> {
        self.machine.read(rank, self.handles[rank].src, CAPACITY)
    }
}

fn put_and_get(form: Form) {
    let ranges = [(0, 0, 0), (1, 3, 5), (4097, 16, 0), (20_001, 7, 4), (960, 1, 1)];
    move_both_ways(form, ["memory_channel_put", "memory_channel_get"], &ranges);
}

fn aligned_put_and_get(form: Form) {
    let ranges = [(0, 16, 0), (16, 0, 48), (4096, 16, 0), (20_000, 32, 64), (12_304, 0, 16)];
    move_both_ways(form, ["memory_channel_put_aligned", "memory_channel_get_aligned"], &ranges);
}

/// Puts and gets each range, given as size, offset at the peer and own offset.
fn move_both_ways(form: Form, names: [&str; 2], ranges: &[(usize, usize, usize)]) {
    let pair = Pair::new(form);
    for (turn, &(bytes, dst, src)) in (1..).zip(ranges) {
        let (local, remote) = (paint(turn, CAPACITY), paint(turn + 100, CAPACITY));
        for name in names {
            pair.write(0, &local);
            pair.write(1, &remote);
            let [d, s, b] = [dst, src, bytes].map(|n| n as u64);
            // get takes the remote offset first.
            pair.run(0, name, 3, 64, |args| args.u64(d).u64(s).u64(b));
            let (mut here, mut there) = (local.clone(), remote.clone());
            if name == names[0] {
                copy(&mut there, dst, &local, src, bytes);
            } else {
                copy(&mut here, src, &remote, dst, bytes);
            }
            assert!(pair.read(0) == here && pair.read(1) == there, "{name}: {bytes} from {src} to {dst}");
        }
    }
}

/// Functions that put and unpack through a channel, those that do so between addresses, and their packets.
struct Format {
    channel: [&'static str; 2],
    plain: [&'static str; 2],
    /// Bytes of data of a packet.
    grain: usize,
    /// Alignment of packets.
    align: u64,
    operation: Operation,
}

const FORMATS: [Format; 3] = [
    Format {
        channel: ["memory_channel_put_packets_ll8", "memory_channel_unpack_packets_ll8"],
        plain: ["put_packets_ll8", "unpack_packets_ll8"],
        grain: 4,
        align: 8,
        operation: Operation::UNPACK_LL8,
    },
    Format {
        channel: ["memory_channel_put_packets_ll16", "memory_channel_unpack_packets_ll16"],
        plain: ["put_packets_ll16", "unpack_packets_ll16"],
        grain: 8,
        align: 16,
        operation: Operation::UNPACK_LL16,
    },
    Format {
        channel: ["memory_channel_put_packets_ll128", "memory_channel_unpack_packets_ll128"],
        plain: ["put_packets_ll128", "unpack_packets_ll128"],
        grain: 4,
        align: 128,
        operation: Operation::UNPACK_LL128,
    },
];

impl Format {
    /// The packets of `data`, by the oracle.
    fn image(&self, data: &[u8], flag: u32) -> Vec<u8> {
        match self.operation {
            Operation::UNPACK_LL8 => put_packets(data, 1, flag),
            Operation::UNPACK_LL16 => put_packets(data, 2, flag),
            _ => lines(data, flag),
        }
    }
}

fn packets(form: Form) {
    let mut pair = Pair::new(form);
    pair.handles[0].dst = pair.handles[1].packets;
    let abort = pair.machine.abort_handle(1, 0);
    let mut flag = 0;
    for format in FORMATS {
        for (names, through_channel) in [(format.channel, true), (format.plain, false)] {
            for packets in [0, 1, 119, 960] {
                flag += 1;
                let [put, unpack] = names;
                let bytes = packets * format.grain;
                let data = paint(u64::from(flag), CAPACITY);
                pair.write(0, &data);
                pair.write(1, &vec![0; CAPACITY]);
                let (from, to) = (3 * format.grain, 5 * format.grain);
                let at = format.align;
                let ends = |rank: usize, packets, local| match through_channel {
                    true => Args::default().structure(&pair.handles[rank]).u64(at).u64(local as u64),
                    false => Args::default().u64(packets + at).u64(pair.handles[rank].src + local as u64),
                };
                let arrive = pair.handles[1].packets;
                let args = ends(0, arrive, from).u64(bytes as u64).u32(flag);
                pair.calls[0].run(&pair.machine, put, 2, 64, args);
                let expected = format.image(&data[from..from + bytes], flag);
                let seen = pair.machine.read(1, arrive + at, expected.len());
                assert!(seen == expected, "{put}: {bytes} bytes");

                let mut args = ends(1, arrive, to).u64(bytes as u64).u32(flag);
                if !through_channel {
                    args = args.structure(&abort);
                }
                let left = pair.calls[1].run(&pair.machine, unpack, 2, 64, args);
                let mut expected = vec![0; CAPACITY];
                copy(&mut expected, to, &data, from, bytes);
                assert!(left == NOT && pair.read(1) == expected, "{unpack}: {bytes} bytes, left with {left}");
            }
        }
    }
}

fn a_copy_between_addresses(form: Form) {
    let pair = Pair::new(form);
    let data = paint(1, CAPACITY);
    pair.write(0, &data);
    let ranges = [
        ("copy", 0, 0, 0),
        ("copy", 1, 3, 5),
        ("copy", 20_001, 7, 4),
        ("copy_aligned", 16, 16, 0),
        ("copy_aligned", 20_016, 0, 32),
    ];
    for (name, bytes, dst, src) in ranges {
        pair.write(1, &vec![0; CAPACITY]);
        let [to, from] = [pair.handles[1].src + dst as u64, pair.handles[0].src + src as u64];
        let args = Args::default().u64(to).u64(from).u64(bytes as u64);
        pair.calls[0].run(&pair.machine, name, 3, 64, args);
        let mut expected = vec![0; CAPACITY];
        copy(&mut expected, dst, &data, src, bytes);
        assert!(pair.read(1) == expected, "{bytes} from {src} to {dst}");
    }
}

fn elements_of_the_peer(form: Form) {
    let pair = Pair::new(form);
    let mut theirs = paint(1, CAPACITY);
    pair.write(1, &theirs);
    for index in [0, 1, 1000] {
        let (narrow, wide) = (&theirs[4 * index..][..4], &theirs[8 * index..][..8]);
        let args = |args: Args| args.u64(index as u64);
        let read = pair.run(0, "memory_channel_read_u32", 1, 32, args);
        assert_eq!(read, u32::from_ne_bytes(narrow.try_into().unwrap()).into(), "{index}");
        let read = pair.run(0, "memory_channel_read_u64", 1, 32, args);
        assert_eq!(read, u64::from_ne_bytes(wide.try_into().unwrap()), "{index}");
    }
    pair.run(0, "memory_channel_write_u32", 1, 32, |args| args.u64(9).u32(0x8765_4321));
    pair.run(0, "memory_channel_write_u64", 1, 32, |args| args.u64(7).u64(u64::MAX - 1));
    theirs[4 * 9..][..4].copy_from_slice(&0x8765_4321_u32.to_ne_bytes());
    theirs[8 * 7..][..8].copy_from_slice(&(u64::MAX - 1).to_ne_bytes());
    assert!(pair.read(1) == theirs);
}

fn signals_of_a_channel(form: Form) {
    let pair = Pair::new(form);
    let alone = |rank, name| pair.run(rank, name, 1, 32, |args| args);
    for (signal, wait) in [
        ("memory_channel_signal", "memory_channel_wait"),
        ("memory_channel_relaxed_signal", "memory_channel_relaxed_wait"),
    ] {
        pair.start(1, wait, |args| args);
        sleep(WHILE);
        assert_eq!(pair.calls[1].result(0, 0), NOTHING, "{wait} waits");
        alone(0, signal);
        assert_eq!(pair.calls[1].result(0, 0), NOT, "{wait}");
        assert_eq!(alone(1, "memory_channel_poll"), 0);
        alone(0, signal);
        alone(0, signal);
        assert_eq!(
            [alone(1, "memory_channel_poll"), alone(1, wait), alone(1, "memory_channel_poll")],
            [1, NOT, 0]
        );
    }
}

fn the_last_group_learns_that_it_is(form: Form) {
    let pair = Pair::new(form);
    let last = [(); 7].map(|()| pair.run(0, "memory_channel_last_group", 1, 32, |args| args.u32(3)));
    assert_eq!(last, [0, 0, 1, 0, 0, 1, 0]);
}

fn who_waits_leaves_when_told(form: Form) {
    let waits = ["memory_channel_wait", "memory_channel_relaxed_wait"];
    for name in waits {
        let pair = Pair::new(form);
        pair.start(1, name, |args| args);
        pair.told(name, Operation::WAIT);
        assert_eq!(pair.machine.record(1).awaited, 1, "{name}");
    }
    for format in FORMATS {
        let [_, unpack] = format.channel;
        let pair = Pair::new(form);
        pair.start(1, unpack, |args| args.u64(0).u64(0).u64(64).u32(5));
        pair.told(unpack, format.operation);
        let [_, unpack] = format.plain;
        let pair = Pair::new(form);
        let args = Args::default().u64(pair.handles[1].packets).u64(pair.handles[1].src).u64(64).u32(5);
        let args = args.structure(&pair.machine.abort_handle(1, 0));
        pair.calls[1].start(&pair.machine, unpack, 1, 32, args);
        pair.told(unpack, format.operation);
    }
}
