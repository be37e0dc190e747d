//! The sizes that an operation measures: from the smallest to the largest by a factor or a step, as nccl-tests has them.

use anyhow::Result;
use serde_json::Value;

use crate::refusal::refuse;

/// Largest size accepted: larger than any device's memory, small enough that no sum or product of sizes overflows.
const MAX_BYTES: u64 = 1 << 48;

/// Number of rounded sizes that are listed.
const SHOWN: usize = 4;

/// The options that say which sizes to measure.
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
    #[arg(short = 'i', long, value_parser = parse_step, value_name = "SIZE", conflicts_with = "step_factor")]
    pub(crate) step_bytes: Option<u64>,
}

/// The sizes to measure in bytes, and the line that says which sizes were rounded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) list: Vec<u64>,
    pub(crate) note: Option<String>,
}

/// The direction in which a size that is no whole number of elements or packets is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// As nccl-tests does.
    Down,
    Up,
}

impl Default for Sweep {
    fn default() -> Self {
        Self { min_bytes: None, max_bytes: None, step_factor: 2, step_bytes: None }
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
            refuse!("--min-bytes {min} is larger than --max-bytes {max}");
        }
        if max > MAX_BYTES {
            refuse!("--max-bytes {max} is more than any device has; use at most {MAX_BYTES}");
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

/// The sum of `sizes`, which are measured together.
pub(super) fn total(sizes: &[u64]) -> Result<u64> {
    let total =
        sizes.iter().try_fold(0, |sum: u64, &size| sum.checked_add(size).filter(|&sum| sum <= MAX_BYTES));
    match total {
        Some(0) => {
            refuse!("--mix: all sizes are 0, so there is nothing to measure; give at least one that is not")
        }
        Some(total) => Ok(total),
        None => {
            refuse!("--mix: the sizes are together more than any device has; use at most {MAX_BYTES} bytes")
        }
    }
}

pub(crate) fn parse_size(text: &str) -> std::result::Result<u64, String> {
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

/// A step between sizes, which would never end if it were 0.
fn parse_step(text: &str) -> std::result::Result<u64, String> {
    match parse_size(text)? {
        0 => Err("a step of 0 bytes never reaches the largest size; use at least 1".to_owned()),
        step => Ok(step),
    }
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
    fn a_step_of_nothing_is_refused() {
        assert!(parse_step("0").unwrap_err().contains("use at least 1"));
        assert_eq!(parse_step("4K"), Ok(4096));
    }

    #[test]
    fn rounded_sizes_are_told_and_measured_once() {
        let sweep = Sweep::default();
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
        let mut args = Sweep::default();
        assert_eq!(args.sizes(8, 64), [8, 16, 32, 64]);
        assert_eq!(args.sizes(0, 4), [0, 2, 4]);
        args.step_bytes = Some(24);
        assert_eq!(args.sizes(8, 64), [8, 32, 56]);
        assert_eq!(args.sizes(u64::MAX, u64::MAX), [u64::MAX]);
    }

    #[test]
    fn sizes_that_are_measured_together_have_a_sum() {
        assert_eq!(total(&[64, 4096]).unwrap(), 4160);
        assert_eq!(total(&[MAX_BYTES, 0]).unwrap(), MAX_BYTES);
        for sizes in [&[0, 0][..], &[MAX_BYTES, 1], &[1 << 63, 1 << 63], &[u64::MAX, u64::MAX]] {
            assert!(total(sizes).unwrap_err().to_string().starts_with("--mix: "), "{sizes:?}");
        }
    }
}
