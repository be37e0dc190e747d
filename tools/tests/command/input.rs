//! Standard input of `aqueduct run`: rank 0 reads it, whatever it is, and no other rank does.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::support::{Outcome, aqueduct, run, script, start_session, start_with, terminal};

/// Each rank says how many lines it can read.
const COUNT: &str = r#"echo "rank $AQUEDUCT_RANK reads $(cat | wc -l)""#;

#[track_caller]
fn rank_0_reads(lines: usize, outcome: Outcome) {
    let mut seen: Vec<String> = outcome.exited(0).stdout.lines().map(str::to_owned).collect();
    seen.sort();
    assert_eq!(seen, [&format!("rank 0 reads {lines}"), "rank 1 reads 0", "rank 2 reads 0"]);
}

#[test]
fn a_file_and_a_pipe() {
    let ranks = format!("aqueduct run -n 3 --no-prefix -- sh -c '{COUNT}'");
    rank_0_reads(30_000, run(&mut script(&format!("seq 1 30000 | {ranks}"))));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("input");
    std::fs::write(&path, "line\n".repeat(30_000)).unwrap();
    rank_0_reads(30_000, run(&mut script(&format!("{ranks} < {}", path.display()))));
}

#[test]
fn nothing_and_a_closed_descriptor() {
    for redirect in ["< /dev/null", "<&-"] {
        let ranks = format!("aqueduct run -n 3 --no-prefix -- sh -c '{COUNT}' {redirect}");
        rank_0_reads(0, run(&mut script(&ranks)));
    }
}

/// As in a shell's loop over a file of hosts.
#[test]
fn a_job_that_reads_nothing_takes_nothing() {
    let each = "while read line; do aqueduct run -n 2 -- true; echo got $line; done";
    let outcome = run(&mut script(&format!("seq 1 3 | ({each})"))).exited(0);
    assert_eq!(outcome.stdout, "got 1\ngot 2\ngot 3\n");
}

/// More than a pipe holds, and it never ends.
#[test]
fn an_input_that_nobody_reads_holds_nothing_up() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let feed = std::thread::spawn(move || while writer.write_all(&[b'x'; 4096]).is_ok() {});
    let job = start_with(aqueduct(&["run", "-n", "2", "--", "true"]).stdin(reader), Stdio::piped());
    job.finish().exited(0);
    feed.join().unwrap();
}

/// Runs `command` as the leader of a session on a terminal whose user types `text`.
fn at_a_terminal(command: &mut Command, text: &str) -> Outcome {
    let (mut user, program) = terminal();
    // SAFETY: between fork and exec only setsid(2) and ioctl(2) are called, both async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            if libc::setsid() == -1 || libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 0) == -1 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let job = start_session(command.stdin(program), Stdio::piped());
    user.write_all(text.as_bytes()).unwrap();
    // The user leaves the terminal open until the command has ended.
    job.finish()
}

#[test]
fn a_terminal() {
    // Ctrl-D ends the input.
    let ranks = ["run", "-n", "3", "--no-prefix", "--", "sh", "-c", COUNT];
    rank_0_reads(2, at_a_terminal(&mut aqueduct(&ranks), "one\ntwo\n\u{4}"));
    // The terminal stays silent.
    at_a_terminal(&mut aqueduct(&["run", "-n", "2", "--", "true"]), "").exited(0);
    // A command that starts ranks by itself does not read the terminal, so the next program gets the line.
    let next = "aqueduct selftest --quick -n 1 > /dev/null; read line; echo got $line";
    let outcome = at_a_terminal(&mut script(next), "for the shell\n").exited(0);
    assert_eq!(outcome.stdout, "got for the shell\n");
}

/// The kernel would stop a launcher that reads the terminal there.
#[test]
fn a_terminal_in_the_background() {
    let background = "set -m; aqueduct run -n 1 -- sleep 1 & wait $!";
    let outcome = at_a_terminal(&mut script(background), "for the shell\n").exited(0);
    assert!(!outcome.stderr.contains("aqueduct"), "{outcome:#?}");
}
