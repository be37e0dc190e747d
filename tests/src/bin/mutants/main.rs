//! Mutants of the PTX kernels and of the library: each is one small fault, and a behavioural test must notice it
//! (docs/mutants.md).
//!
//! `ci/mutants.sh` builds the tests with replaceable kernels and starts this program:
//!
//! ```text
//! mutants list                                     every mutant's key, with its old text, and its new text
//! mutants run FOLDER [OPTION]... [PART]...         judges those whose name contains a PART (begins with it: ^PART), or all
//!     --suite NAME=BINARY[=PREFIX,...]             a test binary, and which of its tests
//!     --shard K/N                                  only each N-th mutant, from the K-th
//!     --jobs N                                     mutants at a time
//!     --seeds N                                    seeds of weak loads, for what nothing else caught (default 0)
//!     --longest MS                                 only tests that take at most this long without a mutant
//!     --most MS                                    tests that take so long together are enough for one mutant
//! mutants sample FOLDER [OPTION]...                those of ci/mutants/sample.txt, each with the test that it names; and whether
//!                                                  ci/mutants/found/kernels.tsv has a row for each mutant
//! mutants table FOLDER                             what a run found, by kind, and the survivors
//! mutants found FOLDER                             ci/mutants/found/kernels.tsv anew, with what a run found
//! ```
//!
//! `ci/rust-mutants.sh` does the same for the library, whose mutants cargo-mutants lists:
//!
//! ```text
//! mutants rust list FOLDER
//! mutants rust plant FOLDER                        makes FOLDER/tree, in which all mutants are planted
//! mutants rust run FOLDER [OPTION]... [PART]...    with a suite of that tree, and the options above
//!     --changed BASE                               only what the changes since the commit BASE concern
//! mutants rust table FOLDER
//! ```
//!
//! FOLDER keeps what was found: a run that is repeated there goes on where it ended.

mod calls;
mod cover;
mod found;
mod judge;
mod report;
mod rules;
mod rust;
mod sample;
mod statement;
mod suite;

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::rules::Mutant;
use crate::suite::Suite;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["list"] => {
            for (mutant, _) in all() {
                println!("{}\t=>\t{}", mutant.key(), mutant.new.trim());
            }
            ExitCode::SUCCESS
        }
        ["run", folder, options @ ..] => match Options::parse(options) {
            Ok(options) => {
                judge_all(Path::new(folder), &options);
                report::table(Path::new(folder), &all(), |index, name| options.takes(index, name))
            }
            Err(message) => usage(&message),
        },
        ["sample", folder, options @ ..] => match Options::parse(options) {
            Ok(options) => {
                let ends = [
                    sample::run_all(Path::new(folder), &options.suites, options.jobs, &all()),
                    found::compare(&all()),
                ];
                *ends.iter().find(|end| **end != ExitCode::SUCCESS).unwrap_or(&ExitCode::SUCCESS)
            }
            Err(message) => usage(&message),
        },
        ["found", folder] => found::print(Path::new(folder), &all()),
        ["table", folder] => report::table(Path::new(folder), &all(), |_, _| true),
        ["rust", command, folder, options @ ..] => match Options::parse(options) {
            Ok(options) => rust::command(command, Path::new(folder), &options)
                .unwrap_or_else(|| usage(&format!("rust {command}: no such command"))),
            Err(message) => usage(&message),
        },
        _ => usage(
            "mutants list, mutants run FOLDER [OPTION]... [PART]..., mutants table FOLDER, or mutants found FOLDER",
        ),
    }
}

fn usage(message: &str) -> ExitCode {
    eprintln!("mutants: {message}");
    ExitCode::from(2)
}

struct Options {
    suites: Vec<Suite>,
    /// The number of this part, from 1, and of all parts.
    shard: (usize, usize),
    jobs: usize,
    longest: u64,
    most: u64,
    seeds: u64,
    changed: Option<String>,
    parts: Vec<String>,
}

impl Options {
    fn parse(words: &[&str]) -> Result<Self, String> {
        let mut options = Self {
            suites: Vec::new(),
            shard: (1, 1),
            jobs: 1,
            longest: u64::MAX,
            most: u64::MAX,
            seeds: 0,
            changed: None,
            parts: Vec::new(),
        };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            if !word.starts_with("--") {
                options.parts.push(word.to_owned());
                continue;
            }
            let value = words.next().ok_or(format!("{word} needs a value"))?;
            let wrong = || format!("{word} {value}: not understood");
            match word {
                "--suite" => options.suites.push(Suite::parse(value).ok_or_else(wrong)?),
                "--jobs" => options.jobs = value.parse().map_err(|_| wrong())?,
                "--seeds" => options.seeds = value.parse().map_err(|_| wrong())?,
                "--longest" => options.longest = value.parse().map_err(|_| wrong())?,
                "--most" => options.most = value.parse().map_err(|_| wrong())?,
                "--changed" => options.changed = Some((*value).to_owned()),
                "--shard" => {
                    let (k, n) = value.split_once('/').ok_or_else(wrong)?;
                    options.shard = (k.parse().map_err(|_| wrong())?, n.parse().map_err(|_| wrong())?);
                    if options.shard.0 == 0 || options.shard.0 > options.shard.1 {
                        return Err(wrong());
                    }
                }
                _ => return Err(format!("{word}: no such option")),
            }
        }
        Ok(options)
    }

    fn takes(&self, index: usize, name: &str) -> bool {
        let (k, n) = self.shard;
        index % n == k - 1 && (self.parts.is_empty() || self.parts.iter().any(|part| is_part(part, name)))
    }
}

/// Whether `name` contains `part`, or begins with what stands behind `^`.
fn is_part(part: &str, name: &str) -> bool {
    match part.strip_prefix('^') {
        Some(start) => name.starts_with(start),
        None => name.contains(part),
    }
}

/// Every mutant of every source, with the source.
fn all() -> Vec<(Mutant, String)> {
    let ptx = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ptx");
    let kernels = ptx.join("kernels");
    let of_kernels = ["", "inc"].map(|folder| files(&kernels.join(folder))).concat();
    let of_plans = files(&ptx.join("src/plan"));
    let mutants = |path: PathBuf, base: &Path, list: fn(&str, &str) -> Vec<Mutant>| {
        let source = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let name = path.strip_prefix(base).expect("it lies there").to_string_lossy().into_owned();
        let mutants = list(&name, &source);
        mutants.into_iter().map(move |mutant| (mutant, source.clone())).collect::<Vec<_>>()
    };
    let kernels = of_kernels.into_iter().flat_map(|path| mutants(path, &kernels, rules::mutants));
    let plans = of_plans.into_iter().flat_map(|path| mutants(path, &ptx.join("src"), calls::mutants));
    kernels.chain(plans).collect()
}

/// The files in a folder, in the order of their names.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    paths.sort();
    paths
}

/// Writes the file that stands for the mutant's source.
fn plant(folder: &Path, worker: usize, mutant: &Mutant, source: &str) -> PathBuf {
    let path = folder.join(format!("mutant.{worker}.ptx"));
    std::fs::write(&path, format!("{}\n{}", mutant.used(), mutant.apply(source)))
        .expect("the folder can be written");
    path
}

fn judge_all(folder: &Path, options: &Options) {
    std::fs::create_dir_all(folder.join("logs")).expect("the folder can be written");
    let checks = if options.seeds == 0 { &suite::Check::ALL[..2] } else { &suite::Check::ALL[..] };
    let covered = covered(options, checks, cover::Uses::SOURCES, folder);
    let done = done(folder);
    let left: Vec<(Mutant, String)> = all()
        .into_iter()
        .enumerate()
        .filter(|(index, (mutant, _))| options.takes(*index, &mutant.name) && !done.contains(&mutant.name))
        .map(|(_, mutant)| mutant)
        .collect();
    let judge = judge::Judge {
        suites: &options.suites,
        covered: &covered,
        folder,
        seeds: options.seeds,
        patience: 12_000,
        most: options.most,
        catches: Mutex::new(HashMap::new()),
    };
    work(&left, options.jobs, |worker, (mutant, source)| {
        let text = plant(folder, worker, mutant, source);
        let variable = ("PTX_REPLACED", text.as_path());
        judge_one(
            &judge,
            worker,
            &judge::Case { name: &mutant.name, kind: mutant.kind, used: mutant.used(), variable },
        );
    });
}

/// The tests of the given suites, with what they use.
fn covered(
    options: &Options,
    checks: &[suite::Check],
    uses: cover::Uses,
    folder: &Path,
) -> Vec<cover::Covered> {
    let mut covered = cover::cover(&options.suites, checks, uses, folder, options.jobs);
    let given = |name: &str| options.suites.iter().any(|suite| suite.name == name);
    covered.retain(|covered| covered.millis <= options.longest && given(&covered.suite));
    covered
}

/// The names of mutants that need no other judgement. What survived is judged again: by more tests, or by other ones.
fn done(folder: &Path) -> HashSet<String> {
    let verdicts = judge::verdicts(folder).into_iter();
    verdicts.filter(|v| v.outcome != "survived" && v.outcome != "unused").map(|v| v.name).collect()
}

fn judge_one(judge: &judge::Judge<'_>, worker: usize, case: &judge::Case<'_>) {
    let verdict = judge.judge(worker, case);
    println!("{}", verdict.line());
    append(&judge::results(judge.folder), &verdict.line());
}

/// Does `each` for all `items`, `jobs` at a time; tells it which worker it is.
fn work<T: Sync>(items: &[T], jobs: usize, each: impl Fn(usize, &T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for worker in 0..jobs {
            let (next, each) = (&next, &each);
            scope.spawn(move || {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    each(worker, item);
                }
            });
        }
    });
}

/// Adds a line to a file, in one write.
fn append(path: &Path, line: &(impl Display + ?Sized)) {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    written.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}
