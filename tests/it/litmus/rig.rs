//! Runs a litmus: in a process of its own, on the software device, on it with weak memory, or on GPUs.

use std::sync::Mutex;
use std::time::Duration;

use aqueduct::Deadline;
use aqueduct::gpu::Context;
use aqueduct_ptx::{Target, expand};
use aqueduct_tests::report;

use crate::group::{Machine, Rank, config, threads_with};

/// One litmus. Its ranks are threads of one process.
pub(super) struct Litmus {
    /// The row of `docs/memory-model.md`.
    pub(super) tag: &'static str,
    /// The variant, where a tag has several.
    pub(super) way: &'static str,
    pub(super) ranks: u32,
    pub(super) run: fn(&Rank, &Play<'_>),
    pub(super) twins: &'static [Twin],
}

/// The text of a litmus with an ordering taken out.
pub(super) struct Twin {
    pub(super) name: &'static str,
    /// Each text must occur, and is replaced everywhere.
    pub(super) changes: &'static [(&'static str, &'static str)],
    /// A trial that goes wrong waits for what never comes, and no data is wrong.
    pub(super) hangs: bool,
}

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effort {
    /// Software: enough to test the trials.
    Short,
    /// Software with weak memory: a few trials per seed.
    Seeds,
    /// GPUs.
    Long,
}

/// One run, which both ranks share.
pub(super) struct Play<'a> {
    pub(super) effort: Effort,
    twin: Option<&'a Twin>,
    /// The device sees every access: what it catches ends a kernel.
    tally: Mutex<Tally>,
}

/// Counts of both ranks so far.
#[derive(Clone, Debug, Default)]
struct Tally {
    trials: u64,
    forbidden: u64,
    /// A kernel failed or left early, with the reason.
    ended: Option<String>,
}

impl Play<'_> {
    /// A litmus kernel's text with the fragments in it, or that of the twin.
    pub(super) fn text(&self, context: &Context, template: &str, params: &[(&str, &str)]) -> String {
        let text = expand(template, target(context), params).unwrap_or_else(|error| panic!("{error}"));
        let text = self.changed(text);
        if let Ok(folder) = std::env::var(KEEP) {
            let of = std::process::id();
            std::fs::write(format!("{folder}/litmus-{of}.sm_90.ptx"), &text).expect("the text can be kept");
        }
        text
    }

    /// `text`, or that of the twin.
    pub(super) fn changed(&self, text: String) -> String {
        self.twin.map_or(&[][..], |twin| twin.changes).iter().fold(text, |text, (from, to)| {
            assert!(text.contains(from), "the twin's text has changed, mend the twin: no {from}");
            text.replace(from, to)
        })
    }

    /// The kernels' text if a wait looks at the abort word in every turn, not after a thousand: with nothing else changed,
    /// trials that end by it take microseconds.
    pub(super) fn impatient(text: &str) -> String {
        let changed = text.replace(", 1000;", ", 1;");
        assert_ne!(changed, text, "a wait's number of turns is written differently now");
        changed
    }

    /// Begins the choices of the weak device anew, if it is one.
    pub(super) fn choose(&self, seed: u32) {
        if self.effort == Effort::Seeds {
            cuda_soft::weaken(cuda_soft::Weak { seed: seed.into(), ..cuda_soft::Weak::default() });
        }
    }

    /// How long ranks wait for their kernels. Some twins make them wait in vain.
    pub(super) fn deadline(&self) -> Deadline {
        Deadline::after(Duration::from_secs(if self.twin.is_some_and(|twin| twin.hangs) { 5 } else { 60 }))
    }

    pub(super) fn count(&self, trials: u64, forbidden: u64) {
        let mut tally = self.tally.lock().unwrap();
        tally.trials += trials;
        tally.forbidden += forbidden;
    }

    /// A kernel ended early. The first reason counts: the others follow from it.
    pub(super) fn end(&self, reason: impl ToString) {
        self.tally.lock().unwrap().ended.get_or_insert_with(|| reason.to_string());
    }

    /// Waits for all ranks. Then whether there is no point in going on, the same for each of them.
    pub(super) fn is_over(&self, rank: &Rank) -> bool {
        rank.barrier();
        let tally = self.tally.lock().unwrap().clone();
        // Neither rank counts again before both have looked.
        rank.barrier();
        tally.ended.is_some() || self.effort == Effort::Seeds && tally.forbidden > 0
    }

    /// Seeds to try one after the other. The seed determines the choices of the weak device, and random pauses.
    pub(super) fn seeds(&self) -> u32 {
        match (self.effort, self.twin) {
            (Effort::Seeds, Some(_)) => 40,
            (Effort::Seeds, None) => 4,
            _ => 1,
        }
    }
}

/// Target of a litmus kernel.
pub(super) fn target(context: &Context) -> Target {
    let capability = context.device().compute_capability().expect("the device says its capability");
    let (major, minor) = context.driver().version();
    let version = u32::try_from(major * 1000 + minor * 10).expect("a version");
    Target::for_device(capability.major, capability.minor, version).expect("sm_70 and CUDA 9 or newer")
}

/// Runs `litmus` in this process, the test's child.
fn play(
    machine: Machine,
    test: &str,
    effort: Effort,
    litmus: &Litmus,
    twin: Option<&Twin>,
    env: &[(&str, &str)],
) -> Tally {
    let play = Play { effort, twin, tally: Mutex::default() };
    threads_with(machine, litmus.ranks, test, &config(), env, |rank| (litmus.run)(&rank, &play));
    play.tally.into_inner().unwrap()
}

/// A folder that gets the texts of all kernels, for ptxas.
const KEEP: &str = "AQUEDUCT_TEST_KEEP_PTX";

/// Environment of a child that only plays this twin.
const TWIN: &str = "AQUEDUCT_TEST_TWIN";

fn index() -> Option<usize> {
    std::env::var(TWIN).ok().map(|index| index.parse().expect("the twin is a number"))
}

/// The real text: no trial may be forbidden. On hardware the twins follow.
pub(super) fn real(machine: Machine, test: &str, litmus: &Litmus) {
    let weak = std::env::var("AQUEDUCT_SOFT_CHECK").is_ok_and(|check| check.contains("weak"));
    let effort = match machine {
        Machine::Hardware => Effort::Long,
        Machine::Software if weak => Effort::Seeds,
        Machine::Software => Effort::Short,
    };
    if index().is_none() {
        let tally = play(machine, test, effort, litmus, None, &[]);
        if aqueduct_tests::ranks::rank().is_some() {
            let Tally { trials, forbidden, ended } = tally;
            assert_eq!((forbidden, &ended), (0, &None), "{} of {trials} trials", litmus.tag);
            assert!(trials > 0);
            if machine == Machine::Hardware {
                report(&line(litmus, &format!("{trials} trials, {forbidden} forbidden")));
            }
            return;
        }
    }
    if machine == Machine::Hardware {
        each_twin(machine, test, Effort::Long, litmus, &[], |twin, tally| {
            let Tally { trials, forbidden, ended } = tally;
            let ended = ended.map_or_else(String::new, |reason| format!(", ended by {reason}"));
            let rate = 1e6 * forbidden as f64 / trials.max(1) as f64;
            let what =
                format!("twin {}: {forbidden} of {trials} trials ({rate:.1} per million){ended}", twin.name);
            report(&line(litmus, &what));
        });
    }
}

/// Every twin must be caught by the software device with weak memory: by the race detector, or by a forbidden outcome.
pub(super) fn twins(test: &str, litmus: &Litmus) {
    let env = [("AQUEDUCT_SOFT_CHECK", "races,weak"), ("AQUEDUCT_SOFT_SMS", "4")];
    each_twin(Machine::Software, test, Effort::Seeds, litmus, &env, |twin, tally| {
        let races = cuda_soft::races();
        let caught = tally.forbidden > 0 || !races.is_empty() || twin.hangs && tally.ended.is_some();
        println!("{}", line(litmus, &format!("twin {}: {tally:?}, {races:?}", twin.name)));
        assert!(caught, "{}: the software device does not catch the twin {}", litmus.tag, twin.name);
    });
}

fn each_twin(
    machine: Machine,
    test: &str,
    effort: Effort,
    litmus: &Litmus,
    env: &[(&str, &str)],
    judge: impl Fn(&Twin, Tally),
) {
    for (number, twin) in litmus.twins.iter().enumerate() {
        // In a child: only its own.
        if index().is_none_or(|mine| mine == number) {
            let number = number.to_string();
            let env: Vec<(&str, &str)> = env.iter().copied().chain([(TWIN, number.as_str())]).collect();
            let tally = play(machine, test, effort, litmus, Some(twin), &env);
            if index().is_some() {
                judge(twin, tally);
            }
        }
    }
}

fn line(litmus: &Litmus, what: &str) -> String {
    format!("{}{}: {what}", litmus.tag, litmus.way)
}
