//! Options of `aqueduct perf`. The letters are those of nccl-tests.

use std::path::PathBuf;

use anyhow::{Result, bail};
use aqueduct::collective::{ElementType, ReduceOp};
use clap::ValueEnum;

/// Largest size accepted: larger than any device's memory, small enough that no sum or product of sizes overflows.
const MAX_BYTES: u64 = 1 << 48;

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
        self.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
    }
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Operation
    #[arg(value_enum)]
    pub(crate) operation: Option<Operation>,
    #[command(flatten)]
    pub(crate) sweep: Sweep,
    /// Timed iterations per size
    #[arg(short = 'n', long)]
    pub(crate) iterations: Option<u32>,
    /// Warm-up iterations per size
    #[arg(short = 'w', long)]
    pub(crate) warmup: Option<u32>,
    /// Check every value this many times per size (0 turns the check off)
    #[arg(short = 'c', long, default_value_t = 1)]
    pub(crate) check: u32,
    /// Reduction
    #[arg(short = 'o', long = "op", default_value = "sum", value_parser = parse_op)]
    pub(crate) op: ReduceOp,
    /// Element type
    #[arg(short = 'd', long = "datatype", default_value = "float", value_parser = parse_type)]
    pub(crate) datatype: ElementType,
    /// Time replays of a CUDA graph that holds this many calls (0: plain launches)
    #[arg(short = 'G', long = "graph", default_value_t = 0, value_name = "CALLS")]
    pub(crate) graph: u32,
    #[command(flatten)]
    pub(crate) files: Files,
}

/// The sizes to measure.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Sweep {
    /// Smallest size in bytes (suffixes K, M, G are powers of 1024)
    #[arg(short = 'b', long, value_parser = parse_size, value_name = "SIZE")]
    pub(crate) min_bytes: Option<u64>,
    /// Largest size in bytes
    #[arg(short = 'e', long, value_parser = parse_size, value_name = "SIZE")]
    pub(crate) max_bytes: Option<u64>,
    /// Factor between sizes
    #[arg(short = 'f', long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(2..))]
    pub(crate) step_factor: u64,
    /// Fixed step between sizes in bytes, instead of the factor
    #[arg(short = 'i', long, value_parser = parse_size, value_name = "SIZE")]
    pub(crate) step_bytes: Option<u64>,
}

/// Files to write the results to.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Files {
    /// Also write the results as JSON to this file (- for standard output instead of the table)
    #[arg(short = 'J', long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Also write the rows as comma-separated values to this file (- for standard output instead of the table)
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
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
            op: ReduceOp::Sum,
            datatype: ElementType::F32,
            graph: 0,
            files: Files::default(),
        }
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

    /// The step between sizes, as text for the table's head.
    pub(crate) fn step(&self) -> String {
        self.step_bytes
            .map_or_else(|| format!("{}(factor)", self.step_factor), |bytes| format!("{bytes}(bytes)"))
    }

    /// The sizes in bytes from `min` up to and including `max`, as the step gives them.
    pub(crate) fn sizes(&self, min: u64, max: u64) -> Vec<u64> {
        let mut sizes = Vec::new();
        let mut size = min;
        while size <= max {
            sizes.push(size);
            let next = match self.step_bytes {
                Some(step) => size.checked_add(step.max(1)),
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

fn parse_size(text: &str) -> std::result::Result<u64, String> {
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

fn parse_op(text: &str) -> std::result::Result<ReduceOp, String> {
    ReduceOp::ALL
        .iter()
        .copied()
        .find(|op| op.name() == text)
        .ok_or_else(|| format!("unknown reduction {text}: use sum, min or max"))
}

fn parse_type(text: &str) -> std::result::Result<ElementType, String> {
    let alias = match text {
        "float" | "float32" => "f32",
        "half" | "float16" => "f16",
        "bfloat16" => "bf16",
        "int32" | "int" => "i32",
        other => other,
    };
    ElementType::ALL
        .iter()
        .copied()
        .find(|t| t.name() == alias)
        .ok_or_else(|| format!("unknown type {text}: use float, half, bfloat16 or int32"))
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
    fn sizes_step_by_factor_or_bytes_and_stop() {
        let mut args = Args::all_reduce().sweep;
        assert_eq!(args.sizes(8, 64), [8, 16, 32, 64]);
        assert_eq!(args.sizes(0, 4), [0, 2, 4]);
        args.step_bytes = Some(24);
        assert_eq!(args.sizes(8, 64), [8, 32, 56]);
        assert_eq!(args.sizes(u64::MAX, u64::MAX), [u64::MAX]);
    }
}
