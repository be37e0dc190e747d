//! The table in the columns of nccl-tests: out of place and in place side by side, with the number of wrong values in
//! each row.

use std::io::{Result, Write};

use super::output::{Foot, Table};
use super::record::{Place, Record, Series};

/// Prints rows as nccl-tests does.
#[derive(Debug, Default)]
pub(super) struct NcclTable {
    /// Lines printed below the table: each measured row's speed relative to its bare loop.
    remarks: Vec<String>,
}

impl Table for NcclTable {
    fn print_head(&self, out: &mut dyn Write) -> Result<()> {
        writeln!(out, "#{:>66}{:>36}", "out-of-place", "in-place")?;
        write!(out, "#{:>11} {:>13} {:>9} {:>7} {:>9}", "size", "count", "type", "redop", "algo")?;
        for _ in 0..2 {
            write!(out, " {:>10} {:>8} {:>8} {:>6}", "time", "algbw", "busbw", "#wrong")?;
        }
        writeln!(out)?;
        write!(out, "#{:>11} {:>13} {:>9} {:>7} {:>9}", "(B)", "(elements)", "", "", "")?;
        for _ in 0..2 {
            write!(out, " {:>10} {:>8} {:>8} {:>6}", "(us)", "(GB/s)", "(GB/s)", "")?;
        }
        writeln!(out)
    }

    fn print(&mut self, rows: &[Record], out: &mut dyn Write) -> Result<()> {
        let beside_bare = rows.iter().any(|row| row.algorithm == "bare");
        let mut rows = rows.iter().peekable();
        while let Some(row) = rows.next() {
            let parts = match row.place {
                Some(Place::InPlace) => [None, Some(row)],
                _ => [Some(row), rows.next_if(|next| next.place == Some(Place::InPlace))],
            };
            write!(out, "{:>12} {:>13}", or_dash(row.size_bytes), or_dash(row.count))?;
            // A barrier has elements of no type.
            let plain = if row.size_bytes.is_some() { "byte" } else { "none" };
            write!(out, " {:>9} {:>7}", row.datatype.unwrap_or(plain), row.reduction.unwrap_or("none"))?;
            write!(out, " {:>9}", row.algorithm)?;
            for part in parts {
                print_times(part, out)?;
            }
            writeln!(out)?;
            if beside_bare
                && row.series == Series::Measured
                && let (Some(ratio), Some(size)) = (row.speed_ratio, row.size_bytes)
            {
                let text = format!("{size} B: {} at {ratio:.3} of the speed of the bare loop", row.algorithm);
                self.remarks.push(text);
            }
        }
        Ok(())
    }

    fn print_foot(&self, foot: &Foot, out: &mut dyn Write) -> Result<()> {
        self.remarks.iter().try_for_each(|remark| writeln!(out, "# {remark}"))?;
        foot.print_bandwidth(out)
    }
}

/// The four columns of a row out of place or in place.
fn print_times(row: Option<&Record>, out: &mut dyn Write) -> Result<()> {
    let Some(row) = row else {
        return write!(out, " {:>10} {:>8} {:>8} {:>6}", "-", "-", "-", "-");
    };
    let figure = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    let wrong = row.wrong.map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string());
    let bandwidths = [row.algorithm_bandwidth_gb_s, row.bus_bandwidth_gb_s].map(figure);
    write!(out, " {:>10} {:>8} {:>8} {wrong:>6}", figure(row.time_p50_us), bandwidths[0], bandwidths[1])
}

fn or_dash(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(place: Place) -> Record {
        Record {
            algorithm: "two-shot".into(),
            place: Some(place),
            size_bytes: Some(1 << 20),
            count: Some(1 << 18),
            datatype: Some("f32"),
            reduction: Some("sum"),
            time_p50_us: Some(20.0),
            wrong: Some(0),
            ..Record::default()
        }
        .moving(1 << 20, 1.5)
    }

    fn print(rows: &[Record]) -> (String, NcclTable) {
        let (mut text, mut table) = (Vec::new(), NcclTable::default());
        table.print_head(&mut text).unwrap();
        table.print(rows, &mut text).unwrap();
        (String::from_utf8(text).unwrap(), table)
    }

    #[test]
    fn columns_line_up_under_their_heads() {
        let (text, _) = print(&[row(Place::OutOfPlace)]);
        let lines: Vec<&str> = text.lines().collect();
        let head = lines.iter().find(|l| l.contains("#wrong")).unwrap();
        let row = lines.last().unwrap();
        assert_eq!(head.find("time").map(|i| i + 4), row.find("20.00").map(|i| i + 5), "{text}");
        assert!(lines[1..].iter().all(|line| line.len() == lines[1].len()), "{text}");
    }

    #[test]
    fn in_place_stands_beside_out_of_place() {
        let (text, _) = print(&[row(Place::OutOfPlace), row(Place::InPlace)]);
        assert_eq!(text.lines().count(), 4, "{text}");
        assert_eq!(text.matches("20.00").count(), 2, "{text}");
        let words: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(words.len(), 13, "{text}");
    }

    #[test]
    fn in_place_alone_stands_in_its_own_columns() {
        let (text, _) = print(&[row(Place::InPlace), row(Place::OutOfPlace)]);
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let rows: Vec<_> = text.lines().skip(3).map(words).collect();
        assert_eq!(
            (&rows[0][5..9], rows[0][9].as_str()),
            (&["-"; 4].map(String::from)[..], "20.00"),
            "{text}"
        );
        assert_eq!(
            (rows[1][5].as_str(), &rows[1][9..13]),
            ("20.00", &["-"; 4].map(String::from)[..]),
            "{text}"
        );
    }

    #[test]
    fn what_moves_no_data_has_no_bandwidth() {
        let signal = Record { algorithm: "signal".into(), time_p50_us: Some(2.5), ..Record::default() };
        let (text, _) = print(&[signal]);
        let words: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(words[5..9], ["2.50", "-", "-", "N/A"], "{text}");
    }

    #[test]
    fn a_row_beside_a_bare_loop_is_compared_below_the_table() {
        let bare = Record { series: Series::Comparison, algorithm: "bare".into(), ..row(Place::OutOfPlace) };
        let ours = row(Place::OutOfPlace).compared_with(&Record { time_p50_us: Some(19.0), ..bare.clone() });
        let (text, table) = print(&[ours, bare]);
        assert_eq!(text.lines().count(), 5);
        let mut foot = Vec::new();
        table.print_foot(&Foot::default(), &mut foot).unwrap();
        let foot = String::from_utf8(foot).unwrap();
        assert_eq!(foot, "# 1048576 B: two-shot at 0.950 of the speed of the bare loop\n");
    }
}
