//! Eight processes exchange eager messages, long data and reads of random sizes for as long as one likes, over shared memory
//! among the first four and over TCP otherwise; every few seconds one is killed and started again. Every byte is checked, and
//! whatever was begun ends once.
//!
//! Between rounds all of them fall silent. Then each has exactly the descriptors, rings and threads that its living peers need,
//! and those that are never killed have no more memory than after the first round.
//!
//! `AQUEDUCT_TEST_SECONDS` is how long it runs (20), `AQUEDUCT_TEST_SEED` chooses what happens (1).

mod figures;
mod hearing;
mod node;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use aqueduct::message::{Address, Secret};
use aqueduct_tests::process::{Process, has_exited};
use aqueduct_tests::ranks;

use self::node::Node;

/// Processes, and those among them that allow shared memory.
const RANKS: u32 = 8;
const SHARING: u32 = 4;
/// Those that are killed. The others see all of it.
const VICTIMS: [u32; 5] = [2, 3, 5, 6, 7];
/// A time that no correct run needs for a step, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

const FOLDER: &str = "AQUEDUCT_TEST_SOAK_FOLDER";
const SECRET: &str = "AQUEDUCT_TEST_SOAK_SECRET";

/// Splitmix64.
struct Random(u64);

impl Random {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.word() % limit as u64) as usize
    }

    fn once_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// The step that all processes are at. Steps are numbered, so that none is mistaken for a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Do everything at once.
    Run(u32),
    /// Begin nothing, and let everything end.
    Drain(u32),
    /// Nothing moves anywhere: measure.
    Measure(u32),
    /// Leave.
    End,
}

impl Step {
    fn text(self) -> String {
        match self {
            Self::Run(round) => format!("run {round}"),
            Self::Drain(round) => format!("drain {round}"),
            Self::Measure(round) => format!("measure {round}"),
            Self::End => "end 0".into(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (word, round) = text.split_once(' ')?;
        let round = round.parse().ok()?;
        Some(match word {
            "run" => Self::Run(round),
            "drain" => Self::Drain(round),
            "measure" => Self::Measure(round),
            _ => Self::End,
        })
    }
}

/// The folder through which the processes and the test tell each other addresses and steps.
#[derive(Clone)]
struct Board(PathBuf);

impl Board {
    /// Writes a file in one piece.
    fn write(&self, name: &str, text: &str) {
        let part = self.0.join(format!("{name}.{}.part", std::process::id()));
        std::fs::write(&part, text).unwrap();
        std::fs::rename(part, self.0.join(name)).unwrap();
    }

    fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.0.join(name)).ok()
    }

    fn has(&self, name: &str) -> bool {
        self.0.join(name).exists()
    }

    fn step(&self) -> Step {
        self.read("step").and_then(|text| Step::parse(&text)).expect("the test has written the step")
    }

    fn address(&self, rank: u32) -> Option<Address> {
        self.read(&format!("address.{rank}"))?.parse().ok()
    }

    /// Whether the test has killed the process of this generation, or is about to.
    fn is_dead(&self, generation: u64) -> bool {
        self.has(&format!("dead.{generation:x}"))
    }

    /// `rank` has done what the step asks for.
    fn report(&self, step: Step, rank: u32) {
        self.write(&format!("{} {rank}", step.text()), "");
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// The full name of the test.
const TEST: &str = "messages::soak::processes_that_are_killed_and_started_again";

#[test]
#[ignore = "its eight busy processes would starve other tests: a lane of its own runs it"]
fn processes_that_are_killed_and_started_again() {
    let seed = number("AQUEDUCT_TEST_SEED", 1);
    if let Some(rank) = ranks::rank() {
        let board = Board(std::env::var(FOLDER).unwrap().into());
        return Node::new(board, rank, std::env::var(SECRET).unwrap().parse().unwrap(), seed).live();
    }
    let seconds = number("AQUEDUCT_TEST_SECONDS", 20);
    println!("{seconds} s of AQUEDUCT_TEST_SEED={seed}");
    let folder = tempfile::tempdir().unwrap();
    let mut job = Job::start(folder.path(), seed);
    let time = Duration::from_secs(seconds);
    // A short run has three rounds, a long one a pause every 20 s. The first one warms up.
    let round_time = (time / 3).min(Duration::from_secs(20));
    let rounds = (time.as_secs_f64() / round_time.as_secs_f64()).round().max(2.0) as u32;
    for round in 1..=rounds {
        job.run(round, round_time);
        job.all(Step::Drain(round));
        job.all(Step::Measure(round));
    }
    job.end();
}

/// The processes.
struct Job {
    board: Board,
    secret: String,
    random: Random,
    seed: u64,
    processes: Vec<Process>,
    kills: u32,
}

impl Job {
    fn start(folder: &Path, seed: u64) -> Self {
        let board = Board(folder.to_owned());
        board.write("step", &Step::Run(1).text());
        let secret = Secret::random().unwrap().to_text().expose().to_owned();
        let random = Random(seed);
        let mut job = Self { board, secret, random, seed, processes: Vec::new(), kills: 0 };
        job.processes = (0..RANKS).map(|rank| job.process(rank)).collect();
        job
    }

    fn process(&self, rank: u32) -> Process {
        let mut command: Command = ranks::command(rank, TEST);
        let seed = self.seed ^ u64::from(self.kills) << 32;
        command
            .env(FOLDER, &self.board.0)
            .env(SECRET, &self.secret)
            .env("AQUEDUCT_TEST_SEED", seed.to_string());
        Process::start(&mut command)
    }

    /// One round, with a kill every one to four seconds.
    fn run(&mut self, round: u32, time: Duration) {
        self.board.write("step", &Step::Run(round).text());
        let end = Instant::now() + time;
        while Instant::now() < end {
            let pause = Duration::from_millis(1000 + self.random.below(3000) as u64);
            let next = (Instant::now() + pause).min(end);
            while Instant::now() < next {
                self.check();
                std::thread::sleep(Duration::from_millis(20));
            }
            if next < end {
                self.kill();
            }
        }
    }

    /// Kills one process and starts it again, at once or a little later.
    fn kill(&mut self) {
        let rank = VICTIMS[self.random.below(VICTIMS.len())];
        // One that still starts has done nothing yet.
        let Some(address) = self.board.address(rank) else { return };
        self.board.write(&format!("dead.{:x}", address.generation()), "");
        std::fs::remove_file(self.board.0.join(format!("address.{rank}"))).unwrap();
        self.processes[rank as usize].signal(libc::SIGKILL);
        self.kills += 1;
        if self.random.once_in(2) {
            std::thread::sleep(Duration::from_millis(self.random.below(500) as u64));
        }
        let new = self.process(rank);
        // The old one is reaped here.
        self.processes[rank as usize] = new;
    }

    /// Has all processes do `step`, and waits for that.
    fn all(&mut self, step: Step) {
        self.board.write("step", &step.text());
        let limit = Instant::now() + PATIENCE;
        while !(0..RANKS).all(|rank| self.board.has(&format!("{} {rank}", step.text()))) {
            self.check();
            if Instant::now() >= limit {
                let late: Vec<u32> =
                    (0..RANKS).filter(|rank| !self.board.has(&format!("{} {rank}", step.text()))).collect();
                self.fail(&late, &format!("not in time: {}", step.text()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Fails if a process has ended on its own.
    fn check(&mut self) {
        if let Some(rank) = (0..RANKS).find(|rank| has_exited(self.processes[*rank as usize].pid())) {
            self.fail(&[rank], "ended");
        }
    }

    fn fail(&mut self, ranks: &[u32], why: &str) -> ! {
        // One that fails makes others fail, and may be the last to be seen as ended.
        std::thread::sleep(Duration::from_secs(2));
        let all = std::mem::take(&mut self.processes);
        for (rank, process) in (0..).zip(all) {
            if ranks.contains(&rank) || has_exited(process.pid()) {
                let ended = process.wait(Instant::now());
                eprintln!("---- rank {rank}: {}\n{}{}", ended.status, ended.stdout, ended.stderr);
            }
        }
        panic!("AQUEDUCT_TEST_SEED={}, after {} kills: ranks {ranks:?}: {why}", self.seed, self.kills);
    }

    /// All leave in good order. Prints what those that lived long have done.
    fn end(mut self) {
        self.board.write("step", &Step::End.text());
        let limit = Instant::now() + PATIENCE;
        let all = std::mem::take(&mut self.processes);
        for (rank, process) in (0..RANKS).zip(all) {
            let ended = process.wait(limit);
            let output = [&*ended.stdout, &*ended.stderr].concat();
            assert!(
                ended.status.success() && !ended.late && output.contains("1 passed"),
                "AQUEDUCT_TEST_SEED={}: rank {rank}: {}\n{output}",
                self.seed,
                ended.status
            );
            // The first line stands behind the name of the test.
            let figures = output.lines().filter_map(|line| line.find("rank ").map(|at| &line[at..]));
            figures.for_each(|line| println!("{line}"));
        }
        println!("{} kills", self.kills);
    }
}
