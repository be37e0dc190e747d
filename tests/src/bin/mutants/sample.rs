//! A few mutants of every kind, each with one test that is known to catch it: so the power of the tests and of the device's
//! checks cannot shrink unnoticed.

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::rules::Mutant;
use crate::suite::{Check, End, Suite, run};

/// A line: the mutant's key, then check, suite and test.
fn parse(line: &str) -> Option<(&str, Check, &str, &str)> {
    let (key, rest) = line.rsplit_once(" | ")?;
    let mut words = rest.split_whitespace();
    Some((key, Check::parse(words.next()?)?, words.next()?, words.next()?))
}

/// Runs them all. Fails if one is not caught, or is not there.
pub(crate) fn run_all(folder: &Path, suites: &[Suite], jobs: usize, all: &[(Mutant, String)]) -> ExitCode {
    let lines =
        include_str!("../../../../ci/mutants/sample.txt").lines().filter(|line| !line.starts_with('#'));
    let lines: Vec<&str> = lines.collect();
    let wrong = AtomicUsize::new(0);
    crate::work(&lines, jobs, |worker, line| {
        if let Err(why) = try_one(folder, suites, all, worker, line) {
            println!("{line}\n    {why}");
            wrong.fetch_add(1, Ordering::Relaxed);
        }
    });
    let wrong = wrong.into_inner();
    println!(
        "mutants: {} of {} were caught by the tests that the sample names",
        lines.len() - wrong,
        lines.len()
    );
    if wrong == 0 && !lines.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn try_one(
    folder: &Path,
    suites: &[Suite],
    all: &[(Mutant, String)],
    worker: usize,
    line: &str,
) -> Result<(), &'static str> {
    let (key, check, suite, test) = parse(line).ok_or("not understood: KEY | CHECK SUITE TEST")?;
    let (mutant, source) =
        all.iter().find(|(mutant, _)| mutant.key() == key).ok_or("there is no such mutant")?;
    let suite = suites.iter().find(|known| known.name == suite).ok_or("there is no such suite")?;
    let text = crate::plant(folder, worker, mutant, source);
    let output = folder.join(format!("sample.{worker}.log"));
    match run(suite, check, &[test], &[("PTX_REPLACED", &text)], &output, Duration::from_secs(60)) {
        End::Failed(failed, _) if failed == test => Ok(()),
        End::Failed(..) => Err("the test did not run to its end"),
        End::Passed => Err("not caught"),
        End::TimedOut => Err("the test did not end"),
    }
}
