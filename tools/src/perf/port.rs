//! `aqueduct perf port-put|port-lat`: a port channel between the ranks of each pair (0 and 1, 2 and 3, ...), driven by
//! kernels, over any transport.
//!
//! `port-lat` bounces a put and a signal between two kernels and reports half a round trip; size 0 is a signal alone.
//! `port-put` pushes windows of puts from the even rank to the odd one. A window of one is measured as in `port-lat`.
//! Over CudaIpc the same run also measures bare loops: `port-lat` is compared with a host thread that polls a word and
//! calls the driver, `port-put` with the copy engine.

mod bare;
mod end;
mod ping_pong;
mod windows;

use std::process::ExitCode;

use anyhow::{Result, bail};
use aqueduct::comm::Transport;
use aqueduct::proxy::Idle;

use super::args;
use super::comparison::{Comparison, Row, Unit};
use crate::job::Rank;
use bare::{CopyEngine, Relay};
use end::End;
use ping_pong::{PingPong, WORD};
use windows::{Shape, Windows};

/// Options of both commands.
#[derive(Clone, Debug, clap::Args)]
struct Common {
    /// Transport: CudaIpc, Ethernet, Ib0, Ib1, ...
    #[arg(short = 't', long)]
    transport: Transport,
    #[command(flatten)]
    sweep: args::Sweep,
    /// Measurements of each size, alternating with the bare loop
    #[arg(short = 'r', long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Let the proxies spin without ever yielding their cores
    #[arg(long)]
    spin: bool,
    #[command(flatten)]
    files: args::Files,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LatencyArgs {
    #[command(flatten)]
    common: Common,
    /// Let the bare loop take a position and fence before it writes its word, as every push to a FIFO must
    #[arg(long)]
    fenced: bool,
    /// Round trips of one measurement
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    iterations: Option<u32>,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    common: Common,
    /// Puts per window, which ends with a signal and a flush; with 1, round trips of a put and a signal are measured
    /// instead
    #[arg(short = 'W', short_alias = 'w', long, default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    window: u32,
    /// Windows, or round trips, of one measurement
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    iterations: Option<u32>,
}

impl Common {
    fn idle(&self) -> Idle {
        if self.spin { Idle::Spin } else { Idle::default() }
    }

    /// The sizes to measure in bytes, rounded up to whole words. `min` and `max` are the defaults.
    fn sizes(&self, min: u64, max: u64) -> Result<Vec<usize>> {
        let (min, max) = self.sweep.bounds(min, max)?;
        let words = |size: u64| Ok(usize::try_from(size)?.next_multiple_of(WORD));
        let mut sizes = self.sweep.sizes(min, max).into_iter().map(words).collect::<Result<Vec<_>>>()?;
        sizes.dedup();
        Ok(sizes)
    }

    /// The lines above the table: settings, the meaning of our figures and, if there is a bare loop, of the bare ones.
    fn header(&self, rank: &Rank, name: &str, settings: &str, ours: &str, bare: &str) -> Result<Vec<String>> {
        let mut header = super::output::header(rank, name)?;
        let Self { transport, rounds, .. } = self;
        header.push(format!("transport {transport} {settings} rounds {rounds} idle {:?}", self.idle()));
        header.push(format!("ours: {ours}"));
        if self.has_bare() {
            header.push(format!("bare: {bare}"));
        }
        Ok(header)
    }

    /// Whether there is a bare loop. It needs the peer's memory mapped here.
    fn has_bare(&self) -> bool {
        self.transport == Transport::CudaIpc
    }
}

pub(super) fn latency(args: &LatencyArgs) -> Result<ExitCode> {
    const NAME: &str = "port-lat";
    let common = &args.common;
    let rank = pairs(NAME)?;
    let mut sizes = common.sizes(8, 64 << 10)?;
    // Size 0, a signal alone, is always measured.
    sizes.retain(|&size| size > 0);
    sizes.insert(0, 0);
    let most = sizes.iter().copied().max().unwrap_or(0);
    let end = End::prepare(&rank, common.transport, common.idle(), most)?;
    let mut hop = PingPong::new(&rank)?;
    let mut relay = if common.has_bare() { Some(Relay::new(&rank, args.fenced)?) } else { None };
    let header = common.header(
        &rank,
        NAME,
        &format!("round trips {}", auto(args.iterations)),
        "put and signal until the peer's kernel has seen the signal, half a round trip; 0 B: a signal alone",
        if args.fenced {
            "kernel takes a position, fences and writes a word; host calls cuMemcpyAsync and cuStreamWriteValue64; kernel polls"
        } else {
            "kernel writes a word; host calls cuMemcpyAsync and cuStreamWriteValue64; kernel polls"
        },
    )?;
    let report = Comparison::new(NAME, header, "bytes", Unit::Microseconds);
    let code = super::output::present(&rank, report, &common.files, |keep| {
        sizes.iter().try_for_each(|&bytes| {
            let iterations = args.iterations.unwrap_or_else(|| hop.default_iterations(&rank, bytes));
            let wrong = hop.check(&rank, &end, bytes)?;
            let (ours, bare) = in_turns(
                &rank,
                common.rounds,
                |rank| hop.run(rank, &end, bytes, iterations),
                relay.as_mut().map(|relay| |rank: &Rank| relay.run(rank, &end, bytes, iterations)),
            )?;
            let wrong = rank.sum(wrong)?;
            keep(Unit::Microseconds.row(bytes as u64, &ours, &bare, wrong))
        })
    })?;
    end.finish(&rank)?;
    Ok(code)
}

pub(super) fn put(args: &PutArgs) -> Result<ExitCode> {
    const NAME: &str = "port-put";
    let common = &args.common;
    let rank = pairs(NAME)?;
    let software = rank.context.driver().is_software();
    let fast = !software && common.has_bare();
    let largest = match (software, fast) {
        (true, _) => 1 << 20,
        (false, true) => 128 << 20,
        (false, false) => 16 << 20,
    };
    let mut sizes = common.sizes(4 << 10, largest)?;
    sizes.retain(|&size| size > 0);
    if sizes.is_empty() {
        bail!("nothing to put: --max-bytes is 0");
    }
    // Enough round trips for milliseconds, or for about a second over a network.
    let moved = if software {
        1
    } else if fast {
        4 << 30
    } else {
        256 << 20
    };
    let shape = |bytes| Shape::choose(bytes, args.window, args.iterations, moved);
    let most = sizes.iter().map(|&bytes| shape(bytes).span()).max().unwrap_or(0);
    let end = End::prepare(&rank, common.transport, common.idle(), most)?;
    let engine = if common.has_bare() { Some(CopyEngine::new(&rank)?) } else { None };
    let header = common.header(
        &rank,
        NAME,
        &format!("window {} iters {}", args.window, auto(args.iterations)),
        if args.window == 1 {
            "a put, a signal and a wait, half a round trip"
        } else {
            "from the first push of the even rank's kernel to its last flush"
        },
        "as many cuMemcpyAsync between the same addresses",
    )?;
    let report = Comparison::new(NAME, header, "bytes", Unit::Bandwidth);
    let mut hop = PingPong::new(&rank)?;
    let windows = Windows::new(&rank)?;
    let code = super::output::present(&rank, report, &common.files, |keep| {
        sizes.iter().try_for_each(|&bytes| {
            let shape = shape(bytes);
            keep(put_line(&rank, common, &end, &mut hop, &windows, engine.as_ref(), shape)?)
        })
    })?;
    end.finish(&rank)?;
    Ok(code)
}

fn put_line(
    rank: &Rank,
    common: &Common,
    end: &End,
    hop: &mut PingPong,
    windows: &Windows,
    engine: Option<&CopyEngine>,
    shape: Shape,
) -> Result<Row> {
    let bytes = shape.bytes;
    let bare = engine.map(|engine| move |rank: &Rank| engine.run(rank, end, shape));
    let ((ours, bare), wrong) = if shape.window == 1 {
        let ours = |rank: &Rank| hop.run(rank, end, bytes, shape.windows);
        (in_turns(rank, common.rounds, ours, bare)?, hop.check(rank, end, bytes)?)
    } else {
        let ours = |rank: &Rank| windows.run(rank, end, shape);
        (in_turns(rank, common.rounds, ours, bare)?, windows.check(rank, end, shape)?)
    };
    let wrong = rank.sum(wrong)?;
    let rates = |times: Vec<f64>| times.into_iter().map(|time| bytes as f64 / time / 1e3).collect::<Vec<_>>();
    Ok(Unit::Bandwidth.row(bytes as u64, &rates(ours), &rates(bare), wrong))
}

/// Runs `ours` and `bare`, if there is one, `rounds` times each and returns their times, each the maximum over the
/// ranks. Alternates between them, so that other load on the machine affects both alike. The first of each is the
/// warm-up.
fn in_turns(
    rank: &Rank,
    rounds: u32,
    mut ours: impl FnMut(&Rank) -> Result<f64>,
    mut bare: Option<impl FnMut(&Rank) -> Result<f64>>,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut mine, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        rank.barrier()?;
        let time = ours(rank)?;
        let time = rank.max(time)?;
        let other = match &mut bare {
            Some(bare) => {
                let time = bare(rank)?;
                Some(rank.max(time)?)
            }
            None => None,
        };
        if round > 0 {
            mine.push(time);
            theirs.extend(other);
        }
    }
    Ok((mine, theirs))
}

/// An optional number as text: `auto` if it was not given.
fn auto(number: Option<u32>) -> String {
    number.map_or_else(|| "auto".to_owned(), |number| number.to_string())
}

/// Joins the job and checks that its ranks form pairs.
fn pairs(name: &str) -> Result<Rank> {
    let rank = Rank::join()?;
    if !rank.bootstrap.size().is_multiple_of(2) {
        bail!(
            "perf {name} works on pairs: run an even number of ranks, such as `aqueduct run -n 2 -- aqueduct perf {name} -t CudaIpc`"
        );
    }
    Ok(rank)
}
