//! The wide table of `--stats`: a line for each row, with all of its statistics.

use std::io::{Result, Write};

use super::output::{Foot, Table};
use super::record::{Over, Place, Record, Series};

/// Heading, unit, width, and the text of a row.
type Column = (&'static str, &'static str, usize, fn(&Record) -> String);

const COLUMNS: &[Column] = &[
    ("size", "(B)", 12, |row| text(row.size_bytes)),
    ("threads", "", 7, |row| text(row.threads)),
    ("type", "", 5, |row| row.datatype.unwrap_or("-").to_owned()),
    ("redop", "", 5, |row| row.reduction.unwrap_or("-").to_owned()),
    ("algo", "", 9, |row| row.algorithm.clone()),
    ("place", "", 5, |row| place(row).to_owned()),
    ("samples", "", 7, |row| row.samples.to_string()),
    ("of", "", 12, |row| over(row)),
    ("p50", "(us)", 10, |row| figure(row.time_p50_us)),
    ("mean", "(us)", 10, |row| figure(row.time_mean_us)),
    ("min", "(us)", 10, |row| figure(row.time_min_us)),
    ("p99", "(us)", 10, |row| figure(row.time_p99_us)),
    ("p99.9", "(us)", 10, |row| figure(row.time_p99_9_us)),
    ("max", "(us)", 10, |row| figure(row.time_max_us)),
    ("stddev", "(us)", 10, |row| figure(row.time_stddev_us)),
    ("algbw", "(GB/s)", 8, |row| rate(row.algorithm_bandwidth_gb_s)),
    ("busbw", "(GB/s)", 8, |row| rate(row.bus_bandwidth_gb_s)),
    ("rate", "(M/s)", 9, |row| figure(row.rate_m_s)),
    ("ratio", "", 7, |row| figure(row.speed_ratio)),
    ("cpu", "(s)", 8, |row| figure(row.cpu_user_s.zip(row.cpu_system_s).map(|(user, system)| user + system))),
    ("#wrong", "", 6, |row| row.wrong.map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string())),
];

/// Prints a line for each row.
#[derive(Debug)]
struct WideTable;

/// The wide table if `stats` is set, otherwise `usual`.
pub(super) fn choose(stats: bool, usual: impl Table + 'static) -> Box<dyn Table> {
    if stats { Box::new(WideTable) } else { Box::new(usual) }
}

impl Table for WideTable {
    fn print_head(&self, out: &mut dyn Write) -> Result<()> {
        writeln!(
            out,
            "# p99, p99.9 and stddev are over the samples: single calls, or means of several (column `of`)"
        )?;
        for part in [0, 1] {
            for (index, &(name, unit, width, _)) in COLUMNS.iter().enumerate() {
                let heading = if part == 0 { name } else { unit };
                match index {
                    0 => write!(out, "#{heading:>0$}", width - 1)?,
                    _ => write!(out, " {heading:>width$}")?,
                }
            }
            writeln!(out)?;
        }
        Ok(())
    }

    fn print(&mut self, rows: &[Record], out: &mut dyn Write) -> Result<()> {
        for row in rows {
            for (index, (_, _, width, text)) in COLUMNS.iter().enumerate() {
                let space = if index == 0 { "" } else { " " };
                write!(out, "{space}{:>width$}", text(row))?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    fn print_foot(&self, foot: &Foot, out: &mut dyn Write) -> Result<()> {
        foot.print_bandwidth(out)
    }
}

fn text(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn place(row: &Record) -> &'static str {
    match (row.series, row.place) {
        (Series::Comparison, _) => "bare",
        (_, Some(Place::OutOfPlace)) => "out",
        (_, Some(Place::InPlace)) => "in",
        (_, None) => "-",
    }
}

/// Kind of the samples.
fn over(row: &Record) -> String {
    match row.percentiles_over {
        Some(Over::BatchMeans) => format!("{} calls", row.calls_per_sample),
        Some(Over::Calls) => "1 call".to_owned(),
        Some(Over::Ranks) => "1 rank".to_owned(),
        None => "-".to_owned(),
    }
    .replace(' ', "_")
}

fn figure(value: Option<f64>) -> String {
    text(value.map(|value| {
        if value == 0.0 || value >= 0.001 { format!("{value:.3}") } else { format!("{value:.1e}") }
    }))
}

fn rate(value: Option<f64>) -> String {
    text(value.map(|value| format!("{value:.2}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_word_under_each_heading() {
        let row =
            Record { algorithm: "hb".into(), size_bytes: Some(8), calls_per_sample: 20, ..Record::default() };
        let row = row.with_samples(vec![1.0, 2.0, 4.5], Over::BatchMeans).moving(8, 1.0);
        let mut text = Vec::new();
        WideTable.print_head(&mut text).unwrap();
        WideTable.print(&[row.clone(), Record { series: Series::Comparison, ..row }], &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().skip(1).collect();
        let words: Vec<Vec<&str>> = lines.iter().map(|line| line.split_whitespace().collect()).collect();
        // The `#` stands alone.
        assert_eq!((words[0].len(), words[2].len()), (COLUMNS.len() + 1, COLUMNS.len()), "{text}");
        assert_eq!(
            words[2][6..15],
            ["3", "20_calls", "2.000", "2.500", "1.000", "4.500", "4.500", "4.500", "1.803"]
        );
        assert_eq!((words[2][5], words[3][5]), ("-", "bare"));
        assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{text}");
    }
}
