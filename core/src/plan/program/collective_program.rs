//! The program: what holds for all ranks, and the way to a plan.

use super::check::{MAX_BLOCKS, structure};
use super::ir::{Buffer as BufferType, Plan, Protocol, Settings};
use super::lines::Lines;
use super::pass::{self, Options, Policy as ReplicationPolicy, Shapes};
use super::pattern::Pattern;
use super::rank::Rank;
use super::record::{Call, Recorder};
use super::switch_channel::SwitchChannel;
use crate::error::{Error, ErrorKind, Result};

/// Keeps a mistaken number of ranks from taking all memory.
const MAX_RANKS: u32 = 1 << 16;

/// A plan as its author writes it.
///
/// Make it, set what holds for all ranks, take handles ([`rank`](Self::rank)) and call operations on them; each is recorded for
/// the thread block that it names. No call fails: the first mistake is kept and [`build`](Self::build) returns it, with the
/// author's line and the place of the operation.
#[derive(Debug)]
pub struct CollectiveProgram {
    name: String,
    pattern: Pattern,
    settings: Settings,
    auto_sync: bool,
    options: Options,
    recorder: Recorder,
}

impl CollectiveProgram {
    /// A program without operations, of at most 65,536 ranks.
    #[track_caller]
    pub fn new(name: impl Into<String>, pattern: Pattern) -> Self {
        let small = pattern.ranks <= MAX_RANKS;
        let ranks = if small { pattern.ranks } else { 0 };
        let recorder = Recorder::new(ranks, pattern.input_chunks, pattern.output_chunks);
        if !small {
            let fault = format!("{} ranks; use at most {MAX_RANKS}", pattern.ranks);
            recorder.fail(Call::of("CollectiveProgram::new"), &fault);
        }
        let (settings, options) = (Settings::default(), Options::default());
        Self { name: name.into(), pattern, settings, auto_sync: true, options, recorder }
    }

    /// How data crosses between ranks, for people and for files: the operations say it exactly. `Simple` unless set.
    #[must_use]
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.settings.protocol = protocol;
        self
    }

    /// How many copies of the program share the data, one unless set. Needs more blocks and channels, and is faster where one
    /// block or channel cannot keep the links busy.
    #[must_use]
    pub fn instances(mut self, instances: u32) -> Self {
        self.options.instances = instances;
        self
    }

    /// Which chunks each instance handles; interleaved unless set.
    #[must_use]
    pub fn replication(mut self, policy: ReplicationPolicy) -> Self {
        self.options.policy = policy;
        self
    }

    /// Blocks hand data on in slices of so many bytes, a multiple of 16, so that one is at a slice while another has the next
    /// ([`pipeline`](crate::plan::pass::pipeline)). Unless set, whole chunks, or the slices of [`loop_of`](Self::loop_of).
    #[must_use]
    pub fn pipelined(mut self, slice: u64) -> Self {
        self.options.slice = Some(slice);
        self
    }

    /// Whether neighbouring operations are joined; they are unless set.
    #[must_use]
    pub fn fusion(mut self, fusion: bool) -> Self {
        self.options.fusion = fusion.then_some(Shapes::Any);
        self
    }

    /// Whether [`compile`](Self::compile) places the syncs within blocks; it does unless set. Otherwise the plan has those that the
    /// program asks for, and nothing is fused, because fusion moves syncs.
    #[must_use]
    pub fn auto_sync(mut self, auto_sync: bool) -> Self {
        self.auto_sync = auto_sync;
        self
    }

    /// Threads of every block: a multiple of 32 up to 1024, which it is unless set.
    #[must_use]
    pub fn threads_per_block(mut self, threads: u32) -> Self {
        self.settings.threads_per_block = threads;
        self
    }

    /// Whether consecutive calls alternate between two halves of scratch, so that a rank may begin the next call while a peer
    /// still reads what it sent in this one.
    #[must_use]
    pub fn double_scratch(mut self, double: bool) -> Self {
        self.settings.double_scratch = double;
        self
    }

    /// Whether chunks have sizes of their own, known only at run time ([`Settings::variable_chunks`](crate::plan::Settings)). Such a
    /// program is an all-to-all or a reduce-scatter of one chunk for each rank. Every block begins with a signal to each other rank
    /// and a wait for each, and moves single chunks between inputs and outputs.
    #[must_use]
    pub fn variable_chunks(mut self, variable: bool) -> Self {
        self.settings.variable_chunks = variable;
        self
    }

    /// Whether calls on different buffers share one context and its scratch.
    #[must_use]
    pub fn reuse_resources(mut self, reuse: bool) -> Self {
        self.settings.reuse_resources = reuse;
        self
    }

    /// Bytes to which parts of a chunk are aligned: a power of two, 16 unless set.
    #[must_use]
    pub fn alignment(mut self, bytes: u32) -> Self {
        self.settings.alignment = bytes;
        self
    }

    /// The smallest and the largest message that the program is meant for, in bytes; all unless set.
    #[must_use]
    pub fn message_bytes(mut self, min: u64, max: u64) -> Self {
        (self.settings.min_bytes, self.settings.max_bytes) = (min, max);
        self
    }

    /// A rank.
    #[track_caller]
    pub fn rank(&self, index: u32) -> Rank<'_> {
        if let Err(fault) = self.recorder.known(index) {
            self.recorder.fail(Call::of("CollectiveProgram::rank"), &fault);
        }
        Rank { recorder: &self.recorder, index }
    }

    /// All ranks in order.
    pub fn ranks(&self) -> impl Iterator<Item = Rank<'_>> {
        (0..self.recorder.ranks()).map(|index| Rank { recorder: &self.recorder, index })
    }

    /// A new switch channel over the same buffer of some ranks.
    #[track_caller]
    pub fn switch_channel(
        &self,
        ranks: impl IntoIterator<Item = u32>,
        buffer: BufferType,
    ) -> SwitchChannel<'_> {
        let call = Call::of("CollectiveProgram::switch_channel");
        SwitchChannel::new(call, &self.recorder, ranks.into_iter().collect(), buffer)
    }

    /// Repeats what `body` calls over slices of `unit` bytes of `chunks` chunks: in iteration k, every operation handles bytes
    /// `k * unit ..` of its own range, so every operation in a loop is of `chunks` chunks. Blocks run their parts of the loop
    /// independently; semaphores and channels keep them in step.
    #[track_caller]
    pub fn loop_of<T>(&self, unit: u64, chunks: u32, body: impl FnOnce() -> T) -> T {
        self.recorder.looped(Call::of("CollectiveProgram::loop_of"), unit, chunks, body)
    }

    /// The author's lines of the operations called so far, by their places in the plan that [`build`](Self::build) gives.
    pub fn lines(&self) -> Lines {
        self.recorder.lines()
    }

    /// The same, by their places in the plan that [`compile`](Self::compile) gives.
    pub fn compiled_lines(&self) -> Lines {
        // More instances than a rank may have blocks do not compile, and a mistaken number must not take all memory.
        let instances = self.options.instances.min(MAX_BLOCKS as u32);
        self.recorder.lines_of_work().replicated(instances, self.options.policy)
    }

    /// The plan to run: as it was written, with syncs where operations of a block depend on each other, fused, replicated, and
    /// without what nobody uses ([`pass`]).
    ///
    /// # Errors
    /// Those of [`build`](Self::build), and those of the passes.
    pub fn compile(self) -> Result<Plan> {
        let (auto_sync, options) = (self.auto_sync, self.options);
        let plan = self.build()?;
        if auto_sync {
            return pass::run(&plan, &options, None);
        }
        let plan = options.slice.map_or(Ok(plan.clone()), |slice| pass::pipeline(&plan, slice))?;
        pass::resources(&pass::replicate(&plan, options.instances, options.policy)?)
    }

    /// The plan as it was written: with the syncs that its author asked for, without any pass.
    ///
    /// # Errors
    /// [`ErrorKind::Plan`]: the first mistake of a call, otherwise the first finding of
    /// [`structure`](crate::plan::check::structure). The message begins with the author's line where one line is to blame.
    pub fn build(self) -> Result<Plan> {
        let Self { name, pattern, settings, options, recorder, .. } = self;
        let refused = |message: String| Error::new(ErrorKind::Plan, "CollectiveProgram::build", message);
        let (ranks, lines) = recorder.finish()?;
        if options.instances == 0 {
            return Err(refused("0 instances; use at least one".into()));
        }
        let plan = Plan { name, collective: pattern.collective, settings, ranks };
        match structure(&plan).first() {
            None => Ok(plan),
            Some(finding) => Err(refused(lines.explain(finding))),
        }
    }
}
