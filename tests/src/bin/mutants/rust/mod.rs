//! Mutants of the library: cargo-mutants lists them, all are planted in one build, and a variable chooses one.

mod list;
mod plant;
mod report;
mod syntax;
mod tree;

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;

use self::list::Mutant;
use crate::cover::Uses;
use crate::judge::{Case, Judge};
use crate::suite::Check;
use crate::{Options, covered, done, judge_one, work};

/// How long a run may take at least before it counts as a hang.
const PATIENCE: u64 = 5000;
const REACHED: Uses = Uses { variable: "PLANTED_REACHED", read: reached };

/// Does what `mutants rust COMMAND` asks for; none if there is no such command.
pub(crate) fn command(command: &str, folder: &Path, options: &Options) -> Option<ExitCode> {
    if !["list", "plant", "run", "table"].contains(&command) {
        return None;
    }
    std::fs::create_dir_all(folder.join("logs")).expect("the folder can be written");
    let folder = &std::fs::canonicalize(folder).expect("it was made");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace");
    let all = list::all(root);
    let wanted = wanted(root, &all, options);
    match command {
        "list" => wanted.iter().for_each(|mutant| println!("{}", mutant.name)),
        "plant" => tree::grow(root, folder, &all),
        _ => {
            if command == "run" {
                judge_all(folder, &all, &wanted, options);
            }
            return Some(report::table(folder, &wanted, &all));
        }
    }
    Some(ExitCode::SUCCESS)
}

fn wanted<'a>(root: &Path, all: &'a [Mutant], options: &Options) -> Vec<&'a Mutant> {
    let changed = options.changed.as_ref().map(|base| list::changed(root, base, all));
    let wanted = all.iter().enumerate().filter(|(index, mutant)| {
        options.takes(*index, &mutant.name)
            && changed.as_ref().is_none_or(|changed| changed.contains(&mutant.name))
    });
    wanted.map(|(_, mutant)| mutant).collect()
}

fn judge_all(folder: &Path, all: &[Mutant], wanted: &[&Mutant], options: &Options) {
    let numbers: HashMap<String, u32> = tree::numbers(folder, all);
    let refused = tree::refused(folder);
    let covered = covered(options, &[Check::Plain], REACHED, folder);
    let done = done(folder);
    let left =
        wanted.iter().filter(|mutant| !done.contains(&mutant.name) && !refused.contains_key(&mutant.name));
    let left: Vec<&Mutant> = left.copied().collect();
    let catches = Mutex::new(HashMap::new());
    let judge = Judge {
        suites: &options.suites,
        covered: &covered,
        folder,
        seeds: 0,
        patience: PATIENCE,
        most: options.most,
        catches,
    };
    work(&left, options.jobs, |worker, mutant| {
        let number = numbers[&mutant.name].to_string();
        let variable = ("PLANTED_MUTANT", Path::new(&number));
        judge_one(&judge, worker, &Case { name: &mutant.name, kind: &mutant.kind, used: &number, variable });
    });
}

/// The numbers of the mutants that a test reached.
fn reached(folder: &Path) -> BTreeSet<String> {
    let bytes = std::fs::read(folder.join("reached")).unwrap_or_default();
    bytes.iter().enumerate().filter(|(_, byte)| **byte != 0).map(|(number, _)| number.to_string()).collect()
}
