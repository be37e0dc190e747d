//! The table of a run, and the list of mutants that are proved to change nothing.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::ExitCode;

use crate::judge::{Verdict, verdicts};
use crate::rules::Mutant;

/// The mutants of the kernels that are proved to change nothing.
pub(crate) const PROOFS: &str = include_str!("../../../../ci/mutants/proved.txt");

/// Counts of one kind.
#[derive(Default)]
struct Row {
    all: usize,
    race: usize,
    wrong: usize,
    hang: usize,
    timeout: usize,
    proved: usize,
    left: usize,
}

/// Prints the table. Fails if a mutant that was `wanted` was not judged, if one was neither caught nor proved, or if the list of proofs names
/// one that is not there.
pub(crate) fn table(
    folder: &Path,
    all: &[(Mutant, String)],
    wanted: impl Fn(usize, &str) -> bool,
) -> ExitCode {
    let proofs = answers(PROOFS);
    let verdicts: HashMap<String, Verdict> =
        verdicts(folder).into_iter().map(|v| (v.name.clone(), v)).collect();
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    let mut left = Vec::new();
    let (mut wrong, mut no_programs) = (0, 0);
    for (index, (mutant, _)) in all.iter().enumerate() {
        let Some(verdict) = verdicts.get(&mutant.name) else {
            if wanted(index, &mutant.name) {
                left.push(format!("not judged: {}", mutant.name));
            }
            continue;
        };
        // The assembler refuses a kernel that lacks a label or a register.
        if mutant.place.is_some() && verdict.outcome == "invalid" {
            no_programs += 1;
            continue;
        }
        let row = rows.entry(mutant.kind).or_default();
        row.all += 1;
        let proved = proofs.get(mutant.key().as_str());
        match (verdict.outcome.as_str(), verdict.how.as_str(), proved) {
            ("caught", "race" | "diverged", _) => row.race += 1,
            ("caught", "hang", _) => row.hang += 1,
            ("caught", ..) => row.wrong += 1,
            ("timeout", ..) => row.timeout += 1,
            (.., Some(_)) => row.proved += 1,
            _ => {
                row.left += 1;
                left.push(format!(
                    "{}: {}: {} => {}",
                    verdict.outcome,
                    mutant.name,
                    mutant.old.trim(),
                    mutant.new.trim()
                ));
            }
        }
        if let (Some(text), true) = (proved, verdict.outcome == "caught") {
            println!("{}: caught by {}, but proved harmless: {text}", mutant.name, verdict.test);
            wrong += 1;
        }
    }
    for key in proofs.keys().filter(|key| all.iter().all(|(mutant, _)| mutant.key() != **key)) {
        println!("{key}: proved, but there is no such mutant");
        wrong += 1;
    }
    print(&rows);
    println!("not counted, because what is left is no program: {no_programs}");
    left.iter().for_each(|line| println!("{line}"));
    if left.is_empty() && wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print(rows: &BTreeMap<&str, Row>) {
    println!(
        "| kind | mutants | race or divergence | wrong result | hang noticed | ended by the runner | proved | left |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut sum = Row::default();
    for (kind, row) in rows {
        let Row { all, race, wrong, hang, timeout, proved, left } = row;
        println!("| `{kind}` | {all} | {race} | {wrong} | {hang} | {timeout} | {proved} | {left} |");
        sum.all += all;
        sum.race += race;
        sum.wrong += wrong;
        sum.hang += hang;
        sum.timeout += timeout;
        sum.proved += proved;
        sum.left += left;
    }
    let Row { all, race, wrong, hang, timeout, proved, left } = sum;
    println!("| all | {all} | {race} | {wrong} | {hang} | {timeout} | {proved} | {left} |");
    let caught = race + wrong + hang + timeout;
    println!("caught by behaviour: {caught} of {all}, {:.1} %", 100.0 * caught as f64 / all.max(1) as f64);
}

/// Key and proof of each mutant of a list in `ci/mutants`.
pub(crate) fn answers(list: &'static str) -> BTreeMap<&'static str, &'static str> {
    let lines = list.lines();
    lines.filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(" | ")).collect()
}
