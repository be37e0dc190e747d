//! Mutants that concern each test, and how long it takes: they decide which tests judge a mutant, and in which order.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::suite::{Check, End, Suite, run};

/// A test that passes without a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Covered {
    pub(crate) check: Check,
    pub(crate) suite: String,
    pub(crate) test: String,
    pub(crate) millis: u64,
    /// Kernels' sources by their path under `kernels/`, or numbers of the library's mutants.
    pub(crate) uses: BTreeSet<String>,
}

impl Covered {
    fn line(&self) -> String {
        let uses: Vec<&str> = self.uses.iter().map(String::as_str).collect();
        format!("{}\t{}\t{}\t{}\t{}", self.check.name(), self.suite, self.test, self.millis, uses.join(","))
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split('\t');
        Some(Self {
            check: Check::parse(fields.next()?)?,
            suite: fields.next()?.to_owned(),
            test: fields.next()?.to_owned(),
            millis: fields.next()?.parse().ok()?,
            uses: fields.next()?.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
        })
    }
}

/// How a test tells what it uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uses {
    /// The variable that names an empty folder for it.
    pub(crate) variable: &'static str,
    /// Reads that folder.
    pub(crate) read: fn(&Path) -> BTreeSet<String>,
}

impl Uses {
    /// Each source is a file in the folder.
    pub(crate) const SOURCES: Self = Self { variable: "PTX_USED", read: names };
}

/// Runs each test by itself without a mutant under each of `checks`, and keeps those that pass. What `folder` knows already is
/// not run again.
pub(crate) fn cover(
    suites: &[Suite],
    checks: &[Check],
    uses: Uses,
    folder: &Path,
    jobs: usize,
) -> Vec<Covered> {
    let table = folder.join("cover.tsv");
    let known = load(folder);
    let mut missing = Vec::new();
    for suite in suites {
        for test in suite.tests() {
            for &check in checks {
                let is = |c: &&Covered| c.check == check && c.suite == suite.name && c.test == test;
                if !known.iter().any(|covered| is(&covered)) {
                    missing.push((suite, check, test.clone()));
                }
            }
        }
    }
    crate::work(&missing, jobs, |worker, (suite, check, test)| {
        let used = folder.join(format!("used.{worker}"));
        let _ = std::fs::remove_dir_all(&used);
        std::fs::create_dir_all(&used).expect("the folder can be written");
        let output = folder.join(format!("cover.{worker}.log"));
        let began = Instant::now();
        let end = run(suite, *check, &[test], &[(uses.variable, &used)], &output, Duration::from_secs(120));
        let millis = u64::try_from(began.elapsed().as_millis()).expect("a test ends within years");
        let uses = match end {
            End::Passed => (uses.read)(&used),
            other => {
                let how = if matches!(other, End::TimedOut) { "takes too long" } else { "fails" };
                println!("{} {} {test}: {how} without a mutant, so it judges none", check.name(), suite.name);
                return;
            }
        };
        let (suite, test) = (suite.name.clone(), test.clone());
        crate::append(&table, &Covered { check: *check, suite, test, millis, uses }.line());
    });
    load(folder)
}

/// Results of an earlier [`cover`].
pub(crate) fn load(folder: &Path) -> Vec<Covered> {
    let text = std::fs::read_to_string(folder.join("cover.tsv")).unwrap_or_default();
    text.lines().filter_map(Covered::parse).collect()
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).expect("the folder was made").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().replace('+', "/")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_can_be_read_again() {
        let uses = ["a.ptx", "inc/b.ptxi"].map(str::to_owned).into();
        let covered =
            Covered { check: Check::Races, suite: "it".into(), test: "a::b".into(), millis: 12, uses };
        assert_eq!(Covered::parse(&covered.line()), Some(covered));
    }
}
