//! Prints and stores results row by row: a table, and files with the same rows.

use std::io::{Result as Written, Write};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Result;
use aqueduct::bootstrap::Launch;
use serde::Serialize;

use super::args::Files;
use super::files::Outlets;
use super::head::{Head, utc};
use super::progress::Progress;
use super::record::{Record, Series};
use super::timing::Session;
use crate::stdout::Stdout;

/// A layout of rows on standard output.
pub(super) trait Table {
    /// Prints the names of the columns.
    fn print_head(&self, out: &mut dyn Write) -> Written<()>;
    /// Prints rows that belong together, such as those of one size.
    fn print(&mut self, rows: &[Record], out: &mut dyn Write) -> Written<()>;
    /// Prints totals and remarks about all rows, above the verdict.
    fn print_foot(&self, foot: &Foot, out: &mut dyn Write) -> Written<()>;
}

/// Totals over all rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Foot {
    /// Number of wrong values, or `None` if nothing was checked.
    pub(super) wrong: Option<u64>,
    /// Sum and number of the bus bandwidths, without those of bare loops.
    bandwidth: (f64, u64),
    /// All rows, bare loops included.
    rows: u64,
}

/// The last line of the files.
#[derive(Serialize)]
struct Footer {
    record: &'static str,
    rows: u64,
    wrong: Option<u64>,
    bus_bandwidth_mean_gb_s: Option<f64>,
    time_utc: String,
}

/// The output of a run. On ranks that print nothing it only counts.
pub(super) struct Output {
    table: Option<Box<dyn Table>>,
    /// Rows in the files that the table does not have yet.
    unprinted: Vec<Record>,
    outlets: Outlets,
    progress: Progress,
    foot: Foot,
}

/// Opens the files of `options`, before anything else is done.
pub(super) fn open(options: &Files) -> Result<Outlets> {
    Outlets::open(options, Launch::from_env()?.map_or(0, |launch| launch.rank))
}

impl Foot {
    fn add(&mut self, row: &Record) {
        self.rows += 1;
        if let Some(wrong) = row.wrong {
            self.wrong = Some(self.wrong.unwrap_or(0) + wrong);
        }
        if row.series == Series::Measured
            && let Some(bandwidth) = row.bus_bandwidth_gb_s
        {
            self.bandwidth = (self.bandwidth.0 + bandwidth, self.bandwidth.1 + 1);
        }
    }

    /// Mean of the bus bandwidths, if a row has one.
    fn mean_bandwidth(&self) -> Option<f64> {
        let (sum, rows) = self.bandwidth;
        (rows > 0).then(|| sum / rows as f64)
    }

    /// Prints the mean of the bus bandwidths as nccl-tests does.
    pub(super) fn print_bandwidth(&self, out: &mut dyn Write) -> Written<()> {
        match self.mean_bandwidth() {
            Some(mean) => writeln!(out, "# Avg bus bandwidth    : {mean:.4}"),
            None => Ok(()),
        }
    }

    /// Prints the verdict as nccl-tests ends: `# Out of bounds values : N OK|FAILED`.
    fn print_verdict(&self, out: &mut dyn Write) -> Written<()> {
        match self.wrong {
            Some(0) => writeln!(out, "# Out of bounds values : 0 OK"),
            Some(wrong) => writeln!(out, "# Out of bounds values : {wrong} FAILED"),
            None => writeln!(out, "# Out of bounds values : N/A (not checked)"),
        }
    }
}

impl Output {
    /// Begins the files, and the table unless standard output belongs to a file. `root` says whether this rank prints.
    pub(super) fn begin(
        root: bool,
        head: &Head,
        table: Box<dyn Table>,
        mut outlets: Outlets,
        progress: Progress,
    ) -> Result<Self> {
        if root {
            outlets.begin(&head.header())?;
        } else {
            outlets = Outlets::default();
        }
        let print = root && !outlets.take_stdout();
        if print {
            let mut out = Stdout;
            head.lines.iter().try_for_each(|line| writeln!(out, "# {line}"))?;
            writeln!(out, "#")?;
            table.print_head(&mut out)?;
        }
        let table = print.then_some(table);
        Ok(Self { table, unprinted: Vec::new(), outlets, progress, foot: Foot::default() })
    }

    /// Writes a row to the files at once, so that an interrupt does not lose it, and keeps it for the table.
    pub(super) fn row(&mut self, row: Record) -> Result<()> {
        self.foot.add(&row);
        self.outlets.row(&row)?;
        self.unprinted.push(row);
        Ok(())
    }

    /// Prints the rows since the last call: they belong together. Those of the library stand above what they are compared
    /// with, whichever came first.
    pub(super) fn print(&mut self) -> Result<()> {
        self.progress.done();
        let mut rows = std::mem::take(&mut self.unprinted);
        rows.sort_by_key(|row| row.series == Series::Comparison);
        if let Some(table) = &mut self.table {
            let mut out = Stdout;
            table.print(&rows, &mut out)?;
            out.flush()?;
        }
        Ok(())
    }

    /// Takes rows that belong together and are there at the same time.
    pub(super) fn rows(&mut self, rows: Vec<Record>) -> Result<()> {
        rows.into_iter().try_for_each(|row| self.row(row))?;
        self.print()
    }

    /// Ends table and files. The exit code is a failure if any value was wrong.
    pub(super) fn end(mut self) -> Result<ExitCode> {
        self.progress.done();
        let Foot { wrong, rows, .. } = self.foot;
        self.outlets.end(&Footer {
            record: "footer",
            rows,
            wrong,
            bus_bandwidth_mean_gb_s: self.foot.mean_bandwidth(),
            time_utc: utc(SystemTime::now()),
        })?;
        if let Some(table) = &self.table {
            let mut out = Stdout;
            table.print_foot(&self.foot, &mut out)?;
            self.foot.print_verdict(&mut out)?;
        }
        Ok(if wrong.unwrap_or(0) == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Prints and writes what `measure` measures, row by row. Collective.
pub(super) fn present(
    session: &Session<'_>,
    head: &Head,
    table: Box<dyn Table>,
    outlets: Outlets,
    measure: impl FnOnce(&mut Output) -> Result<()>,
) -> Result<ExitCode> {
    let rank = session.rank;
    let mut output = Output::begin(rank.is_root(), head, table, outlets, session.progress.clone())?;
    measure(&mut output)?;
    // A stream is idle after a kernel that gave up, too.
    rank.comm.check()?;
    rank.barrier()?;
    let failed = output.foot.wrong.unwrap_or(0) > 0;
    let code = output.end();
    if failed {
        // A launcher ends all ranks when one exits with a failure: not before the root has printed the verdict, or could not.
        rank.barrier()?;
    }
    code
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::job::tests::as_two_ranks;

    fn row(series: Series, wrong: Option<u64>, bandwidth: Option<f64>) -> Record {
        Record { series, wrong, bus_bandwidth_gb_s: bandwidth, ..Record::default() }
    }

    /// A root that is slow to print its last lines, and looks whether the other rank has returned before them.
    struct SlowFoot {
        other_returned: Arc<AtomicBool>,
        returned_before: Arc<AtomicBool>,
    }

    impl Table for SlowFoot {
        fn print_head(&self, _: &mut dyn Write) -> Written<()> {
            Ok(())
        }

        fn print(&mut self, _: &[Record], _: &mut dyn Write) -> Written<()> {
            Ok(())
        }

        fn print_foot(&self, _: &Foot, _: &mut dyn Write) -> Written<()> {
            // Long enough for a rank that waits for nothing; one that waits for this rank cannot come.
            std::thread::sleep(Duration::from_millis(300));
            self.returned_before.store(self.other_returned.load(Ordering::SeqCst), Ordering::SeqCst);
            Ok(())
        }
    }

    #[test]
    fn ranks_that_fail_stay_until_the_root_has_printed_the_verdict() {
        let [other_returned, returned_before] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let codes = as_two_ranks(|rank| {
            let head = Head::gather(rank, "test").unwrap();
            let session = Session { rank, progress: Progress::default() };
            let [other_returned, returned_before] = [&other_returned, &returned_before].map(Arc::clone);
            let table = SlowFoot { other_returned: other_returned.clone(), returned_before };
            let wrong = |output: &mut Output| output.rows(vec![row(Series::Measured, Some(1), None)]);
            let code = present(&session, &head, Box::new(table), Outlets::default(), wrong).unwrap();
            if !rank.is_root() {
                other_returned.store(true, Ordering::SeqCst);
            }
            code
        });
        assert_eq!(codes, [ExitCode::FAILURE; 2]);
        assert!(!returned_before.load(Ordering::SeqCst), "a launcher would end the root before its verdict");
    }

    #[test]
    fn bare_loops_do_not_count_for_the_average() {
        let mut foot = Foot::default();
        foot.add(&row(Series::Measured, Some(1), Some(10.0)));
        foot.add(&row(Series::Comparison, None, Some(1000.0)));
        foot.add(&row(Series::Measured, Some(2), Some(20.0)));
        assert_eq!((foot.mean_bandwidth(), foot.wrong, foot.rows), (Some(15.0), Some(3), 3));
        let mut signals = Foot::default();
        signals.add(&row(Series::Measured, None, None));
        assert_eq!((signals.mean_bandwidth(), signals.wrong), (None, None));
    }

    #[test]
    fn the_last_line_is_the_verdict() {
        for (wrong, last) in [(Some(0), "0 OK"), (Some(3), "3 FAILED"), (None, "N/A (not checked)")] {
            let mut text = Vec::new();
            Foot { wrong, ..Foot::default() }.print_verdict(&mut text).unwrap();
            assert_eq!(String::from_utf8(text).unwrap(), format!("# Out of bounds values : {last}\n"));
        }
    }
}
