//! The printed report: rows, and the summary that an operator pastes into a support ticket.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use aqueduct::comm::PeerInfo;

use super::lockstep::Verdict;
use crate::info;
use crate::job::Rank;
use crate::stdout::Stdout;

/// The result of a check over all ranks.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) verdict: Verdict,
    pub(super) time: Duration,
}

impl Row {
    pub(super) fn has_failed(&self) -> bool {
        matches!(self.verdict, Verdict::Failed(_))
    }
}

/// Prints the lines above the first row.
pub(super) fn print_head(rank: &Rank) -> Result<()> {
    if rank.context.driver().is_software() {
        writeln!(Stdout, "# software device: times say nothing about GPUs")?;
    }
    writeln!(Stdout, "# aqueduct {} selftest, {} ranks", env!("CARGO_PKG_VERSION"), rank.bootstrap.size())?;
    Ok(())
}

/// Prints one row: name, verdict, time, and what was checked or why not.
pub(super) fn print_row(row: &Row) -> Result<()> {
    let (word, text) = match &row.verdict {
        Verdict::Passed(text) => ("passed", text),
        Verdict::NotRun(text) => ("not run", text),
        Verdict::Failed(text) => ("FAILED", text),
    };
    let text = text.replace('\n', "; ");
    writeln!(Stdout, "{:<30} {word:<7} {:>8.3} s  {text}", row.name, row.time.as_secs_f64())?;
    Ok(())
}

/// Prints the machine, the failed rows and the counts. The exit code is 1 if a row failed.
pub(super) fn print(rank: &Rank, rows: &[Row]) -> Result<ExitCode> {
    let (driver, out) = (rank.context.driver(), &mut Stdout);
    writeln!(out, "#")?;
    writeln!(out, "# summary")?;
    writeln!(out, "# aqueduct {}, {}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH)?;
    writeln!(out, "# host {}, kernel {}", aqueduct::logging::host_name(), kernel())?;
    if let Ok(module) = std::fs::read_to_string("/proc/driver/nvidia/version") {
        writeln!(out, "# {}", module.lines().next().unwrap_or_default())?;
    }
    writeln!(out, "# driver chosen: {}", driver.reason())?;
    info::describe(out, if driver.is_software() { "software device" } else { "NVIDIA driver" }, driver)?;
    for (number, peer) in rank.comm.peers().iter().enumerate() {
        writeln!(out, "# rank {number:>3} {}", place(peer))?;
    }
    let failed: Vec<&Row> = rows.iter().filter(|row| row.has_failed()).collect();
    for row in &failed {
        if let Verdict::Failed(text) = &row.verdict {
            writeln!(out, "# FAILED {}", row.name)?;
            text.lines().try_for_each(|line| writeln!(out, "#   {line}"))?;
        }
    }
    writeln!(out, "{}", last_line(rows))?;
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn last_line(rows: &[Row]) -> String {
    let count = |is: fn(&Verdict) -> bool| rows.iter().filter(|row| is(&row.verdict)).count();
    format!(
        "# selftest : {} passed, {} failed, {} not run",
        count(|v| matches!(v, Verdict::Passed(_))),
        count(|v| matches!(v, Verdict::Failed(_))),
        count(|v| matches!(v, Verdict::NotRun(_))),
    )
}

fn place(peer: &PeerInfo) -> String {
    match &peer.device {
        Some(device) => format!("pid {:>7} on {} [{}]", peer.pid, device.name, device.pci_bus_id),
        None => format!("pid {:>7} without a device", peer.pid),
    }
}

fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_did_not_run_is_not_counted_as_passed() {
        let row = |verdict| Row { name: String::new(), verdict, time: Duration::ZERO };
        let (passed, not_run) = (row(Verdict::Passed(String::new())), row(Verdict::NotRun(String::new())));
        let rows = [passed.clone(), not_run, passed, row(Verdict::Failed(String::new()))];
        assert_eq!(last_line(&rows), "# selftest : 2 passed, 1 failed, 1 not run");
    }
}
