//! The loops over a port channel, with this thread as proxy and as peer.

use std::sync::atomic::Ordering;

use aqueduct_ptx::abi::{
    ChannelTrigger, LEFT_CLOSED, LEFT_NOT, LEFT_TOLD, PortChannelHandle, ProxyTrigger, SemaphoreHandle,
    TriggerKind, lap_bit,
};

use crate::device::Args;
use crate::ring::{Ring, word};
use crate::{ONE, WHILE, until};

const SLOTS: u32 = 16;
/// Bytes of each buffer.
const LEN: usize = 4096;
/// Words that were wrong before a launch, which adds to them.
const BEFORE: u64 = 100;

const PUT: TriggerKind = TriggerKind::DATA;
const PUT_AND_SIGNAL: TriggerKind = TriggerKind::DATA.with(TriggerKind::FLAG);

struct End {
    ring: Ring,
    handle: PortChannelHandle,
    inbox: u64,
    result: u64,
}

impl End {
    fn new() -> Self {
        let ring = Ring::new(SLOTS, 0);
        let machine = &ring.machine;
        let counters = machine.alloc(0, 64);
        let handle = PortChannelHandle {
            fifo: ring.handle,
            semaphore: SemaphoreHandle {
                inbound: machine.host(8) as u64,
                expected_inbound: counters,
                abort: machine.abort_handle(0, 1),
                ..SemaphoreHandle::default()
            },
            flushed: machine.host(8) as u64,
            dst_bytes: LEN as u64,
            src: machine.alloc(0, LEN),
            src_bytes: LEN as u64,
            semaphore_id: 3,
            dst_id: 4,
            src_id: 5,
            ..PortChannelHandle::default()
        };
        let [inbox, result] = [LEN, 24].map(|bytes| machine.alloc(0, bytes));
        machine.write(0, result + 8, &BEFORE.to_ne_bytes());
        Self { ring, handle, inbox, result }
    }

    fn launch(&self, index: usize, args: impl FnOnce(Args) -> Args) {
        let machine = &self.ring.machine;
        let function = machine.function(0, "perf_port", &[], index);
        let args = args(Args::default().structure(&self.handle)).u64(self.result);
        machine.launch(0, function, ONE, &args);
    }

    fn hop(&self, bytes: u64, [iterations, first]: [u32; 2], begins: bool, check: bool) {
        self.launch(0, |args| {
            let args = args.u64(bytes).u64(self.inbox).u32(iterations).u64(first.into());
            args.u32(begins.into()).u32(check.into())
        });
    }

    /// The next trigger must be this one.
    fn take(&mut self, kind: TriggerKind, offset: u64, size: u64) {
        let trigger = until(&self.ring.machine, "a trigger", || self.ring.poll());
        let expected = ChannelTrigger {
            kind,
            dst_id: 4,
            dst_offset: offset,
            src_id: 5,
            src_offset: offset,
            size,
            semaphore: 3,
        };
        let lap = lap_bit(self.ring.position, SLOTS.into());
        assert_eq!(trigger, expected.encode(lap).expect("it fits"), "position {}", self.ring.position);
        self.ring.pop();
    }

    fn signal(&self) {
        word(self.handle.semaphore.inbound).fetch_add(1, Ordering::Release);
    }

    /// A word of device memory.
    fn word(&self, address: u64) -> u64 {
        u64::from_ne_bytes(self.ring.machine.read(0, address, 8).try_into().expect("eight bytes"))
    }

    /// Whether the kernel measured any time, how many words were wrong, and the code that it left with.
    fn results(&self) -> (bool, u64, u32) {
        self.ring.machine.finish();
        let [time, wrong, code] = [0, 8, 16].map(|at| self.word(self.result + at));
        (time != 0, wrong - BEFORE, u32::try_from(code).expect("a code"))
    }

    /// Whether another trigger is there, or comes soon.
    fn pushes_more(&self) -> Option<ProxyTrigger> {
        std::thread::sleep(WHILE);
        self.ring.poll()
    }
}

#[test]
fn a_hop_stamps_each_put_and_counts_each_wrong_word() {
    const ITERATIONS: u32 = 4;
    for begins in [true, false] {
        for (bytes, check) in [(0, true), (16, true), (16, false), (800, true)] {
            let mut end = End::new();
            let (first, last) = (21, bytes - 8 * u64::from(bytes > 0));
            let kind = if bytes > 0 { PUT_AND_SIGNAL } else { TriggerKind::FLAG };
            end.hop(bytes, [ITERATIONS, first], begins, check);
            let mut wrong = 0;
            for round in 0..=ITERATIONS {
                let stamps = [0, 1].map(|odd| 2 * u64::from(first + round) + odd);
                let [due, mine] = if begins { stamps } else { [stamps[1], stamps[0]] };
                let mut answer = |end: &End| {
                    // The first word is wrong in one round, the last one in two others.
                    for (at, spoilt) in [(0, round == 1), (last, round == 2 || round == 3)] {
                        wrong += u64::from(spoilt && check && bytes > 0);
                        let stamp = if spoilt { due ^ 1 << 40 } else { due };
                        end.ring.machine.write(0, end.inbox + at, &stamp.to_ne_bytes());
                    }
                    end.signal();
                };
                if !begins {
                    assert_eq!(end.ring.poll(), None, "it answers before it was asked");
                    answer(&end);
                }
                end.take(kind, 0, bytes);
                let expected = if check && bytes > 0 { mine } else { 0 };
                let found = [0, last].map(|at| end.word(end.handle.src + at));
                assert_eq!(found, [expected; 2], "{bytes} bytes, round {round}");
                if begins {
                    answer(&end);
                }
            }
            assert_eq!(end.results(), (true, wrong, LEFT_NOT), "{bytes} bytes, begins: {begins}");
            assert_eq!(end.ring.poll(), None, "one too many");
        }
    }
}

#[test]
fn a_hop_that_is_told_to_leave_reports_no_time() {
    let mut end = End::new();
    end.hop(16, [9, 0], true, true);
    end.take(PUT_AND_SIGNAL, 0, 16);
    end.ring.machine.abort();
    assert_eq!(end.results(), (false, 0, LEFT_TOLD));
    assert_eq!(end.ring.head(), 1, "it asks for no more");

    let end = End::new();
    end.ring.close();
    end.hop(16, [9, 0], true, true);
    assert_eq!(end.results(), (false, 0, LEFT_CLOSED));
    assert_eq!(end.word(end.handle.semaphore.expected_inbound), 0, "nobody will answer");
}

const BYTES: u64 = 16;
const WINDOW: u32 = 4;
/// Three places.
const SPAN: u64 = 3 * BYTES;

impl End {
    fn put(&self, windows: u32) {
        self.launch(1, |args| args.u64(BYTES).u64(SPAN).u32(WINDOW).u32(windows));
    }

    fn take_window(&mut self, number: u32) {
        for put in 0..WINDOW {
            let offset = u64::from(number * WINDOW + put) * BYTES % SPAN;
            let last = PUT_AND_SIGNAL.with(TriggerKind::SYNC);
            self.take(if put + 1 == WINDOW { last } else { PUT }, offset, BYTES);
        }
    }
}

#[test]
fn one_window_is_under_way_while_another_is_flushed() {
    const WINDOWS: u32 = 4;
    let mut end = End::new();
    end.put(WINDOWS);
    end.take_window(0);
    for number in 1..WINDOWS {
        end.take_window(number);
        assert_eq!(end.pushes_more(), None, "the flush of window {} has not completed", number - 1);
        word(end.handle.flushed).store(u64::from(number * WINDOW), Ordering::Release);
    }
    assert_eq!(end.pushes_more(), None, "all windows were pushed");
    assert_eq!(end.word(end.result), 0, "the last flush has not completed");
    word(end.handle.flushed).store(end.ring.position, Ordering::Release);
    assert_eq!(end.results(), (true, 0, LEFT_NOT));
}

#[test]
fn puts_that_are_told_to_leave_report_no_time() {
    let mut end = End::new();
    end.put(9);
    (0..2).for_each(|number| end.take_window(number));
    end.ring.machine.abort();
    assert_eq!(end.results(), (false, 0, LEFT_TOLD));
    assert_eq!(end.ring.head(), 8, "it pushes no more");

    let end = End::new();
    end.ring.close();
    end.put(9);
    assert_eq!(end.results(), (false, 0, LEFT_CLOSED));
}

#[test]
fn signals_are_taken_one_after_the_other() {
    let end = End::new();
    let taken = || end.word(end.handle.semaphore.expected_inbound);
    end.launch(2, |args| args.u32(3));
    (0..2).for_each(|_| end.signal());
    std::thread::sleep(WHILE);
    assert!(end.ring.machine.is_busy(0), "it waits for the third");
    end.signal();
    assert_eq!(end.results(), (false, 0, LEFT_NOT));
    assert_eq!(taken(), 3);

    end.launch(2, |args| args.u32(5));
    end.ring.machine.abort();
    end.ring.machine.finish();
    let code = end.word(end.result + 16);
    assert_eq!((code, taken()), (LEFT_TOLD.into(), 4), "a wait that was given up is the last");
}
