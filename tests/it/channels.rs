//! Every operation of a memory channel, launched by the host, between two processes.

use std::sync::Arc;
use std::time::Duration;

use aqueduct::ErrorKind;
use aqueduct::channel::{MemoryChannel, PacketFormat, SignalChannel};
use aqueduct::comm::{Device2DeviceSemaphore, Transport};
use aqueduct::gpu::{GpuBuffer, Stream};

use crate::data::{assert_same, bytes, mix};
use crate::group::{Machine, Rank, config, processes, soon, threads_with};

/// Bytes of each buffer.
const LEN: usize = 96 << 10;
const CANARY: u8 = 0xA5;

/// Distance between the packet formats' regions in the packet buffer. A region keeps one format for life.
const PACKET_REGION: usize = 64 << 10;

/// One end of two channels to the other rank.
struct End<'a> {
    rank: &'a Rank,
    peer: u32,
    stream: Stream,
    /// Source of both channels' puts, and target of gets and unpacked packets.
    local: Arc<GpuBuffer>,
    /// Target of the peer's `data` channel.
    inbox: Arc<GpuBuffer>,
    data: MemoryChannel,
    packets: MemoryChannel,
    semaphore: Device2DeviceSemaphore,
    /// Without memory.
    signals: SignalChannel,
    signals_semaphore: Device2DeviceSemaphore,
}

impl<'a> End<'a> {
    fn new(rank: &'a Rank) -> Self {
        let (comm, peer) = (&rank.comm, 1 - rank.me());
        let (local, inbox) = (rank.buffer(LEN), rank.buffer(LEN));
        let packet_buffer = rank.buffer(3 * PACKET_REGION);
        let register = |buffer| comm.register_memory(buffer, Transport::CudaIpc).unwrap();
        let (local_memory, packet_memory) = (register(&local), register(&packet_buffer));
        comm.send_memory(&register(&inbox), peer, 0).unwrap();
        comm.send_memory(&packet_memory, peer, 1).unwrap();
        let (theirs, their_packets) =
            (comm.recv_memory(peer, 0).unwrap(), comm.recv_memory(peer, 1).unwrap());
        let connection = comm.connect(peer, 0, Transport::CudaIpc).unwrap();
        let semaphores = [0, 1, 2].map(|tag| comm.build_semaphore(&connection, tag).unwrap());
        comm.setup(soon()).unwrap();
        let [data, packets, alone] = semaphores.map(|semaphore| semaphore.get().unwrap());
        Self {
            rank,
            peer,
            stream: Stream::new(comm.context()).unwrap(),
            local,
            inbox,
            data: MemoryChannel::new(&data, &theirs.get().unwrap(), &local_memory, None).unwrap(),
            packets: MemoryChannel::new(
                &packets,
                &their_packets.get().unwrap(),
                &local_memory,
                Some(&packet_memory),
            )
            .unwrap(),
            semaphore: data,
            signals: SignalChannel::new(&alone).unwrap(),
            signals_semaphore: alone,
        }
    }

    fn me(&self) -> u32 {
        self.rank.me()
    }

    fn done(&self) {
        self.stream.synchronize(soon()).unwrap();
    }

    fn load(&self, buffer: &GpuBuffer, data: &[u8]) {
        buffer.upload(0, data, soon()).unwrap();
    }

    fn contents(&self, buffer: &GpuBuffer) -> Vec<u8> {
        let mut seen = vec![0; buffer.len()];
        buffer.download(0, &mut seen, soon()).unwrap();
        seen
    }
}

/// Sizes at and next to those of a vector, a warp of vectors, an unrolled iteration and a block's iteration, with the
/// offsets of target and source.
fn ranges() -> Vec<(usize, usize, usize)> {
    let sizes = [
        0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 100, 511, 512, 513, 2047, 2048, 2049, 8191, 8192,
        8193, 65537,
    ];
    let starts = [(0, 0), (1, 0), (0, 1), (3, 5), (16, 4), (13, 29), (8, 24)];
    let all = sizes.iter().enumerate();
    all.flat_map(|(i, &size)| [i, i + 2, i + 5].map(|s| (size, starts[s % 7].0, starts[s % 7].1))).collect()
}

/// A buffer of canaries with `data` at `start`.
fn framed(start: usize, data: &[u8]) -> Vec<u8> {
    let mut canvas = vec![CANARY; LEN];
    canvas[start..start + data.len()].copy_from_slice(data);
    canvas
}

fn puts(end: &End<'_>) {
    for (iteration, (size, to, from)) in (0..).zip(ranges()) {
        end.load(&end.local, &bytes(end.me(), iteration, LEN));
        end.inbox.fill(CANARY, soon()).unwrap();
        end.rank.barrier();
        if iteration % 2 == 0 {
            end.data.put_with_signal(&end.stream, to, from, size).unwrap();
        } else {
            // Two puts and one signal.
            let half = size / 2;
            end.data.put(&end.stream, to, from, half).unwrap();
            end.data.put(&end.stream, to + half, from + half, size - half).unwrap();
            end.data.signal(&end.stream).unwrap();
        }
        end.data.wait(&end.stream).unwrap();
        end.done();
        let sent = bytes(end.peer, iteration, LEN);
        assert_same(
            &end.contents(&end.inbox),
            &framed(to, &sent[from..from + size]),
            format_args!("put of {size} bytes from {from} to {to}"),
        );
        end.rank.barrier();
    }
}

/// Sizes of whole vectors around a warp and a block's turn; target and source at multiples of 16.
fn aligned(end: &End<'_>) {
    let starts = [(0, 0), (16, 0), (0, 48), (256, 4096)];
    for (iteration, size) in (0..).zip([0, 16, 32, 496, 512, 2048, 2064, 8192, 8208, 65_536]) {
        let (to, from) = starts[iteration as usize % starts.len()];
        end.load(&end.local, &bytes(end.me(), iteration, LEN));
        end.inbox.fill(CANARY, soon()).unwrap();
        end.rank.barrier();
        if iteration % 2 == 0 {
            end.data.put_aligned_with_signal(&end.stream, to, from, size).unwrap();
        } else {
            end.data.put_aligned(&end.stream, to, from, size).unwrap();
            end.data.signal(&end.stream).unwrap();
        }
        end.data.wait(&end.stream).unwrap();
        end.done();
        let sent = bytes(end.peer, iteration, LEN);
        assert_same(
            &end.contents(&end.inbox),
            &framed(to, &sent[from..from + size]),
            format_args!("aligned put of {size} bytes from {from} to {to}"),
        );
        end.rank.barrier();
        // The peer's inbox now holds this rank's data, which the get returns.
        end.local.fill(CANARY, soon()).unwrap();
        end.data.get_aligned(&end.stream, to, from, size).unwrap();
        end.done();
        let mine = &bytes(end.me(), iteration, LEN)[from..from + size];
        assert_same(
            &end.contents(&end.local),
            &framed(from, mine),
            format_args!("aligned get of {size} bytes"),
        );
        end.rank.barrier();
    }
}

fn gets(end: &End<'_>) {
    for (iteration, (size, remote, local)) in (0..).zip(ranges()) {
        end.load(&end.inbox, &bytes(end.me(), iteration, LEN));
        end.local.fill(CANARY, soon()).unwrap();
        end.rank.barrier();
        end.data.get(&end.stream, remote, local, size).unwrap();
        end.done();
        let theirs = bytes(end.peer, iteration, LEN);
        assert_same(
            &end.contents(&end.local),
            &framed(local, &theirs[remote..remote + size]),
            format_args!("get of {size} bytes from {remote} to {local}"),
        );
        end.rank.barrier();
        assert_same(
            &end.contents(&end.inbox),
            &bytes(end.me(), iteration, LEN),
            format_args!("a get only reads"),
        );
    }
}

/// Sizes around a packet, a warp of packets, a unit of LL128 and a block's iteration.
const PACKET_SIZES: [usize; 17] =
    [0, 4, 8, 12, 120, 124, 256, 480, 956, 960, 964, 1024, 1920, 4096, 9600, 16384, 24000];

fn packets(end: &End<'_>) {
    const HALF: usize = LEN / 2;
    let mut flag = 0;
    for (region, format) in PacketFormat::ALL.into_iter().enumerate() {
        let (grain, align) = (format.granularity(), format.alignment());
        for (n, size) in PACKET_SIZES.map(|size| size.next_multiple_of(grain)).into_iter().enumerate() {
            flag += 1;
            // Offsets as unaligned as the format allows, different each time.
            let (from, to) = (grain * (n % 5), HALF + grain * (n % 7));
            let at = region * PACKET_REGION + align * (n % 3);
            let mut canvas = bytes(end.me(), flag, HALF);
            canvas.resize(LEN, CANARY);
            end.load(&end.local, &canvas);
            end.rank.barrier();
            end.packets.put_packets(&end.stream, format, at, from, size, flag).unwrap();
            end.packets.unpack_packets(&end.stream, format, at, to, size, flag).unwrap();
            end.done();
            canvas[to..to + size].copy_from_slice(&bytes(end.peer, flag, HALF)[from..from + size]);
            assert_same(
                &end.contents(&end.local),
                &canvas,
                format_args!("{format} of {size} bytes from {from} by way of {at} to {to}, flag {flag}"),
            );
            end.rank.barrier();
        }
    }
}

/// Packets that arrive after their reader started to wait, in both directions at once, without the host in between.
fn packets_chase_each_other(end: &End<'_>) {
    const SIZE: usize = 480;
    const TURNS: u32 = 20;
    end.load(&end.local, &bytes(end.me(), 0, LEN));
    end.rank.barrier();
    if end.me() == 1 {
        std::thread::sleep(Duration::from_millis(100));
    }
    for turn in 0..TURNS {
        // Two places alternate: a place is written again only after the packets in it have been answered.
        let (at, slot) = ((turn as usize % 2) * 8192, turn as usize * SIZE);
        end.packets.put_packets(&end.stream, PacketFormat::Ll16, at, slot, SIZE, 1000 + turn).unwrap();
        let to = LEN / 2 + slot;
        end.packets.unpack_packets(&end.stream, PacketFormat::Ll16, at, to, SIZE, 1000 + turn).unwrap();
    }
    end.done();
    let mut expected = bytes(end.me(), 0, LEN);
    let all = SIZE * TURNS as usize;
    expected[LEN / 2..LEN / 2 + all].copy_from_slice(&bytes(end.peer, 0, LEN)[..all]);
    assert_same(&end.contents(&end.local), &expected, format_args!("{TURNS} turns"));
    end.rank.barrier();
}

fn single_elements(end: &End<'_>) {
    let word = |rank, iteration, index| u64::from(mix(rank, iteration, index)) << 32 | index as u64;
    let result = end.rank.buffer(24);
    for (iteration, index) in (0..).zip([0, 1, 7, 1000, LEN / 8 - 1]) {
        end.inbox.fill(CANARY, soon()).unwrap();
        end.rank.barrier();
        let value = word(end.me(), iteration, index);
        end.data.write_u64(&end.stream, index, value).unwrap();
        end.data.write_u32(&end.stream, LEN / 4 - 3 - index, value as u32).unwrap();
        end.data.signal(&end.stream).unwrap();
        end.data.wait(&end.stream).unwrap();
        end.done();
        let mut expected = vec![CANARY; LEN];
        let theirs = word(end.peer, iteration, index);
        expected[index * 8..][..8].copy_from_slice(&theirs.to_le_bytes());
        expected[LEN - 12 - index * 4..][..4].copy_from_slice(&(theirs as u32).to_le_bytes());
        assert_same(&end.contents(&end.inbox), &expected, format_args!("element {index} written"));

        result.fill(CANARY, soon()).unwrap();
        end.data.read_u64(&end.stream, index, &result.slice(8..16).unwrap()).unwrap();
        end.data.read_u32(&end.stream, index * 2 + 1, &result.slice(20..24).unwrap()).unwrap();
        end.done();
        let mut expected = [CANARY; 24];
        expected[8..16].copy_from_slice(&value.to_le_bytes());
        expected[20..24].copy_from_slice(&value.to_le_bytes()[4..]);
        assert_same(&end.contents(&result), &expected, format_args!("element {index} read back"));
        end.rank.barrier();
    }
}

/// The operations on a semaphore, of a channel with memory or without.
macro_rules! count_on {
    ($end:ident, $channel:expr, $semaphore:expr) => {{
        let (stream, channel, semaphore) = (&$end.stream, $channel, $semaphore);
        let taken = $end.rank.buffer(4);
        let poll = || {
            taken.fill(CANARY, soon()).unwrap();
            channel.poll(stream, &taken.slice(..).unwrap()).unwrap();
            $end.done();
            u32::from_le_bytes($end.contents(&taken).try_into().unwrap())
        };
        let before = semaphore.counters(soon()).unwrap();
        assert_eq!(poll(), 0, "no signal was sent");
        $end.rank.barrier();
        for _ in 0..3 {
            channel.signal(stream).unwrap();
        }
        for _ in 0..2 {
            channel.relaxed_signal(stream).unwrap();
        }
        $end.done();
        $end.rank.barrier();
        assert_eq!(poll(), 1, "five signals were sent");
        channel.wait(stream).unwrap();
        channel.relaxed_wait(stream).unwrap();
        channel.wait(stream).unwrap();
        $end.done();
        assert_eq!((poll(), poll()), (1, 0), "one signal is left, and no more");
        (before, semaphore.counters(soon()).unwrap())
    }};
}

fn counting(end: &End<'_>) {
    let (before, after) = count_on!(end, &end.data, &end.semaphore);
    assert_eq!(after.outbound - before.outbound, 5);
    assert_eq!(after.inbound - before.inbound, 5);
    assert_eq!(after.expected_inbound - before.expected_inbound, 5);
    end.rank.barrier();
    let (before, after) = count_on!(end, &end.signals, &end.signals_semaphore);
    assert_eq!((after.outbound - before.outbound, after.inbound - before.inbound), (5, 5));
    assert_eq!(after.expected_inbound - before.expected_inbound, 5);
    assert_eq!(end.signals.peer(), end.peer);
    let small = end.rank.buffer(8).slice(1..5).unwrap();
    assert_eq!(end.signals.poll(&end.stream, &small).unwrap_err().kind(), ErrorKind::InvalidUsage);
    end.rank.barrier();
}

/// A wait that starts long before the signal holds back later work on the stream.
fn waiting_first(end: &End<'_>) {
    end.inbox.fill(CANARY, soon()).unwrap();
    end.load(&end.local, &bytes(end.me(), 7, LEN));
    end.rank.barrier();
    if end.me() == 0 {
        let seen = end.rank.buffer(LEN);
        end.data.wait(&end.stream).unwrap();
        end.stream.copy(&seen.slice(..).unwrap(), &end.inbox.slice(..).unwrap()).unwrap();
        end.done();
        assert_same(&end.contents(&seen), &bytes(end.peer, 7, LEN), format_args!("copied after the wait"));
    } else {
        std::thread::sleep(Duration::from_millis(300));
        end.data.put_with_signal(&end.stream, 0, 0, LEN).unwrap();
        end.done();
    }
    end.rank.barrier();
}

/// Data that one channel puts without a signal, published by a channel that has no memory.
fn signals_without_memory(end: &End<'_>) {
    const TURNS: usize = 25;
    const SIZE: usize = 1001;
    let (history, stream) = (end.rank.buffer(TURNS * SIZE), &end.stream);
    end.load(&end.local, &bytes(end.me(), 9, LEN));
    end.inbox.fill(CANARY, soon()).unwrap();
    end.rank.barrier();
    let say = |turn| {
        end.data.put(stream, 7, turn * SIZE, SIZE).unwrap();
        end.signals.signal(stream).unwrap();
    };
    for turn in 0..TURNS {
        if end.me() == 0 {
            say(turn);
        }
        end.signals.wait(stream).unwrap();
        let slot = turn * SIZE..(turn + 1) * SIZE;
        stream.copy(&history.slice(slot).unwrap(), &end.inbox.slice(7..7 + SIZE).unwrap()).unwrap();
        if end.me() == 1 {
            say(turn);
        }
    }
    end.done();
    let sent = bytes(end.peer, 9, LEN);
    assert_same(&end.contents(&history), &sent[..TURNS * SIZE], format_args!("{TURNS} messages by signals"));
    end.rank.barrier();
}

/// The kernel that writes the result waits behind another, and its caller has dropped the memory.
fn results_are_kept(end: &End<'_>) {
    if end.me() == 0 {
        let result = end.rank.buffer(8);
        let memory = Arc::downgrade(&result);
        end.signals.wait(&end.stream).unwrap();
        end.signals.poll(&end.stream, &result.slice(..).unwrap()).unwrap();
        drop(result);
        assert!(memory.upgrade().is_some(), "its kernel is still to run");
        end.rank.barrier();
        end.done();
    } else {
        end.rank.barrier();
        end.signals.signal(&end.stream).unwrap();
        end.done();
    }
    end.rank.barrier();
}

/// Different messages, each answered, all enqueued at once: only signals keep them in order.
fn ping_pong(end: &End<'_>) {
    const TURNS: usize = 25;
    const SIZE: usize = 1001;
    let (history, stream) = (end.rank.buffer(TURNS * SIZE), &end.stream);
    end.load(&end.local, &bytes(end.me(), 8, LEN));
    end.rank.barrier();
    for turn in 0..TURNS {
        if end.me() == 0 {
            end.data.put_with_signal(stream, 5, turn * SIZE, SIZE).unwrap();
            end.data.wait(stream).unwrap();
        } else {
            end.data.wait(stream).unwrap();
        }
        let slot = turn * SIZE..(turn + 1) * SIZE;
        stream.copy(&history.slice(slot).unwrap(), &end.inbox.slice(5..5 + SIZE).unwrap()).unwrap();
        if end.me() == 1 {
            end.data.put_with_signal(stream, 5, turn * SIZE, SIZE).unwrap();
        }
    }
    end.done();
    let sent = bytes(end.peer, 8, LEN);
    assert_same(&end.contents(&history), &sent[..TURNS * SIZE], format_args!("{TURNS} messages in order"));
    end.rank.barrier();
}

macro_rules! between_two_processes {
    ($($test:ident: $($case:ident),+;)+) => {
        mod soft {
            $(#[test]
            fn $test() {
                let name = concat!("channels::soft::", stringify!($test));
                super::processes(super::Machine::Software, 2, name, |rank| {
                    let end = super::End::new(&rank);
                    $(super::$case(&end);)+
                });
            })+
        }
        mod hardware {
            $(#[test]
            #[ignore = "needs two NVIDIA GPUs joined by NVLink, or one"]
            fn $test() {
                let name = concat!("channels::hardware::", stringify!($test));
                super::processes(super::Machine::Hardware, 2, name, |rank| {
                    let end = super::End::new(&rank);
                    $(super::$case(&end);)+
                });
            })+
        }
    };
}

between_two_processes! {
    put_at_any_place_and_size: puts;
    get_at_any_place_and_size: gets;
    whole_vectors: aligned;
    packets_of_every_format: packets, packets_chase_each_other;
    elements_and_counts: single_elements, counting;
    order_on_streams: waiting_first, ping_pong, signals_without_memory, results_are_kept;
}

/// A wait that orders nothing gets the right data on the software device all the same, unless that looks for races.
#[test]
fn signals_order_what_streams_do_around_them() {
    let checked = [("AQUEDUCT_SOFT_CHECK", "races,weak"), ("AQUEDUCT_SOFT_SMS", "2")];
    let name = "channels::signals_order_what_streams_do_around_them";
    threads_with(Machine::Software, 2, name, &config(), &checked, |rank| {
        let end = End::new(&rank);
        waiting_first(&end);
        ping_pong(&end);
        signals_without_memory(&end);
    });
}
