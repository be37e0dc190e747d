//! How results leave `aqueduct perf`: the lines above a table, the table while it grows, and the files.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use super::args::Files;
use super::report::Table;
use crate::job::Rank;

/// Collective: the lines above every table, with one line per rank.
pub(super) fn header(rank: &Rank, name: &str) -> Result<Vec<String>> {
    let driver = rank.context.driver();
    let device = rank.context.device();
    let mut lines = Vec::new();
    if driver.is_software() {
        lines.push("software device: times say nothing about GPUs".to_owned());
    }
    lines.push(format!("aqueduct {} perf {name}", env!("CARGO_PKG_VERSION")));
    let (major, minor) = driver.version();
    lines.push(format!("driver {}, CUDA {major}.{minor}: {}", driver.provenance(), driver.reason()));
    let mine = format!(
        "rank {:>3} pid {:>7} on {} device {} [{}] {}",
        rank.bootstrap.rank(),
        std::process::id(),
        aqueduct::logging::host_name(),
        device.ordinal(),
        device.pci_bus_id()?,
        device.name()?
    );
    for line in rank.bootstrap.all_gather(mine.as_bytes(), rank.deadline())? {
        lines.push(String::from_utf8_lossy(&line).into_owned());
    }
    Ok(lines)
}

/// Runs `measure`, prints each row as soon as it is measured, and writes the files. The exit code is a failure if any
/// value was wrong.
pub(super) fn present<T: Table>(
    rank: &Rank,
    mut report: T,
    files: &Files,
    measure: impl FnOnce(&mut dyn FnMut(T::Row) -> Result<()>) -> Result<()>,
) -> Result<ExitCode> {
    let taken = |file: &Option<PathBuf>| file.as_deref() == Some(Path::new("-"));
    let table = rank.is_root() && !taken(&files.json) && !taken(&files.csv);
    let mut out = std::io::stdout();
    if table {
        report.print_head(&mut out)?;
    }
    measure(&mut |row| {
        if table {
            report.print_row(&row, &mut out)?;
        }
        report.push(row);
        Ok(())
    })?;
    // A stream is idle after a kernel that gave up, too.
    rank.comm.check()?;
    rank.barrier()?;
    if rank.is_root() {
        if let Some(path) = &files.json {
            write_json(&report, path)?;
        }
        if let Some(path) = &files.csv {
            write_text(&report.csv(), path)?;
        }
        if table {
            report.print_verdict(&mut std::io::stdout())?;
        }
    }
    Ok(if report.wrong().unwrap_or(0) == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(super) fn write_json(report: &impl serde::Serialize, path: &Path) -> Result<()> {
    write_text(&serde_json::to_string_pretty(report)?, path)
}

fn write_text(text: &str, path: &Path) -> Result<()> {
    let text = text.trim_end();
    if path == Path::new("-") {
        writeln!(std::io::stdout(), "{text}")?;
        return Ok(());
    }
    File::create(path)
        .and_then(|mut file| writeln!(file, "{text}"))
        .with_context(|| format!("cannot write {}", path.display()))
}
