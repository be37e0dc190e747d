//! One measured row, the same for every operation: what tables print and files hold. docs/perf.md documents the fields.

use serde::Serialize;
use serde_json::Value;

use super::stats::Stats;
use super::timing::Timed;

/// Whether a row is the library's, or a bare loop's that it is compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Series {
    #[default]
    Measured,
    Comparison,
}

/// Place of the result of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Place {
    OutOfPlace,
    InPlace,
}

impl Place {
    /// For people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::OutOfPlace => "out of place",
            Self::InPlace => "in place",
        }
    }
}

/// Kind of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Over {
    /// Single calls.
    Calls,
    /// Means of several calls.
    BatchMeans,
    /// Ranks, each with one time.
    Ranks,
}

/// Declares the struct and the list of its fields in files, in their order.
macro_rules! record {
    ($($(#[$about:meta])* $name:ident: $ty:ty,)*) => {
        /// One row. A field that does not apply to an operation is `None`: absent in JSON, empty in CSV.
        #[derive(Clone, Debug, Default, Serialize)]
        pub(super) struct Record {
            $($(#[$about])* pub(super) $name: $ty,)*
            /// Time per call of each sample in microseconds, for the dump.
            #[serde(skip)]
            pub(super) samples_us: Vec<f64>,
        }

        /// Names of the fields.
        pub(super) const FIELDS: &[&str] = &[$(stringify!($name)),*];
    };
}

record! {
    series: Series,
    /// The protocol, algorithm or transport, or the name of the bare loop.
    algorithm: String,
    place: Option<Place>,
    /// The part of a start that this row is about.
    phase: Option<&'static str>,
    /// Number of ranks, where the job does not have a fixed one.
    ranks: Option<u32>,
    threads: Option<u32>,
    /// Bytes of one call.
    size_bytes: Option<u64>,
    /// Sizes of the parts of a call, where it has several.
    sizes: Option<String>,
    /// Elements of one call.
    count: Option<u64>,
    datatype: Option<&'static str>,
    reduction: Option<&'static str>,
    /// Calls before a wait for their completion.
    window: Option<u32>,
    samples: u64,
    calls_per_sample: u64,
    percentiles_over: Option<Over>,
    time_p50_us: Option<f64>,
    time_mean_us: Option<f64>,
    time_min_us: Option<f64>,
    time_max_us: Option<f64>,
    time_p99_us: Option<f64>,
    time_p99_9_us: Option<f64>,
    time_stddev_us: Option<f64>,
    /// Bytes of a call divided by the median time, in 1e9 bytes per second.
    algorithm_bandwidth_gb_s: Option<f64>,
    /// The same times the factor of the operation.
    bus_bandwidth_gb_s: Option<f64>,
    /// Millions of calls per second, from the median time.
    rate_m_s: Option<f64>,
    /// Speed of this row divided by that of the row it is compared with.
    speed_ratio: Option<f64>,
    /// CPU time of all threads of all ranks during the timed calls.
    cpu_user_s: Option<f64>,
    cpu_system_s: Option<f64>,
    /// Time that the timed calls took on the slowest rank.
    wall_s: Option<f64>,
    processes: Option<usize>,
    sent_mean_bytes: Option<f64>,
    sent_max_bytes: Option<u64>,
    connections_max: Option<usize>,
    control_links_max: Option<usize>,
    /// Wrong values over all ranks and checked calls, or `None` if nothing was checked.
    wrong: Option<u64>,
}

impl Record {
    /// A row of the library.
    pub(super) fn measured(algorithm: impl Into<String>, timed: Timed) -> Self {
        Self::timed(Series::Measured, algorithm, timed)
    }

    /// A row that others are compared with.
    pub(super) fn comparison(algorithm: impl Into<String>, timed: Timed) -> Self {
        Self::timed(Series::Comparison, algorithm, timed)
    }

    pub(super) fn timed(series: Series, algorithm: impl Into<String>, timed: Timed) -> Self {
        let record = Self {
            series,
            algorithm: algorithm.into(),
            calls_per_sample: timed.calls,
            cpu_user_s: Some(timed.usage.user.as_secs_f64()),
            cpu_system_s: Some(timed.usage.system.as_secs_f64()),
            wall_s: Some(timed.usage.wall.as_secs_f64()),
            ..Self::default()
        };
        let over = if timed.calls == 1 { Over::Calls } else { Over::BatchMeans };
        record.with_samples(timed.samples_us, over)
    }

    /// With the statistics of `samples_us`.
    pub(super) fn with_samples(mut self, samples_us: Vec<f64>, over: Over) -> Self {
        if let Some(stats) = Stats::of(&samples_us) {
            self.time_p50_us = Some(stats.p50);
            self.time_mean_us = Some(stats.mean);
            self.time_min_us = Some(stats.min);
            self.time_max_us = Some(stats.max);
            self.time_p99_us = Some(stats.p99);
            self.time_p99_9_us = Some(stats.p999);
            self.time_stddev_us = stats.stddev;
        }
        self.samples = samples_us.len() as u64;
        self.percentiles_over = Some(over);
        self.samples_us = samples_us;
        self
    }

    /// With the bandwidth of calls that move `bytes` each. `factor` is bus bandwidth over algorithm bandwidth.
    pub(super) fn moving(mut self, bytes: u64, factor: f64) -> Self {
        let bandwidth = self.time_p50_us.map(|time| bandwidth(bytes, time));
        self.algorithm_bandwidth_gb_s = bandwidth;
        self.bus_bandwidth_gb_s = bandwidth.map(|bandwidth| bandwidth * factor);
        self
    }

    /// With its speed in relation to `other`'s.
    pub(super) fn compared_with(mut self, other: &Self) -> Self {
        if let (Some(mine), Some(theirs)) = (self.time_p50_us, other.time_p50_us)
            && mine > 0.0
        {
            self.speed_ratio = Some(theirs / mine);
        }
        self
    }

    /// The fields as JSON values, in the order of [`FIELDS`].
    pub(super) fn values(&self) -> Vec<(&'static str, Value)> {
        let mut object = match serde_json::to_value(self) {
            Ok(Value::Object(object)) => object,
            // A struct of numbers and texts is always an object.
            _ => serde_json::Map::new(),
        };
        FIELDS.iter().map(|&name| (name, object.remove(name).unwrap_or(Value::Null))).collect()
    }
}

/// 1e9 bytes per second.
pub(super) fn bandwidth(bytes: u64, time_us: f64) -> f64 {
    if time_us > 0.0 { bytes as f64 / time_us / 1e3 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::usage::Usage;

    fn timed(samples_us: &[f64], calls: u64) -> Timed {
        Timed { samples_us: samples_us.to_vec(), calls, usage: Usage::default() }
    }

    #[test]
    fn the_median_is_quoted_and_bandwidth_follows_it() {
        let row = Record::measured("hb", timed(&[30.0, 10.0, 20.0], 5)).moving(20_000, 1.5);
        assert_eq!((row.time_p50_us, row.time_min_us, row.time_max_us), (Some(20.0), Some(10.0), Some(30.0)));
        assert_eq!((row.algorithm_bandwidth_gb_s, row.bus_bandwidth_gb_s), (Some(1.0), Some(1.5)));
        assert_eq!((row.samples, row.percentiles_over), (3, Some(Over::BatchMeans)));
        let single = Record::measured("hb", timed(&[30.0], 1));
        assert_eq!((single.percentiles_over, single.time_stddev_us), (Some(Over::Calls), None));
    }

    #[test]
    fn a_ratio_above_one_is_faster() {
        let bare = Record::comparison("bare", timed(&[4.0], 1));
        assert_eq!(Record::measured("hb", timed(&[2.0], 1)).compared_with(&bare).speed_ratio, Some(2.0));
        assert_eq!(bare.series, Series::Comparison);
    }

    #[test]
    fn every_field_is_documented() {
        let page = include_str!("../../../docs/perf.md");
        let missing: Vec<_> = FIELDS.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "docs/perf.md does not describe {missing:?}");
    }

    /// Also that no field is forgotten: all that serde writes are listed.
    #[test]
    fn every_field_has_a_value_in_the_declared_order() {
        let row = Record { size_bytes: Some(8), place: Some(Place::InPlace), ..Record::default() };
        let values = row.values();
        assert_eq!(values.len(), FIELDS.len());
        assert_eq!(values[0], ("series", "measured".into()));
        let of = |name: &str| values.iter().find(|(field, _)| *field == name).unwrap().1.clone();
        assert_eq!((of("size_bytes"), of("place"), of("wrong")), (8.into(), "in-place".into(), Value::Null));
        assert_eq!(serde_json::to_value(&row).unwrap().as_object().unwrap().len(), FIELDS.len());
    }
}
