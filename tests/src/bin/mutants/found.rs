//! The table of the tests that caught each mutant of the kernels, `ci/mutants/found/kernels.tsv`. It names a mutant by its key, which stays
//! when lines move, and a mutant that was never judged has no row.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::ExitCode;

use crate::judge::{Verdict, verdicts};
use crate::report::{PROOFS, answers};
use crate::rules::Mutant;

const TABLE: &str = include_str!("../../../../ci/mutants/found/kernels.tsv");
const HEAD: &str = "mutant\toutcome\tcheck\ttest\thow\ttests run";

/// The verdict behind each key.
fn rows() -> BTreeMap<&'static str, &'static str> {
    TABLE.lines().skip(1).filter_map(|line| line.split_once('\t')).collect()
}

/// Fails if a mutant has no row, or a row no mutant, or if one was neither caught nor proved.
pub(crate) fn compare(all: &[(Mutant, String)]) -> ExitCode {
    let (mut rows, proofs) = (rows(), answers(PROOFS));
    let open = |(key, row): &(&&str, &&str)| {
        (row.starts_with("survived") || row.starts_with("unused")) && !proofs.contains_key(**key)
    };
    let open: Vec<&str> = rows.iter().filter(open).map(|(key, _)| *key).collect();
    open.iter().for_each(|key| println!("{key}: neither caught nor proved"));
    let unknown: Vec<String> = all
        .iter()
        .map(|(mutant, _)| mutant.key())
        .filter(|key| rows.remove(key.as_str()).is_none())
        .collect();
    unknown.iter().for_each(|key| {
        println!("{key}: not in ci/mutants/found/kernels.tsv: judge it by `ci/mutants.sh FILE`, then `mutants found`");
    });
    rows.keys()
        .for_each(|key| println!("{key}: in ci/mutants/found/kernels.tsv, but there is no such mutant"));
    if open.is_empty() && unknown.is_empty() && rows.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Prints the table anew: what a run has found, and the old rows of mutants that it has not judged.
pub(crate) fn print(folder: &Path, all: &[(Mutant, String)]) -> ExitCode {
    let old = rows();
    let verdicts: HashMap<String, Verdict> =
        verdicts(folder).into_iter().map(|verdict| (verdict.name.clone(), verdict)).collect();
    println!("{HEAD}");
    let mut complete = true;
    for (mutant, _) in all {
        let key = mutant.key();
        let new = verdicts.get(&mutant.name).map(|verdict| {
            let Verdict { outcome, check, test, how, runs, .. } = verdict;
            format!("{outcome}\t{check}\t{test}\t{how}\t{runs}")
        });
        match new.or_else(|| old.get(key.as_str()).map(|row| (*row).to_owned())) {
            Some(row) => println!("{key}\t{row}"),
            None => {
                eprintln!("{key}: not judged");
                complete = false;
            }
        }
    }
    if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
