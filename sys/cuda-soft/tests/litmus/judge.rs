//! Programs with holes, their forms, and whether the outcomes of a form are those that the model allows.

use std::ops::Range;

use cuda_soft::Lines;

use self::Seen::{Register, Word};
use crate::rig::{Devices, Outcomes, Placement, SEEDS};

/// Seeds of a form of which some outcome came with less than 2 % of [`SEEDS`], because those few cannot tell 1 % from a little less: work of two
/// devices does not always go the same way with a seed.
const MANY_SEEDS: u64 = 3000;

/// Values that a test looks at.
#[derive(Clone, Copy)]
pub(crate) enum Seen {
    /// A register of a thread.
    Register(usize, usize),
    /// A shared word at the end.
    Word(usize),
}

/// A program with holes, which its forms fill.
pub(crate) struct Litmus {
    pub(crate) name: &'static str,
    pub(crate) threads: &'static [&'static str],
    pub(crate) seen: &'static [Seen],
    pub(crate) forms: &'static [Form],
}

/// One form of a program: replacements in its text, and all outcomes that the model allows.
pub(crate) struct Form {
    pub(crate) name: &'static str,
    pub(crate) fills: &'static [(&'static str, &'static str)],
    pub(crate) allowed: &'static [&'static [u32]],
}

/// Runs programs, and asserts that each outcome comes that is allowed, in at least 1 % of the seeds, and no other.
pub(crate) fn run(tests: &[Litmus]) {
    let mut wrong = Vec::new();
    for test in tests {
        for form in test.forms {
            let fill = |text: String, (hole, fill): &(&str, &str)| text.replace(hole, fill);
            let texts = test.threads.iter().map(|text| form.fills.iter().fold((*text).to_owned(), fill));
            let threads: Vec<String> = texts.map(|text| text.replace("{A}", "").replace("{B}", "")).collect();
            wrong.extend(judge(&[test.name, form.name], &threads, test.seen, form.allowed));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs one program in both placements. Returns what is wrong: outcomes that are not allowed, and allowed ones that came
/// with less than 1 % of the seeds.
fn judge(name: &[&str], threads: &[String], seen: &[Seen], allowed: &[&[u32]]) -> Vec<String> {
    let devices = Devices::new();
    let mut wrong = Vec::new();
    for (placement, scope) in [(Placement::Blocks, "gpu"), (Placement::Devices, "sys")] {
        let threads: Vec<String> = threads.iter().map(|text| text.replace("SCOPE", scope)).collect();
        let count = |seeds: Range<u64>| {
            devices.count_of(seeds, &threads, placement, 1, Lines::Torn, |memory| {
                let value = |seen: &Seen| match *seen {
                    Register(thread, number) => memory.register(thread, 0, number),
                    Word(word) => memory.shared(word),
                };
                seen.iter().map(value).collect()
            })
        };
        let came = |outcomes: &Outcomes, outcome: &[u32]| outcomes.get(outcome).copied().unwrap_or(0);
        let (mut seeds, mut outcomes) = (SEEDS, count(0..SEEDS));
        if allowed.iter().any(|outcome| came(&outcomes, outcome) * 50 < SEEDS) {
            for (outcome, more) in count(SEEDS..MANY_SEEDS) {
                *outcomes.entry(outcome).or_default() += more;
            }
            seeds = MANY_SEEDS;
        }
        let case = format!("{}, {placement:?}", name.join(", "));
        for (outcome, count) in outcomes.iter().filter(|(outcome, _)| !allowed.contains(&&outcome[..])) {
            wrong.push(format!("{case}: {outcome:?} is forbidden, and came {count} times"));
        }
        for allowed in allowed {
            let count = came(&outcomes, allowed);
            if count * 100 < seeds {
                wrong.push(format!("{case}: {allowed:?} came {count} times only, of {seeds}"));
            }
        }
    }
    wrong
}
