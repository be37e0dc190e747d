//! Runs every checked-in input, and small changes of it, through its target.

use std::collections::BTreeSet;

use aqueduct_fuzz::memory::{self, Counting};
use aqueduct_fuzz::{Form, TARGETS, Target, corpus, target};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of offsets at which an input is changed.
const PLACES: usize = 64;

#[test]
fn corpora_and_small_changes_of_them() {
    for target in TARGETS {
        let (mut accepted, mut tried) = (0, 0);
        let inputs =
            corpus::inputs(target.name).unwrap_or_else(|error| panic!("corpus of {}: {error}", target.name));
        for (path, input) in &inputs {
            let check = |bytes: &[u8]| {
                std::panic::catch_unwind(|| target.check(bytes))
                    .unwrap_or_else(|_| panic!("{} with {:?}, from {}", target.name, bytes, path.display()))
            };
            accepted += u32::from(check(input));
            for near in corpus::neighbours(input, PLACES) {
                check(&near);
                tried += 1;
            }
        }
        println!("{}: {} inputs, {accepted} accepted, {tried} near them", target.name, inputs.len());
        assert!(accepted > 0, "{}: no input is accepted, so nothing is tested", target.name);
    }
}

#[test]
fn outputs_of_encoders_are_accepted() {
    for (name, bytes) in aqueduct_fuzz::seeds() {
        let target = target(name).unwrap_or_else(|| panic!("a seed for {name}, which is no target"));
        assert!(target.check(&bytes), "{name}: refused {bytes:?}");
    }
}

/// Names are unique, each has a corpus and each corpus a target; corpora stay small.
#[test]
fn corpora_belong_to_targets() {
    let names: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(names.len(), TARGETS.len());
    let folders = corpus::folder("").read_dir().unwrap();
    let folders: BTreeSet<String> =
        folders.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names, folders);
    let mut total = 0;
    for name in &names {
        let inputs = corpus::inputs(name).unwrap();
        assert!(inputs.len() <= 100, "{name} has {} inputs", inputs.len());
        total += inputs.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
    }
    assert!(total <= 1 << 20, "corpora of {total} bytes");
}

#[test]
fn the_allocator_counts() {
    let (_, peak) = memory::peak(|| drop((vec![0u8; 5000], vec![1u8; 3000])));
    assert!((8000..10_000).contains(&peak), "{peak}");
    let (kept, peak) = memory::peak(|| {
        let mut grown = vec![0u8; 1000];
        grown.resize(100_000, 0);
        grown
    });
    assert!(peak >= kept.len());
    let decode = |_: &[u8]| Some(vec![0; memory::limit(0, 1000) + 1]);
    let greedy = Target { name: "greedy", decode, form: Form::OneWay, memory: 1000 };
    assert!(std::panic::catch_unwind(|| greedy.check(&[])).is_err());
}
