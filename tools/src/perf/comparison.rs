//! The table that compares the library with a bare loop of the same run: both figures in one row, and their ratio.

use std::io::{Result, Write};

use super::output::{Foot, Table};
use super::record::{Record, Series, bandwidth};

/// The unit of the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Microseconds,
    Bandwidth,
    Rate,
}

/// Prints each row with its bare loop.
#[derive(Debug)]
pub(super) struct Comparison {
    /// The first column: its heading, and how it is found.
    heading: &'static str,
    size: fn(&Record) -> u64,
    unit: Unit,
}

impl Comparison {
    /// Rows by their size in bytes.
    pub(super) fn by_bytes(unit: Unit) -> Self {
        Self { heading: "bytes", size: |row| row.size_bytes.unwrap_or(0), unit }
    }

    /// Rows by their number of threads.
    pub(super) fn by_threads(unit: Unit) -> Self {
        Self { heading: "threads", size: |row| row.threads.unwrap_or(0).into(), unit }
    }

    /// Median, smallest and largest figure, each from the times.
    fn figures(&self, row: &Record) -> [Option<f64>; 3] {
        let Record { time_p50_us, time_min_us, time_max_us, .. } = row;
        match self.unit {
            Unit::Microseconds => [*time_p50_us, *time_min_us, *time_max_us],
            // The shortest time is the highest speed.
            Unit::Bandwidth => [time_p50_us, time_max_us, time_min_us]
                .map(|time| time.map(|time| bandwidth(row.size_bytes.unwrap_or(0), time))),
            Unit::Rate => [time_p50_us, time_max_us, time_min_us].map(|time| time.map(|time| 1.0 / time)),
        }
    }
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Microseconds => "us",
            Self::Bandwidth => "GB/s",
            Self::Rate => "M/s",
        }
    }
}

impl Table for Comparison {
    fn print_head(&self, out: &mut dyn Write) -> Result<()> {
        writeln!(out, "#{:>44}{:>33}", "ours", "bare")?;
        write!(out, "#{:>11}", self.heading)?;
        for _ in 0..2 {
            write!(out, " {:>10} {:>10} {:>10}", "median", "min", "max")?;
        }
        writeln!(out, " {:>7} {:>6}", "ratio", "#wrong")?;
        write!(out, "#{:>11}", "")?;
        for _ in 0..6 {
            write!(out, " {:>10}", format!("({})", self.unit.name()))?;
        }
        writeln!(out)
    }

    fn print(&mut self, rows: &[Record], out: &mut dyn Write) -> Result<()> {
        let Some(ours) = rows.iter().find(|row| row.series == Series::Measured) else { return Ok(()) };
        let bare = rows.iter().find(|row| row.series == Series::Comparison);
        write!(out, "{:>12}", (self.size)(ours))?;
        let none = [None; 3];
        for value in self.figures(ours).into_iter().chain(bare.map_or(none, |bare| self.figures(bare))) {
            write!(out, " {:>10}", value.map_or_else(|| "-".to_owned(), figure))?;
        }
        match ours.speed_ratio {
            Some(ratio) => write!(out, " {ratio:>7.3}")?,
            None => write!(out, " {:>7}", "-")?,
        }
        writeln!(out, " {:>6}", ours.wrong.map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string()))
    }

    fn print_foot(&self, _: &Foot, out: &mut dyn Write) -> Result<()> {
        writeln!(out, "# ratio: our median speed divided by the bare one; above 1 is faster")
    }
}

/// The figure with three decimals, or with significant digits if it is smaller than that.
fn figure(value: f64) -> String {
    if value == 0.0 || value >= 0.001 { format!("{value:.3}") } else { format!("{value:.1e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(mut table: Comparison, rows: &[Record]) -> Vec<String> {
        let mut out = Vec::new();
        table.print_head(&mut out).unwrap();
        table.print(rows, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let row = text.lines().find(|line| !line.starts_with('#')).unwrap();
        row.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_highest_speed_comes_from_the_shortest_time() {
        let row = |series, times: [f64; 3]| Record {
            series,
            threads: Some(32),
            size_bytes: Some(4000),
            time_p50_us: Some(times[0]),
            time_min_us: Some(times[1]),
            time_max_us: Some(times[2]),
            wrong: Some(3),
            ..Record::default()
        };
        let bare = row(Series::Comparison, [0.125; 3]);
        let ours = row(Series::Measured, [0.5, 0.25, 1.0]).compared_with(&bare);
        let both = [ours.clone(), bare];
        let rates = words(Comparison::by_threads(Unit::Rate), &both);
        assert_eq!(rates, ["32", "2.000", "1.000", "4.000", "8.000", "8.000", "8.000", "0.250", "3"]);
        let times = words(Comparison::by_bytes(Unit::Microseconds), &both);
        assert_eq!(times[..5], ["4000", "0.500", "0.250", "1.000", "0.125"]);
        let alone = words(Comparison::by_bytes(Unit::Bandwidth), &[Record { speed_ratio: None, ..ours }]);
        assert_eq!(alone, ["4000", "8.000", "4.000", "16.000", "-", "-", "-", "-", "3"]);
    }
}
