//! `aqueduct tune`: measures on this machine up to which size packets pay and how many blocks are best, and writes the table that
//! built-in collectives then read.

mod choose;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use aqueduct::collective::{Choice, Tuning};
use aqueduct::comm::DeviceIdentity;
use aqueduct::internals::env::Env;
use aqueduct::plan::{Element, Kind};

use super::args::{Args as PerfArgs, Common, Operation};
use super::collective::Bench;
use super::need::Need;
use super::record::Place;
use super::shape::Shape;
use super::sweep::parse_size;
use super::timing::Session;
use crate::refusal::refuse;
use crate::stdout::Stdout;
use choose::{beginning, best_column, limits};

/// The shortest message that is measured.
const SMALLEST: u64 = 1 << 10;
/// Packets serve no larger messages: long before, buffers that peers reach are faster.
const MOST_PACKET: u64 = 4 << 20;
/// Messages from which on blocks of a direct kernel are compared.
const LARGE: u64 = 1 << 20;

/// `aqueduct tune`: the table of choices of this machine.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Collectives to measure [default: all]
    #[arg(value_enum)]
    operations: Vec<Operation>,
    /// The table to write. Lines for other collectives and other numbers of ranks that stand there stay, comments do not
    #[arg(short = 'o', long, value_name = "FILE", default_value = "aqueduct.tuning")]
    output: PathBuf,
    /// Largest message [default: 256M; on the software device 64K]
    #[arg(short = 'e', long, value_name = "SIZE", value_parser = parse_size)]
    max_bytes: Option<u64>,
    /// Timed iterations per size
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: Option<u32>,
    /// Calls of the CUDA graph whose replays are timed (0: plain launches)
    #[arg(short = 'G', long = "graph", default_value_t = 20, value_name = "CALLS")]
    graph: u32,
}

/// All collectives that have both ways.
const ALL: [Operation; 9] = [
    Operation::AllReduce,
    Operation::AllGather,
    Operation::ReduceScatter,
    Operation::AllToAll,
    Operation::Broadcast,
    Operation::Reduce,
    Operation::Gather,
    Operation::Scatter,
    Operation::SendRecv,
];

pub(crate) fn execute(args: &Args) -> Result<ExitCode> {
    let operations = if args.operations.is_empty() { ALL.to_vec() } else { args.operations.clone() };
    if let Some(operation) = operations.iter().find(|operation| operation.collective(0).is_none()) {
        refuse!("{} is no built-in collective; there is nothing to choose", operation.name());
    }
    if let Some(max) = args.max_bytes.filter(|&max| max < SMALLEST) {
        refuse!("--max-bytes {max}: messages from {SMALLEST} bytes on are measured");
    }
    let rank = Need::none().join()?;
    if rank.bootstrap.size() < 2 {
        refuse!("tune works between ranks: run two or more, such as `aqueduct run -n 2 -- aqueduct tune`");
    }
    if rank.comm.topology().peers().iter().any(|peer| !peer.same_host) {
        refuse!("a table is for ranks of one host; start tune on one host only");
    }
    let session = Session::new(&rank);
    let software = session.software();
    let ranks = rank.bootstrap.size();
    let peers = rank.comm.peers();
    let Some(device) = peers.iter().find_map(|peer| peer.device.clone()) else {
        bail!("no rank has a device")
    };
    let (name, multiprocessors) = (device.name, device.multiprocessors);
    let alike = |other: &DeviceIdentity| (&other.name, other.multiprocessors) == (&name, multiprocessors);
    if let Some(other) = peers.iter().filter_map(|peer| peer.device.as_ref()).find(|other| !alike(other)) {
        refuse!(
            "a table is for devices that are alike, and here are {name} and {}; start ranks on one sort only",
            other.name
        );
    }
    // A table that cannot be kept is refused before anything is measured, and by rank 0 alone, which writes it.
    let mut table = match rank.is_root() {
        true => existing(&args.output, &name, multiprocessors)?,
        false => Tuning::new(args.output.display().to_string(), &name, multiprocessors),
    };
    rank.barrier()?;
    let max = args.max_bytes.unwrap_or(if software { 64 << 10 } else { 256 << 20 });
    let common = Common {
        check: 0,
        graph: args.graph,
        iterations: args.iterations,
        datatype: Element::F16,
        ..PerfArgs::all_reduce().common
    };
    let machine = Machine { session: &session, common, name, multiprocessors, max };
    if rank.is_root() {
        writeln!(Stdout, "# {ranks} ranks of {} with {multiprocessors} multiprocessors", machine.name)?;
    }
    for operation in operations {
        let Some(kind) = operation.collective(0) else { continue };
        match machine.measure(&operation.name(), &kind)? {
            Some(choice) => table.insert(&kind, ranks, choice)?,
            None if rank.is_root() => {
                let name = operation.name();
                writeln!(
                    Stdout,
                    "# {name}: no line, for want of scratch for packets: see AQUEDUCT_SCRATCH_BYTES"
                )?;
            }
            None => {}
        }
    }
    if rank.is_root() {
        replace(&args.output, &table.to_string())
            .with_context(|| format!("cannot write {}", args.output.display()))?;
        let path = args.output.display();
        writeln!(Stdout, "# {path} written; AQUEDUCT_TUNING={path} on all ranks makes collectives read it")?;
    }
    rank.barrier()?;
    Ok(ExitCode::SUCCESS)
}

/// Puts a file where another one may be. Whoever reads meanwhile sees one of them whole.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    std::fs::write(&new, text)?;
    std::fs::rename(&new, path).inspect_err(|_| _ = std::fs::remove_file(&new))
}

/// The table that lies at `path`, or an empty one.
fn existing(path: &Path, name: &str, multiprocessors: u32) -> Result<Tuning> {
    let empty = Tuning::new(path.display().to_string(), name, multiprocessors);
    if !path.exists() {
        std::fs::write(path, empty.to_string())
            .with_context(|| format!("cannot write {}", path.display()))?;
        return Ok(empty);
    }
    std::fs::OpenOptions::new()
        .append(true)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    let table = Tuning::read(path)?;
    if (table.device(), table.multiprocessors()) != (name, multiprocessors) {
        refuse!(
            "{} is for {} with {} multiprocessors, and here is {name} with {multiprocessors}; give another file with --output",
            path.display(),
            table.device(),
            table.multiprocessors()
        );
    }
    Ok(table)
}

/// Holds the session and the settings of the measurements.
struct Machine<'a> {
    session: &'a Session<'a>,
    common: Common,
    name: String,
    multiprocessors: u32,
    max: u64,
}

impl Machine<'_> {
    /// The best choice for a collective; `None` if there is no room for packets of any size. Every rank sees the same times, and so comes to the same.
    fn measure(&self, name: &str, kind: &Kind) -> Result<Option<Choice>> {
        let rank = self.session.rank;
        let ranks = rank.bootstrap.size();
        let shape = Shape::built_in(kind.clone(), ranks);
        let grain = shape.grain() * self.common.datatype.bytes() as u64;
        let sizes = |from: u64, to: u64| -> Vec<u64> {
            let doubled = std::iter::successors(Some(from), |size| size.checked_mul(2));
            doubled.take_while(|&size| size <= to).map(|size| size.next_multiple_of(grain)).collect()
        };
        // As collectives limit packets to their part of the scratch, of which half may still be the last candidate's. The rank that has
        // least decides, as there.
        let room = rank.min(Env::get()?.scratch_bytes as u64)? / (128 * u64::from(ranks));
        let most_packet = MOST_PACKET.min(self.max).min(room);
        let large = sizes(LARGE.min(self.max), self.max);
        let small = sizes(SMALLEST, most_packet);
        let blocks = self.candidates();
        if small.is_empty() {
            return Ok(None);
        }

        let only =
            |blocks| Choice { packet_bytes: 0, line_bytes: 0, packet_blocks: blocks, blocks, copy_bytes: 0 };
        let column =
            |rows: &[Vec<f64>], column: usize| rows.iter().map(|row| row[column]).collect::<Vec<_>>();
        let direct = self.times(&shape, &large, &blocks, only)?;
        let best_direct = best_column(&direct);
        let blocks_of_direct = blocks[best_direct];
        let by_engines = Choice { copy_bytes: 1, ..only(blocks_of_direct) };
        let copied = self.times_by("copy-engine", &shape, &large, by_engines)?;
        let copy_bytes = beginning(&large, &copied, &column(&direct, best_direct));
        if rank.is_root() {
            self.print_large(name, &large, &copied, &column(&direct, best_direct), copy_bytes)?;
        }
        let packets = self.times(&shape, &small, &blocks, |blocks| Choice {
            packet_bytes: most_packet.next_multiple_of(grain),
            packet_blocks: blocks,
            ..only(blocks_of_direct)
        })?;
        let best = best_column(&packets);
        let finally = Choice { packet_blocks: blocks[best], ..only(blocks_of_direct) };
        let by_lines = Choice { line_bytes: most_packet.next_multiple_of(grain), ..finally };
        let lines = self.times_by("lines", &shape, &small, by_lines)?;
        let direct = column(&self.times(&shape, &small, &blocks[best..=best], |_| finally)?, 0);
        let packets = column(&packets, best);
        let [packet_bytes, line_bytes] = limits(&small, [&packets, &lines, &direct]);
        let packet_blocks = blocks[best];
        let choice = Choice { packet_bytes, line_bytes, packet_blocks, blocks: blocks_of_direct, copy_bytes };
        if rank.is_root() {
            let (by, directly) = (blocks[best], choice.blocks);
            writeln!(
                Stdout,
                "# {name}: size (B), packets and LL128 packets by {by} blocks (us), directly by {directly} (us)"
            )?;
            for (((size, packets), lines), direct) in small.iter().zip(&packets).zip(&lines).zip(&direct) {
                let lines = if lines.is_finite() { format!("{lines:.2}") } else { "-".to_owned() };
                writeln!(Stdout, "{size:>12} {packets:>10.2} {lines:>10} {direct:>10.2}")?;
            }
            writeln!(Stdout, "# {name}: packets up to {packet_bytes} B, LL128 packets up to {line_bytes} B")?;
        }
        Ok(Some(choice))
    }

    /// Prints the times of large messages.
    fn print_large(
        &self,
        name: &str,
        sizes: &[u64],
        copied: &[f64],
        direct: &[f64],
        copy_bytes: u64,
    ) -> Result<()> {
        if copied.iter().all(|time| time.is_infinite()) {
            return Ok(());
        }
        writeln!(Stdout, "# {name}: size (B), by copy engines and by kernels (us)")?;
        for ((size, copied), direct) in sizes.iter().zip(copied).zip(direct) {
            writeln!(Stdout, "{size:>12} {copied:>10.2} {direct:>10.2}")?;
        }
        match copy_bytes {
            0 => writeln!(Stdout, "# {name}: never by copy engines up to {} B", self.max)?,
            bytes => writeln!(Stdout, "# {name}: by copy engines from {bytes} B on")?,
        }
        Ok(())
    }

    /// Numbers of blocks to compare.
    fn candidates(&self) -> Vec<u32> {
        let all: &[u32] = if self.session.software() { &[1, 2] } else { &[8, 16, 32, 64, 96, 128] };
        let fitting: Vec<u32> =
            all.iter().copied().filter(|&blocks| blocks <= self.multiprocessors).collect();
        if fitting.is_empty() { vec![self.multiprocessors.max(1)] } else { fitting }
    }

    /// For each size the times of each number of blocks, in microseconds.
    fn times(
        &self,
        shape: &Shape,
        sizes: &[u64],
        blocks: &[u32],
        choice: impl Fn(u32) -> Choice,
    ) -> Result<Vec<Vec<f64>>> {
        let mut times = vec![Vec::new(); sizes.len()];
        for &blocks in blocks {
            let bench = self.bench(shape, sizes, choice(blocks))?;
            for (index, times) in times.iter_mut().enumerate() {
                self.session.progress.row(format!("{} B, {blocks} blocks", sizes[index]));
                times.push(bench.median_us(index)?);
            }
        }
        Ok(times)
    }

    /// For each size the time of a choice in microseconds, infinite unless messages then go `way`: not every collective has every way, and
    /// not every machine. All ranks come to the same.
    fn times_by(&self, way: &str, shape: &Shape, sizes: &[u64], choice: Choice) -> Result<Vec<f64>> {
        let bench = self.bench(shape, sizes, choice)?;
        if bench.algorithm(usize::try_from(sizes[0])?, Place::OutOfPlace)? != way {
            return Ok(vec![f64::INFINITY; sizes.len()]);
        }
        let time = |(index, size): (usize, &u64)| {
            self.session.progress.row(format!("{size} B, {way}"));
            bench.median_us(index)
        };
        sizes.iter().enumerate().map(time).collect()
    }

    fn bench(&self, shape: &Shape, sizes: &[u64], choice: Choice) -> Result<Bench<'_>> {
        let mut table = Tuning::new("candidate", &self.name, self.multiprocessors);
        table.insert(shape.kind(), self.session.rank.bootstrap.size(), choice)?;
        Bench::tuned(self.session, &self.common, shape.clone(), sizes, table)
    }
}
