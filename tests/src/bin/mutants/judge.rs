//! Runs the tests that use a mutant's source until one fails.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::cover::Covered;
use crate::suite::{Check, End, Suite, run};

/// The verdict on a mutant.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) name: String,
    pub(crate) kind: String,
    /// `caught`, `timeout`, `survived`, `unused` (no test asks for the source), `invalid` (the text is not a program).
    pub(crate) outcome: String,
    pub(crate) check: String,
    pub(crate) test: String,
    /// The symptom that the test noticed: `race`, `diverged`, `hang` or `wrong`.
    pub(crate) how: String,
    pub(crate) runs: u32,
    pub(crate) millis: u64,
}

impl Verdict {
    pub(crate) fn line(&self) -> String {
        let Self { name, kind, outcome, check, test, how, runs, millis } = self;
        format!("{name}\t{kind}\t{outcome}\t{check}\t{test}\t{how}\t{runs}\t{millis}")
    }

    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split('\t').map(str::to_owned);
        let mut next = || fields.next();
        Some(Self {
            name: next()?,
            kind: next()?,
            outcome: next()?,
            check: next()?,
            test: next()?,
            how: next()?,
            runs: next()?.parse().ok()?,
            millis: next()?.parse().ok()?,
        })
    }
}

/// A mutant as its judge sees it.
pub(crate) struct Case<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: &'a str,
    /// A test judges it that uses this.
    pub(crate) used: &'a str,
    /// The variable that plants it.
    pub(crate) variable: (&'a str, &'a Path),
}

/// Tests that share one process: their expected time together.
const BATCH: u64 = 1500;

pub(crate) struct Judge<'a> {
    pub(crate) suites: &'a [Suite],
    pub(crate) covered: &'a [Covered],
    pub(crate) folder: &'a Path,
    /// Seeds that weak loads are tried with.
    pub(crate) seeds: u64,
    /// The shortest time after which a run is ended: so many milliseconds, and eight times what it takes without a mutant.
    pub(crate) patience: u64,
    /// Tests that take so many milliseconds together are enough for one mutant.
    pub(crate) most: u64,
    /// How often each test has caught a mutant: such tests are asked first.
    pub(crate) catches: Mutex<HashMap<(Check, String, String), u32>>,
}

impl Judge<'_> {
    pub(crate) fn judge(&self, worker: usize, mutant: &Case<'_>) -> Verdict {
        let log: String = mutant.name.replace(['/', ':'], "+").chars().take(120).collect();
        // The worker's number keeps names apart that differ only in what is replaced here, or behind the end.
        let output = self.folder.join("logs").join(format!("{worker}.{log}"));
        let began = Instant::now();
        let mut runs = 0;
        let verdict = |outcome: &str, check: &str, test: String, how: &str, runs| Verdict {
            name: mutant.name.to_owned(),
            kind: mutant.kind.to_owned(),
            outcome: outcome.to_owned(),
            check: check.to_owned(),
            test,
            how: how.to_owned(),
            runs,
            millis: u64::try_from(began.elapsed().as_millis()).expect("a test ends within years"),
        };
        let batches = self.batches(mutant);
        for batch in &batches {
            let first = &batch[0];
            let suite =
                self.suites.iter().find(|suite| suite.name == first.suite).expect("its suite is given");
            let tests: Vec<&str> = batch.iter().map(|covered| covered.test.as_str()).collect();
            runs += u32::try_from(tests.len()).expect("few tests");
            let expected: u64 = batch.iter().map(|covered| covered.millis).sum();
            let limit = Duration::from_millis(self.patience + 8 * expected);
            let check = &first.check.name();
            let end = run(suite, first.check, &tests, &[mutant.variable], &output, limit);
            // A busy machine can look like a hang or give a wrong result, and a seed may find what has nothing to do with the
            // mutant: the tests must pass without it now. Only races, which time does not bring about, need no such proof.
            let doubtful = match &end {
                End::Passed => false,
                End::TimedOut => true,
                End::Failed(_, printed) => {
                    !["race", "text"].contains(&how(printed))
                        || matches!(first.check, Check::Weak(_) | Check::Aligned)
                }
            };
            if doubtful {
                let control = self.folder.join(format!("control.{worker}.log"));
                // The test that failed alone: others of its batch may disturb each other in one process.
                let asked = match &end {
                    End::Failed(test, _) => tests.iter().copied().filter(|known| known == test).collect(),
                    _ => Vec::new(),
                };
                let asked = if asked.is_empty() { &tests } else { &asked };
                if !matches!(run(suite, first.check, asked, &[], &control, limit / 2), End::Passed) {
                    continue;
                }
            }
            match end {
                End::Passed => {}
                End::TimedOut => {
                    return verdict(
                        "timeout",
                        check,
                        format!("{}::{}", suite.name, tests.join("+")),
                        "hang",
                        runs,
                    );
                }
                End::Failed(test, printed) => {
                    // A test that fails now and then by itself has not caught anything.
                    let again = run(suite, first.check, &[&test], &[mutant.variable], &output, limit);
                    if matches!(again, End::Passed) {
                        continue;
                    }
                    let how = how(&printed);
                    let outcome = if how == "text" { "invalid" } else { "caught" };
                    let key = (first.check, suite.name.clone(), test.clone());
                    let mut catches = self.catches.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    *catches.entry(key).or_default() += 1;
                    return verdict(outcome, check, format!("{}::{test}", suite.name), how, runs);
                }
            }
        }
        let outcome = if batches.is_empty() { "unused" } else { "survived" };
        let _ = std::fs::remove_file(&output);
        verdict(outcome, "-", "-".to_owned(), "-", runs)
    }

    /// The tests to run, those first that are quick, catch much and use little else; orderings are the race detector's
    /// business, and weak loads come last.
    fn batches(&self, mutant: &Case<'_>) -> Vec<Vec<Covered>> {
        let ordering = ["order", "scope", "fence", "barrier", "reload"].contains(&mutant.kind);
        let catches = self.catches.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut tests: Vec<Covered> = Vec::new();
        for covered in self.covered.iter().filter(|covered| covered.uses.contains(mutant.used)) {
            match covered.check {
                Check::Weak(_) => {
                    tests.extend(
                        (1..=self.seeds).map(|seed| Covered { check: Check::Weak(seed), ..covered.clone() }),
                    );
                }
                Check::Races if mutant.kind == "barrier" => {
                    tests.extend(
                        [Check::Races, Check::Aligned].map(|check| Covered { check, ..covered.clone() }),
                    );
                }
                _ => tests.push(covered.clone()),
            }
        }
        tests.sort_by_key(|covered| {
            let turn = match covered.check {
                Check::Plain => u64::from(ordering),
                Check::Races | Check::Aligned => u64::from(!ordering),
                Check::Weak(seed) => 1 + seed,
            };
            let key = (covered.check, covered.suite.clone(), covered.test.clone());
            let caught = u64::from(catches.get(&key).copied().unwrap_or(0));
            // A test that uses few sources is more likely to be about this one.
            let uses = u64::try_from(covered.uses.len()).expect("few sources");
            (turn, covered.millis * uses / (1 + caught), covered.millis)
        });
        let mut batches: Vec<Vec<Covered>> = Vec::new();
        let mut together = 0;
        for covered in tests {
            if !batches.is_empty() && together + covered.millis > self.most {
                break;
            }
            together += covered.millis;
            match batches.last_mut() {
                Some(batch)
                    if batch[0].suite == covered.suite
                        && batch[0].check == covered.check
                        && batch.iter().map(|c| c.millis).sum::<u64>() + covered.millis <= BATCH =>
                {
                    batch.push(covered);
                }
                _ => batches.push(vec![covered]),
            }
        }
        batches
    }
}

/// The symptom that a failed test noticed.
fn how(output: &str) -> &'static str {
    let says = |texts: &[&str]| texts.iter().any(|text| output.contains(text));
    if says(&["INVALID_PTX", "never uses the name", "unknown name", "cudaError_enum(218)"]) {
        "text"
    } else if says(&["data race"]) {
        "race"
    } else if says(&["diverged warp"]) {
        "diverged"
    } else if says(&[
        "watchdog",
        "no progress",
        "LAUNCH_TIMEOUT",
        "NOT_READY",
        "did not come",
        "cudaError_enum(600)",
    ]) {
        "hang"
    } else {
        "wrong"
    }
}

/// The verdicts that `folder` has.
pub(crate) fn verdicts(folder: &Path) -> Vec<Verdict> {
    let text = std::fs::read_to_string(results(folder)).unwrap_or_default();
    text.lines().filter_map(Verdict::parse).collect()
}

pub(crate) fn results(folder: &Path) -> PathBuf {
    folder.join("results.tsv")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::suite::tests::write_script;

    /// The verdict on a mutant by the tests `a` and `b`, which share a process that runs the lines of `script`.
    fn judged(script: &str) -> Verdict {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("logs")).unwrap();
        let binary = folder.path().join("suite");
        write_script(&binary, &format!("#!/bin/bash\n{script}"));
        let covered = ["a", "b"].map(|test| Covered {
            suite: "x".to_owned(),
            check: Check::Races,
            test: test.to_owned(),
            millis: 1,
            uses: BTreeSet::from(["kernel".to_owned()]),
        });
        let judge = Judge {
            suites: &[Suite::parse(&format!("x={}", binary.display())).unwrap()],
            covered: &covered,
            folder: folder.path(),
            seeds: 1,
            patience: 60_000,
            most: 1000,
            catches: Mutex::default(),
        };
        let case =
            Case { name: "m", kind: "order", used: "kernel", variable: ("PLANTED", Path::new("here")) };
        judge.judge(0, &case)
    }

    /// The first test speaks of a race and passes, the second one fails for another reason.
    #[test]
    fn a_test_is_not_credited_with_the_words_of_another_one_of_its_batch() {
        let verdict = judged(
            "[ -n \"$PLANTED\" ] || exit 0
[[ \"$*\" != *' a b' ]] || printf 'test a ... cuda-soft: data race\\nok\\n'
printf 'test b ... 1 is not 2\\nFAILED\\n'
exit 101
",
        );
        let (outcome, test, how) = (verdict.outcome.as_str(), verdict.test.as_str(), verdict.how.as_str());
        assert_eq!((outcome, test, how, verdict.runs), ("caught", "x::b", "wrong", 2));
    }

    /// Without the mutant the two fail behind each other, and the one that noticed it passes alone.
    #[test]
    fn a_test_that_noticed_a_mutant_is_tried_without_it_and_without_the_others_of_its_batch() {
        let verdict = judged(
            "[ -n \"$PLANTED\" ] || { [[ \"$*\" != *' a b' ]]; exit; }
printf 'test a ... ok\\ntest b ... 1 is not 2\\nFAILED\\n'
exit 101
",
        );
        assert_eq!((verdict.outcome.as_str(), verdict.test.as_str()), ("caught", "x::b"));
    }
}
