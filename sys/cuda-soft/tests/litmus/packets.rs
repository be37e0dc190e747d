//! Vectors, which the model takes for separate accesses, and lines of 128 bytes, for which each rule has its promise.

use std::collections::BTreeSet;

use cuda_soft::Lines;

use crate::rig::{Devices, Outcomes, Placement, SEEDS};

fn often(outcomes: &Outcomes, which: impl Fn(&[u32]) -> bool) -> bool {
    outcomes.iter().filter(|(outcome, _)| which(outcome)).map(|(_, count)| count).sum::<u64>() * 100 >= SEEDS
}

/// Runs a thread that writes and one that reads; the outcome is the reader's registers.
fn halves(seeds: u64, write: &str, read: &str) -> Outcomes {
    let devices = Devices::new();
    let threads = [write.to_owned(), read.to_owned()];
    devices.count_of(0..seeds, &threads, Placement::Devices, 1, Lines::Torn, |memory| {
        (0..4).map(|number| memory.register(1, 0, number)).collect()
    })
}

#[test]
fn a_word_carries_its_flag_and_the_halves_of_a_packet_come_in_any_order() {
    let outcomes = halves(
        SEEDS,
        "mov.b64 %d0, {5, 1}; mov.b64 %d1, {6, 1}; st.relaxed.sys.global.v2.u64 [%x], {%d0, %d1};",
        "ld.relaxed.sys.global.v2.u64 {%d0, %d1}, [%x]; mov.b64 {%r0, %r1}, %d0; mov.b64 {%r2, %r3}, %d1;",
    );
    let allowed: [&[u32]; 4] = [&[0, 0, 0, 0], &[5, 1, 0, 0], &[0, 0, 6, 1], &[5, 1, 6, 1]];
    assert!(outcomes.keys().all(|outcome| allowed.contains(&&outcome[..])), "{outcomes:?}");
    assert!(allowed.iter().all(|allowed| often(&outcomes, |outcome| outcome == *allowed)), "{outcomes:?}");
}

#[test]
fn a_packet_of_narrower_elements_falls_apart() {
    let seeds = 4 * SEEDS;
    let outcomes = halves(
        seeds,
        "st.relaxed.sys.global.v4.u32 [%x], {5, 1, 6, 1};",
        "ld.relaxed.sys.global.v4.u32 {%r0, %r1, %r2, %r3}, [%x];",
    );
    // Whichever of the four have come.
    let allowed = (0..16)
        .map(|parts: u32| [5, 1, 6, 1].iter().zip(0..).map(|(value, n)| value * (parts >> n & 1)).collect());
    assert!(outcomes.keys().eq(&allowed.collect::<BTreeSet<Vec<u32>>>()), "{outcomes:?}");
    assert!(outcomes.values().all(|count| count * 100 >= seeds), "{outcomes:?}");
}

/// A warp writes a line, and another reads it twice. Outcomes: whether its first look saw any part, saw the flag, saw all;
/// whether the second saw all.
fn line(rule: Lines) -> Outcomes {
    line_behind("bar.warp.sync 255;", rule)
}

/// The same, with the instructions that stand before the store. The lanes have parted at the gate, where each reads for itself.
fn line_behind(between: &str, rule: Lines) -> Outcomes {
    let lanes = "setp.ge.u32 %p1, %lane, 8; @%p1 bra DONE; mul.wide.u32 %at, %lane, 16; add.u64 %x, %x, %at;";
    let write = format!("{lanes} {between} mov.u64 %d0, 1; st.relaxed.sys.global.v2.u64 [%x], {{%d0, %d0}};");
    let read = format!(
        "{lanes} ld.relaxed.sys.global.v2.u64 {{%d0, %d1}}, [%x];
    bar.warp.sync 255;
    ld.relaxed.sys.global.v2.u64 {{%d2, %d3}}, [%x];
    cvt.u32.u64 %r0, %d0; cvt.u32.u64 %r1, %d1; cvt.u32.u64 %r2, %d2; cvt.u32.u64 %r3, %d3;"
    );
    Devices::new().count(&[write, read], Placement::Devices, 32, rule, |memory| {
        let parts = |look: usize| -> Vec<u32> {
            (0..16).map(|part| memory.register(1, part / 2, look * 2 + part % 2)).collect()
        };
        let (first, second) = (parts(0), parts(1));
        let all = |look: &[u32]| u32::from(look.iter().all(|part| *part == 1));
        vec![u32::from(first.contains(&1)), first[15], all(&first), all(&second)]
    })
}

#[test]
fn a_whole_line_is_there_once_a_part_of_it_was_seen() {
    let outcomes = line(Lines::Whole);
    assert!(!outcomes.keys().any(|o| o[0] == 1 && o[3] == 0), "{outcomes:?}");
    assert!(often(&outcomes, |o| o[1] == 1 && o[2] == 0), "one look is not enough: {outcomes:?}");
}

#[test]
fn an_ascending_line_is_there_once_its_end_was_seen() {
    let outcomes = line(Lines::Ascending);
    assert!(!outcomes.keys().any(|o| o[1] == 1 && o[3] == 0), "{outcomes:?}");
    assert!(often(&outcomes, |o| o[0] == 1 && o[3] == 0), "its beginning promises nothing: {outcomes:?}");
    assert!(often(&outcomes, |o| o[1] == 1 && o[2] == 0), "one look is not enough: {outcomes:?}");
}

#[test]
fn a_torn_line_comes_in_any_order() {
    let outcomes = line(Lines::Torn);
    assert!(often(&outcomes, |o| o[1] == 1 && o[3] == 0), "{outcomes:?}");
}

#[test]
fn lanes_that_parted_store_no_line_before_they_have_met() {
    let outcomes = line_behind("", Lines::Whole);
    assert!(often(&outcomes, |o| o[1] == 1 && o[3] == 0), "{outcomes:?}");
}
