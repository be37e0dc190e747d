//! The rows and the table of `aqueduct perf bootstrap`.

use std::io::{Result, Write};
use std::time::Duration;

use super::super::output::{Foot, Table};
use super::super::record::{Over, Record};
use super::ranks::{PHASES, Sample};

/// The row about all phases together.
const ALL: &str = "all";

/// One run.
pub(super) struct Run {
    pub(super) ranks: u32,
    pub(super) processes: usize,
    /// Time from the start until the last rank has left.
    pub(super) total: Duration,
    /// User and system time of all processes, including starting and ending the threads.
    pub(super) cpu: (Duration, Duration),
    pub(super) samples: Vec<Sample>,
}

impl Run {
    /// The run of median length; of an even number the longer of the two in the middle.
    pub(super) fn median(mut runs: Vec<Self>) -> Self {
        runs.sort_by_key(|run| run.total);
        runs.swap_remove(runs.len() / 2)
    }

    /// A row for each phase, with statistics over the ranks, and one for all of them.
    pub(super) fn rows(&self) -> Vec<Record> {
        let row = |phase, samples_us| Record {
            algorithm: "tcp".to_owned(),
            phase: Some(phase),
            ranks: Some(self.ranks),
            processes: Some(self.processes),
            calls_per_sample: 1,
            ..Record::default().with_samples(samples_us, Over::Ranks)
        };
        let mean = |bytes: &[u64]| bytes.iter().sum::<u64>() as f64 / bytes.len() as f64;
        let phase = |(index, name)| {
            let times = self.samples.iter().map(|sample| sample.seconds[index] * 1e6);
            let bytes: Vec<u64> = self.samples.iter().map(|sample| sample.bytes[index]).collect();
            Record {
                sent_mean_bytes: Some(mean(&bytes)),
                sent_max_bytes: bytes.iter().copied().max(),
                ..row(name, times.collect())
            }
        };
        let mut rows: Vec<Record> = PHASES.into_iter().enumerate().map(phase).collect();
        let bytes: Vec<u64> = self.samples.iter().map(|sample| sample.bytes.iter().sum()).collect();
        let most = |index: usize| self.samples.iter().map(|sample| sample.links[index]).max();
        rows.push(Record {
            percentiles_over: Some(Over::Calls),
            cpu_user_s: Some(self.cpu.0.as_secs_f64()),
            cpu_system_s: Some(self.cpu.1.as_secs_f64()),
            wall_s: Some(self.total.as_secs_f64()),
            sent_mean_bytes: Some(mean(&bytes)),
            sent_max_bytes: bytes.iter().copied().max(),
            connections_max: most(0),
            control_links_max: most(1),
            ..row(ALL, vec![self.total.as_secs_f64() * 1e6])
        });
        rows
    }
}

/// Prints the phases of each run, and at the end how the time grew from one to the next.
#[derive(Debug, Default)]
pub(super) struct Phases {
    totals: Vec<Total>,
}

#[derive(Clone, Copy, Debug)]
struct Total {
    ranks: u32,
    seconds: f64,
    cpu_seconds: f64,
}

/// Growth from one number of ranks to the next.
#[derive(Clone, Copy, Debug)]
struct Growth {
    from: u32,
    to: u32,
    /// Ratio of the times, and the ratio that growth by n log n would give.
    times: f64,
    n_log_n: f64,
    /// Ratio of CPU times, which other load on the machine does not affect.
    cpu_times: f64,
    /// The exponent x, if the time grew as n^x.
    exponent: f64,
}

impl Phases {
    fn growth(&self) -> Vec<Growth> {
        let of = |pair: &[Total]| {
            let [a, b] = pair else { return None };
            let (n, m) = (f64::from(a.ranks), f64::from(b.ranks));
            let times = b.seconds / a.seconds;
            (a.ranks > 1 && b.ranks > a.ranks).then(|| Growth {
                from: a.ranks,
                to: b.ranks,
                times,
                cpu_times: b.cpu_seconds / a.cpu_seconds,
                n_log_n: m * m.ln() / (n * n.ln()),
                exponent: times.ln() / (m / n).ln(),
            })
        };
        self.totals.windows(2).filter_map(of).collect()
    }
}

impl Table for Phases {
    fn print_head(&self, out: &mut dyn Write) -> Result<()> {
        let names = ["ranks", "phase", "time", "max", "sent", "max"];
        let units = ["", "", "(ms)", "(ms)", "(B/rank)", "(B)"];
        [names, units].into_iter().try_for_each(|[a, b, c, d, e, f]| {
            writeln!(out, "#{a:>7} {b:>14} {c:>10} {d:>10} {e:>12} {f:>10}")
        })
    }

    fn print(&mut self, rows: &[Record], out: &mut dyn Write) -> Result<()> {
        for row in rows {
            let ranks = row.ranks.unwrap_or(0);
            let phase = row.phase.unwrap_or_default().replace(' ', "-");
            let [time, max] = [row.time_p50_us, row.time_max_us].map(|us| us.unwrap_or(f64::NAN) / 1e3);
            let (mean, most) = (row.sent_mean_bytes.unwrap_or(0.0), row.sent_max_bytes.unwrap_or(0));
            writeln!(out, "{ranks:>8} {phase:>14} {time:>10.1} {max:>10.1} {mean:>12.0} {most:>10}")?;
            if phase == ALL {
                let cpu_seconds = row.cpu_user_s.unwrap_or(0.0) + row.cpu_system_s.unwrap_or(0.0);
                self.totals.push(Total { ranks, seconds: time / 1e3, cpu_seconds });
                writeln!(
                    out,
                    "# {ranks} ranks in {} processes, {cpu_seconds:.2} s of CPU time; at most {} connections and {} control \
                     links per rank",
                    row.processes.unwrap_or(0),
                    row.connections_max.unwrap_or(0),
                    row.control_links_max.unwrap_or(0),
                )?;
            }
        }
        Ok(())
    }

    fn print_foot(&self, _: &Foot, out: &mut dyn Write) -> Result<()> {
        self.growth().iter().try_for_each(|g| {
            writeln!(
                out,
                "# from {} to {} ranks: {:.1} times the time, {:.1} times the CPU time; n log n would be {:.1}; time grows as n^{:.2}",
                g.from, g.to, g.times, g.cpu_times, g.n_log_n, g.exponent
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_of_median_length_is_reported() {
        let median = |seconds: &[u64]| {
            let run = |&seconds: &u64| Run {
                ranks: 2,
                processes: 1,
                total: Duration::from_secs(seconds),
                cpu: Default::default(),
                samples: Vec::new(),
            };
            Run::median(seconds.iter().map(run).collect()).total.as_secs()
        };
        assert_eq!([median(&[3, 1, 2]), median(&[4, 1, 3, 2]), median(&[7])], [2, 3, 7]);
    }

    #[test]
    fn growth_is_measured_against_n_log_n() {
        let total = |ranks, seconds| Total { ranks, seconds, cpu_seconds: seconds };
        let table = Phases { totals: vec![total(16, 1.0), total(256, 32.0)] };
        let [growth] = table.growth()[..] else { panic!("one step") };
        assert_eq!((growth.times, growth.n_log_n, growth.cpu_times), (32.0, 32.0, 32.0));
        assert!((growth.exponent - 1.25).abs() < 1e-9);
    }

    #[test]
    fn statistics_are_over_the_ranks() {
        let sample = |second: f64, bytes: u64| Sample {
            seconds: [second; PHASES.len()],
            bytes: [bytes; PHASES.len()],
            links: [3, bytes as usize],
        };
        let run = Run {
            ranks: 2,
            processes: 1,
            total: Duration::from_secs(9),
            cpu: (Duration::from_secs(1), Duration::from_secs(2)),
            samples: vec![sample(1.0, 10), sample(3.0, 30)],
        };
        let rows = run.rows();
        assert_eq!(rows.len(), PHASES.len() + 1);
        assert_eq!((rows[0].time_p50_us, rows[0].time_max_us), (Some(2e6), Some(3e6)));
        assert_eq!((rows[0].sent_mean_bytes, rows[0].sent_max_bytes), (Some(20.0), Some(30)));
        let all = &rows[PHASES.len()];
        assert_eq!((all.time_p50_us, all.cpu_user_s, all.cpu_system_s), (Some(9e6), Some(1.0), Some(2.0)));
        assert_eq!((all.sent_max_bytes, all.control_links_max), (Some(150), Some(30)));
    }
}
