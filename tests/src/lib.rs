//! Helpers for the integration tests.

use std::fmt::Display;
use std::io::Write;

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

/// Passes on what the output of another process says about what it did not run.
pub fn pass_on_not_run(output: &str) {
    for line in output.lines().filter(|line| line.starts_with(NOT_RUN)) {
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
