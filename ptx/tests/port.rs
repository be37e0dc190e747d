//! The port channel's kernels against the triggers that they must push: every kind, every bound, a closed FIFO,
//! flushes that wait for their position, signals, packets.

mod device;
mod ring;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::device::LaunchShape;
use aqueduct_ptx::abi::{
    ABORT_RECORD_COMPLETE, ChannelTrigger, LEFT_CLOSED, LEFT_NOT, LEFT_REFUSED, LEFT_TOLD, Operation,
    PortChannelHandle, ProxyTrigger, SemaphoreHandle, TriggerKind, lap_bit,
};
use aqueduct_ptx::oracle::channel::put_packets;
use aqueduct_ptx::oracle::paint;
use cuda_driver_sys::CUfunction;
use device::{Args, patience};
use ring::{CLOSED, Ring, word, word32};

const SLOTS: u32 = 4;
const PEER: u32 = 7;
/// Bytes of each buffer.
const LEN: usize = 16 << 10;
/// A put that leaves no bit of its fields unset: ids, and a size below 2^40 at the end of memories of 2^47 bytes.
const LARGEST: u64 = (1 << 40) - 1;
const VAST: u64 = 1 << 47;

/// One end of a channel whose proxy is this thread.
struct End {
    ring: Ring,
    handle: PortChannelHandle,
    act: CUfunction,
    wait: CUfunction,
    poll: CUfunction,
    /// Status of a kernel that has left.
    status: u64,
    /// Value that a poll stores.
    taken: u64,
}

impl End {
    fn new(start: u64) -> Self {
        let mut ring = Ring::new(SLOTS, start);
        let machine = &ring.machine;
        // The FIFO has an abort word of its own; the record is one.
        ring.handle.abort.word = machine.host(4) as u64;
        let counters = machine.alloc(0, 64);
        let handle = PortChannelHandle {
            fifo: ring.handle,
            semaphore: SemaphoreHandle {
                inbound: machine.host(8) as u64,
                expected_inbound: counters,
                outbound: 0,
                remote_inbound: 0,
                abort: machine.abort_handle(0, PEER),
            },
            flushed: machine.host(8) as u64,
            dst_bytes: LEN as u64,
            src: machine.alloc(0, LEN),
            src_bytes: LEN as u64,
            data: machine.alloc(0, LEN),
            data_bytes: LEN as u64,
            packets: machine.alloc(0, LEN),
            packet_bytes: LEN as u64,
            arrived: counters + 8,
            semaphore_id: 0xffff,
            dst_id: 0xfffe,
            src_id: 0xfffd,
            reserved: 0,
        };
        let [act, wait, poll] = [0, 1, 2].map(|index| machine.function(0, "port", &[], index));
        let [status, taken] = [(); 2].map(|()| machine.host(4) as u64);
        Self { ring, handle, act, wait, poll, status, taken }
    }

    fn launch(&self, function: CUfunction, shape: LaunchShape, args: &Args) {
        word32(self.status).store(LEFT_NOT, Ordering::Release);
        self.ring.machine.launch(0, function, shape, args);
    }

    /// Starts an operation; every thread but the first of its block does nothing.
    fn act(&self, kind: TriggerKind, dst: u64, src: u64, bytes: u64) {
        let args = Args::default().structure(&self.handle).u32(kind.0.into());
        self.launch(self.act, ONE, &args.u64(dst).u64(src).u64(bytes).u64(self.status));
    }

    /// Status of the kernel that has just ended.
    fn left(&self) -> u32 {
        self.ring.machine.finish();
        word32(self.status).load(Ordering::Acquire)
    }

    fn trigger(&self, kind: TriggerKind, dst_offset: u64, src_offset: u64, size: u64) -> ProxyTrigger {
        let &PortChannelHandle { semaphore_id, dst_id, src_id, .. } = &self.handle;
        let id = |id: u32| u16::try_from(id).unwrap();
        let [semaphore, dst_id, src_id] = [id(semaphore_id), id(dst_id), id(src_id)];
        let trigger = ChannelTrigger { kind, dst_id, dst_offset, src_id, src_offset, size, semaphore };
        trigger.encode(lap_bit(self.ring.position, u64::from(SLOTS))).unwrap()
    }

    /// The next trigger, once it is there.
    fn next(&self) -> ProxyTrigger {
        self.until("a trigger", || self.ring.poll())
    }

    fn until<T>(&self, what: &str, ask: impl Fn() -> Option<T>) -> T {
        let since = Instant::now();
        loop {
            if let Some(answer) = ask() {
                return answer;
            }
            if since.elapsed() > patience() {
                self.ring.machine.abort();
                word32(self.ring.handle.abort.word).store(1, Ordering::Release);
                panic!("{what} did not come");
            }
            std::thread::yield_now();
        }
    }

    /// A poll behind whatever runs: what it stores, 9 until then.
    fn start_poll(&self) {
        word32(self.taken).store(9, Ordering::Release);
        self.ring.machine.launch(0, self.poll, ONE, &Args::default().structure(&self.handle).u64(self.taken));
    }

    fn taken(&self) -> u32 {
        word32(self.taken).load(Ordering::Acquire)
    }

    fn record(&self, operation: Operation, awaited: u64) {
        let record = self.ring.machine.record(0);
        assert_eq!((record.state, record.operation), (ABORT_RECORD_COMPLETE, operation.0));
        assert_eq!(record.awaited, awaited, "{record:?}");
    }
}

const ONE: LaunchShape = LaunchShape { grid: 1, block: 32 };
/// Long enough for a kernel that does not wait to have ended.
const WHILE: Duration = Duration::from_millis(30);

fn kinds() -> impl Iterator<Item = TriggerKind> {
    (1..8).map(TriggerKind)
}

#[test]
fn every_kind_pushes_the_trigger_that_it_stands_for() {
    let mut end = End::new(0);
    (end.handle.dst_bytes, end.handle.src_bytes) = (VAST, VAST - 1);
    for kind in kinds() {
        let (dst, src, bytes) = match kind.contains(TriggerKind::DATA) {
            true => (VAST - LARGEST, VAST - 1 - LARGEST, LARGEST),
            false => (0, 0, 0),
        };
        end.act(kind, dst, src, bytes);
        assert_eq!(end.next(), end.trigger(kind, dst, src, bytes), "{kind:?}");
        end.ring.pop();
        if kind.contains(TriggerKind::SYNC) {
            word(end.handle.flushed).store(end.ring.position, Ordering::Release);
        }
        assert_eq!(end.left(), LEFT_NOT, "{kind:?}");
        assert_eq!(end.ring.head(), end.ring.position, "one trigger");
    }
}

#[test]
fn bounds_hold_for_every_offset_and_size() {
    const LENGTHS: [u64; 4] = [0, 1, 100, VAST];
    let offsets = [0, 1, 99, 100, 101, VAST - LARGEST, VAST - 1, VAST, 1 << 48, u64::MAX - 99, u64::MAX];
    let sizes = [0, 1, 99, 100, 101, LARGEST, 1 << 40, 1 << 41, VAST, u64::MAX];
    let mut end = End::new((1 << 32) - 3);
    let (mut accepted, mut refused) = (0, 0);
    for length in LENGTHS {
        for (offset, bytes) in offsets.iter().flat_map(|&offset| sizes.map(|bytes| (offset, bytes))) {
            let fits = bytes <= LARGEST && u128::from(offset) + u128::from(bytes) <= u128::from(length);
            // Each side in turn, with the other one large enough for anything.
            for side in [0, 1] {
                let (dst, src) = [(offset, 0), (0, offset)][side];
                (end.handle.dst_bytes, end.handle.src_bytes) = [(length, VAST), (VAST, length)][side];
                let before =
                    (end.ring.head(), end.ring.slot(end.ring.position).map(|w| w.load(Ordering::Relaxed)));
                end.act(TriggerKind::DATA, dst, src, bytes);
                let what = format_args!("{bytes:#x} at {offset:#x} of {length:#x}, side {side}").to_string();
                if fits {
                    accepted += 1;
                    assert_eq!(end.left(), LEFT_NOT, "{what}");
                    assert_eq!(end.next(), end.trigger(TriggerKind::DATA, dst, src, bytes), "{what}");
                    end.ring.pop();
                } else {
                    refused += 1;
                    assert_eq!(end.left(), LEFT_REFUSED, "{what}");
                    let after = end.ring.slot(end.ring.position).map(|w| w.load(Ordering::Relaxed));
                    assert_eq!((end.ring.head(), after), before, "{what}: something was taken");
                }
            }
        }
    }
    assert!(accepted > 50 && refused > 500, "{accepted} {refused}");
}

#[test]
fn a_refused_flush_does_not_wait() {
    let end = End::new(0);
    end.act(TriggerKind::DATA.with(TriggerKind::SYNC), LEN as u64, 0, 1);
    assert_eq!(end.left(), LEFT_REFUSED);
    assert_eq!((end.ring.head(), end.ring.poll()), (0, None));
}

#[test]
fn a_closed_fifo_takes_nothing_and_its_head_comes_back() {
    // In the first lap, in the second, and where the lower half of the head starts over.
    for start in [0, 6, (1 << 32) - 2, (1 << 32) - 1] {
        let mut end = End::new(start);
        for _ in 0..2 {
            end.act(TriggerKind::FLAG, 0, 0, 0);
        }
        assert_eq!(end.left(), LEFT_NOT);
        end.ring.close();
        let closed = u64::from(CLOSED) << 32 | (start + 2) & u64::from(u32::MAX);
        for kind in kinds() {
            let bytes = u64::from(kind.0 & TriggerKind::DATA.0);
            end.act(kind, 0, 0, bytes);
            assert_eq!((end.left(), end.ring.head()), (LEFT_CLOSED, closed), "{kind:?} from {start}");
        }
        for _ in 0..2 {
            assert_eq!(end.next(), end.trigger(TriggerKind::FLAG, 0, 0, 0), "what was pushed before stays");
            end.ring.pop();
        }
        assert_eq!(end.ring.poll(), None);
    }
}

#[test]
fn a_flush_waits_for_its_own_position() {
    // Before and after positions have more than 32 bits.
    for start in [0, (1 << 32) - 2] {
        let mut end = End::new(start);
        word(end.handle.flushed).store(start, Ordering::Release);
        end.act(TriggerKind::FLAG, 0, 0, 0);
        end.act(TriggerKind::SYNC, 0, 0, 0);
        end.start_poll();
        for kind in [TriggerKind::FLAG, TriggerKind::SYNC] {
            assert_eq!(end.next(), end.trigger(kind, 0, 0, 0));
            end.ring.pop();
        }
        let behind = end.ring.position;
        // Neither that the trigger is popped nor that an earlier flush has completed lets it go.
        word(end.handle.flushed).store(behind - 1, Ordering::Release);
        std::thread::sleep(WHILE);
        assert_eq!(end.taken(), 9, "the flush has not completed");
        word(end.handle.flushed).store(behind, Ordering::Release);
        assert_eq!(end.left(), LEFT_NOT);
        assert_eq!(end.taken(), 0);
    }
}

#[test]
fn who_waits_leaves_when_told() {
    let end = End::new(3);
    end.act(TriggerKind::SYNC, 0, 0, 0);
    end.next();
    word32(end.ring.handle.abort.word).store(1, Ordering::Release);
    end.start_poll();
    std::thread::sleep(WHILE);
    assert_eq!(end.taken(), 9, "the FIFO's word is not the channel's");
    end.ring.machine.abort();
    assert_eq!(end.left(), LEFT_TOLD);
    end.record(Operation::FLUSH, 3);
    assert_eq!(end.ring.machine.record(0).peer, PEER);

    let end = End::new(0);
    (0..=SLOTS).for_each(|_| end.act(TriggerKind::FLAG, 0, 0, 0));
    end.until("a full FIFO", || (end.ring.head() == u64::from(SLOTS) + 1).then_some(()));
    end.ring.machine.abort();
    end.start_poll();
    std::thread::sleep(WHILE);
    assert_eq!(end.taken(), 9, "the channel's word is not the FIFO's");
    word32(end.ring.handle.abort.word).store(1, Ordering::Release);
    assert_eq!(end.left(), LEFT_TOLD);
    end.record(Operation::FIFO, SLOTS.into());

    let end = End::new(0);
    end.launch(end.wait, ONE, &Args::default().structure(&end.handle).u64(end.status));
    std::thread::sleep(WHILE);
    end.ring.machine.abort();
    assert_eq!(end.left(), LEFT_TOLD);
    end.record(Operation::WAIT, 1);
    assert_eq!(end.ring.machine.record(0).peer, PEER);
}

#[test]
fn kernels_run_without_a_status_address() {
    let end = End::new(0);
    let args = Args::default().structure(&end.handle).u32(1).u64(LEN as u64).u64(0).u64(1).u64(0);
    end.ring.machine.launch(0, end.act, ONE, &args);
    end.ring.machine.finish();
    assert_eq!(end.ring.head(), 0);
}

#[test]
fn an_operation_that_was_done_leaves_the_status_alone() {
    let end = End::new(0);
    word32(end.status).store(9, Ordering::Release);
    let args = Args::default().structure(&end.handle).u32(TriggerKind::FLAG.0.into()).u64(0).u64(0).u64(0);
    end.ring.machine.launch(0, end.act, ONE, &args.u64(end.status));
    assert_eq!(end.left(), 9);
}

#[test]
fn a_wait_takes_one_signal_and_a_poll_at_most_one() {
    let end = End::new(0);
    let poll = || {
        end.start_poll();
        end.ring.machine.finish();
        end.taken()
    };
    assert_eq!(poll(), 0);
    end.launch(end.wait, ONE, &Args::default().structure(&end.handle).u64(end.status));
    std::thread::sleep(WHILE);
    word(end.handle.semaphore.inbound).store(2, Ordering::Release);
    assert_eq!(end.left(), LEFT_NOT);
    assert_eq!([poll(), poll()], [1, 0]);
    assert_eq!(end.ring.head(), 0, "waiting asks the proxy for nothing");
}

const FORMATS: [(&str, usize); 2] = [("ll8", 1), ("ll16", 2)];

#[test]
fn packets_are_made_and_one_put_asks_for_them() {
    let mut end = End::new(0);
    for (format, words) in FORMATS {
        let [put, unpack] =
            [0, 1].map(|i| end.ring.machine.function(0, "port_packet", &[("FORMAT", format)], i));
        // Everything below depends on the grid only in who does it.
        for (turn, (grid, block, packets)) in
            (1_u32..).zip([(1, 32, 1), (1, 64, 65), (2, 32, 0), (2, 32, 7), (3, 96, 500), (5, 64, 700)])
        {
            let bytes = 4 * words * packets;
            let (dst, src, from) = (16 * u64::from(turn), 32, 64 - 8 * u64::from(turn));
            let data = paint(u64::from(turn), bytes);
            end.ring.machine.write(0, end.handle.data + from, &data);
            end.ring.machine.write(0, end.handle.src, &[0xa5; LEN]);
            let shape = LaunchShape { grid, block };
            let args = Args::default().structure(&end.handle).u64(dst).u64(src).u64(from);
            end.launch(put, shape, &args.u64(bytes as u64).u32(turn).u64(end.status));
            let what = format!("{packets} packets of {format} by {grid} blocks of {block}");
            assert_eq!(end.left(), LEFT_NOT, "{what}");
            assert_eq!(end.next(), end.trigger(TriggerKind::DATA, dst, src, 2 * bytes as u64), "{what}");
            end.ring.pop();
            assert_eq!(end.ring.head(), end.ring.position, "{what}: one put");
            let mut image = vec![0xa5; LEN];
            let made = put_packets(&data, words, turn);
            image[32..32 + made.len()].copy_from_slice(&made);
            assert!(end.ring.machine.read(0, end.handle.src, LEN) == image, "{what}");

            // The peer unpacks what it received.
            end.ring.machine.write(0, end.handle.packets + dst, &made);
            end.ring.machine.write(0, end.handle.data, &[0x5a; LEN]);
            let args = Args::default().structure(&end.handle).u64(dst).u64(from).u64(bytes as u64);
            end.launch(unpack, shape, &args.u32(turn).u64(end.status));
            assert_eq!(end.left(), LEFT_NOT, "{what}");
            let mut image = vec![0x5a; LEN];
            image[from as usize..from as usize + bytes].copy_from_slice(&data);
            assert!(end.ring.machine.read(0, end.handle.data, LEN) == image, "{what}, unpacked");
        }
    }
}

#[test]
fn packets_past_the_end_are_not_put_and_a_wait_for_packets_leaves() {
    for ((format, words), operation) in
        FORMATS.into_iter().zip([Operation::UNPACK_LL8, Operation::UNPACK_LL16])
    {
        let end = End::new(0);
        let [put, unpack] =
            [0, 1].map(|i| end.ring.machine.function(0, "port_packet", &[("FORMAT", format)], i));
        let (dst, bytes) = (LEN as u64 - 64, 4 * words as u64 * 16);
        let args = Args::default().structure(&end.handle).u64(dst).u64(0).u64(0);
        end.launch(put, LaunchShape { grid: 2, block: 32 }, &args.u64(bytes).u32(1).u64(end.status));
        assert_eq!((end.left(), end.ring.head()), (LEFT_REFUSED, 0), "{format}");
        assert_eq!(end.ring.machine.read(0, end.handle.arrived, 4), [0; 4], "ready for the next one");
        // All but one of the packets are there.
        let packets = put_packets(&paint(5, bytes as usize), words, 5);
        end.ring.machine.write(0, end.handle.packets, &packets[..packets.len() - 8 * words]);
        let args = Args::default().structure(&end.handle).u64(0).u64(0).u64(bytes).u32(5).u64(end.status);
        end.launch(unpack, ONE, &args);
        std::thread::sleep(WHILE);
        end.ring.machine.abort();
        assert_eq!(end.left(), LEFT_TOLD, "{format}");
        let record = end.ring.machine.record(0);
        assert_eq!((record.operation, record.peer), (operation.0, PEER), "{format}");
    }
}
