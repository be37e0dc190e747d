//! Kernels push, this thread consumes: everything arrives once and in order through FIFOs far smaller than what is pushed.

mod device;

use aqueduct_ptx::abi::{ABORT_RECORD_COMPLETE, Fifo, NO_PEER, Operation, ProxyTrigger, lap_bit};
use aqueduct_ptx::collective::LaunchShape;
use aqueduct_ptx::oracle::fifo::Arrivals;
use aqueduct_ptx::{Target, functions};
use cuda_driver_sys::CUfunction;
use device::{Args, Machine};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// How long a test waits for the next trigger.
const PATIENCE: Duration = Duration::from_secs(60);

/// A FIFO and its consumer, as simple as the protocol allows.
struct Queue {
    machine: Machine,
    push: CUfunction,
    handle: Fifo,
    position: u64,
    status: u64,
}

impl Queue {
    /// An empty FIFO that has carried `start` triggers.
    fn new(capacity: u32, start: u64) -> Self {
        let machine = Machine::new(1);
        let push = machine.function(0, "fifo", &[], 0);
        let slots = machine.host(32 * capacity as usize) as u64;
        let tail = machine.host(8) as u64;
        let counters = machine.alloc(0, 256);
        machine.write(0, counters, &start.to_ne_bytes());
        machine.write(0, counters + 128, &start.to_ne_bytes());
        let handle = Fifo {
            slots,
            head: counters,
            tail,
            tail_cache: counters + 128,
            capacity,
            capacity_log2: capacity.ilog2(),
            abort: machine.abort_handle(0),
        };
        let queue = Self { status: machine.host(4) as u64, machine, push, handle, position: start };
        word(tail).store(start, Ordering::Relaxed);
        for ahead in 0..u64::from(capacity) {
            let position = start.wrapping_add(ahead);
            let old = u64::from(!lap_bit(position, u64::from(capacity))) << 63;
            queue.slot(position).iter().for_each(|word| word.store(old, Ordering::Relaxed));
        }
        queue
    }

    fn slot(&self, position: u64) -> [&'static AtomicU64; 4] {
        let slot = self.handle.slots + 32 * (position % u64::from(self.handle.capacity));
        [0, 8, 16, 24].map(|offset| word(slot + offset))
    }

    fn start(&self, blocks: u32, threads: u32, count: u32, cells: u64) {
        let args = Args::default().structure(&self.handle).u32(count).u64(cells).u64(self.status);
        self.machine.launch(0, self.push, LaunchShape { grid: blocks, block: threads }, &args);
    }

    fn poll(&self) -> Option<ProxyTrigger> {
        let words = self.slot(self.position).map(|word| word.load(Ordering::Relaxed));
        let trigger = ProxyTrigger { words };
        let whole = trigger.is_whole(lap_bit(self.position, u64::from(self.handle.capacity)));
        fence(Ordering::Acquire);
        whole.then_some(trigger)
    }

    fn pop(&mut self) {
        self.position = self.position.wrapping_add(1);
        word(self.handle.tail).store(self.position, Ordering::Release);
    }

    /// Consumes what `threads` threads push and calls `seen` with each before it is popped.
    fn consume(&mut self, threads: u32, count: u32, mut seen: impl FnMut(u32, u32)) {
        let mut arrivals = Arrivals::new(threads);
        for number in 0..u64::from(threads) * u64::from(count) {
            let since = Instant::now();
            let trigger = loop {
                if let Some(trigger) = self.poll() {
                    break trigger;
                }
                if since.elapsed() > PATIENCE {
                    self.machine.abort();
                    panic!("trigger {number} did not come");
                }
                std::thread::yield_now();
            };
            let (thread, index) = arrivals.take(&trigger).unwrap_or_else(|wrong| {
                self.machine.abort();
                panic!("trigger {number}: {wrong}");
            });
            seen(thread, index);
            self.pop();
        }
        self.machine.finish();
        assert_eq!(arrivals.per_thread(), Some(count));
        assert_eq!(self.poll(), None, "one too many");
        assert_eq!(self.machine.read(0, self.handle.head, 8), self.position.to_ne_bytes());
        assert_eq!(self.status(), 0);
    }

    fn status(&self) -> u32 {
        word32(self.status).load(Ordering::Acquire)
    }
}

fn word(address: u64) -> &'static AtomicU64 {
    // SAFETY: an aligned word of pinned memory that is never freed; everybody reaches it atomically.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }
}

fn word32(address: u64) -> &'static AtomicU32 {
    // SAFETY: as above; the plain stores of a kernel are behind its fence.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }
}

#[test]
fn one_warp_pushes_through_few_slots() {
    for capacity in [1, 2, 8] {
        let mut queue = Queue::new(capacity, 0);
        queue.start(1, 32, 20, 0);
        queue.consume(32, 20, |_, _| {});
    }
}

#[test]
fn a_thousand_threads_push_through_sixteen_slots() {
    let mut queue = Queue::new(16, 0);
    queue.start(4, 256, 4, 0);
    queue.consume(1024, 4, |_, _| {});
}

#[test]
fn every_start_wraps_around() {
    // All places in a lap, in both laps; the last ones carry into the upper half of the head on the way.
    for start in (0..8).chain((1 << 32) - 8..1 << 32) {
        let mut queue = Queue::new(4, start);
        queue.start(1, 32, 1, 0);
        queue.consume(32, 1, |_, _| {});
        assert_eq!(queue.position, start + 32);
    }
}

#[test]
fn what_a_trigger_speaks_of_is_there_and_may_change_after_sync() {
    let mut queue = Queue::new(4, (1 << 32) - 50);
    let cells = queue.machine.host(4 * 64) as u64;
    queue.start(2, 32, 8, cells);
    // A thread that did not wait would have written the cell again.
    queue.consume(64, 8, |thread, index| {
        assert_eq!(word32(cells + 4 * u64::from(thread)).load(Ordering::Relaxed), index + 1);
    });
}

#[test]
fn a_kernel_that_finds_no_room_leaves_when_told_to() {
    let queue = Queue::new(8, 0);
    queue.start(1, 64, 4, 0);
    let since = Instant::now();
    while (0..8).any(|p| !queue.slot(p).iter().all(|word| word.load(Ordering::Acquire) >> 63 == 1)) {
        assert!(since.elapsed() < PATIENCE, "eight triggers fit");
    }
    queue.machine.abort();
    queue.machine.finish();
    assert_eq!(queue.status(), 1);
    let record = queue.machine.record(0);
    assert_eq!(record.state, ABORT_RECORD_COMPLETE);
    assert_eq!((record.operation, record.peer), (Operation::FIFO.0, NO_PEER));
    assert_eq!(record.seen, 0, "nothing was popped");
    assert!((8..64).contains(&record.awaited), "waited for room at {}", record.awaited);
}

#[test]
fn a_thread_that_waits_for_a_position_leaves_when_told_to() {
    let queue = Queue::new(64, 0);
    let cells = queue.machine.host(4 * 32) as u64;
    queue.start(1, 32, 2, cells);
    let since = Instant::now();
    while queue.poll().is_none() {
        assert!(since.elapsed() < PATIENCE, "the first trigger did not come");
    }
    queue.machine.abort();
    queue.machine.finish();
    assert_eq!(queue.status(), 1);
    assert_eq!(queue.machine.record(0).operation, Operation::FIFO.0);
}

/// Calls the function form, as a user's kernel would: pushes (w, 1, 2, 3), stores what it got to `out`.
const CALLER: &str = "
.visible .entry push_one(.param .align 8 .b8 fifo[64], .param .u64 w, .param .u64 out)
{
    .reg .u64 %a<12>;
    .reg .u32 %r<6>;
    .param .u64 p0; .param .u64 p1; .param .u64 p2; .param .u64 p3; .param .u32 p4; .param .u32 p5;
    .param .u64 p6; .param .u64 p7; .param .u64 p8; .param .u64 p9; .param .u64 p10; .param .u64 p11;
    .param .u32 p12; .param .u32 p13;
    .param .align 8 .b8 got[16];
    ld.param.u64 %a0, [fifo+0];
    ld.param.u64 %a1, [fifo+8];
    ld.param.u64 %a2, [fifo+16];
    ld.param.u64 %a3, [fifo+24];
    ld.param.u32 %r0, [fifo+32];
    ld.param.u32 %r1, [fifo+36];
    ld.param.u64 %a4, [fifo+40];
    ld.param.u64 %a5, [fifo+48];
    ld.param.u32 %r2, [fifo+56];
    ld.param.u64 %a6, [w];
    ld.param.u64 %a7, [out];
    st.param.u64 [p0], %a0;
    st.param.u64 [p1], %a1;
    st.param.u64 [p2], %a2;
    st.param.u64 [p3], %a3;
    st.param.u32 [p4], %r0;
    st.param.u32 [p5], %r1;
    st.param.u64 [p6], %a6;
    mov.u64 %a8, 1;
    st.param.u64 [p7], %a8;
    mov.u64 %a8, 2;
    st.param.u64 [p8], %a8;
    mov.u64 %a8, 3;
    st.param.u64 [p9], %a8;
    st.param.u64 [p10], %a4;
    st.param.u64 [p11], %a5;
    st.param.u32 [p12], %r2;
    mov.u32 %r3, 0;
    st.param.u32 [p13], %r3;
    call (got), aqueduct_device_fifo_push, (p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13);
    ld.param.u64 %a9, [got+0];
    ld.param.u32 %r4, [got+8];
    cvt.u64.u32 %a10, %r4;
    st.global.u64 [%a7], %a9;
    st.global.u64 [%a7+8], %a10;
    ret;
}
";

#[test]
fn a_users_kernel_pushes_and_a_word_that_does_not_fit_is_refused() {
    let mut queue = Queue::new(2, 7);
    let module = functions(Target::new(70)).unwrap().text + CALLER;
    let push = queue.machine.load(0, &module, "push_one");
    let out = queue.machine.host(16) as u64;
    for (value, expected) in [(1 << 63, [0, 2]), ((1 << 63) - 1, [7, 0]), (u64::MAX, [0, 2]), (0, [8, 0])] {
        let args = Args::default().structure(&queue.handle).u64(value).u64(out);
        queue.machine.launch(0, push, LaunchShape { grid: 1, block: 1 }, &args);
        queue.machine.finish();
        assert_eq!(
            [word(out), word(out + 8)].map(|word| word.load(Ordering::Acquire)),
            expected,
            "{value:#x}"
        );
        let arrived = queue.poll().map(|trigger| trigger.payload());
        assert_eq!(arrived, (expected[1] == 0).then_some([value, 1, 2, 3]));
        if arrived.is_some() {
            queue.pop();
        }
    }
}
