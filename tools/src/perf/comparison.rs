//! Tables that compare the library with a bare loop of the same run: both figures in one row, and their ratio.

use std::io::{Result, Write};

use serde::Serialize;

use super::report::{Table, write_verdict};

/// The unit of the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Unit {
    #[serde(rename = "us")]
    Microseconds,
    #[serde(rename = "GB/s")]
    Bandwidth,
    #[serde(rename = "M/s")]
    Rate,
}

/// Statistics of one figure over the measurements of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    /// Bytes or threads, as [`Comparison::size`] says.
    pub(super) size: u64,
    pub(super) ours: Spread,
    pub(super) bare: Option<Spread>,
    /// Our speed divided by that of the bare loop.
    pub(super) ratio: Option<f64>,
    /// Number of wrong values over all ranks.
    pub(super) wrong: u64,
}

/// The whole run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Comparison {
    pub(super) operation: String,
    pub(super) header: Vec<String>,
    /// The heading of the first column.
    pub(super) size: &'static str,
    pub(super) unit: Unit,
    pub(super) rows: Vec<Row>,
}

impl Comparison {
    pub(super) fn new(operation: &str, header: Vec<String>, size: &'static str, unit: Unit) -> Self {
        Self { operation: operation.to_owned(), header, size, unit, rows: Vec::new() }
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

    /// Speed of `ours` divided by speed of `bare`.
    fn ratio(self, ours: f64, bare: f64) -> f64 {
        if self == Self::Microseconds { bare / ours } else { ours / bare }
    }

    /// The row of `size` from the figures of all measurements. `bare` is empty if there is no bare loop.
    pub(super) fn row(self, size: u64, ours: &[f64], bare: &[f64], wrong: u64) -> Row {
        let (ours, bare) = (Spread::of(ours), (!bare.is_empty()).then(|| Spread::of(bare)));
        let ratio = bare.map(|bare| self.ratio(ours.median, bare.median));
        Row { size, ours, bare, ratio, wrong }
    }
}

impl Spread {
    fn of(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        Self { median: at(sorted.len() / 2), min: at(0), max: at(sorted.len().saturating_sub(1)) }
    }
}

impl Table for Comparison {
    type Row = Row;

    fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    fn print_head(&self, out: &mut impl Write) -> Result<()> {
        for line in &self.header {
            writeln!(out, "# {line}")?;
        }
        writeln!(out, "#")?;
        writeln!(out, "#{:>44}{:>33}", "ours", "bare")?;
        write!(out, "#{:>11}", self.size)?;
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

    fn print_row(&self, row: &Row, out: &mut impl Write) -> Result<()> {
        write!(out, "{:>12}", row.size)?;
        for spread in [Some(row.ours), row.bare] {
            match spread {
                Some(Spread { median, min, max }) => {
                    let [median, min, max] = [median, min, max].map(figure);
                    write!(out, " {median:>10} {min:>10} {max:>10}")?;
                }
                None => write!(out, " {:>10} {:>10} {:>10}", "-", "-", "-")?,
            }
        }
        match row.ratio {
            Some(ratio) => write!(out, " {ratio:>7.3}")?,
            None => write!(out, " {:>7}", "-")?,
        }
        writeln!(out, " {:>6}", row.wrong)?;
        out.flush()
    }

    fn csv(&self) -> String {
        let mut text =
            format!("{},unit,ours,ours_min,ours_max,bare,bare_min,bare_max,ratio,wrong\n", self.size);
        for Row { size, ours, bare, ratio, wrong } in &self.rows {
            let Spread { median, min, max } = ours;
            let bare = bare.map_or_else(|| ",,".to_owned(), |b| format!("{},{},{}", b.median, b.min, b.max));
            let ratio = ratio.map_or_else(String::new, |ratio| ratio.to_string());
            text += &format!("{size},{},{median},{min},{max},{bare},{ratio},{wrong}\n", self.unit.name());
        }
        text
    }

    fn wrong(&self) -> Option<u64> {
        Some(self.rows.iter().map(|row| row.wrong).sum())
    }

    fn print_verdict(&self, out: &mut impl Write) -> Result<()> {
        writeln!(out, "# ratio: our median speed divided by the bare one; above 1 is faster")?;
        write_verdict(self.wrong(), out)
    }
}

/// The figure with three decimals, or with significant digits if it is smaller than that.
fn figure(value: f64) -> String {
    if value == 0.0 || value >= 0.001 { format!("{value:.3}") } else { format!("{value:.1e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(unit: Unit, bare: &[f64], wrong: u64) -> Comparison {
        let mut table = Comparison::new("fifo", vec!["software device".into()], "threads", unit);
        table.push(unit.row(32, &[4.0, 1.0, 2.0], bare, wrong));
        table
    }

    #[test]
    fn a_ratio_above_one_is_faster_whatever_is_measured() {
        assert_eq!(table(Unit::Microseconds, &[4.0], 0).rows[0].ratio, Some(2.0));
        assert_eq!(table(Unit::Rate, &[4.0], 0).rows[0].ratio, Some(0.5));
        assert_eq!(table(Unit::Bandwidth, &[], 0).rows[0].ratio, None);
    }

    #[test]
    fn every_figure_is_in_the_table_and_the_csv() {
        let table = table(Unit::Rate, &[8.0], 3);
        let mut out = Vec::new();
        table.print_head(&mut out).unwrap();
        table.print_row(&table.rows[0], &mut out).unwrap();
        table.print_verdict(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let row: Vec<&str> =
            text.lines().find(|line| !line.starts_with('#')).unwrap().split_whitespace().collect();
        assert_eq!(row, ["32", "2.000", "1.000", "4.000", "8.000", "8.000", "8.000", "0.250", "3"]);
        assert!(text.ends_with("# Out of bounds values : 3 FAILED\n"), "{text}");
        assert_eq!(table.csv().lines().nth(1), Some("32,M/s,2,1,4,8,8,8,0.25,3"));
        let columns = table.csv().lines().map(|line| line.split(',').count()).collect::<Vec<_>>();
        assert_eq!(columns[0], columns[1]);
    }
}
