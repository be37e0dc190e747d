//! The progress of rows that take long, on a terminal and nowhere else.

use std::io::Read;
use std::process::{Command, Stdio};

use crate::support::{aqueduct, command, run, terminal};

/// A row of more than three seconds.
const LONG: [&str; 8] = ["perf", "all-reduce", "-b", "64", "-e", "64", "--duration", "3s"];

/// Runs `command` with standard error on a terminal, and returns what the terminal was sent.
fn shown(command: &mut Command) -> String {
    let (mut user, program) = terminal();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(program).spawn().unwrap();
    // The command held the other end of the terminal; with it, reading would never end.
    command.stderr(Stdio::null());
    let mut seen = Vec::new();
    // Ends with an error (EIO) once no program has the terminal open.
    let _ = user.read_to_end(&mut seen);
    assert!(child.wait().unwrap().success());
    String::from_utf8(seen).unwrap()
}

fn launched(arguments: &[&str]) -> Command {
    aqueduct(&[&["run", "-n", "2", "--", "aqueduct"], arguments].concat())
}

#[test]
fn one_line_that_disappears() {
    let seen = shown(&mut aqueduct(&LONG));
    assert!(seen.contains("\r\x1b[2K64 B") && seen.contains(" 2 s so far"), "{seen:?}");
    assert!(seen.ends_with("\x1b[2K"), "{seen:?}");
}

/// Ranks write to a pipe. What they write comes out as whole lines of rank 0, and nothing else does.
#[test]
fn whole_lines_under_run() {
    let seen = shown(&mut launched(&LONG));
    let lines: Vec<&str> = seen.split_terminator("\r\n").collect();
    assert!(!lines.is_empty(), "{seen:?}");
    for line in lines {
        assert!(line.starts_with("[0] 64 B") && line.ends_with(" s so far"), "{seen:?}");
    }
}

#[test]
fn nothing_where_no_terminal_is() {
    let outcome = run(&mut launched(&LONG)).exited(0);
    assert_eq!(outcome.stderr, "");
    // A rank whose own error output goes to a file.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("errors");
    let redirected = format!("exec \"$0\" {} 2> {}", LONG.join(" "), path.display());
    let own = env!("CARGO_BIN_EXE_aqueduct");
    let seen = shown(command(own).args(["run", "-n", "1", "--", "sh", "-c", &redirected, own]));
    assert_eq!((seen.as_str(), std::fs::read_to_string(path).unwrap().as_str()), ("", ""));
}

/// A launcher that is itself a rank says where its own standard error leads, not where that of its launcher does.
#[test]
fn a_run_inside_a_run_does_not_pass_on_that_there_is_a_terminal() {
    let tell = ["run", "-n", "1", "--no-prefix", "--", "sh", "-c", "echo ${AQUEDUCT_PROGRESS-unset}"];
    let inner = run(aqueduct(&tell).env("AQUEDUCT_PROGRESS", "lines")).exited(0);
    assert_eq!(inner.stdout, "unset\n");
    // The outer one, whose standard error is a terminal, tells its ranks so.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("told");
    let save = format!("echo $AQUEDUCT_PROGRESS > {}", path.display());
    shown(&mut aqueduct(&["run", "-n", "1", "--", "sh", "-c", &save]));
    assert_eq!(std::fs::read_to_string(path).unwrap(), "lines\n");
}
