//! Helpers for the integration tests.

use std::fmt::Display;
use std::io::Write;

pub mod process;
pub mod ranks;

/// Says that `what`, a test or a part of one, does not run here, and why. The lanes count these lines
/// (`ci/lane.sh`), so the test must not look as if it had passed: return right after this.
///
/// Written past the test harness, which would keep the output of a test that passes.
pub fn not_run(what: &str, why: impl Display) {
    say(&format!("{NOT_RUN}{what}: {why}\n"));
}

/// How lines of [`not_run`] begin.
const NOT_RUN: &str = "NOT RUN: ";

/// Prints a result, of a litmus test or a measurement, past the test harness, which would keep the output of a test that passes.
pub fn report(result: &str) {
    say(&format!("{LITMUS}{result}\n"));
}

/// How lines of [`report`] begin.
const LITMUS: &str = "LITMUS: ";

/// Passes on what the output of another process says about results, and about what it did not run.
pub fn pass_on(output: &str) {
    let said = |line: &&str| line.starts_with(NOT_RUN) || line.starts_with(LITMUS);
    for line in output.lines().filter(said) {
        say(&format!("{line}\n"));
    }
}

/// Writes `line` in one piece, because other tests write as well.
fn say(line: &str) {
    // A closed standard error is no failure of the test.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// `len` bytes that depend on offset and `seed`. The prime period 251 makes swapped blocks visible.
pub fn paint(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 7 + seed * 13) % 251) as u8).collect()
}
