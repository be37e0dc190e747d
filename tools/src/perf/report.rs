//! The table of `aqueduct perf`: `#` lines with every parameter, then the columns of nccl-tests with the number of
//! wrong values in each row, then the verdict. The same data can be written as JSON and CSV.

use std::io::Write;

use serde::Serialize;

/// A table that is printed row by row.
pub(crate) trait Table: Serialize {
    type Row;

    fn push(&mut self, row: Self::Row);
    /// Prints the head of the table.
    fn print_head(&self, out: &mut impl Write) -> std::io::Result<()>;
    /// Prints one row.
    fn print_row(&self, row: &Self::Row, out: &mut impl Write) -> std::io::Result<()>;
    /// The rows as comma-separated values below a line of names. An unchecked value is empty.
    fn csv(&self) -> String;
    /// Wrong elements of all rows, or `None` if nothing was checked.
    fn wrong(&self) -> Option<u64>;
    /// Prints the verdict.
    fn print_verdict(&self, out: &mut impl Write) -> std::io::Result<()>;
}

/// The last line of every table, as nccl-tests ends: `# Out of bounds values : N OK|FAILED`.
pub(super) fn write_verdict(wrong: Option<u64>, out: &mut impl Write) -> std::io::Result<()> {
    match wrong {
        Some(0) => writeln!(out, "# Out of bounds values : 0 OK"),
        Some(wrong) => writeln!(out, "# Out of bounds values : {wrong} FAILED"),
        None => writeln!(out, "# Out of bounds values : N/A (not checked)"),
    }
}

/// Times of one size, out of place or in place.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Measured {
    /// Median over the timed calls, microseconds.
    pub(crate) time_us: f64,
    /// Fastest call, microseconds.
    pub(crate) min_us: f64,
    /// Slowest call, microseconds.
    pub(crate) max_us: f64,
    /// Bytes of the message divided by the time, in 1e9 bytes per second.
    pub(crate) algbw_gbs: f64,
    /// `algbw` times the factor of the operation (2(n-1)/n for all-reduce, 1 for one-way operations).
    pub(crate) busbw_gbs: f64,
    /// Wrong elements over all ranks and checked calls, or `None` if the check is off.
    pub(crate) wrong: Option<u64>,
}

/// One size.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) size: u64,
    pub(crate) count: u64,
    pub(crate) datatype: String,
    pub(crate) redop: String,
    /// The protocol or algorithm used for this size.
    pub(crate) algorithm: String,
    pub(crate) out_of_place: Option<Measured>,
    pub(crate) in_place: Option<Measured>,
}

/// The whole run.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) operation: String,
    pub(crate) header: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

impl Table for Report {
    type Row = Row;

    fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    fn print_head(&self, out: &mut impl Write) -> std::io::Result<()> {
        for line in &self.header {
            writeln!(out, "# {line}")?;
        }
        writeln!(out, "#")?;
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

    fn print_row(&self, row: &Row, out: &mut impl Write) -> std::io::Result<()> {
        write!(out, "{:>12} {:>13} {:>9}", row.size, row.count, row.datatype)?;
        write!(out, " {:>7} {:>9}", row.redop, row.algorithm)?;
        for measured in [&row.out_of_place, &row.in_place] {
            match measured {
                Some(m) => {
                    let wrong = m.wrong.map_or_else(|| "N/A".to_owned(), |w| w.to_string());
                    write!(
                        out,
                        " {:>10.2} {:>8.2} {:>8.2} {:>6}",
                        m.time_us, m.algbw_gbs, m.busbw_gbs, wrong
                    )?;
                }
                None => write!(out, " {:>10} {:>8} {:>8} {:>6}", "-", "-", "-", "-")?,
            }
        }
        writeln!(out)?;
        out.flush()
    }

    fn csv(&self) -> String {
        let mut text = String::from(
            "size,count,type,redop,algo,place,time_us,min_us,max_us,algbw_gbs,busbw_gbs,wrong\n",
        );
        for row in &self.rows {
            for (place, m) in [("out", &row.out_of_place), ("in", &row.in_place)] {
                let Some(m) = m else { continue };
                let wrong = m.wrong.map_or_else(String::new, |wrong| wrong.to_string());
                let Row { size, count, datatype, redop, algorithm, .. } = row;
                let Measured { time_us, min_us, max_us, algbw_gbs, busbw_gbs, .. } = m;
                text += &format!(
                    "{size},{count},{datatype},{redop},{algorithm},{place},{time_us},{min_us},{max_us},{algbw_gbs},\
                     {busbw_gbs},{wrong}\n"
                );
            }
        }
        text
    }

    fn wrong(&self) -> Option<u64> {
        self.rows
            .iter()
            .flat_map(|r| [r.out_of_place, r.in_place])
            .flatten()
            .filter_map(|m| m.wrong)
            .fold(None, |sum, wrong| Some(sum.unwrap_or(0) + wrong))
    }

    fn print_verdict(&self, out: &mut impl Write) -> std::io::Result<()> {
        for pair in self.rows.windows(2) {
            // A row that is compared with the one above it.
            let [Row { out_of_place: Some(ours), size, algorithm, .. }, Row { out_of_place: Some(bare), .. }] =
                pair
            else {
                continue;
            };
            if pair[1].algorithm == "bare"
                && pair[1].size == *size
                && algorithm != "bare"
                && bare.time_us > 0.0
            {
                let ratio = bare.time_us / ours.time_us;
                writeln!(out, "# {size} B: {algorithm} at {ratio:.3} of the speed of the bare loop")?;
            }
        }
        let bandwidths: Vec<f64> = self
            .rows
            .iter()
            .flat_map(|r| [r.out_of_place, r.in_place])
            .flatten()
            .map(|m| m.busbw_gbs)
            .collect();
        if !bandwidths.is_empty() {
            writeln!(
                out,
                "# Avg bus bandwidth    : {:.4}",
                bandwidths.iter().sum::<f64>() / bandwidths.len() as f64
            )?;
        }
        write_verdict(self.wrong(), out)
    }
}

/// Median, minimum and maximum of times per call in microseconds. `factor` is bus bandwidth over algorithm bandwidth.
pub(crate) fn measured(times_us: &[f64], bytes: u64, factor: f64, wrong: Option<u64>) -> Measured {
    let mut sorted = times_us.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |i: usize| sorted.get(i).copied().unwrap_or(f64::NAN);
    let time_us = at(sorted.len() / 2);
    let algbw_gbs = if time_us > 0.0 { bytes as f64 / time_us / 1e3 } else { 0.0 };
    Measured {
        time_us,
        min_us: at(0),
        max_us: at(sorted.len().saturating_sub(1)),
        algbw_gbs,
        busbw_gbs: algbw_gbs * factor,
        wrong,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(wrong: Option<u64>) -> Report {
        let row = Row {
            size: 1 << 20,
            count: 1 << 18,
            datatype: "f32".into(),
            redop: "sum".into(),
            algorithm: "2shot-hb".into(),
            out_of_place: Some(measured(&[30.0, 10.0, 20.0], 1 << 20, 1.5, wrong)),
            in_place: None,
        };
        Report { operation: "all-reduce".into(), header: vec!["software device".into()], rows: vec![row] }
    }

    #[test]
    fn the_median_is_quoted_and_bandwidth_follows_it() {
        let m = measured(&[30.0, 10.0, 20.0], 20_000, 1.5, None);
        assert_eq!((m.time_us, m.min_us, m.max_us), (20.0, 10.0, 30.0));
        assert_eq!((m.algbw_gbs, m.busbw_gbs), (1.0, 1.5));
    }

    #[test]
    fn the_last_line_is_the_verdict() {
        for (wrong, last) in [(Some(0), "0 OK"), (Some(3), "3 FAILED"), (None, "N/A (not checked)")] {
            let mut text = Vec::new();
            report(wrong).print_verdict(&mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert_eq!(text.lines().last().unwrap(), format!("# Out of bounds values : {last}"));
        }
    }

    #[test]
    fn comma_separated_values_have_a_column_for_each_name() {
        let csv = report(None).csv();
        let lines: Vec<_> = csv.lines().map(|line| line.split(',').collect::<Vec<_>>()).collect();
        assert_eq!(lines.len(), 2, "{csv}");
        assert_eq!(lines[0].len(), lines[1].len());
        assert_eq!((lines[0][11], lines[1][5], lines[1][6], lines[1][11]), ("wrong", "out", "20", ""));
    }

    #[test]
    fn columns_line_up_under_their_heads() {
        let mut text = Vec::new();
        let r = report(Some(0));
        r.print_head(&mut text).unwrap();
        r.print_row(&r.rows[0], &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let head = lines.iter().find(|l| l.contains("#wrong")).unwrap();
        let row = lines.last().unwrap();
        assert_eq!(head.find("time").map(|i| i + 4), row.find("20.00").map(|i| i + 5), "{text}");
    }
}
