//! Statistics of timed samples.

/// Statistics over the samples of a row, in the unit of the samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stats {
    /// The median: of an even number of samples, the mean of the two in the middle.
    pub(super) p50: f64,
    pub(super) mean: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    /// The smallest sample that at least 99 % of the samples do not exceed: with fewer than 100 samples the maximum.
    pub(super) p99: f64,
    /// The same for 99.9 %: with fewer than 1000 samples the maximum.
    pub(super) p999: f64,
    /// Standard deviation of the population that the samples are drawn from (divided by n - 1). A single sample has none.
    pub(super) stddev: Option<f64>,
}

impl Stats {
    /// Returns `None` if there is no sample.
    pub(super) fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let count = sorted.len();
        let p50 = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0;
        let mean = sorted.iter().sum::<f64>() / count as f64;
        let squares: f64 = sorted.iter().map(|sample| (sample - mean).powi(2)).sum();
        let stddev = (count > 1).then(|| (squares / (count - 1) as f64).sqrt());
        Some(Self { p50, mean, min, max, p99: rank(&sorted, 990), p999: rank(&sorted, 999), stddev })
    }
}

/// The sample of rank ceil(n * `per_mille` / 1000).
fn rank(sorted: &[f64], per_mille: usize) -> f64 {
    sorted[(sorted.len() * per_mille).div_ceil(1000).max(1) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_samples_does_not_matter() {
        let stats = Stats::of(&[30.0, 10.0, 20.0]).unwrap();
        assert_eq!((stats.p50, stats.mean, stats.min, stats.max), (20.0, 20.0, 10.0, 30.0));
        assert_eq!((stats.p99, stats.p999, stats.stddev), (30.0, 30.0, Some(10.0)));
        assert_eq!(Stats::of(&[1.0, 2.0, 4.0, 100.0]).unwrap().p50, 3.0);
    }

    #[test]
    fn one_sample_has_no_deviation_and_none_has_no_statistics() {
        let one = Stats::of(&[7.0]).unwrap();
        assert_eq!((one.p50, one.p99, one.stddev), (7.0, 7.0, None));
        assert_eq!(Stats::of(&[]), None);
    }

    #[test]
    fn percentiles_are_samples_by_their_rank() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        let stats = Stats::of(&hundred).unwrap();
        assert_eq!((stats.p50, stats.p99, stats.p999), (50.5, 99.0, 100.0));
        let thousand: Vec<f64> = (1..=2000).map(f64::from).collect();
        let stats = Stats::of(&thousand).unwrap();
        assert_eq!((stats.p99, stats.p999, stats.max), (1980.0, 1998.0, 2000.0));
    }
}
