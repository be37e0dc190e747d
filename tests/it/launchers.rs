//! Ranks started by real launchers: Open MPI's mpirun, MPICH's mpiexec (Hydra), PyTorch's torchrun.
//!
//! A rank is this binary again, running the same test function. It learns about the other ranks only from the launcher.

use std::collections::BTreeSet;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aqueduct::ErrorKind;
use aqueduct::bootstrap::{self, Launch, Launcher};

use crate::group::soon;

/// Time limit of one job.
const LIMIT: Duration = Duration::from_secs(60);
/// Set in the ranks.
const IN_RANK: &str = "TEST_LAUNCHED";

/// A kind of launcher.
struct Tool {
    launcher: Launcher,
    /// Its program names, the unambiguous ones first, and a word of its `--version` output.
    names: &'static [&'static str],
    word: &'static str,
    arguments: fn(u32) -> Vec<String>,
}

const OPEN_MPI: Tool = Tool {
    launcher: Launcher::OpenMpi,
    names: &["mpirun.openmpi", "mpirun"],
    word: "Open MPI",
    arguments: |ranks| {
        // The test starts more ranks than cores, and in containers the user is often root.
        ["--oversubscribe", "--allow-run-as-root", "-n", &ranks.to_string()].map(str::to_owned).to_vec()
    },
};

const HYDRA: Tool = Tool {
    launcher: Launcher::Pmi,
    names: &["mpiexec.hydra", "mpiexec"],
    word: "HYDRA",
    arguments: |ranks| ["-n", &ranks.to_string()].map(str::to_owned).to_vec(),
};

const TORCHRUN: Tool = Tool {
    launcher: Launcher::Torchrun,
    names: &["torchrun"],
    word: "",
    arguments: |ranks| ["--no-python", "--nproc-per-node", &ranks.to_string()].map(str::to_owned).to_vec(),
};

impl Tool {
    fn name(&self) -> &'static str {
        let found = self.names.iter().find(|name| {
            let asked =
                Command::new(name).arg(if self.word.is_empty() { "--help" } else { "--version" }).output();
            asked.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(self.word))
        });
        found.unwrap_or_else(|| panic!("none of {:?} is {}; install it", self.names, self.launcher))
    }

    fn command(&self, ranks: u32) -> Vec<String> {
        std::iter::once(self.name().to_owned()).chain((self.arguments)(ranks)).collect()
    }
}

/// Whether this process is a rank.
fn in_rank() -> bool {
    std::env::var_os(IN_RANK).is_some()
}

/// Runs `test` of this binary under `launchers`, the outermost first. Returns the output of all ranks and whether the
/// job succeeded.
fn run(launchers: &[Vec<String>], timeout: u32, test: &str) -> (bool, String) {
    let mut words = launchers.concat();
    words.push(std::env::current_exe().unwrap().to_str().unwrap().to_owned());
    words.extend(["--exact", test, "--include-ignored", "--nocapture"].map(str::to_owned));
    let mut command = Command::new(&words[0]);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("AQUEDUCT_")) {
        command.env_remove(name);
    }
    let mut child = command
        .args(&words[1..])
        .env(IN_RANK, "1")
        .env("AQUEDUCT_TIMEOUT", timeout.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    fn drain(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        })
    }
    let pipes = [drain(child.stdout.take().unwrap()), drain(child.stderr.take().unwrap())];
    let since = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if since.elapsed() > LIMIT => {
                child.kill().unwrap();
                break child.wait().unwrap();
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let output = pipes.map(|pipe| pipe.join().unwrap()).concat();
    assert!(since.elapsed() < LIMIT, "{words:?} did not end in time:\n{output}");
    (status.success(), output)
}

/// Ranks started by the launcher alone find each other and agree on ranks and size.
fn meet(tool: &Tool, ranks: u32, test: &str) {
    if !in_rank() {
        let (fine, output) = run(&[tool.command(ranks)], 20, test);
        assert!(fine && output.matches("1 passed").count() == ranks as usize, "{output}");
        return;
    }
    let launch = Launch::from_env().unwrap().expect("started by a launcher");
    assert_eq!((launch.launcher, launch.size), (tool.launcher, Some(ranks)));
    assert_eq!((launch.local_rank, launch.local_size), (Some(launch.rank), Some(ranks)), "all on one host");
    let bootstrap = bootstrap::from_env().unwrap().expect("started by a launcher");
    assert_eq!((bootstrap.rank(), bootstrap.size()), (launch.rank, ranks));
    let mine = [launch.rank.to_le_bytes(), std::process::id().to_le_bytes()].concat();
    let all = bootstrap.all_gather(&mine, soon()).unwrap();
    for (rank, theirs) in all.iter().enumerate() {
        assert_eq!(theirs[..4], (rank as u32).to_le_bytes());
    }
    let processes: BTreeSet<&[u8]> = all.iter().map(|theirs| &theirs[4..]).collect();
    assert_eq!(processes.len(), ranks as usize, "every rank is a process of its own");
    bootstrap.barrier(soon()).unwrap();
}

/// One rank never joins: the others learn of it at their deadline.
fn one_stays_away(tool: &Tool, test: &str) {
    if !in_rank() {
        // The launcher may report a failure because a rank exits while others are still connected to it.
        let (_, output) = run(&[tool.command(3)], 2, test);
        assert_eq!(output.matches("told in time").count(), 2, "{output}");
        return;
    }
    let rank = Launch::from_env().unwrap().expect("started by a launcher").rank;
    if rank == 1 {
        // Sleep longer than the others take; the launcher ends this rank with them.
        std::thread::sleep(Duration::from_secs(6));
        return;
    }
    let error = bootstrap::from_env().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(error.message().contains("every rank it started must join"), "{error}");
    eprintln!("rank {rank} was told in time");
    // The launcher ends the job when the first rank exits, so wait until the other rank has printed its result.
    std::thread::sleep(Duration::from_secs(1));
}

#[test]
#[ignore = "needs Open MPI's mpirun"]
fn ranks_of_open_mpi_meet() {
    meet(&OPEN_MPI, 4, "launchers::ranks_of_open_mpi_meet");
}

#[test]
#[ignore = "needs MPICH's mpiexec"]
fn ranks_of_hydra_meet() {
    meet(&HYDRA, 4, "launchers::ranks_of_hydra_meet");
}

#[test]
#[ignore = "needs PyTorch's torchrun"]
fn ranks_of_torchrun_meet() {
    meet(&TORCHRUN, 4, "launchers::ranks_of_torchrun_meet");
}

#[test]
#[ignore = "needs Open MPI's mpirun"]
fn a_rank_of_open_mpi_that_stays_away_is_noticed() {
    one_stays_away(&OPEN_MPI, "launchers::a_rank_of_open_mpi_that_stays_away_is_noticed");
}

#[test]
#[ignore = "needs MPICH's mpiexec"]
fn a_rank_of_hydra_that_stays_away_is_noticed() {
    one_stays_away(&HYDRA, "launchers::a_rank_of_hydra_that_stays_away_is_noticed");
}

#[test]
#[ignore = "needs Open MPI's mpirun and MPICH's mpiexec"]
fn launchers_that_contradict_each_other_are_named() {
    if !in_rank() {
        let test = "launchers::launchers_that_contradict_each_other_are_named";
        let (fine, output) = run(&[OPEN_MPI.command(1), HYDRA.command(2)], 20, test);
        assert!(fine && output.matches("1 passed").count() == 2, "{output}");
        return;
    }
    let error = bootstrap::from_env().unwrap_err();
    for name in ["OMPI_COMM_WORLD_SIZE=1", "PMI_SIZE=2", "AQUEDUCT_RANK"] {
        assert!(error.message().contains(name), "{error}");
    }
}
