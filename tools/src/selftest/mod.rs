//! `aqueduct selftest`: checks every operation on this machine and prints a report to paste into a support ticket.
//!
//! Started by hand, it launches one process per GPU, or two on the software device. Started as a rank, it
//! joins them. Every check is one row for all ranks together: passed, failed, or not run and why.

mod abort;
mod check;
mod collectives;
mod connection;
mod copies;
mod fifo;
mod group;
mod handles;
mod interrupted;
mod last_words;
mod link;
mod linked;
mod lockstep;
mod nic;
mod packets;
mod peer_access;
mod ports;
mod signals;
mod suite;
mod summary;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use aqueduct::channel::PacketFormat;
use aqueduct::comm::Transport;
use aqueduct::gpu::Device;
use aqueduct::gpu::HandlePolicy;
use aqueduct::plan::Element;

use crate::job::{self, Rank};
use crate::run::Launch;
use check::Manner;
use collectives::Way;
use interrupted::{Report, reporter};
use suite::Suite;

/// Smallest default number of ranks: most checks need two.
const FEWEST_RANKS: u32 = 2;

/// Time limit: longer than a self-test takes on any machine.
const LIMIT: Duration = Duration::from_secs(900);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of ranks; by default one per GPU, but at least two
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: Option<u32>,
    #[command(flatten)]
    manner: Manner,
}

pub(crate) fn execute(args: &Args) -> Result<ExitCode> {
    if job::is_rank()? {
        return take_part(args.manner);
    }
    let ranks = match args.ranks {
        Some(ranks) => ranks,
        None => match job::driver()? {
            driver if driver.is_software() => FEWEST_RANKS,
            driver => Device::count(&driver)?.max(FEWEST_RANKS),
        },
    };
    let mut command = vec!["aqueduct".into(), "selftest".into()];
    command.extend(args.manner.quick.then(|| "--quick".into()));
    command.extend(args.manner.spoil.then(|| "--spoil".into()));
    Launch { ranks, command, prefix: false, timeout: Some(LIMIT), input: false }.run()
}

fn take_part(manner: Manner) -> Result<ExitCode> {
    let rank = Rank::join()?;
    if rank.is_root() {
        summary::print_head(&rank)?;
    }
    let report = Report::new(rank.bootstrap.size());
    report.guard(&rank, || {
        let lost = check_all(&rank, manner, &report)?;
        if lost.is_none() {
            // Leave together: a rank may still be waiting for the last message.
            rank.barrier()?;
        }
        let mut code = ExitCode::SUCCESS;
        if reporter(lost) == rank.bootstrap.rank() {
            code = summary::print(&rank, &report.state().rows)?;
        }
        Ok(if lost.is_some() { ExitCode::from(job::OTHER_RANK_FAILED) } else { code })
    })
}

/// Runs all checks. Returns the rank that was lost meanwhile, if any.
fn check_all(rank: &Rank, manner: Manner, report: &Report) -> Result<Option<u32>> {
    let mut suite = Suite::new(rank, manner, report)?;
    suite.check("peer access", peer_access::all_reachable)?;
    for (name, policy) in [
        ("memory by file descriptor", HandlePolicy::Fd),
        ("memory by legacy handle", HandlePolicy::Legacy),
        ("memory by fabric handle", HandlePolicy::Fabric),
    ] {
        suite.check(name, |check| handles::shared(check, policy))?;
    }
    suite.check("channel put", copies::puts)?;
    suite.check("channel get", copies::gets)?;
    for format in PacketFormat::ALL {
        suite.check(&format!("channel {format} put, unpack"), |check| packets::carried(check, format))?;
    }
    suite.check("channel element read, write", signals::elements)?;
    suite.check("channel signal, wait, poll", signals::counting)?;
    suite.check("channel wait before signal", signals::waiting_first)?;
    let transports = [Transport::CudaIpc, Transport::Ethernet];
    for (tag, transport) in (0..).zip(transports) {
        let name = format!("connection {transport}");
        suite.check(&name, |check| connection::one_sided(check, transport, tag))?;
    }
    suite.check("connection verbs", |check| {
        nic::over_verbs(check, |check, transport| connection::one_sided(check, transport, 2))
    })?;
    suite.check("FIFO to a proxy", fifo::served)?;
    for (tag, transport) in (0..).zip(transports) {
        suite.check(&format!("port channel {transport}"), |check| ports::puts(check, transport, tag))?;
        suite.check(&format!("port packets {transport}"), |check| ports::packets(check, transport, tag))?;
    }
    // Verbs have no packet form.
    suite.check("port channel verbs", |check| {
        nic::over_verbs(check, |check, transport| ports::puts(check, transport, 2))
    })?;
    suite.check("device library, channel", linked::gathered)?;
    suite.check("device library, trigger", linked::answered)?;
    for way in Way::ALL {
        for ty in [Element::F32, Element::F16, Element::Bf16, Element::I32] {
            let name = format!("all-reduce {} {}", way.name(), ty.name());
            suite.check(&name, |check| collectives::reductions(check, way, ty))?;
        }
        let name = format!("all-reduce {} in a graph", way.name());
        suite.check(&name, |check| collectives::replayed(check, way))?;
    }
    suite.check("all-reduce by size", collectives::chosen)?;
    suite.check("two groups side by side", collectives::side_by_side)?;
    suite.check("abort of a waiting kernel", abort::of_a_second_group)?;
    Ok(suite.lost())
}
