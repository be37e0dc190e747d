//! `fifo.commit`, `fifo.tail` and `fifo.closed`: threads of a GPU push, the host consumes with its real code.
//!
//! The race detector does not see the host's loads. With weak memory, a kernel consumes in the host's place.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use aqueduct::gpu::{Function, GpuBuffer, LaunchConfig, Module, PinnedBuffer, Stream, arg};
use aqueduct::proxy::{Fifo, FifoConsumer, ProxyTrigger};

use super::rig::{Effort, Litmus, Play, Twin};
use crate::group::{Rank, soon};

const TEXT: &str = include_str!("fifo.ptx");

/// Bytes of a thread's cell, and from the first of its cells to the second.
const CELL: usize = 256;
const FAR: usize = 1 << 16;

/// How long the host waits for the next trigger.
const PATIENCE: Duration = Duration::from_secs(20);

/// Blocks, threads, trials of each thread, mask of the pauses in nanoseconds.
type Shape = (u32, u32, u32, u32);

struct Bench<'a> {
    rank: &'a Rank,
    play: &'a Play<'a>,
    stream: Stream,
    /// For the kernel in the host's place.
    other: Stream,
    module: Module,
    cells: Arc<PinnedBuffer>,
    out: Arc<GpuBuffer>,
}

impl<'a> Bench<'a> {
    fn new(rank: &'a Rank, play: &'a Play<'a>) -> Self {
        let context = rank.comm.context();
        let text = play.text(context, TEXT, &[("FAR", &FAR.to_string())]);
        let out = rank.buffer(64);
        out.fill(0, soon()).unwrap();
        Self {
            rank,
            play,
            stream: Stream::new(context).unwrap(),
            other: Stream::new(context).unwrap(),
            module: Module::load_ptx(context, &text).unwrap(),
            cells: Arc::new(PinnedBuffer::new(context, 2 * FAR).unwrap()),
            out,
        }
    }

    fn kernel(&self, name: &str) -> Function {
        self.module.function(name).unwrap()
    }

    fn keep(&self, stream: &Stream, fifo: &Fifo) {
        stream.retain_all([self.cells.clone() as _, self.out.clone() as _, fifo.keep_alive()]).unwrap();
        stream.retain(self.rank.comm.keep_alive()).unwrap();
    }

    fn counts(&self) -> [u32; 2] {
        let mut counts = [0; 2];
        self.out.download(0, &mut counts, soon()).unwrap();
        self.out.fill(0, soon()).unwrap();
        counts
    }

    /// Waits for the kernels; false if they failed.
    fn done(&self) -> bool {
        for stream in [&self.stream, &self.other] {
            if let Err(error) = stream.synchronize(self.play.deadline()) {
                self.play.end(error);
                self.rank.comm.abort("the litmus ended");
            }
        }
        !self.play.is_over(self.rank)
    }

    /// The next trigger.
    fn next(&self, consumer: &mut FifoConsumer) -> Option<ProxyTrigger> {
        let mut since = None;
        loop {
            for _ in 0..1000 {
                if let Some(trigger) = consumer.poll() {
                    return Some(trigger);
                }
                std::hint::spin_loop();
            }
            if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                self.play.end(format!("trigger {} did not come", consumer.position()));
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// Whether a trigger came whole and behind its data. Answers by the second half of the thread's cells.
    fn answer(&self, trigger: &ProxyTrigger, last: &mut [u32]) -> bool {
        let [number, trial, value, inverse] = trigger.payload();
        let Some(seen) = last.get_mut(number as usize) else { return false };
        let expected = (trial as u32).wrapping_mul(0x9e37_79b1).wrapping_add(number as u32);
        let whole =
            trial == u64::from(*seen) + 1 && value == u64::from(expected) && inverse == u64::from(!expected);
        *seen = trial as u32;
        let cells = [0, FAR].map(|far| far + CELL * number as usize);
        let word = |offset| self.cells.memory().word32(offset).unwrap();
        let new = cells.iter().all(|&cell| word(cell).load(Ordering::Relaxed) == expected);
        cells.iter().for_each(|&cell| word(cell + 128).store(expected, Ordering::Relaxed));
        whole && new
    }

    /// Threads push through `size` slots, and wait until what they pushed is popped.
    fn pushes(&self, size: usize, (blocks, threads, trials, pause): Shape, seed: u32) -> bool {
        let fifo = Fifo::new(self.rank.comm.context(), size).unwrap();
        let handle = fifo.device_handle(self.rank.comm.abort_handle());
        let (cells, out) = (self.cells.device_ptr(), self.out.ptr());
        let all = u64::from(blocks) * u64::from(threads) * u64::from(trials);
        self.cells.memory().fill(0);
        let args = [arg(&handle), arg(&cells), arg(&out), arg(&trials), arg(&seed), arg(&pause)];
        // SAFETY: the kernel's parameters, which lead to memory that is retained; only atomic accesses of Rust lead there.
        // The kernel leaves when the communicator is aborted.
        unsafe { self.kernel("push").launch(&self.stream, &LaunchConfig::linear(blocks, threads), &args) }
            .unwrap();
        self.keep(&self.stream, &fifo);
        let mut forbidden = 0;
        if self.play.effort == Effort::Seeds {
            let (bad, count) = (out + 8, all as u32);
            let args = [arg(&handle), arg(&cells), arg(&bad), arg(&count)];
            // SAFETY: as above. It leaves when a trigger does not come.
            unsafe { self.kernel("consume").launch(&self.other, &LaunchConfig::linear(1, 1), &args) }
                .unwrap();
            self.keep(&self.other, &fifo);
        } else {
            let mut consumer = fifo.consumer().unwrap();
            let mut last = vec![0; (blocks * threads) as usize];
            for _ in 0..all {
                let Some(trigger) = self.next(&mut consumer) else {
                    self.rank.comm.abort("the litmus ended");
                    break;
                };
                forbidden += u64::from(!self.answer(&trigger, &mut last));
                consumer.pop().unwrap();
            }
        }
        if !self.done() {
            return false;
        }
        let mut counts = [0_u32; 3];
        self.out.download(0, &mut counts, soon()).unwrap();
        self.out.fill(0, soon()).unwrap();
        let [stale, left, bad] = counts;
        if left > 0 {
            self.play.end("a kernel gave up its wait");
        }
        self.play.count(all, forbidden + u64::from(stale) + u64::from(bad));
        !self.play.is_over(self.rank)
    }

    /// A FIFO that is closed while threads push: what they pushed, and nothing else, is consumed.
    fn closes(&self, turn: u32, (blocks, threads, most, pause): Shape) -> bool {
        let fifo = Fifo::new(self.rank.comm.context(), 16 << (turn % 4)).unwrap();
        let handle = fifo.device_handle(self.rank.comm.abort_handle());
        let out = self.out.ptr();
        let args = [arg(&handle), arg(&out), arg(&most), arg(&turn), arg(&pause)];
        // SAFETY: as in `pushes`. Threads leave when the FIFO is closed.
        unsafe { self.kernel("storm").launch(&self.stream, &LaunchConfig::linear(blocks, threads), &args) }
            .unwrap();
        self.keep(&self.stream, &fifo);
        let mut consumer = fifo.consumer().unwrap();
        let mut last = vec![0_u64; (blocks * threads) as usize];
        let mut torn = 0_u64;
        let mut take = |consumer: &mut FifoConsumer| {
            let Some(trigger) = consumer.poll() else { return false };
            let [number, trial, ..] = trigger.payload();
            // Each thread's triggers come in order and none is lost.
            match last.get_mut(number as usize) {
                Some(seen) if trial == *seen + 1 => *seen = trial,
                _ => torn += 1,
            }
            consumer.pop().unwrap();
            true
        };
        // Closed after any number of triggers, from the first on.
        let open = u64::from(turn.wrapping_mul(0x9e37_79b1) >> 20);
        let since = Instant::now();
        while consumer.position() < open && since.elapsed() < PATIENCE {
            take(&mut consumer);
        }
        fifo.close(soon()).unwrap();
        while take(&mut consumer) || !consumer.is_drained(soon()).unwrap() {
            if since.elapsed() > 2 * PATIENCE {
                self.play.end("a closed FIFO is not drained");
                self.rank.comm.abort("the litmus ended");
                break;
            }
        }
        if !self.done() {
            return false;
        }
        // Behind the end of the kernel nothing comes any more.
        let late = take(&mut consumer);
        let [pushed, left] = self.counts();
        let wrong = late || torn > 0 || left > 0 || u64::from(pushed) != consumer.position();
        self.play.count(1, wrong.into());
        true
    }
}

fn pushes(rank: &Rank, play: &Play<'_>, sizes: &[usize], long: &[Shape]) {
    let bench = Bench::new(rank, play);
    let shapes: &[Shape] = match play.effort {
        Effort::Short => &[(1, 64, 10, 63)],
        Effort::Seeds => &[(2, 4, 4, 3)],
        Effort::Long => long,
    };
    for seed in 0..play.seeds() {
        play.choose(seed);
        for (&shape, &size) in shapes.iter().flat_map(|shape| sizes.iter().map(move |size| (shape, size))) {
            if !bench.pushes(size, shape, seed) {
                return;
            }
        }
    }
}

fn closes(rank: &Rank, play: &Play<'_>) {
    let bench = Bench::new(rank, play);
    // More pushes than the host takes before it closes.
    let (turns, shape) = match play.effort {
        Effort::Short => (5, (2, 64, 1000, 63)),
        Effort::Seeds => (1, (2, 8, 1000, 3)),
        Effort::Long => (1000, (8, 128, 100_000, 255)),
    };
    for seed in 0..play.seeds() {
        play.choose(seed);
        if !(0..turns).all(|turn| bench.closes(seed * turns + turn, shape)) {
            return;
        }
    }
}

pub(super) const COMMIT: Litmus = Litmus {
    tag: "fifo.commit",
    way: "",
    ranks: 1,
    run: |rank, play| {
        pushes(rank, play, &[512], &[(1, 32, 10_000, 0), (2, 128, 4000, 1023), (16, 16, 4000, 0)])
    },
    twins: &[Twin {
        name: "without the fence of the push",
        changes: &[
            (
                "    fence.acq_rel.sys;\n    st.relaxed.sys.global.v2.u64 [%fp_slot",
                "    st.relaxed.sys.global.v2.u64 [%fp_slot",
            ),
            ("@%fp_room fence.acq_rel.sys;", ""),
        ],
        hangs: false,
    }],
};
pub(super) const TAIL: Litmus = Litmus {
    tag: "fifo.tail",
    way: "",
    ranks: 1,
    // Fewer slots than threads: pushes wait for room, too.
    run: |rank, play| pushes(rank, play, &[4, 1], &[(1, 32, 3000, 0), (2, 128, 500, 1023), (16, 16, 500, 0)]),
    twins: &[Twin {
        name: "relaxed load",
        changes: &[("ld.acquire.sys.global.u64 %fs_tail", "ld.relaxed.sys.global.u64 %fs_tail")],
        hangs: false,
    }],
};
/// No twin: the addition and the host's write order nothing else, and have no weaker form.
pub(super) const CLOSED: Litmus = Litmus { tag: "fifo.closed", way: "", ranks: 1, run: closes, twins: &[] };
