//! The table of `aqueduct perf bootstrap`.

use std::fmt::Write as _;
use std::io::Write;
use std::time::Duration;

use serde::Serialize;

use super::ranks::{PHASES, Sample};

/// One phase, over all ranks.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Phase {
    pub(super) name: &'static str,
    /// Seconds of the median and of the slowest rank, each by the rank's own clock. Includes waiting for other ranks.
    pub(super) median_s: f64,
    pub(super) max_s: f64,
    /// Bytes sent in frames: mean and maximum over all ranks.
    pub(super) mean_bytes: f64,
    pub(super) max_bytes: u64,
}

/// Results for one number of ranks.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) ranks: u32,
    pub(super) processes: usize,
    /// Seconds from the start until the last rank has left.
    pub(super) total_s: f64,
    /// CPU seconds of all processes, including starting and ending the threads.
    pub(super) cpu_s: f64,
    pub(super) phases: Vec<Phase>,
    /// Largest number of bootstrap connections and of control links at one rank.
    pub(super) max_connections: usize,
    pub(super) max_control_links: usize,
}

/// Growth from one number of ranks to the next.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Growth {
    pub(super) from: u32,
    pub(super) to: u32,
    /// Ratio of the times, and the ratio that growth by n log n would give.
    pub(super) times: f64,
    pub(super) n_log_n: f64,
    /// Ratio of CPU times, which other load on the machine does not affect.
    pub(super) cpu_times: f64,
    /// The exponent x, if the time grew as n^x.
    pub(super) exponent: f64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) rows: Vec<Row>,
    pub(super) growth: Vec<Growth>,
}

impl Row {
    pub(super) fn new(
        ranks: u32,
        processes: usize,
        total: Duration,
        cpu: Duration,
        samples: &[Sample],
    ) -> Self {
        let phase = |(index, name)| {
            let mut seconds: Vec<f64> = samples.iter().map(|s| s.seconds[index]).collect();
            seconds.sort_by(f64::total_cmp);
            let bytes = samples.iter().map(|s| s.bytes[index]);
            Phase {
                name,
                median_s: seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN),
                max_s: seconds.last().copied().unwrap_or(f64::NAN),
                mean_bytes: bytes.clone().sum::<u64>() as f64 / samples.len() as f64,
                max_bytes: bytes.max().unwrap_or(0),
            }
        };
        let most = |index: usize| samples.iter().map(|s| s.links[index]).max().unwrap_or(0);
        Self {
            ranks,
            processes,
            total_s: total.as_secs_f64(),
            cpu_s: cpu.as_secs_f64(),
            phases: PHASES.into_iter().enumerate().map(phase).collect(),
            max_connections: most(0),
            max_control_links: most(1),
        }
    }

    pub(super) fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        for phase in &self.phases {
            writeln!(
                out,
                "{:>8} {:>14} {:>10.1} {:>10.1} {:>12.0} {:>10}",
                self.ranks,
                phase.name.replace(' ', "-"),
                phase.median_s * 1e3,
                phase.max_s * 1e3,
                phase.mean_bytes,
                phase.max_bytes
            )?;
        }
        let bytes: f64 = self.phases.iter().map(|phase| phase.mean_bytes).sum();
        writeln!(out, "{:>8} {:>14} {:>21.1} {:>12.0}", self.ranks, "all", self.total_s * 1e3, bytes)?;
        writeln!(
            out,
            "# {} ranks in {} processes, {:.2} s of CPU time; at most {} connections and {} control links per rank",
            self.ranks, self.processes, self.cpu_s, self.max_connections, self.max_control_links
        )
    }
}

impl Report {
    pub(super) fn print_head(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(
            out,
            "# aqueduct {} perf bootstrap: threads without devices, TCP",
            env!("CARGO_PKG_VERSION")
        )?;
        writeln!(
            out,
            "# times are by each rank's own clock and include waiting for others; bytes exclude handshakes"
        )?;
        writeln!(
            out,
            "#{:>7} {:>14} {:>10} {:>10} {:>12} {:>10}",
            "ranks", "phase", "time", "max", "sent", "max"
        )?;
        writeln!(out, "#{:>7} {:>14} {:>10} {:>10} {:>12} {:>10}", "", "", "(ms)", "(ms)", "(B/rank)", "(B)")
    }

    /// Computes the growth from row to row.
    pub(super) fn finish(&mut self) {
        let of = |pair: &[Row]| {
            let [a, b] = pair else { return None };
            let (n, m) = (f64::from(a.ranks), f64::from(b.ranks));
            let times = b.total_s / a.total_s;
            (a.ranks > 1 && b.ranks > a.ranks).then(|| Growth {
                from: a.ranks,
                to: b.ranks,
                times,
                cpu_times: b.cpu_s / a.cpu_s,
                n_log_n: m * m.ln() / (n * n.ln()),
                exponent: times.ln() / (m / n).ln(),
            })
        };
        self.growth = self.rows.windows(2).filter_map(of).collect();
    }

    pub(super) fn print_growth(&self, out: &mut impl Write) -> std::io::Result<()> {
        self.growth.iter().try_for_each(|g| {
            writeln!(
                out,
                "# from {} to {} ranks: {:.1} times the time, {:.1} times the CPU time; n log n would be {:.1}; time grows as n^{:.2}",
                g.from, g.to, g.times, g.cpu_times, g.n_log_n, g.exponent
            )
        })
    }

    pub(super) fn csv(&self) -> String {
        let mut text = String::from("ranks,phase,median_s,max_s,mean_bytes,max_bytes\n");
        for row in &self.rows {
            for p in &row.phases {
                // Writing to a string cannot fail.
                let _ = writeln!(
                    text,
                    "{},{},{},{},{},{}",
                    row.ranks, p.name, p.median_s, p.max_s, p.mean_bytes, p.max_bytes
                );
            }
            let _ = writeln!(text, "{},all,{},{},,", row.ranks, row.total_s, row.total_s);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_measured_against_n_log_n() {
        let row = |ranks: u32, seconds: u64| {
            let time = Duration::from_secs(seconds);
            Row::new(ranks, 1, time, time, &[])
        };
        let mut report = Report { rows: vec![row(16, 1), row(256, 32)], growth: Vec::new() };
        report.finish();
        let [growth] = report.growth[..] else { panic!("one step") };
        assert_eq!((growth.times, growth.n_log_n), (32.0, 32.0));
        assert!((growth.exponent - 1.25).abs() < 1e-9);
    }
}
