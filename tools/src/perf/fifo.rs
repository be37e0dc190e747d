//! `aqueduct perf fifo`: triggers per second from threads of a GPU to one host thread that handles each of them.
//!
//! Our figure is for a [`Proxy`] whose handler checks every trigger. The bare figure, from the same run, is for a
//! minimal loop that takes out the same pushes.

mod bare;
mod checker;
mod launch;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use aqueduct::channel::load_kernels;
use aqueduct::gpu::{Function, GpuBuffer, KeepAlive, arg};
use aqueduct::proxy::{Fifo, Idle, Proxy, ProxyConfig};

use super::args;
use super::comparison::{Comparison, Unit};
use super::head::{Head, auto};
use super::pace::parse_duration;
use super::record::Record;
use super::timing::{Plan, Session, StreamClock, Until, mean, sample};
use super::wide::choose;
use crate::job::Rank;
use crate::refusal::refuse;
use bare::Bare;
use checker::Checker;
use launch::{BLOCK, Pushes, given_up, zeroed};

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Threads that push at the same time; above 1024 in whole blocks of 1024
    #[arg(short = 'T', long, value_delimiter = ',', default_value = "1,32,128,512",
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    threads: Vec<u32>,
    /// Slots of the FIFO, a power of two
    #[arg(short = 's', long, default_value_t = Fifo::DEFAULT_SIZE, value_parser = parse_slots)]
    fifo_size: usize,
    /// Triggers of one measurement over all threads; 200,000 for each thread, at most 2,000,000, unless given
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    triggers: Option<u64>,
    /// Measurements of each side, taken alternately
    #[arg(short = 'r', long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Measurements of each side before those, not timed
    #[arg(short = 'w', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(..=1000))]
    warmup: u32,
    /// Let the proxy spin without ever yielding its core
    #[arg(long)]
    spin: bool,
    /// Measure each row for at least this long, such as 500ms, 5s or 2m, instead of a number of rounds
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "rounds")]
    duration: Option<Duration>,
    #[command(flatten)]
    results: args::Results,
}

pub(super) fn execute(args: &Args) -> Result<ExitCode> {
    for &threads in &args.threads {
        if threads > BLOCK && !threads.is_multiple_of(BLOCK) {
            refuse!(
                "--threads {threads}: more than {BLOCK} threads run in blocks of {BLOCK}, so use a multiple of {BLOCK}"
            );
        }
    }
    let outlets = super::output::open(&args.results.files)?;
    let rank = Rank::join()?;
    let session = Session::new(&rank);
    let mut head = Head::gather(&rank, "fifo")?;
    head.line(format!(
        "fifo size {} triggers {} rounds {} warmup {} idle {:?}",
        args.fifo_size,
        auto(args.triggers),
        args.rounds,
        args.warmup,
        args.idle(),
    ));
    head.parameters([
        ("fifo_size", args.fifo_size.into()),
        ("triggers", args.triggers.into()),
        ("rounds", args.rounds.into()),
        ("warmup", args.warmup.into()),
        ("duration_s", args.duration.map(|time| time.as_secs_f64()).into()),
        ("spin", args.spin.into()),
    ]);
    head.time("median of the measurements, each the mean of its triggers, which the host handles one by one, on the slowest rank");
    super::output::present(
        &session,
        &head,
        choose(args.results.stats, Comparison::by_threads(Unit::Rate)),
        outlets,
        |output| {
            args.threads.iter().try_for_each(|&threads| {
                session.progress.row(format!("{threads} threads"));
                output.rows(rows(&session, args, threads)?)
            })
        },
    )
}

/// Slots of a FIFO: what [`Fifo::new`] takes.
fn parse_slots(text: &str) -> std::result::Result<usize, String> {
    match text.parse::<usize>() {
        Ok(slots) if slots.is_power_of_two() && slots <= 1 << 31 => Ok(slots),
        _ => Err(format!("{text} is no power of two up to 2^31: the default is {}", Fifo::DEFAULT_SIZE)),
    }
}

impl Args {
    fn idle(&self) -> Idle {
        if self.spin { Idle::Spin } else { Idle::default() }
    }

    /// Triggers per thread.
    fn count(&self, threads: u32, software: bool) -> u32 {
        let default = if software { 2000 } else { (200_000 * u64::from(threads)).min(2_000_000) };
        let each = self.triggers.unwrap_or(default) / u64::from(threads);
        u32::try_from(each).unwrap_or(u32::MAX).max(1)
    }
}

/// Measures one number of threads: our row, and that of the bare loop.
fn rows(session: &Session<'_>, args: &Args, threads: u32) -> Result<Vec<Record>> {
    let rank = session.rank;
    let pushes = Pushes { threads, count: args.count(threads, session.software()) };
    let clock = StreamClock::new(rank)?;
    let mut ours = Proxied::prepare(rank, args, pushes)?;
    let mut bare = Bare::new(rank, args.fifo_size)?;
    let plan = Plan { warmup: args.warmup, until: Until::of(args.rounds, args.duration), calls: 1 };
    let [mine, theirs] = sample(
        session,
        &plan,
        [&mut |launches| mean(launches, || ours.time(rank, &clock)), &mut |launches| {
            mean(launches, || bare.time(rank, &clock, pushes))
        }],
    )?;
    let wrong = rank.sum(ours.finish(rank)?)?;
    let row = |record: Record| Record {
        threads: Some(threads),
        count: Some(pushes.total()),
        rate_m_s: record.time_p50_us.map(|time| 1.0 / time),
        ..record
    };
    let theirs = row(Record::comparison("bare", theirs.of_parts(pushes.total())));
    let ours = row(Record::measured("proxy", mine.of_parts(pushes.total())));
    Ok(vec![Record { wrong: Some(wrong), ..ours.compared_with(&theirs) }, theirs])
}

/// A proxy that checks what a kernel pushes.
struct Proxied {
    function: Function,
    proxy: Proxy,
    /// Wrong triggers that the handler has seen.
    wrong: Arc<AtomicU64>,
    status: Arc<GpuBuffer>,
    pushes: Pushes,
    /// Triggers pushed so far, which the proxy should have handled.
    handled: u64,
}

impl Proxied {
    fn prepare(rank: &Rank, args: &Args, pushes: Pushes) -> Result<Self> {
        let Some(function) = load_kernels(&rank.context, "fifo", &[])?.pop() else {
            bail!("kernel file fifo has no entry");
        };
        let wrong = Arc::new(AtomicU64::new(0));
        let config = ProxyConfig::default()
            .with_fifo_size(args.fifo_size)
            .with_idle(args.idle())
            .with_rank(rank.bootstrap.rank());
        let checker = Checker::new(pushes.threads, pushes.count, wrong.clone());
        let proxy = Proxy::start(&rank.context, config, checker)?;
        Ok(Self { function, proxy, wrong, status: zeroed(rank, 4)?, pushes, handled: 0 })
    }

    /// Time of one launch in microseconds. Returns after the proxy has handled all of its triggers.
    fn time(&mut self, rank: &Rank, clock: &StreamClock) -> Result<f64> {
        let (fifo, cells, status) = (self.proxy.fifo(), 0u64, self.status.ptr());
        let owners = self.proxy.keep_alive().into_iter().chain([self.status.clone() as KeepAlive]);
        let time = clock.time(rank, owners, |stream, _| {
            let args = [arg(&fifo), arg(&self.pushes.count), arg(&cells), arg(&status)];
            // SAFETY: the parameters of the catalog row; the clock's stream retains what is behind the handle and the status
            // until the kernel is done.
            Ok(unsafe { self.function.launch(stream, &self.pushes.config(), &args) }?)
        })?;
        given_up(rank, &self.status, "pushes")?;
        self.handled += self.pushes.total();
        let deadline = rank.deadline();
        while self.proxy.counters().triggers < self.handled {
            self.proxy.check()?;
            deadline.check("perf-fifo", "the proxy to handle every trigger")?;
            std::thread::yield_now();
        }
        Ok(time)
    }

    /// Ends the proxy and returns the number of triggers that were wrong, too many or missing.
    fn finish(self, rank: &Rank) -> Result<u64> {
        self.proxy.stop(rank.deadline())?;
        let extra = self.proxy.counters().triggers.abs_diff(self.handled);
        Ok(self.wrong.load(Ordering::Relaxed) + extra)
    }
}
