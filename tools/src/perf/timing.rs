//! Timed samples of calls: how many, in which order, and what is kept of them.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use aqueduct::gpu::{CaptureMode, Event, GraphExec, KeepAlive, Stream};

use super::progress::Progress;
use super::usage::Usage;
use crate::job::Rank;

/// This rank in a run, and the progress that it shows.
pub(super) struct Session<'a> {
    pub(super) rank: &'a Rank,
    pub(super) progress: Progress,
}

/// Number of calls and samples of one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Plan {
    /// Calls that are not timed.
    pub(super) warmup: u32,
    pub(super) until: Until,
    /// Calls per sample.
    pub(super) calls: u32,
}

/// When a row has enough samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Until {
    Samples(u32),
    /// The row has taken this time: its calls, those of the bare loop beside it, and the barriers between them.
    Lasted(Duration),
}

/// The samples of a row.
#[derive(Clone, Debug)]
pub(super) struct Timed {
    /// Time per call of each sample in microseconds, of the slowest rank.
    pub(super) samples_us: Vec<f64>,
    /// Calls per sample.
    pub(super) calls: u64,
    /// CPU time over all ranks, wall time of the slowest one.
    pub(super) usage: Usage,
}

/// Makes `n` calls and returns the time per call in µs on this rank.
pub(super) type Calls<'c> = &'c mut dyn FnMut(u32) -> Result<f64>;

impl<'a> Session<'a> {
    /// Only the root shows progress.
    pub(super) fn new(rank: &'a Rank) -> Self {
        Self { rank, progress: Progress::start(rank.is_root()) }
    }

    pub(super) fn software(&self) -> bool {
        self.rank.context.driver().is_software()
    }
}

impl Until {
    /// `samples`, unless there is a duration.
    pub(super) fn of(samples: u32, duration: Option<Duration>) -> Self {
        duration.map_or(Self::Samples(samples), Self::Lasted)
    }
}

impl Plan {
    /// Whether a row is one call and no other.
    pub(super) fn is_one_call(&self) -> bool {
        self.warmup == 0 && self.until == Until::Samples(1) && self.calls == 1
    }

    /// Whether `samples` samples, which have lasted `time`, are enough.
    fn fulfilled(&self, samples: u32, time: Duration) -> bool {
        match self.until {
            Until::Samples(wanted) => samples >= wanted,
            Until::Lasted(wanted) => time >= wanted,
        }
    }

    fn step(&self, number: u32, time: Duration) -> String {
        match self.until {
            Until::Samples(wanted) => format!("sample {number} of {wanted}"),
            Until::Lasted(wanted) => {
                format!("sample {number}, {:.1} of {:.1} s", time.as_secs_f64(), wanted.as_secs_f64())
            }
        }
    }
}

/// Takes samples of each of `series` in turn, so that other load on the machine affects all of them alike. Collective.
pub(super) fn sample<const N: usize>(
    session: &Session<'_>,
    plan: &Plan,
    mut series: [Calls<'_>; N],
) -> Result<[Timed; N]> {
    let rank = session.rank;
    if plan.warmup > 0 {
        session.progress.step(|| "warming up".to_owned());
        for calls in &mut series {
            rank.barrier()?;
            calls(plan.warmup)?;
        }
    }
    let mut kept = [(); N].map(|()| (Vec::new(), Usage::default()));
    let (began, mut number, mut lasted) = (Instant::now(), 0, Duration::ZERO);
    while number == 0 || !plan.fulfilled(number, lasted) {
        number += 1;
        session.progress.step(|| plan.step(number, lasted));
        for (calls, (samples, usage)) in series.iter_mut().zip(&mut kept) {
            rank.barrier()?;
            let mine = usage.meter(|| calls(plan.calls))?;
            // All ranks see the same times, so they stop after the same sample.
            let [slowest, longest] = largest(rank, [mine, began.elapsed().as_secs_f64()])?;
            samples.push(slowest);
            lasted = Duration::from_secs_f64(longest);
        }
    }
    let mut timed = Vec::with_capacity(N);
    for (samples_us, usage) in kept {
        timed.push(Timed { samples_us, calls: u64::from(plan.calls), usage: over_ranks(rank, usage)? });
    }
    match timed.try_into() {
        Ok(timed) => Ok(timed),
        Err(_) => bail!("the samples of {N} series were kept in another number of lists"),
    }
}

/// The largest of each number over all ranks. Collective.
fn largest(rank: &Rank, mine: [f64; 2]) -> Result<[f64; 2]> {
    let bytes = [mine[0].to_le_bytes(), mine[1].to_le_bytes()].concat();
    let mut most = [0.0_f64; 2];
    for theirs in rank.bootstrap.all_gather(&bytes, rank.deadline())? {
        let ([a, b], []) = theirs.as_chunks::<8>() else {
            bail!("another rank sent a sample of a different size; do all ranks run the same version?");
        };
        most = [most[0].max(f64::from_le_bytes(*a)), most[1].max(f64::from_le_bytes(*b))];
    }
    Ok(most)
}

/// CPU time of all ranks and wall time of the slowest. Collective.
fn over_ranks(rank: &Rank, mine: Usage) -> Result<Usage> {
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    Ok(Usage {
        user: Duration::from_nanos(rank.sum(nanoseconds(mine.user))?),
        system: Duration::from_nanos(rank.sum(nanoseconds(mine.system))?),
        wall: Duration::from_secs_f64(rank.max(mine.wall.as_secs_f64())?.max(0.0)),
    })
}

/// The mean of `times` times `once`.
pub(super) fn mean(times: u32, mut once: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut sum = 0.0;
    for _ in 0..times {
        sum += once()?;
    }
    Ok(sum / f64::from(times))
}

impl Timed {
    /// Counts `calls` calls for each one that was timed, which made so many and returned the time of one.
    pub(super) fn of_many(mut self, calls: u64) -> Self {
        self.calls *= calls;
        self
    }

    /// Divides each timed call into the `parts` measured calls that it consists of.
    pub(super) fn of_parts(mut self, parts: u64) -> Self {
        self.samples_us.iter_mut().for_each(|time| *time /= parts as f64);
        self.calls *= parts;
        self
    }
}

/// Times work on anything that can record events.
pub(super) struct EventClock {
    start: Event,
    end: Event,
}

impl EventClock {
    pub(super) fn new(rank: &Rank) -> Result<Self> {
        Ok(Self { start: Event::timed(&rank.context)?, end: Event::timed(&rank.context)? })
    }

    /// Time per call in microseconds of `calls` times `once`.
    pub(super) fn time(
        &self,
        rank: &Rank,
        calls: u32,
        record: impl Fn(&Event) -> aqueduct::Result<()>,
        once: impl Fn() -> aqueduct::Result<()>,
    ) -> Result<f64> {
        let all = |_: &Event| Ok((0..calls).try_for_each(|_| once())?);
        Ok(self.span(rank, record, all, || Ok(()))? / f64::from(calls))
    }

    /// Time in microseconds of all that `work` enqueues. `work` gets the event that starts it; `keep` runs when all is enqueued.
    fn span(
        &self,
        rank: &Rank,
        record: impl Fn(&Event) -> aqueduct::Result<()>,
        work: impl FnOnce(&Event) -> Result<()>,
        keep: impl FnOnce() -> aqueduct::Result<()>,
    ) -> Result<f64> {
        record(&self.start)?;
        work(&self.start)?;
        record(&self.end)?;
        keep()?;
        self.end.synchronize(rank.deadline())?;
        Ok(f64::from(self.end.elapsed_ms(&self.start)?) * 1e3)
    }
}

/// Times work on a stream of its own.
pub(super) struct StreamClock {
    stream: Stream,
    events: EventClock,
}

impl StreamClock {
    pub(super) fn new(rank: &Rank) -> Result<Self> {
        Ok(Self { stream: Stream::new(&rank.context)?, events: EventClock::new(rank)? })
    }

    /// Time in microseconds of what `work` enqueues on the stream, and of what it makes the stream wait for. `work` also gets
    /// the event that starts it, for other streams to wait for. The stream retains `owners`, of all that the work uses: a wait
    /// may end with an error while the work goes on. Should `work` fail, what it has enqueued is safe as well: a context frees
    /// and unmaps nothing while one of its streams has work.
    pub(super) fn time(
        &self,
        rank: &Rank,
        owners: impl IntoIterator<Item = KeepAlive>,
        work: impl FnOnce(&Stream, &Event) -> Result<()>,
    ) -> Result<f64> {
        let stream = &self.stream;
        let record = |event: &Event| event.record(stream);
        self.events.span(rank, record, |start| work(stream, start), || stream.retain_all(owners))
    }
}

/// A call on a stream, made as it is or by replays of a graph that holds several.
pub(super) struct Launches<'c> {
    stream: &'c Stream,
    call: &'c dyn Fn(&Stream) -> aqueduct::Result<()>,
    graph: Option<GraphExec>,
    /// Calls per replay.
    per_replay: u32,
}

impl<'c> Launches<'c> {
    /// `per_replay` calls per graph; 0 for plain calls.
    pub(super) fn prepare(
        stream: &'c Stream,
        per_replay: u32,
        call: &'c dyn Fn(&Stream) -> aqueduct::Result<()>,
    ) -> Result<Self> {
        let mut graph = None;
        if per_replay > 0 {
            let capture = |stream: &Stream| (0..per_replay).try_for_each(|_| call(stream));
            let exec = GraphExec::capture(stream, CaptureMode::ThreadLocal, capture)?;
            exec.upload(stream)?;
            graph = Some(exec);
        }
        Ok(Self { stream, call, graph, per_replay: per_replay.max(1) })
    }

    /// Time in microseconds of one call, or of one replay: see [`of_parts`](Timed::of_parts).
    pub(super) fn time(&self, rank: &Rank, clock: &EventClock, calls: u32) -> Result<f64> {
        clock.time(
            rank,
            calls,
            |event| event.record(self.stream),
            || match &self.graph {
                Some(graph) => graph.launch(self.stream),
                None => (self.call)(self.stream),
            },
        )
    }

    pub(super) fn per_replay(&self) -> u64 {
        u64::from(self.per_replay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_take_turns_after_their_warm_up() {
        let rank = Rank::join().unwrap();
        let session = Session { rank: &rank, progress: Progress::default() };
        let made = std::cell::RefCell::new(Vec::new());
        let call = |name: char, calls: u32| {
            made.borrow_mut().push((name, calls));
            Ok(made.borrow().len() as f64)
        };
        let run = |warmup: u32, until: Until| {
            made.borrow_mut().clear();
            let plan = Plan { warmup, until, calls: 3 };
            let series: [Calls<'_>; 2] = [&mut |calls| call('a', calls), &mut |calls| call('b', calls)];
            let timed = sample(&session, &plan, series).unwrap();
            (timed, made.borrow().clone())
        };
        let ([a, b], order) = run(7, Until::Samples(2));
        assert_eq!(order, [('a', 7), ('b', 7), ('a', 3), ('b', 3), ('a', 3), ('b', 3)]);
        assert_eq!((a.samples_us, b.samples_us, a.calls), (vec![3.0, 5.0], vec![4.0, 6.0], 3));
        let (_, order) = run(0, Until::Samples(1));
        assert_eq!(order, [('a', 3), ('b', 3)], "no warm-up");
        let (wanted, began) = (Duration::from_millis(1), Instant::now());
        let ([a, _], order) = run(0, Until::Lasted(wanted));
        let took = began.elapsed();
        assert!(
            took >= wanted && a.usage.wall < took && order.len() == 2 * a.samples_us.len(),
            "{took:?} {a:?}"
        );
    }

    #[test]
    fn a_plan_ends_by_samples_or_by_time() {
        let second = Duration::from_secs(1);
        let samples = Plan { warmup: 0, until: Until::Samples(3), calls: 1 };
        assert!(!samples.fulfilled(2, second * 100) && samples.fulfilled(3, Duration::ZERO));
        let lasting = Plan { until: Until::Lasted(second), ..samples };
        assert!(!lasting.fulfilled(1000, second / 2) && lasting.fulfilled(1, second));
        assert_eq!(lasting.step(7, second / 4), "sample 7, 0.2 of 1.0 s");
    }

    #[test]
    fn a_replay_counts_as_its_calls() {
        let timed = Timed { samples_us: vec![50.0, 100.0], calls: 3, usage: Usage::default() };
        let timed = timed.of_parts(5);
        assert_eq!((timed.samples_us.clone(), timed.calls), (vec![10.0, 20.0], 15));
        let timed = timed.of_many(2);
        assert_eq!((timed.samples_us, timed.calls), (vec![10.0, 20.0], 30));
    }
}
