//! Options of `aqueduct perf`. The letters are those of nccl-tests.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use aqueduct::collective::{ElementType, ReduceOp};
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use serde_json::Value;

use super::checker::CheckBy;
use super::timing::{Plan, Until};

/// Largest size accepted: larger than any device's memory, small enough that no sum or product of sizes overflows.
const MAX_BYTES: u64 = 1 << 48;

/// Largest number of samples of a row, unless the user says otherwise: of calls timed from outside, and of launches of a
/// kernel that times its own round trips.
const BATCHES: u32 = 10;
const LAUNCHES: u32 = 5;

/// A week.
const MAX_SECONDS: f64 = 7.0 * 86_400.0;

/// Number of rounded sizes that are listed.
const SHOWN: usize = 4;

/// The operation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Operation {
    /// MemoryChannel put: 16-byte stores to the peer's memory (HB)
    Put,
    /// MemoryChannel get: 16-byte loads from the peer's memory (HB)
    Get,
    /// LL8 packets, 4 bytes of data and 4 of flag, one way
    Ll8,
    /// LL16 packets, 8 bytes of data and 8 of flags, one way
    Ll16,
    /// LL128 packets, 120 bytes of data and 8 of flag, one way
    Ll128,
    /// Semaphore signal and wait, one way
    Signal,
    /// All-reduce over all ranks
    AllReduce,
}

impl Operation {
    pub(crate) fn name(self) -> String {
        value_name(self)
    }
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Operation
    #[arg(value_enum)]
    pub(crate) operation: Option<Operation>,
    #[command(flatten)]
    pub(crate) sweep: Sweep,
    /// Timed iterations per size [default: 200 up to 1 MiB, 20 above; packets and signals 10000. On the software
    /// device 10 up to 64 KiB, 3 above; packets and signals 250]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) iterations: Option<u32>,
    /// Warm-up iterations per size, not timed [default: 5; packets and signals 100. On the software device 1; packets
    /// and signals 5]
    #[arg(short = 'w', long)]
    pub(crate) warmup: Option<u32>,
    /// Check every value this many times per size (0 turns the check off)
    #[arg(short = 'c', long, default_value_t = 1)]
    pub(crate) check: u32,
    /// Who makes and compares the data of a check
    #[arg(long, value_enum, default_value_t)]
    pub(crate) check_by: CheckBy,
    /// Reduction
    #[arg(short = 'o', long = "op", default_value = "sum", value_parser = reductions())]
    pub(crate) op: ReduceOp,
    /// Element type
    #[arg(short = 'd', long = "datatype", default_value = "float", value_parser = types())]
    pub(crate) datatype: ElementType,
    /// Time replays of a CUDA graph that holds this many calls (0: plain launches)
    #[arg(short = 'G', long = "graph", default_value_t = 0, value_name = "CALLS")]
    pub(crate) graph: u32,
    /// Let both ranks of a pair put or get at the same time; bus bandwidth counts both directions
    #[arg(long)]
    pub(crate) bidirectional: bool,
    #[command(flatten)]
    pub(crate) pace: Pace,
    #[command(flatten)]
    pub(crate) results: Results,
}

/// How samples are taken.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct Pace {
    /// Calls per sample; with 1 percentiles are over single calls [default: what makes 10 samples, of packets and
    /// signals 5; 1 window]
    #[arg(long, value_name = "CALLS", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Measure each row for at least this long, such as 500ms, 5s or 2m, instead of a number of iterations
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "iterations")]
    duration: Option<Duration>,
}

/// The sizes to measure.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Sweep {
    /// Smallest size in bytes (suffixes K, M, G are powers of 1024) [default: by operation, see docs/perf.md]
    #[arg(short = 'b', long, value_parser = parse_size, value_name = "SIZE")]
    pub(crate) min_bytes: Option<u64>,
    /// Largest size in bytes [default: by operation, see docs/perf.md]
    #[arg(short = 'e', long, value_parser = parse_size, value_name = "SIZE")]
    pub(crate) max_bytes: Option<u64>,
    /// Factor between sizes
    #[arg(short = 'f', long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(2..))]
    pub(crate) step_factor: u64,
    /// Fixed step between sizes in bytes, instead of the factor
    #[arg(short = 'i', long, value_parser = parse_step, value_name = "SIZE")]
    pub(crate) step_bytes: Option<u64>,
}

/// The sizes to measure in bytes, and the line that says which sizes were rounded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) list: Vec<u64>,
    pub(crate) note: Option<String>,
}

/// What becomes of a size that is no multiple of what the operation moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// As nccl-tests does.
    Down,
    Up,
}

/// How results are shown and written.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Results {
    /// Print percentiles, deviation and CPU time: a line for each row instead of the usual table
    #[arg(long)]
    pub(crate) stats: bool,
    #[command(flatten)]
    pub(crate) files: Files,
}

/// The files to write results to.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Files {
    /// Also write the results to this file, one JSON object per line (- for standard output instead of the table)
    #[arg(short = 'J', long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Also write the rows as comma-separated values to this file (- for standard output instead of the table)
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Also write every sample as comma-separated values to this file (- for standard output instead of the table)
    #[arg(long, value_name = "FILE")]
    pub(crate) dump: Option<PathBuf>,
}

impl Args {
    /// The options of the main job: all-reduce with defaults.
    pub(crate) fn all_reduce() -> Self {
        Self {
            operation: Some(Operation::AllReduce),
            sweep: Sweep { min_bytes: None, max_bytes: None, step_factor: 2, step_bytes: None },
            iterations: None,
            warmup: None,
            check: 1,
            check_by: CheckBy::Auto,
            op: ReduceOp::Sum,
            datatype: ElementType::F32,
            graph: 0,
            bidirectional: false,
            pace: Pace::default(),
            results: Results::default(),
        }
    }
}

impl Args {
    /// The user's numbers for calls that are timed from outside, or defaults by size and device: large transfers and
    /// the software device need fewer calls for a steady median.
    pub(super) fn plan(&self, bytes: u64, software: bool) -> Plan {
        let iterations = self.iterations.unwrap_or(match (software, bytes) {
            (true, b) if b <= 1 << 16 => 10,
            (true, _) => 3,
            (false, b) if b <= 1 << 20 => 200,
            (false, _) => 20,
        });
        self.pace.plan(iterations, self.warmup.unwrap_or(if software { 1 } else { 5 }), BATCHES)
    }

    /// The same for round trips inside a kernel.
    pub(super) fn plan_of_round_trips(&self, software: bool) -> Plan {
        let (iterations, warmup) = if software { (250, 5) } else { (10_000, 100) };
        self.pace.plan(self.iterations.unwrap_or(iterations), self.warmup.unwrap_or(warmup), LAUNCHES)
    }
}

impl Pace {
    /// `iterations` calls in at most `samples` samples, unless the user wants other samples or a duration.
    pub(super) fn plan(self, iterations: u32, warmup: u32, samples: u32) -> Plan {
        let calls = self.batch.unwrap_or_else(|| iterations.div_ceil(samples.max(1)).max(1));
        let until = match self.duration {
            Some(duration) => Until::Lasted(duration),
            None => Until::Samples(iterations.div_ceil(calls).max(1)),
        };
        Plan { warmup, until, calls }
    }

    /// The options as parameters of the run.
    pub(super) fn parameters(self) -> [(&'static str, Value); 2] {
        [("batch", self.batch.into()), ("duration_s", self.duration.map(|time| time.as_secs_f64()).into())]
    }

    /// What the time of a row is, for the head. `calls` names what a sample consists of.
    pub(super) fn meaning(calls: &str) -> String {
        format!(
            "median of the samples; a sample is the mean of its {calls} (--batch 1: of one) on the slowest rank"
        )
    }
}

impl Sweep {
    /// The smallest and the largest size in bytes. `min` and `max` are the defaults.
    pub(crate) fn bounds(&self, min: u64, max: u64) -> Result<(u64, u64)> {
        let (min, max) = match (self.min_bytes, self.max_bytes) {
            (None, Some(max)) => (min.min(max), max),
            (Some(min), None) => (min, max.max(min)),
            (given, most) => (given.unwrap_or(min), most.unwrap_or(max)),
        };
        if min > max {
            bail!("--min-bytes {min} is larger than --max-bytes {max}");
        }
        if max > MAX_BYTES {
            bail!("--max-bytes {max} is more than any device has; use at most {MAX_BYTES}");
        }
        Ok((min, max))
    }

    /// The options as parameters of the run.
    pub(super) fn parameters(&self, (min, max): (u64, u64)) -> [(&'static str, Value); 4] {
        let factor = self.step_bytes.is_none().then_some(self.step_factor);
        [
            ("min_bytes", min.into()),
            ("max_bytes", max.into()),
            ("step_factor", factor.into()),
            ("step_bytes", self.step_bytes.into()),
        ]
    }

    /// The step between sizes, as text for the table's head.
    pub(crate) fn step(&self) -> String {
        self.step_bytes
            .map_or_else(|| format!("{}(factor)", self.step_factor), |bytes| format!("{bytes}(bytes)"))
    }

    /// The same, each rounded to a multiple of `grain` bytes. Sizes that become equal are measured once.
    pub(crate) fn rounded(&self, min: u64, max: u64, rounding: Rounding, grain: u64, what: &str) -> Sizes {
        let asked = self.sizes(min, max);
        let round = |&size: &u64| match rounding {
            Rounding::Down => size - size % grain,
            Rounding::Up => size.next_multiple_of(grain),
        };
        let mut list: Vec<u64> = asked.iter().map(round).collect();
        let changed: Vec<String> = asked
            .iter()
            .zip(&list)
            .filter(|(asked, got)| asked != got)
            .map(|(asked, got)| format!("{asked} is {got}"))
            .collect();
        list.dedup();
        let direction = if rounding == Rounding::Down { "down" } else { "up" };
        let note = (!changed.is_empty()).then(|| {
            let more = if changed.len() > SHOWN { ", ..." } else { "" };
            let shown = changed.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
            format!("sizes are rounded {direction} to whole {what} of {grain} bytes: {shown}{more}")
        });
        Sizes { list, note }
    }

    /// The sizes in bytes from `min` up to and including `max`, as the step gives them.
    pub(crate) fn sizes(&self, min: u64, max: u64) -> Vec<u64> {
        let mut sizes = Vec::new();
        let mut size = min;
        while size <= max {
            sizes.push(size);
            let next = match self.step_bytes {
                Some(step) => size.checked_add(step),
                None => size.max(1).checked_mul(self.step_factor),
            };
            match next {
                Some(next) => size = next,
                None => break,
            }
        }
        sizes
    }
}

/// A time such as 500ms, 5s, 5 or 2m.
pub(super) fn parse_duration(text: &str) -> std::result::Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        other => return Err(format!("unknown unit {other}: use ms, s, m or h")),
    };
    match digits.parse::<f64>() {
        Ok(number) if number > 0.0 && number * unit <= MAX_SECONDS => {
            Ok(Duration::from_secs_f64(number * unit))
        }
        Ok(_) => Err(format!("{text} is not between 0 and a week")),
        Err(_) => Err(format!("{text} is not a time such as 500ms, 5s or 2m")),
    }
}

pub(super) fn parse_size(text: &str) -> std::result::Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        other => return Err(format!("unknown suffix {other}: use K, M or G")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text} is not a size such as 8, 64K or 1G"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} does not fit into 64 bits"))
}

/// The name of a value on the command line.
pub(super) fn value_name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// A step between sizes, which would never end if it were 0.
fn parse_step(text: &str) -> std::result::Result<u64, String> {
    match parse_size(text)? {
        0 => Err("a step of 0 bytes never reaches the largest size; use at least 1".to_owned()),
        step => Ok(step),
    }
}

/// The element types, by the names of nccl-tests and, not shown by `--help`, by other usual ones.
fn types() -> impl TypedValueParser<Value = ElementType> {
    let shown = |ty: ElementType| PossibleValue::new(names(ty)[0]).aliases(&names(ty)[1..]);
    PossibleValuesParser::new(ElementType::ALL.map(shown)).try_map(|text| {
        let chosen = ElementType::ALL.into_iter().find(|ty| names(*ty).contains(&text.as_str()));
        chosen.ok_or_else(|| format!("unknown element type {text}"))
    })
}

fn names(ty: ElementType) -> &'static [&'static str] {
    match ty {
        ElementType::F32 => &["float", "float32", "f32"],
        ElementType::F16 => &["half", "float16", "f16"],
        ElementType::Bf16 => &["bfloat16", "bf16"],
        ElementType::I32 => &["int32", "int", "i32"],
        _ => &["unknown"],
    }
}

/// The reductions, by name.
fn reductions() -> impl TypedValueParser<Value = ReduceOp> {
    PossibleValuesParser::new(ReduceOp::ALL.map(ReduceOp::name)).try_map(|text| {
        let chosen = ReduceOp::ALL.into_iter().find(|op| op.name() == text);
        chosen.ok_or_else(|| format!("unknown reduction {text}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes_and_limits() {
        assert_eq!(parse_size("64K"), Ok(65536));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        assert!(parse_size("17179869184G").is_err());
        assert!(parse_size("K").is_err());
        assert!(parse_size("1X").is_err());
    }

    #[test]
    fn durations_have_units_and_limits() {
        let duration = |text| parse_duration(text).map(|time| time.as_millis());
        assert_eq!([duration("500ms"), duration("5"), duration("1.5s")], [Ok(500), Ok(5000), Ok(1500)]);
        assert_eq!([duration("2m"), duration("1h")], [Ok(120_000), Ok(3_600_000)]);
        for (text, words) in [
            ("0s", "not between"),
            ("9000h", "not between"),
            ("s", "is not a time"),
            ("1d", "unknown unit d"),
        ] {
            assert!(parse_duration(text).unwrap_err().contains(words), "{text}");
        }
        assert!(
            parse_duration("NaN").is_err()
                && parse_duration("inf").is_err()
                && parse_duration("-1s").is_err()
        );
    }

    #[test]
    fn iterations_are_spread_over_samples() {
        let plan = |batch, iterations, samples| {
            let Plan { until, calls, .. } = Pace { batch, duration: None }.plan(iterations, 0, samples);
            (until, calls)
        };
        assert_eq!(plan(None, 200, 10), (Until::Samples(10), 20));
        assert_eq!(plan(None, 3, 10), (Until::Samples(3), 1));
        assert_eq!(plan(None, 25, 10), (Until::Samples(9), 3));
        assert_eq!(plan(None, 1, 10), (Until::Samples(1), 1));
        assert_eq!(plan(Some(1), 1000, 10), (Until::Samples(1000), 1));
        assert_eq!(plan(Some(30), 100, 10), (Until::Samples(4), 30));
        let lasting = Pace { batch: None, duration: Some(Duration::from_secs(5)) };
        let Plan { until, calls, warmup } = lasting.plan(200, 7, 10);
        assert_eq!((until, calls, warmup), (Until::Lasted(Duration::from_secs(5)), 20, 7));
    }

    #[test]
    fn a_step_of_nothing_is_refused() {
        assert!(parse_step("0").unwrap_err().contains("use at least 1"));
        assert_eq!(parse_step("4K"), Ok(4096));
    }

    #[test]
    fn rounded_sizes_are_told_and_measured_once() {
        let sweep = Args::all_reduce().sweep;
        let whole = sweep.rounded(8, 64, Rounding::Down, 4, "elements");
        assert_eq!(whole, Sizes { list: vec![8, 16, 32, 64], note: None });
        let down = sweep.rounded(6, 200, Rounding::Down, 16, "elements");
        assert_eq!(down.list, [0, 16, 48, 96, 192]);
        let note = "sizes are rounded down to whole elements of 16 bytes: 6 is 0, 12 is 0, 24 is 16";
        assert_eq!(down.note.as_deref(), Some(note));
        let up = sweep.rounded(9, 72, Rounding::Up, 8, "packets");
        assert_eq!(up.list, [16, 24, 40, 72]);
        assert!(
            up.note.unwrap().ends_with("rounded up to whole packets of 8 bytes: 9 is 16, 18 is 24, 36 is 40")
        );
    }

    #[test]
    fn sizes_step_by_factor_or_bytes_and_stop() {
        let mut args = Args::all_reduce().sweep;
        assert_eq!(args.sizes(8, 64), [8, 16, 32, 64]);
        assert_eq!(args.sizes(0, 4), [0, 2, 4]);
        args.step_bytes = Some(24);
        assert_eq!(args.sizes(8, 64), [8, 32, 56]);
        assert_eq!(args.sizes(u64::MAX, u64::MAX), [u64::MAX]);
    }
}
