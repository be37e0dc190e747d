//! `abort.word` and `abort.record`: the host tells blocks to leave, and reads why they left, with its real code.
//!
//! The race detector does not see the host's loads and stores, and host memory is never weak. With weak memory, a kernel of
//! another device takes the host's place, and the words lie in device memory.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aqueduct::gpu::{LaunchConfig, Module, PinnedBuffer, arg};
use aqueduct::internals::abort::{AbortRecordCell, AbortWord};
use aqueduct_ptx::abi::{ABORT_RECORD_COMPLETE, ABORT_RECORD_EMPTY, ABORT_WORD_RUN, AbortRecord};

use super::region::Region;
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

/// The host's side of all blocks, until each has made its trials. Returns the number of wrong records, or none if a block was too
/// slow.
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

/// Rank 0 has the blocks that wait and is their host, too, unless a kernel of rank 1 takes its place.
fn run(rank: &Rank, play: &Play<'_>, tag: Tag) {
    let context = rank.comm.context();
    let (blocks, trials, turns) = match play.effort {
        Effort::Short => (4, 50, 1 << 24),
        Effort::Seeds => (2, 8, 5000),
        Effort::Long => (32, 5000, 1 << 24_u32),
    };
    let mode = if tag == Tag::Word { "word" } else { "record" };
    let text = Play::impatient(&play.text(context, TEXT, &[("MODE", mode)]));
    let module = Module::load_ptx(context, &text).unwrap();
    let (stay, stand_in) = (module.function("stay").unwrap(), module.function("host").unwrap());
    let region = Region::new(rank, PAGE * blocks);
    let pinned = Arc::new(PinnedBuffer::new(context, PAGE * blocks).unwrap());
    let standing_in = play.effort == Effort::Seeds;
    let words = if standing_in { region.of(0) } else { pinned.device_ptr() };
    let (own, out) = (region.state.ptr(), region.out.ptr());
    for seed in 0..play.seeds() {
        if rank.me() == 0 {
            play.choose(seed);
            reset(&region, &pinned, words, blocks, tag);
        }
        rank.barrier();
        let mut wrong = 0;
        if rank.me() == 0 {
            let args = [arg(&words), arg(&own), arg(&out), arg(&trials), arg(&turns)];
            // SAFETY: the kernel's parameters, which lead to memory that is retained; only atomic accesses of Rust lead there. It
            // leaves when its host does not go on.
            unsafe { region.launch(&stay, &LaunchConfig::linear(blocks as u32, 32), &args) };
            region.stream.retain(pinned.clone()).unwrap();
        } else if standing_in {
            let args = [arg(&words), arg(&out), arg(&trials), arg(&turns)];
            // SAFETY: as above.
            unsafe { region.launch(&stand_in, &LaunchConfig::linear(blocks as u32, 1), &args) };
        }
        if rank.me() == 0 && !standing_in {
            match host(&pinned, blocks, tag, trials) {
                Some(bad) => wrong = bad,
                None => play.end("a block did not go on"),
            }
        }
        if !region.done(play) {
            return;
        }
        let [counted, gave_up] = region.counts();
        if gave_up > 0 {
            play.end("a kernel gave up");
        }
        let all = u64::from(trials) * blocks as u64;
        match (rank.me(), tag) {
            // Blocks that left although the signal had come; blocks that did not leave, or left a wrong record.
            (0, Tag::Word) => play.count(all, counted.into()),
            (0, Tag::Record) => play.count(all, wrong + all - u64::from(counted)),
            // Records that the kernel found wrong.
            _ => play.count(0, counted.into()),
        }
        if play.is_over(rank) {
            return;
        }
    }
}

/// Makes the pages and the blocks' own memory as they are before the first trial.
fn reset(region: &Region<'_>, pinned: &PinnedBuffer, words: u64, blocks: usize, tag: Tag) {
    pinned.memory().fill(0);
    let (mut own, mut pages) = (vec![0_u64; OWN / 8 * blocks], vec![0_u32; PAGE / 4 * blocks]);
    for block in 0..blocks {
        let page = PAGE * block;
        own[(OWN * block + CLAIM) / 8 + 1] = words + (page + RECORD) as u64;
        // Told to leave from the beginning.
        let told = u32::from(tag == Tag::Record);
        pages[(page + WORD) / 4] = told;
        pinned.memory().word32(page + WORD).unwrap().store(told, Ordering::Relaxed);
    }
    region.state.upload(0, &own, soon()).unwrap();
    region.buffer.upload(0, &pages, soon()).unwrap();
}

pub(super) const WORD_LITMUS: Litmus = Litmus {
    tag: "abort.word",
    way: "",
    ranks: 2,
    run: |rank, play| run(rank, play, Tag::Word),
    twins: &[
        Twin { name: "without the fence", changes: &[("    fence.acq_rel.sys;\n", "")], hangs: false },
        Twin {
            name: "a fence of device scope",
            changes: &[("    fence.acq_rel.sys;\n", "    fence.acq_rel.gpu;\n")],
            hangs: false,
        },
    ],
};
pub(super) const RECORD_LITMUS: Litmus = Litmus {
    tag: "abort.record",
    way: "",
    ranks: 2,
    run: |rank, play| run(rank, play, Tag::Record),
    twins: &[Twin {
        name: "relaxed store of the state",
        changes: &[("st.release.sys.global.u32 [%ar_record", "st.relaxed.sys.global.u32 [%ar_record")],
        hangs: false,
    }],
};
