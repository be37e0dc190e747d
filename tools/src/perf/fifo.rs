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

use anyhow::{Result, bail};
use aqueduct::channel::load_kernels;
use aqueduct::gpu::{Event, Function, GpuBuffer, Stream, arg};
use aqueduct::proxy::{Fifo, Idle, Proxy, ProxyConfig};

use super::args;
use super::comparison::{Comparison, Row, Unit};
use crate::job::Rank;
use bare::Bare;
use checker::Checker;
use launch::{BLOCK, Clock, Pushes, given_up, zeroed};

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Threads that push at the same time; above 1024 in whole blocks of 1024
    #[arg(short = 'T', long, value_delimiter = ',', default_value = "1,32,128,512",
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    threads: Vec<u32>,
    /// Slots of the FIFO, a power of two
    #[arg(short = 's', long, default_value_t = Fifo::DEFAULT_SIZE)]
    fifo_size: usize,
    /// Triggers of one measurement over all threads; 200,000 for each thread, at most 2,000,000, unless given
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    triggers: Option<u64>,
    /// Measurements of each side, taken alternately
    #[arg(short = 'r', long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Let the proxy spin without ever yielding its core
    #[arg(long)]
    spin: bool,
    #[command(flatten)]
    files: args::Files,
}

pub(super) fn execute(args: &Args) -> Result<ExitCode> {
    for &threads in &args.threads {
        if threads > BLOCK && !threads.is_multiple_of(BLOCK) {
            bail!(
                "--threads {threads}: more than {BLOCK} threads run in blocks of {BLOCK}, so use a multiple of {BLOCK}"
            );
        }
    }
    let rank = Rank::join()?;
    let mut header = super::output::header(&rank, "fifo")?;
    header.push(format!(
        "fifo size {} triggers {} rounds {} idle {:?}",
        args.fifo_size,
        args.triggers.map_or_else(|| "auto".to_owned(), |n| n.to_string()),
        args.rounds,
        args.idle(),
    ));
    header.push("rate: triggers per second with the host handling each; of the slowest rank".to_owned());
    let report = Comparison::new("fifo", header, "threads", Unit::Rate);
    super::output::present(&rank, report, &args.files, |keep| {
        args.threads.iter().try_for_each(|&threads| keep(Bench::prepare(&rank, args, threads)?.row()?))
    })
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

/// Proxy, kernel and bare loop for one number of threads.
struct Bench<'a> {
    rank: &'a Rank,
    rounds: u32,
    clock: Clock,
    function: Function,
    proxy: Proxy,
    /// Wrong triggers that the handler has seen.
    wrong: Arc<AtomicU64>,
    status: Arc<GpuBuffer>,
    bare: Bare,
    pushes: Pushes,
    /// Triggers pushed so far, which the proxy should have handled.
    handled: u64,
}

impl<'a> Bench<'a> {
    fn prepare(rank: &'a Rank, args: &Args, threads: u32) -> Result<Self> {
        let context = &rank.context;
        let pushes = Pushes { threads, count: args.count(threads, context.driver().is_software()) };
        let Some(function) = load_kernels(context, "fifo", &[])?.pop() else {
            bail!("kernel file fifo has no entry");
        };
        let wrong = Arc::new(AtomicU64::new(0));
        let config = ProxyConfig::default()
            .with_fifo_size(args.fifo_size)
            .with_idle(args.idle())
            .with_rank(rank.bootstrap.rank());
        let proxy = Proxy::start(context, config, Checker::new(pushes.threads, pushes.count, wrong.clone()))?;
        Ok(Self {
            rank,
            rounds: args.rounds,
            clock: Clock {
                stream: Stream::new(context)?,
                start: Event::timed(context)?,
                end: Event::timed(context)?,
            },
            function,
            proxy,
            wrong,
            status: zeroed(rank, 4)?,
            bare: Bare::new(rank, args.fifo_size)?,
            pushes,
            handled: 0,
        })
    }

    fn row(mut self) -> Result<Row> {
        let total = self.pushes.total() as f64;
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        // Alternate, so that other load on the machine affects both alike. The first round is the warm-up.
        for round in 0..=self.rounds {
            self.rank.barrier()?;
            let mine = self.ours()?;
            let mine = self.rank.max(mine)?;
            let theirs = self.bare.time(self.rank, &self.clock, self.pushes)?;
            let theirs = self.rank.max(theirs)?;
            if round > 0 {
                ours.push(total / mine);
                bare.push(total / theirs);
            }
        }
        self.proxy.stop(self.rank.deadline())?;
        let extra = self.proxy.counters().triggers.abs_diff(self.handled);
        let wrong = self.rank.sum(self.wrong.load(Ordering::Relaxed) + extra)?;
        Ok(Unit::Rate.row(u64::from(self.pushes.threads), &ours, &bare, wrong))
    }

    /// Time of one launch in microseconds. Returns after the proxy has handled all of its triggers.
    fn ours(&mut self) -> Result<f64> {
        let (fifo, cells, status) = (self.proxy.fifo(), 0u64, self.status.ptr());
        let time = self.clock.time(self.rank, |stream| {
            let args = [arg(&fifo), arg(&self.pushes.count), arg(&cells), arg(&status)];
            // SAFETY: the parameters of the catalog row; the stream retains what is behind the handle and the status
            // until the kernel is done.
            unsafe { self.function.launch(stream, &self.pushes.config(), &args) }?;
            stream.retain_all(self.proxy.keep_alive())?;
            stream.retain(self.status.clone())
        })?;
        given_up(self.rank, &self.status, "pushes")?;
        self.handled += self.pushes.total();
        let deadline = self.rank.deadline();
        while self.proxy.counters().triggers < self.handled {
            self.proxy.check()?;
            deadline.check("perf fifo", "the proxy to handle every trigger")?;
            std::thread::yield_now();
        }
        Ok(time)
    }
}
