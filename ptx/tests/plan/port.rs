//! Requests to a proxy: the triggers that a kernel pushes.

use std::sync::atomic::Ordering;

use aqueduct_ptx::abi::{DeviceStruct, PortChannelHandle, SemaphoreHandle, TriggerKind};
use aqueduct_ptx::collective::LaunchShape;
use aqueduct_ptx::plan::{Base, Element, Kernel, Operand, Port, PortPut, Step};

use crate::rig::{ADDRESSES, Sizes, World, fixed, kernel, moved, operand, with_packets};
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
}

impl Channel {
    fn new() -> Self {
        let mut world = World::new(1, 4096, 8, 1024);
        let ring = Ring::new(4, 0);
        let flushed = world.machine.host(8) as u64;
        let handle = PortChannelHandle {
            fifo: ring.handle,
            semaphore: SemaphoreHandle { abort: world.machine.abort_handle(0, 7), ..Default::default() },
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
        Self { world, ring, flushed }
    }

    fn kernel(&self, steps: Vec<Step>) -> Kernel {
        let kernel = with_packets(kernel(1, Element::U8, steps), 0, 8);
        Kernel { addresses: ADDRESSES + 3, ..kernel }
    }

    /// Runs steps as the proxy of the channel; returns the triggers.
    fn run(&mut self, steps: Vec<Step>, chunk: u64, bytes: u64) -> Vec<Trigger> {
        let kernel = self.kernel(steps);
        let sizes = Sizes { chunk, input: bytes, output: bytes };
        let function = self.world.load(0, &kernel);
        let args = self.world.args(0, sizes, [0, 0], &kernel);
        self.world.machine.launch(0, function, LaunchShape { grid: 1, block: 64 }, &args);
        let mut triggers = Vec::new();
        loop {
            let busy = self.world.machine.is_busy(0);
            if let Some(trigger) = self.ring.poll() {
                let trigger = trigger.decode().expect("a channel's trigger");
                assert_eq!((trigger.semaphore, trigger.dst_id, trigger.src_id), (5, 3, 2));
                triggers.push((trigger.kind, trigger.dst_offset, trigger.src_offset, trigger.size));
                self.ring.pop();
                if trigger.kind.contains(SYNC) {
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
}

/// A request whose data lies at offsets.
fn port(put: Option<(Base, u32, Base, u32, u32)>, signal: bool, flush: bool) -> Step {
    let put = put.map(|(from, first, to, place, count)| PortPut {
        source: Operand { address: fixed(ADDRESSES + 1), ..operand(0, from, first) },
        target: Operand { address: fixed(ADDRESSES + 2), ..operand(0, to, place) },
        count: fixed(count),
        awaits: None,
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
    let forward = || {
        let Step::Port(port) = port(Some((Base::Packets, 2, Base::Packets, 0, 1)), true, false) else {
            unreachable!("a request");
        };
        Step::Port(Port { put: port.put.map(|put| PortPut { awaits: Some(own), ..put }), ..port })
    };
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
