//! Too few file descriptors: whatever needs one says which limit to raise, and nothing takes the lack for another.

use crate::support::{Outcome, run, script};

/// Closes descriptors that the tests were started with: the least limits leave none for them.
const INHERITED: &str = "exec 3<&- 4<&- 5<&- 6<&- 7<&- 8<&- 9<&-;";
/// Each command, and a limit that is enough for it on any machine.
const JOBS: [(&str, u32); 6] = [
    ("aqueduct info", 64),
    ("aqueduct perf all-reduce -b 8 -e 8 -n 1 -w 0", 64),
    ("aqueduct run -n 8 -- true", 128),
    ("aqueduct run -n 2 -- aqueduct perf all-reduce -b 8 -e 8 -n 1 -w 0", 128),
    ("AQUEDUCT_HANDLE=ipc aqueduct run -n 2 -- aqueduct perf put -b 8 -e 8 -n 1 -w 0", 128),
    ("aqueduct run -n 2 -- aqueduct perf write -t Ethernet -b 8 -e 8 -n 1", 128),
];

/// Words about memory, and the remedies for other errors of the driver.
const WRONG: [&str; 5] = ["out of memory", "OUT_OF_MEMORY", "nvidia-smi", "INVALID_HANDLE", "INVALID_VALUE"];

/// The rank that is named failed by itself, whatever the others say of each other.
#[test]
fn the_rank_that_ran_out_first_is_named() {
    for limit in [26, 28, 29, 30, 30, 30] {
        let job = "aqueduct run -n 4 -- aqueduct perf all-reduce -b 8 -e 8 -n 1 -w 0";
        let mut command = script(&format!("{INHERITED} ulimit -n {limit}; {job}"));
        command.env("AQUEDUCT_TIMEOUT", "10");
        // Ranks that meet at the launcher before the last one has begun take descriptors of its own: once in 25 runs at 26 it
        // cannot start that one, says so, and nothing is learned about ranks.
        let all_began = |outcome: &Outcome| {
            let last = outcome.last();
            let alone = last.starts_with("aqueduct: run: exhausted: cannot start rank ");
            assert!(!alone || last.contains("ulimit -n"), "{outcome:#?}");
            !alone
        };
        let outcome = (0..20).map(|_| run(&mut command)).find(all_began);
        let outcome = outcome.unwrap_or_else(|| panic!("{limit}: the launcher never started four ranks"));
        if outcome.code == Some(0) {
            continue;
        }
        let last = outcome.last();
        let named = last.strip_prefix("aqueduct run: rank ").and_then(|rest| rest.split(' ').next());
        let named = named.unwrap_or_else(|| panic!("{limit}: no rank is named: {outcome:#?}"));
        let own = |line: &&str| line.starts_with('[') && line.contains("] aqueduct: ") && !accuses(line);
        let first = outcome.stderr.lines().find(own).unwrap_or_else(|| panic!("{outcome:#?}"));
        assert!(first.starts_with(&format!("[{named}] ")), "{limit}: {outcome:#?}");
    }
}

/// Whether a rank says that another one has failed.
fn accuses(line: &str) -> bool {
    [" failed: ", " was lost: ", "aborted by rank ", "remote error: "]
        .iter()
        .any(|words| line.contains(words))
}

#[test]
fn a_software_device_without_memory_names_its_own() {
    let job = "aqueduct perf all-reduce -b 16M -e 16M -n 1 -c 0";
    let outcome = run(script(job).env("AQUEDUCT_SOFT_MEMORY", "1M")).exited(1);
    assert!(!outcome.stderr.contains("nvidia-smi"), "{outcome:#?}");
    outcome.says(&["the software device's memory is used up", "AQUEDUCT_SOFT_MEMORY"]);
}

#[test]
fn too_few_file_descriptors() {
    for (job, enough) in JOBS {
        let mut named = 0;
        for limit in 4.. {
            assert!(limit <= enough, "{job} fails with {limit} file descriptors");
            let mut command = script(&format!("{INHERITED} ulimit -n {limit}; {job}"));
            let outcome = run(command.env("AQUEDUCT_TIMEOUT", "5"));
            if outcome.code == Some(0) {
                break;
            }
            assert!(outcome.stderr.contains("ulimit -n"), "with {limit}: {outcome:#?}");
            for word in WRONG {
                assert!(!outcome.stderr.contains(word), "with {limit}, {word}: {outcome:#?}");
            }
            named += 1;
        }
        let least = if job == "aqueduct info" { 0 } else { 5 };
        assert!(named >= least, "{job} failed with {named} limits only");
    }
}
