//! Runs each example as two ranks, as `aqueduct run` would, and checks what each rank says.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aqueduct::bootstrap::{BootstrapConfig, Rendezvous, Selection};
use aqueduct_tests::process::Process;

/// Time limit of one example, much longer than any takes.
const LIMIT: Duration = Duration::from_secs(120);

/// Checks of the software device, which examples pass, too.
const CHECKS: [&str; 4] =
    ["AQUEDUCT_SOFT_CHECK", "AQUEDUCT_SOFT_SEED", "AQUEDUCT_SOFT_LINES", "AQUEDUCT_SOFT_SMS"];

/// `program` without variables of ours but those of checks, on the software device unless `hardware`.
fn command(program: &str, hardware: bool) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("AQUEDUCT_") && !CHECKS.contains(&name.as_str()) {
            command.env_remove(name);
        }
    }
    command
        .env("AQUEDUCT_DRIVER", if hardware { "cuda" } else { "soft" })
        .env("AQUEDUCT_SOCKET_IFNAME", "=lo")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Whether a rank succeeded, and all that it printed.
fn finish(rank: Process, deadline: Instant) -> (bool, String) {
    let ended = rank.wait(deadline);
    (!ended.late && ended.status.success(), ended.stdout + &ended.stderr)
}

/// Runs `program` as two ranks, with the handles that the device prefers and with legacy ones, whose owners wait for their
/// peers. Each rank must succeed and print one line: its rank, its driver, and at the end what `says` returns.
fn run(program: &str, hardware: bool, says: impl Fn(u32) -> String) {
    for handle in ["auto", "ipc"] {
        run_with(program, hardware, handle, &says);
    }
}

fn run_with(program: &str, hardware: bool, handle: &str, says: impl Fn(u32) -> String) {
    let loopback = Selection { names: Some("=lo".into()), ..Selection::default() };
    let config = BootstrapConfig::default().with_interfaces(loopback);
    let rendezvous = Rendezvous::with_config(Some(2), &config).expect("the ranks can meet on loopback");
    let start = |rank: u32| {
        Process::start(
            command(program, hardware)
                .env("AQUEDUCT_RANK", rank.to_string())
                .env("AQUEDUCT_LOCAL_RANK", rank.to_string())
                .env("AQUEDUCT_HANDLE", handle)
                .env("AQUEDUCT_WORLD_SIZE", "2")
                .env("AQUEDUCT_UNIQUE_ID", rendezvous.unique_id().to_text().expose()),
        )
    };
    let (ranks, deadline) = ([0, 1].map(start), Instant::now() + LIMIT);
    let outcomes = ranks.map(|rank| finish(rank, deadline));
    for (rank, (success, output)) in (0..).zip(&outcomes) {
        let driver = if hardware { "" } else { "software: " };
        let right = *success
            && output.lines().count() == 1
            && output.starts_with(&format!("rank {rank} "))
            && output.contains(&format!(" on {driver}"))
            && output.ends_with(&format!(": {}\n", says(rank)));
        assert!(right, "rank {rank} should say: {}; {outcomes:#?}", says(rank));
    }
}

/// A server and three workers, which need no device.
#[test]
fn parameter_server() {
    const RANKS: u32 = 4;
    let loopback = Selection { names: Some("=lo".into()), ..Selection::default() };
    let config = BootstrapConfig::default().with_interfaces(loopback);
    let rendezvous = Rendezvous::with_config(Some(RANKS), &config).expect("the ranks can meet on loopback");
    let start = |rank: u32| {
        Process::start(
            command(env!("CARGO_BIN_EXE_parameter-server"), false)
                .env("AQUEDUCT_RANK", rank.to_string())
                .env("AQUEDUCT_WORLD_SIZE", RANKS.to_string())
                .env("AQUEDUCT_UNIQUE_ID", rendezvous.unique_id().to_text().expose()),
        )
    };
    let ranks: Vec<Process> = (0..RANKS).map(start).collect();
    let deadline = Instant::now() + LIMIT;
    for (rank, process) in (0..).zip(ranks) {
        let (success, output) = finish(process, deadline);
        assert!(success && output == format!("rank {rank}: 10 steps\n"), "rank {rank}: {output}");
    }
}

fn ping_pong(hardware: bool) {
    run(env!("CARGO_BIN_EXE_ping-pong"), hardware, |rank| {
        format!("the ball is {}, as it should be", 2000 - rank)
    });
}

fn host_semaphores(hardware: bool) {
    run(env!("CARGO_BIN_EXE_host-semaphores"), hardware, |_| "both halves came, over Ethernet".into());
}

fn memory_channel(hardware: bool) {
    run(env!("CARGO_BIN_EXE_memory-channel"), hardware, |_| "all 100000 numbers came".into());
}

fn port_channel(hardware: bool) {
    run(env!("CARGO_BIN_EXE_port-channel"), hardware, |_| "all 100000 numbers came, over CudaIpc".into());
}

fn first_crate(hardware: bool) {
    run(env!("CARGO_BIN_EXE_first-crate"), hardware, |_| "all 1048576 sums are right".into());
}

macro_rules! each {
    ($($example:ident)+) => {
        mod soft {
            $(#[test]
            fn $example() {
                super::$example(false);
            })+
        }
        mod hardware {
            $(#[test]
            #[ignore = "needs two NVIDIA GPUs joined by NVLink, or one"]
            fn $example() {
                super::$example(true);
            })+
        }
    };
}

each! { ping_pong host_semaphores memory_channel port_channel first_crate }

#[test]
fn an_example_that_is_started_alone_says_how_to_start_it() {
    let programs = [
        env!("CARGO_BIN_EXE_ping-pong"),
        env!("CARGO_BIN_EXE_host-semaphores"),
        env!("CARGO_BIN_EXE_memory-channel"),
        env!("CARGO_BIN_EXE_port-channel"),
        env!("CARGO_BIN_EXE_first-crate"),
    ];
    for program in programs {
        let name = program.rsplit('/').next().expect("a path has a last part");
        let alone = Process::start(&mut command(program, false));
        let (success, output) = finish(alone, Instant::now() + LIMIT);
        assert!(!success && output.contains(&format!("aqueduct run -n 2 -- {name}")), "{output}");
    }
}
