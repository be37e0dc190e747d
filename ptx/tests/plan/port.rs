//! Requests to a proxy: the triggers that a kernel pushes.

use std::sync::atomic::Ordering;

use crate::device::LaunchShape;
use aqueduct_ptx::abi::{
    ABORT_RECORD_COMPLETE, AbortRecord, DeviceStruct, NO_PEER, Operation, PortChannelHandle, SemaphoreHandle,
    TriggerKind,
};
use aqueduct_ptx::plan::{Base, Element, Kernel, Operand, Port, PortPut, Step};

use crate::rig::{ADDRESSES, CALLS, CANARY, Sizes, World, fixed, kernel, moved, operand, with_packets};
use crate::ring::{Ring, word};

/// Where the buffers lie in the channel's memories.
const SOURCE: u64 = 4096;
const TARGET: u64 = 65_536;

const DATA: TriggerKind = TriggerKind::DATA;
const FLAG: TriggerKind = TriggerKind::FLAG;
const SYNC: TriggerKind = TriggerKind::SYNC;

/// Kind, destination, source and size of a trigger.
type Trigger = (TriggerKind, u64, u64, u64);

struct Channel {
    world: World,
    ring: Ring,
    flushed: u64,
    /// Counters of its signals: those that have come, and those that were taken.
    counters: u64,
}

/// The peer of the channel, for abort records.
const PEER: u32 = 7;

impl Channel {
    fn new() -> Self {
        Self::of_one_of(1)
    }

    /// The channel of rank 0.
    fn of_one_of(ranks: usize) -> Self {
        let mut world = World::new(ranks, 4096, 8, 1024);
        let ring = Ring::new(4, 0);
        let flushed = world.machine.host(8) as u64;
        let counters = world.machine.alloc(0, 16);
        let semaphore = SemaphoreHandle {
            inbound: counters,
            expected_inbound: counters + 8,
            abort: world.machine.abort_handle(0, PEER),
            ..Default::default()
        };
        let handle = PortChannelHandle {
            fifo: ring.handle,
            semaphore,
            flushed,
            dst_bytes: 1 << 20,
            src_bytes: 1 << 20,
            semaphore_id: 5,
            dst_id: 3,
            src_id: 2,
            ..Default::default()
        };
        let at = world.machine.alloc(0, size_of::<PortChannelHandle>());
        world.machine.write(0, at, handle.as_bytes());
        world.more = vec![at, SOURCE, TARGET];
        Self { world, ring, flushed, counters }
    }

    fn ranks(&self) -> u32 {
        u32::try_from(self.world.memory.len()).expect("few")
    }

    fn kernel(&self, steps: Vec<Step>) -> Kernel {
        let kernel = with_packets(kernel(self.ranks(), Element::U8, steps), 0, 8);
        Kernel { addresses: kernel.addresses + 3, ..kernel }
    }

    fn launch(&self, steps: Vec<Step>, chunk: u64, bytes: u64) {
        self.launch_on(0, &self.kernel(steps), Sizes { chunk, input: bytes, output: bytes });
    }

    fn launch_on(&self, rank: usize, kernel: &Kernel, sizes: Sizes) {
        let function = self.world.load(rank, kernel);
        let args = self.world.args(rank, sizes, [0, 0], kernel);
        self.world.machine.launch(rank, function, LaunchShape { grid: 1, block: 64 }, &args);
    }

    /// The next trigger, if there is one; it stays in the FIFO.
    fn look(&self) -> Option<Trigger> {
        let trigger = self.ring.poll()?.decode().expect("a channel's trigger");
        assert_eq!((trigger.semaphore, trigger.dst_id, trigger.src_id), (5, 3, 2));
        Some((trigger.kind, trigger.dst_offset, trigger.src_offset, trigger.size))
    }

    /// Whether a kernel runs; fails if one of any rank has failed.
    fn is_busy(&self) -> bool {
        (0..self.world.memory.len()).fold(false, |busy, rank| self.world.machine.is_busy(rank) | busy)
    }

    /// Waits for a trigger that a kernel pushes.
    fn await_trigger(&self) -> Trigger {
        loop {
            let busy = self.is_busy();
            if let Some(trigger) = self.look() {
                return trigger;
            }
            assert!(busy, "the kernel ended and asked for nothing");
            std::thread::yield_now();
        }
    }

    /// Serves a kernel as the proxy of the channel until it ends; returns the triggers.
    fn serve(&mut self) -> Vec<Trigger> {
        let mut triggers = Vec::new();
        loop {
            let busy = self.is_busy();
            if let Some(trigger) = self.look() {
                triggers.push(trigger);
                self.ring.pop();
                if trigger.0.contains(SYNC) {
                    word(self.flushed).store(self.ring.position, Ordering::Release);
                }
            } else if !busy {
                break;
            }
            std::thread::yield_now();
        }
        self.world.machine.finish();
        triggers
    }

    /// Runs steps as the proxy of the channel; returns the triggers.
    fn run(&mut self, steps: Vec<Step>, chunk: u64, bytes: u64) -> Vec<Trigger> {
        self.launch(steps, chunk, bytes);
        self.serve()
    }

    /// The record of a kernel that was told to leave.
    fn record(&self) -> AbortRecord {
        self.world.machine.finish();
        let record = self.world.machine.record(0);
        assert_eq!((record.state, record.rank), (ABORT_RECORD_COMPLETE, 0), "{record:?}");
        record
    }
}

/// Waits for the packets of a chunk of rank 0, sent by `peer`, and forwards them.
fn forward(ranks: u32, chunk: u32, peer: u32) -> Step {
    let more = ranks * ADDRESSES;
    let packets = |first| operand(0, Base::Packets, first);
    let put = PortPut {
        source: Operand { address: fixed(more + 1), ..packets(chunk) },
        target: Operand { address: fixed(more + 2), ..packets(0) },
        count: fixed(1),
        awaits: Some(Operand { rank: fixed(peer), ..packets(chunk) }),
        by_rows: false,
    };
    Step::Port(Port { channel: fixed(more), put: Some(put), signal: true, flush: false })
}

/// A request whose data lies at offsets.
fn port(put: Option<(Base, u32, Base, u32, u32)>, signal: bool, flush: bool) -> Step {
    let put = put.map(|(from, first, to, place, count)| PortPut {
        source: Operand { address: fixed(ADDRESSES + 1), ..operand(0, from, first) },
        target: Operand { address: fixed(ADDRESSES + 2), ..operand(0, to, place) },
        count: fixed(count),
        awaits: None,
        by_rows: false,
    });
    Step::Port(Port { channel: fixed(ADDRESSES), put, signal, flush })
}

#[test]
fn puts_are_one_piece_or_one_for_each_chunk() {
    use Base::{Input, Output, Packets, Scratch};
    let mut channel = Channel::new();
    let one = |channel: &mut Channel, step: Step, chunk, bytes| channel.run(vec![step], chunk, bytes);
    // Neighbours in both memories, in scratch of this size, and what a message's end leaves of them.
    let put = || port(Some((Input, 1, Output, 2, 3)), true, true);
    let all = DATA.with(FLAG).with(SYNC);
    assert_eq!(one(&mut channel, put(), 32, 320), [(all, TARGET + 64, SOURCE + 32, 96)]);
    assert_eq!(one(&mut channel, put(), 32, 100), [(all, TARGET + 64, SOURCE + 32, 36)]);
    assert_eq!(one(&mut channel, put(), 32, 64), [(FLAG.with(SYNC), 0, 0, 0)]);
    let put = || port(Some((Scratch, 1, Scratch, 2, 2)), false, false);
    assert_eq!(one(&mut channel, put(), 1024, 1), [(DATA, TARGET + 2048, SOURCE + 1024, 2048)]);
    // Chunk by chunk; whole vectors of scratch.
    let expected = [(DATA, TARGET + 2048, SOURCE + 1024, 48), (DATA, TARGET + 3072, SOURCE + 2048, 48)];
    assert_eq!(one(&mut channel, put(), 33, 1), expected);
    let put = || port(Some((Input, 1, Output, 2, 2)), false, false);
    let expected = [(DATA, TARGET + 66, SOURCE + 33, 33), (DATA, TARGET + 99, SOURCE + 66, 33)];
    assert_eq!(one(&mut channel, put(), 33, 330), expected);
    let put = || port(Some((Input, 0, Scratch, 1, 3)), true, false);
    let expected = [
        (DATA, TARGET + 1024, SOURCE, 33),
        (DATA, TARGET + 2048, SOURCE + 33, 33),
        (DATA.with(FLAG), TARGET + 3072, SOURCE + 66, 4),
    ];
    assert_eq!(one(&mut channel, put(), 33, 70), expected);
    let expected =
        [(DATA, TARGET + 1024, SOURCE, 33), (DATA, TARGET + 2048, SOURCE + 33, 7), (FLAG, 0, 0, 0)];
    assert_eq!(one(&mut channel, put(), 33, 40), expected);
    // Packets take twice the room, and are whole.
    let put = port(Some((Packets, 1, Packets, 0, 2)), false, true);
    let expected = [(DATA, TARGET, SOURCE + 2048, 96), (DATA.with(SYNC), TARGET + 2048, SOURCE + 4096, 96)];
    assert_eq!(one(&mut channel, put, 33, 1), expected);
    // Slices of a loop; no data.
    let body = vec![port(Some((Scratch, 0, Scratch, 0, 1)), true, false)];
    let repeat = Step::Loop { unit: 32, chunks: fixed(1), body };
    let kind = DATA.with(FLAG);
    let expected = [
        (kind, TARGET, SOURCE, 32),
        (kind, TARGET + 32, SOURCE + 32, 32),
        (kind, TARGET + 64, SOURCE + 64, 16),
    ];
    assert_eq!(one(&mut channel, repeat, 80, 1), expected);
    assert_eq!(one(&mut channel, port(None, true, false), 80, 1), [(FLAG, 0, 0, 0)]);
    assert_eq!(one(&mut channel, port(None, false, true), 80, 1), [(SYNC, 0, 0, 0)]);
}

/// The first warp waits for the packets of a piece before the first thread asks for it.
#[test]
fn forwarded_packets_are_awaited() {
    let mut channel = Channel::new();
    let own = operand(0, Base::Packets, 2);
    let forward = || forward(1, 2, 0);
    let send = || moved(vec![operand(0, Base::Input, 0)], vec![own], 1, None);
    for chunk in [1, 16, 800] {
        let bytes = 2 * u64::next_multiple_of(chunk, 16);
        let triggers = channel.run(vec![send(), Step::Sync, forward()], chunk, chunk);
        assert_eq!(triggers, [(DATA.with(FLAG), TARGET, SOURCE + 4096, bytes)]);
    }
    // No packets come, so nothing is asked for.
    let kernel = channel.kernel(vec![forward(), Step::Sync]);
    let function = channel.world.load(0, &kernel);
    let sizes = Sizes { chunk: 800, input: 800, output: 800 };
    let head = channel.ring.head();
    let args = channel.world.args(0, sizes, [0, 0], &kernel);
    channel.world.machine.launch(0, function, LaunchShape { grid: 1, block: 64 }, &args);
    channel.world.machine.abort();
    channel.world.machine.finish();
    assert_eq!(channel.ring.head(), head, "it asked for packets that had not come");
}

/// The packets come from another device while the first warp looks for them.
#[test]
fn packets_of_a_peer_are_awaited() {
    let mut channel = Channel::of_one_of(2);
    let send = moved(vec![operand(1, Base::Input, 0)], vec![operand(0, Base::Packets, 2)], 1, None);
    let send = with_packets(kernel(2, Element::U8, vec![send]), 1, 8);
    // The driver may wait for running kernels before it loads another one.
    channel.world.load(1, &send);
    let begin = Step::Port(Port { channel: fixed(2 * ADDRESSES), put: None, signal: true, flush: false });
    channel.launch(vec![begin, Step::Sync, forward(2, 2, 1)], 800, 800);
    assert_eq!(channel.await_trigger(), (FLAG, 0, 0, 0));
    channel.launch_on(1, &send, Sizes { chunk: 800, input: 800, output: 800 });
    let forwarded = (DATA.with(FLAG), TARGET, SOURCE + 4096, 1600);
    assert_eq!(channel.serve(), [(FLAG, 0, 0, 0), forwarded]);
}

/// One word of the last packet is missing: nothing is asked for, and the record names the sender.
#[test]
fn half_a_packet_is_not_forwarded() {
    for flags in [[0, 1], [1, 0]] {
        let channel = Channel::new();
        // 33 packets of which the first warp's first lane has two.
        let words: Vec<u8> = (0..68)
            .flat_map(|word| [7u32, if word < 66 { 1 } else { flags[word - 66] }])
            .flat_map(u32::to_le_bytes)
            .collect();
        channel.world.machine.write(0, channel.world.memory[0].packets + 128 + 4096, &words);
        channel.launch(vec![forward(1, 2, 3), Step::Sync], 272, 272);
        channel.world.machine.abort();
        let record = channel.record();
        let expected = (Operation::PLAN, 3, 1);
        assert_eq!((Operation(record.operation), record.peer, record.epoch), expected, "{flags:?}");
        assert_eq!(channel.ring.head(), 0, "{flags:?}: it asked for packets that had not come");
    }
}

/// The first thread gave up at an earlier step: no lane waits for packets, and nothing is asked for.
#[test]
fn packets_are_awaited_by_all_lanes_or_none() {
    let channel = Channel::new();
    let wait = Step::PortWait { channel: fixed(ADDRESSES) };
    let other = moved(vec![operand(0, Base::Input, 0)], vec![operand(0, Base::Scratch, 0)], 1, None);
    let words: Vec<u8> = (0..68).flat_map(|_| [7u32, 1]).flat_map(u32::to_le_bytes).collect();
    channel.world.machine.write(0, channel.world.memory[0].packets + 128 + 4096, &words);
    channel.launch(vec![wait, other, forward(1, 2, 3), Step::Sync], 272, 272);
    channel.world.machine.abort();
    assert_eq!(Operation(channel.record().operation), Operation::WAIT);
    assert_eq!(channel.ring.head(), 0, "it asked for something after it gave up");
}

/// Steps behind a flush happen after it.
#[test]
fn a_flush_waits_until_it_is_told() {
    let channel = Channel::new();
    channel.launch(vec![port(None, false, true), port(None, true, false)], 16, 16);
    assert_eq!(channel.await_trigger(), (SYNC, 0, 0, 0));
    channel.world.machine.abort();
    let record = channel.record();
    assert_eq!((Operation(record.operation), record.peer), (Operation::FLUSH, PEER));
    assert_eq!(channel.ring.head(), 1, "it asked for more before the flush had ended");
}

/// A request finds no room in the FIFO, and the FIFO's own word ends the wait.
#[test]
fn a_request_waits_for_room() {
    let mut channel = Channel::new();
    let five = || vec![port(None, true, false); 5];
    assert_eq!(channel.run(five(), 16, 16), [(FLAG, 0, 0, 0); 5]);
    channel.launch(five(), 16, 16);
    assert_eq!(channel.await_trigger(), (FLAG, 0, 0, 0));
    channel.ring.machine.abort();
    let record = channel.record();
    assert_eq!((Operation(record.operation), record.peer), (Operation::FIFO, NO_PEER));
    let pushed: Vec<_> = std::iter::from_fn(|| {
        let trigger = channel.look();
        channel.ring.pop();
        trigger
    })
    .collect();
    assert_eq!(pushed.len(), 4, "a FIFO of four slots");
}

/// Each wait takes one signal; the channel's own word ends one for which there is none.
#[test]
fn a_wait_takes_one_signal_of_the_peer() {
    let mut channel = Channel::new();
    let wait = || Step::PortWait { channel: fixed(ADDRESSES) };
    channel.world.machine.write(0, channel.counters, &2u64.to_ne_bytes());
    let passed = (FLAG, 0, 0, 0);
    assert_eq!(channel.run(vec![wait(), port(None, true, false)], 16, 16), [passed]);
    channel.launch(vec![wait(), port(None, true, false), wait(), port(None, true, false)], 16, 16);
    assert_eq!(channel.await_trigger(), passed);
    channel.world.machine.abort();
    let record = channel.record();
    assert_eq!((Operation(record.operation), record.peer), (Operation::WAIT, PEER));
    assert_eq!(channel.ring.head(), 2, "the third wait had no signal");
}

/// Packets of the old lap stay until the peer has ended its last call of it, and the peer's proxy may put new ones when this rank has
/// told it that they are gone.
#[test]
fn a_lap_begins_through_a_port() {
    let mut channel = Channel::new();
    let packets = channel.world.memory[0].packets + 128;
    let own = operand(0, Base::Packets, 3);
    let send = moved(vec![operand(0, Base::Input, 0)], vec![own], 1, None);
    let unpack = moved(vec![own], vec![operand(0, Base::Output, 0)], 1, None);
    let mut kernel = channel.kernel(vec![send, Step::Sync, unpack]);
    let laps = kernel.laps.as_mut().expect("a kernel with packets");
    laps.meeting = vec![port(None, true, true), Step::PortWait { channel: fixed(ADDRESSES) }];
    let all = usize::try_from(u64::from(laps.chunks) * 1024).expect("a few KiB");
    let machine = &channel.world.machine;
    machine.write(0, packets, &vec![0xee; all]);
    machine.write(0, channel.world.memory[0].control + u64::from(CALLS), &u64::from(u32::MAX).to_ne_bytes());
    machine.write(0, channel.world.memory[0].input + CANARY as u64, b"sixteen of bytes");
    channel.launch_on(0, &kernel, Sizes { chunk: 16, input: 16, output: 16 });
    for (met, content) in [(1, 0xee), (2, 0)] {
        assert_eq!(channel.await_trigger(), (FLAG.with(SYNC), 0, 0, 0));
        let found = channel.world.machine.read(0, packets, all);
        assert!(found.iter().all(|&byte| byte == content), "the rank signalled {met} times");
        channel.ring.pop();
        word(channel.flushed).store(channel.ring.position, Ordering::Release);
        channel.world.machine.write(0, channel.counters, &u64::to_ne_bytes(met));
    }
    assert_eq!(channel.serve(), []);
    let machine = &channel.world.machine;
    assert_eq!(machine.read(0, channel.counters + 8, 8), 2u64.to_ne_bytes(), "it took both signals");
    assert_eq!(machine.read(0, channel.world.memory[0].output + CANARY as u64, 16), b"sixteen of bytes");
}
