//! Tests that other tests of one process would disturb, or that need an environment of their own.

use std::process::Command;

/// Starts `test` of `module`, a `module_path!()`, again in a process of its own, and fails unless it passes there. True in that
/// process. `variables` are set there, or removed.
pub(crate) fn is_own_process(module: &str, test: &str, variables: &[(&str, Option<&str>)]) -> bool {
    const INSIDE: &str = "AQUEDUCT_TEST_OWN_PROCESS";
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let (_, module) = module.split_once("::").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&*format!("{module}::{test}"), "--exact", "--nocapture", "--include-ignored"]);
    command.env(INSIDE, "1");
    for (name, value) in variables {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    text.lines().filter(|line| line.starts_with("measured: ")).for_each(|line| println!("{line}"));
    false
}
