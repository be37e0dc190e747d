//! The main job and other commands under launchers that do not know aqueduct.

use std::process::Command;

use crate::support::{aqueduct, run};

/// Runs `aqueduct` with `arguments` under `launcher`, with no variable of ours set.
fn under(launcher: &[&str], arguments: &[&str]) -> Command {
    let plain = aqueduct(arguments);
    let mut command = Command::new(launcher[0]);
    command.args(&launcher[1..]).arg(plain.get_program()).args(arguments);
    for (name, value) in plain.get_envs().filter(|(name, _)| *name != "AQUEDUCT_SOCKET_IFNAME") {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// Asserts that four ranks formed one job, not four.
#[track_caller]
fn one_job_of_four(launcher: &[&str], arguments: &[&str]) {
    let outcome = run(&mut under(launcher, arguments)).exited(0);
    assert_eq!(outcome.stdout.lines().last(), Some("# Out of bounds values : 0 OK"), "{outcome:#?}");
    assert_eq!(outcome.stdout.matches("# Out of bounds values").count(), 1, "{outcome:#?}");
    assert_eq!(outcome.stdout.matches("\n# rank  ").count(), 4, "{outcome:#?}");
}

const MPIRUN: [&str; 5] = ["mpirun.openmpi", "--oversubscribe", "--allow-run-as-root", "-n", "4"];
const MPIEXEC: [&str; 3] = ["mpiexec.hydra", "-n", "4"];
const SHORT: [&str; 4] = ["perf", "all-reduce", "-e", "64K"];

#[test]
#[ignore = "needs Open MPI's mpirun"]
fn mpirun_starts_ranks() {
    one_job_of_four(&MPIRUN, &SHORT);
}

#[test]
#[ignore = "needs MPICH's mpiexec"]
fn mpiexec_starts_ranks() {
    one_job_of_four(&MPIEXEC, &SHORT);
}

#[test]
#[ignore = "needs Open MPI's mpirun, and a minute of two cores"]
fn mpirun_starts_the_main_job() {
    one_job_of_four(&MPIRUN, &[]);
}

#[test]
#[ignore = "needs MPICH's mpiexec, and a minute of two cores"]
fn mpiexec_starts_the_main_job() {
    one_job_of_four(&MPIEXEC, &[]);
}
