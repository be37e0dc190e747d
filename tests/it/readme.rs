//! The README's example: checks that the README shows the text that is compiled and run here.

// The example is a file of its own with the README's text. It becomes part of this module.
include!("readme_example.rs");

use crate::data::assert_same;
use crate::group::{Machine, start_rendezvous};
use aqueduct_tests::ranks;

const EXAMPLE: &str = include_str!("readme_example.rs");
const README: &str = include_str!("../../README.md");

#[test]
fn the_readme_shows_this_example() {
    let shown = format!("```rust,no_run\n{EXAMPLE}```\n");
    assert!(README.contains(&shown), "copy tests/it/readme_example.rs into the README's rust block");
}

/// Rank 0 fills with 1 and rank 1 with 2: each receives the other's.
fn check(rank: u32, received: &[u8]) {
    assert_same(received, &[2 - rank as u8; 4096], format_args!("what rank {rank} received"));
}

fn as_threads(machine: Machine, test: &str) {
    if ranks::start(1, test).is_none() {
        return;
    }
    let (rendezvous, driver) = (start_rendezvous(Some(2)), machine.driver());
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (id, driver) = (rendezvous.unique_id(), &driver);
            scope.spawn(move || check(rank, &exchange(rank, id, driver).expect("the example works")));
        }
    });
}

fn as_processes(machine: Machine, test: &str) {
    let rendezvous = std::cell::OnceCell::new();
    let started = ranks::start_with(2, test, |_, command| {
        let rendezvous = rendezvous.get_or_init(|| start_rendezvous(Some(2)));
        command.env("TEST_UNIQUE_ID", rendezvous.unique_id().to_text().expose());
    });
    let Some(rank) = started else { return };
    let id = std::env::var("TEST_UNIQUE_ID").expect("set above").parse().expect("an id was printed");
    check(rank, &exchange(rank, &id, &machine.driver()).expect("the example works"));
}

#[test]
fn two_threads() {
    as_threads(Machine::Software, "readme::two_threads");
}

#[test]
fn two_processes() {
    as_processes(Machine::Software, "readme::two_processes");
}

#[test]
#[ignore = "needs two NVIDIA GPUs, or one"]
fn two_threads_on_hardware() {
    as_threads(Machine::Hardware, "readme::two_threads_on_hardware");
}

#[test]
#[ignore = "needs two NVIDIA GPUs, or one"]
fn two_processes_on_hardware() {
    as_processes(Machine::Hardware, "readme::two_processes_on_hardware");
}
