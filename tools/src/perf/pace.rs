//! How samples are taken: how many calls each one is of, and for how long a row is measured.

use std::time::Duration;

use aqueduct::internals::env;
use serde_json::Value;

use super::timing::{Plan, Until};

/// A week.
const LONGEST: Duration = Duration::from_secs(7 * 86_400);

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

    /// The meaning of a row's time, for the head. `calls` names the parts of a sample.
    pub(super) fn meaning(calls: &str) -> String {
        format!(
            "median of the samples; a sample is the mean of its {calls} (--batch 1: of one) on the slowest rank"
        )
    }
}

/// A time such as 500ms, 5s, 5 or 2m.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    match env::time(text)? {
        time if time <= LONGEST => Ok(time),
        _ => Err(format!("{text} is longer than a week")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_limits() {
        let duration = |text| parse_duration(text).map(|time| time.as_millis());
        assert_eq!([duration("500ms"), duration("5"), duration("1.5s")], [Ok(500), Ok(5000), Ok(1500)]);
        assert_eq!([duration("2m"), duration("1h")], [Ok(120_000), Ok(3_600_000)]);
        for (text, words) in [
            ("0s", "not more than 0"),
            ("9000h", "longer than a week"),
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
}
