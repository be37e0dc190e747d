//! What a seed determines.

use cuda_soft::Lines;

use crate::rig::{Devices, Outcomes, Placement, SEEDS};

fn count(devices: &Devices, threads: [&str; 2]) -> Outcomes {
    devices.count(&threads.map(str::to_owned), Placement::Blocks, 1, Lines::Torn, |memory| {
        vec![memory.register(0, 0, 0), memory.register(1, 0, 0)]
    })
}

/// Otherwise they would be zero in each run, and a kernel that forgets to write them would pass.
#[test]
fn registers_that_were_not_written_hold_what_the_seed_determines() {
    let devices = Devices::new();
    let threads = ["mov.u32 %r0, %r5;", "@%p7 mov.u32 %r0, 1;"];
    let outcomes = count(&devices, threads);
    assert!(outcomes.len() as u64 > SEEDS * 9 / 10, "{outcomes:?}");
    let set: u64 = outcomes.iter().filter(|(found, _)| found[1] == 1).map(|(_, count)| count).sum();
    assert!((SEEDS / 4..SEEDS * 3 / 4).contains(&set), "a predicate was set {set} times");
    assert_eq!(count(&devices, threads), outcomes);
}
