//! Runs a test in a process of its own, for what it prints or for another machine.

use std::process::Command;

/// Runs an ignored test of this binary, which must pass. Returns its standard error.
pub(crate) fn child(name: &str) -> String {
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env("RUST_BACKTRACE", "0")
        .output()
        .expect("the child runs");
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{stderr}");
    stderr
}
