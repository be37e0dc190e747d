//! A rank is killed or stopped at a random moment. Every other rank ends in time with an error that names it, or goes
//! on without it, and the job leaves nothing behind.
//!
//! `AQUEDUCT_TEST_MOMENTS` is the number of moments to try (default 8). `AQUEDUCT_TEST_SEED` chooses them.

mod job;
mod leftovers;
mod moment;

use std::time::Duration;

use aqueduct_tests::ranks;

use crate::group::Machine;
use leftovers::Baseline;
use moment::Moment;

/// Number of ranks of a job.
const RANKS: u32 = 4;
/// Time after the loss within which every other rank must know of it and, unless it goes on, must have ended.
const IN_TIME: Duration = Duration::from_secs(5);
/// Extra time for ranks that go on, because they load their kernels again.
const MORE_TIME: Duration = Duration::from_secs(5);

/// A random number generator: splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A random number below `end`.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Tries as many moments as the environment sets.
fn sweep(machine: Machine, test: &str) {
    if let Some(rank) = ranks::rank() {
        return job::run(machine, rank);
    }
    let moments = number("AQUEDUCT_TEST_MOMENTS").unwrap_or(8);
    let seed = number("AQUEDUCT_TEST_SEED").unwrap_or(1);
    println!("{moments} moments with AQUEDUCT_TEST_SEED={seed}");
    let (mut random, mut failures, mut noticed) = (Random(seed), Vec::new(), Vec::new());
    let baseline = Baseline::look(machine);
    for number in 0..moments {
        let moment = Moment::choose(number, RANKS, &mut random);
        let outcome = moment.play(&baseline, test);
        println!("{number:3}: {moment}: {outcome}");
        noticed.extend(outcome.noticed.iter().map(|after| (moment.signal, *after)));
        if !outcome.failures.is_empty() {
            failures.push(format!("moment {number}, {moment}: {outcome}"));
        }
    }
    for (signal, name) in [(libc::SIGKILL, "killed"), (libc::SIGSTOP, "stopped")] {
        let mut times: Vec<Duration> =
            noticed.iter().filter(|(of, _)| *of == signal).map(|(_, after)| *after).collect();
        times.sort();
        if let (Some(median), Some(longest)) = (times.get(times.len() / 2), times.last()) {
            println!(
                "{name}: {} ranks noticed, half of them within {median:?}, all within {longest:?}",
                times.len()
            );
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {moments} moments with AQUEDUCT_TEST_SEED={seed} failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// After a rank is killed, the others make a communicator without it in time and all-reduce there.
fn survivors(machine: Machine, test: &str) {
    if let Some(rank) = ranks::rank() {
        return job::run(machine, rank);
    }
    let outcome = Moment::in_the_middle().play(&Baseline::look(machine), test);
    assert!(outcome.failures.is_empty(), "{outcome}");
    assert_eq!(outcome.noticed.len(), 3, "{outcome}");
}

mod soft {
    #[test]
    fn survivors_go_on_in_the_same_context() {
        super::survivors(super::Machine::Software, "loss::soft::survivors_go_on_in_the_same_context");
    }

    #[test]
    fn a_rank_lost_at_any_moment_is_named_by_all_others_in_time_and_leaves_nothing() {
        let name = "loss::soft::a_rank_lost_at_any_moment_is_named_by_all_others_in_time_and_leaves_nothing";
        super::sweep(super::Machine::Software, name);
    }
}

mod hardware {
    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn survivors_go_on_in_the_same_context() {
        super::survivors(super::Machine::Hardware, "loss::hardware::survivors_go_on_in_the_same_context");
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn a_rank_lost_at_any_moment_is_named_by_all_others_in_time_and_leaves_nothing() {
        let name =
            "loss::hardware::a_rank_lost_at_any_moment_is_named_by_all_others_in_time_and_leaves_nothing";
        super::sweep(super::Machine::Hardware, name);
    }
}
