//! `abort.word` and `abort.record`: the host tells blocks to leave, and reads why they left, with its real code.
//!
//! The race detector does not see the host's loads and stores, and host memory is never weak. With weak memory, a kernel takes the
//! host's place, and the words lie in device memory.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aqueduct::gpu::{GpuBuffer, LaunchConfig, Module, PinnedBuffer, Stream, arg};
use aqueduct::internals::abort::{AbortRecordCell, AbortWord};
use aqueduct_ptx::abi::{ABORT_RECORD_COMPLETE, ABORT_RECORD_EMPTY, ABORT_WORD_RUN, AbortRecord};

use super::rig::{Effort, Litmus, Play, Twin};
use crate::group::{Rank, soon};

const TEXT: &str = include_str!("abort.ptx");

/// A block's page, and places in it.
const PAGE: usize = 4096;
const WORD: usize = 256;
const GO: usize = 512;
const DONE: usize = 768;
const RECORD: usize = 1024;
/// A block's own memory, and the claim in it.
const OWN: usize = 256;
const CLAIM: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tag {
    Word,
    Record,
}

/// The host's side of one block.
struct Block<'a> {
    signal: &'a AtomicU64,
    raw_word: &'a AtomicU32,
    go: &'a AtomicU64,
    done: &'a AtomicU64,
    state: &'a AtomicU32,
    word: AbortWord,
    record: AbortRecordCell<AbortRecord>,
    number: u32,
    /// Trial under way.
    trial: u32,
}

impl<'a> Block<'a> {
    fn new(memory: &'a Arc<PinnedBuffer>, number: usize) -> Self {
        let at = PAGE * number;
        let place = |offset: usize| {
            // SAFETY: within the buffer, which has a page per block.
            unsafe { memory.host_ptr().add(at + offset) }
        };
        let (word32, word64) = (
            |offset| memory.memory().word32(at + offset).unwrap(),
            |offset| memory.memory().word64(at + offset).unwrap(),
        );
        Self {
            signal: word64(0),
            raw_word: word32(WORD),
            go: word64(GO),
            done: word64(DONE),
            state: word32(RECORD),
            // SAFETY: aligned, in memory that the `Arc` keeps, and accessed only atomically.
            word: unsafe { AbortWord::from_ptr(place(WORD).cast(), memory.clone()) },
            // SAFETY: as above; kernels write it, but for the state, which this test resets while no kernel has the claim.
            record: unsafe { AbortRecordCell::from_ptr(place(RECORD).cast(), memory.clone()) },
            number: number as u32,
            trial: 1,
        }
    }

    /// Signals, and at once asks to leave.
    fn tell(&self, random: u32) {
        (0..random & 0xff).for_each(|_| spin_loop());
        self.signal.store(self.trial.into(), Ordering::Relaxed);
        (0..random >> 8 & 0xf).for_each(|_| spin_loop());
        self.word.raise();
    }

    /// Goes on once the block is done with its trial. Returns whether it did, and whether its record was wrong.
    fn turn(&mut self, tag: Tag, random: u32) -> (bool, bool) {
        let mut wrong = false;
        match tag {
            Tag::Word if self.done.load(Ordering::Acquire) < self.trial.into() => return (false, false),
            Tag::Word => self.raw_word.store(ABORT_WORD_RUN, Ordering::Relaxed),
            Tag::Record => {
                let Some(record) = self.record.read(ABORT_RECORD_COMPLETE) else { return (false, false) };
                let rank = self.trial.wrapping_mul(0x9e37_79b1).wrapping_add(self.number);
                wrong = (record.rank, record.peer, record.block) != (rank, !self.trial, self.number)
                    || record.awaited != self.trial.into();
                self.state.store(ABORT_RECORD_EMPTY, Ordering::Relaxed);
            }
        }
        self.go.store(self.trial.into(), Ordering::Release);
        self.trial += 1;
        if tag == Tag::Word {
            self.tell(random);
        }
        (true, wrong)
    }
}

/// The host's side of all blocks, until each has made its trials. Returns the number of wrong records, or none if a block was too slow.
fn host(memory: &Arc<PinnedBuffer>, blocks: usize, tag: Tag, trials: u32) -> Option<u64> {
    let mut all: Vec<Block<'_>> = (0..blocks).map(|number| Block::new(memory, number)).collect();
    if tag == Tag::Word {
        all.iter().for_each(|block| block.tell(0));
    }
    let (mut wrong, mut random, mut since) = (0, 1_u32, Instant::now());
    while all.iter().any(|block| block.trial <= trials) {
        for block in all.iter_mut().filter(|block| block.trial <= trials) {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (moved, bad) = block.turn(tag, random >> 8);
            wrong += u64::from(bad);
            if moved {
                since = Instant::now();
            }
        }
        if since.elapsed() > Duration::from_secs(20) {
            all.iter().for_each(|block| block.word.raise());
            return None;
        }
    }
    Some(wrong)
}

fn run(rank: &Rank, play: &Play<'_>, tag: Tag) {
    let context = rank.comm.context();
    let (blocks, trials, turns) = match play.effort {
        Effort::Short => (4, 50, 1 << 24),
        Effort::Seeds => (2, 8, 100_000),
        Effort::Long => (32, 5000, 1 << 24_u32),
    };
    let mode = if tag == Tag::Word { "word" } else { "record" };
    let text = Play::impatient(&play.text(context, TEXT, &[("MODE", mode)]));
    let module = Module::load_ptx(context, &text).unwrap();
    let (stay, host_kernel) = (module.function("stay").unwrap(), module.function("host").unwrap());
    let (stream, other) = (Stream::new(context).unwrap(), Stream::new(context).unwrap());
    let pinned = Arc::new(PinnedBuffer::new(context, PAGE * blocks).unwrap());
    let weak = rank.buffer(PAGE * blocks);
    let [own, out] = [OWN * blocks, 64].map(|bytes| rank.buffer(bytes));
    let standing_in = play.effort == Effort::Seeds;
    let words = if standing_in { weak.ptr() } else { pinned.device_ptr() };
    let retain = |stream: &Stream| {
        stream
            .retain_all([pinned.clone() as _, weak.clone() as _, own.clone() as _, out.clone() as _])
            .unwrap();
    };
    for seed in 0..play.seeds() {
        play.choose(seed);
        pinned.memory().fill(0);
        let mut image = vec![0_u64; OWN / 8 * blocks];
        let mut pages = vec![0_u32; PAGE / 4 * blocks];
        for block in 0..blocks {
            image[(OWN * block + CLAIM) / 8 + 1] = words + (PAGE * block + RECORD) as u64;
            // Told to leave from the beginning.
            pages[(PAGE * block + WORD) / 4] = u32::from(tag == Tag::Record);
            if tag == Tag::Record {
                pinned.memory().word32(PAGE * block + WORD).unwrap().store(1, Ordering::Relaxed);
            }
        }
        own.upload(0, &image, soon()).unwrap();
        weak.upload(0, &pages, soon()).unwrap();
        out.fill(0, soon()).unwrap();
        let (own_at, out_at) = (own.ptr(), out.ptr());
        let grid = LaunchConfig::linear(blocks as u32, 32);
        let args = [arg(&words), arg(&own_at), arg(&out_at), arg(&trials), arg(&turns)];
        // SAFETY: the kernel's parameters, which lead to memory that is retained; only atomic accesses of Rust lead there. It leaves
        // when its host does not go on.
        unsafe { stay.launch(&stream, &grid, &args) }.unwrap();
        retain(&stream);
        let mut wrong = 0;
        if standing_in {
            let bad = out_at + 8;
            let args = [arg(&words), arg(&bad), arg(&trials), arg(&turns)];
            // SAFETY: as above.
            unsafe { host_kernel.launch(&other, &LaunchConfig::linear(blocks as u32, 1), &args) }.unwrap();
            retain(&other);
        } else {
            match host(&pinned, blocks, tag, trials) {
                Some(bad) => wrong = bad,
                None => play.end("a block did not go on"),
            }
        }
        for stream in [&stream, &other] {
            if let Err(error) = stream.synchronize(play.deadline()) {
                play.end(error);
            }
        }
        if play.is_over(rank) {
            return;
        }
        let [left, gave_up, bad, host_gave_up] = counts(&out);
        if gave_up + host_gave_up > 0 {
            play.end("a kernel gave up");
        }
        let all = u64::from(trials) * blocks as u64;
        let missed = if tag == Tag::Word { left.into() } else { all - u64::from(left) };
        play.count(all, wrong + u64::from(bad) + missed);
        if play.is_over(rank) {
            return;
        }
    }
}

fn counts(out: &GpuBuffer) -> [u32; 4] {
    let mut counts = [0; 4];
    out.download(0, &mut counts, soon()).unwrap();
    counts
}

pub(super) const WORD_LITMUS: Litmus = Litmus {
    tag: "abort.word",
    way: "",
    ranks: 1,
    run: |rank, play| run(rank, play, Tag::Word),
    twins: &[Twin { name: "without the fence", changes: &[("    fence.acq_rel.sys;\n", "")], hangs: false }],
};
pub(super) const RECORD_LITMUS: Litmus = Litmus {
    tag: "abort.record",
    way: "",
    ranks: 1,
    run: |rank, play| run(rank, play, Tag::Record),
    twins: &[Twin {
        name: "relaxed store of the state",
        changes: &[("st.release.sys.global.u32 [%ar_record", "st.relaxed.sys.global.u32 [%ar_record")],
        hangs: false,
    }],
};
