//! The table of a run by room of the library, and the mutants without an answer.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::ExitCode;

use super::list::Mutant;
use super::tree;
use crate::judge::{Verdict, verdicts};
use crate::report::answers;

/// Counts of one room.
#[derive(Default)]
struct Row {
    all: usize,
    unviable: usize,
    caught: usize,
    hang: usize,
    answered: usize,
    left: usize,
    not_judged: usize,
}

/// Prints the table of `wanted`. Fails if a mutant was neither caught nor answered, or an answer is wrong.
pub(super) fn table(folder: &Path, wanted: &[&Mutant], all: &[Mutant]) -> ExitCode {
    let answers = answers(include_str!("../../../../../ci/mutants/rust-proved.txt"));
    // A mutant is caught if any run caught it: runs differ in their tests.
    let mut of_names: HashMap<String, Verdict> = HashMap::new();
    for verdict in verdicts(folder) {
        let survived = ["survived", "unused"].contains(&verdict.outcome.as_str());
        if !survived || !of_names.contains_key(&verdict.name) {
            of_names.insert(verdict.name.clone(), verdict);
        }
    }
    let verdicts = of_names;
    let refused = tree::refused(folder);
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    let mut wrong = 0;
    for mutant in wanted {
        let row = rows.entry(room(&mutant.name)).or_default();
        row.all += 1;
        let answer = answers.get(mutant.name.as_str());
        let outcome = verdicts.get(&mutant.name).map(|verdict| verdict.outcome.as_str());
        let refusal = refused.get(&mutant.name);
        match (refusal, outcome, answer) {
            (Some(refusal), ..) if refusal.unviable => row.unviable += 1,
            (_, Some("caught" | "invalid" | "timeout"), Some(_)) => {
                println!("{}: caught by {}, but answered", mutant.name, verdicts[&mutant.name].test);
                wrong += 1;
            }
            (_, Some("caught" | "invalid"), None) => row.caught += 1,
            (_, Some("timeout"), None) => row.hang += 1,
            (.., Some(_)) => row.answered += 1,
            (Some(refusal), ..) => {
                row.not_judged += 1;
                println!("cannot be planted: line {}: {}: {}", mutant.line, mutant.name, refusal.why);
            }
            (None, Some(outcome), None) => {
                row.left += 1;
                println!("{outcome}: line {}: {}", mutant.line, mutant.name);
            }
            (None, None, None) => row.not_judged += 1,
        }
    }
    for key in answers.keys().filter(|key| all.iter().all(|mutant| mutant.name != **key)) {
        println!("{key}: answered, but there is no such mutant");
        wrong += 1;
    }
    let left: usize = rows.values().map(|row| row.left + row.not_judged).sum();
    print(&rows);
    if left == 0 && wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The first part of the path below `core/src`.
fn room(name: &str) -> &str {
    name.split(['/', ':']).next().expect("a split has a first part")
}

fn print(rows: &BTreeMap<&str, Row>) {
    println!(
        "| room | mutants | do not compile | caught | ended by the runner | answered | left | not judged |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut sum = Row::default();
    let line = |room: &str, row: &Row| {
        let Row { all, unviable, caught, hang, answered, left, not_judged } = row;
        println!("| {room} | {all} | {unviable} | {caught} | {hang} | {answered} | {left} | {not_judged} |");
    };
    for (room, row) in rows {
        line(&format!("`{room}`"), row);
        sum.all += row.all;
        sum.unviable += row.unviable;
        sum.caught += row.caught;
        sum.hang += row.hang;
        sum.answered += row.answered;
        sum.left += row.left;
        sum.not_judged += row.not_judged;
    }
    line("all", &sum);
}
