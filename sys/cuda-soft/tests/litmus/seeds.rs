//! A seed determines the outcomes of a grid, and a kernel that fails names its seed.

use std::process::Command;

use cuda_driver_sys::CUresult;
use cuda_soft::{Lines, Weak};

use crate::rig::{Devices, Outcomes, Placement, SEEDS};

/// Two threads that tell each other that they are there.
const BUFFERING: [&str; 2] = [
    "st.relaxed.sys.global.u32 [%x], 1; ld.relaxed.sys.global.u32 %r0, [%y];",
    "st.relaxed.sys.global.u32 [%y], 1; ld.relaxed.sys.global.u32 %r0, [%x];",
];

fn count(devices: &Devices, threads: [&str; 2]) -> Outcomes {
    devices.count(&threads.map(str::to_owned), Placement::Blocks, 1, Lines::Torn, |memory| {
        vec![memory.register(0, 0, 0), memory.register(1, 0, 0)]
    })
}

/// Of one grid. When the kernel of a second device begins is up to the host, and no seed determines that.
#[test]
fn the_same_seeds_give_the_same_outcomes() {
    let devices = Devices::new();
    let outcomes = count(&devices, BUFFERING);
    assert_eq!(outcomes.len(), 4, "{outcomes:?}");
    assert_eq!(count(&devices, BUFFERING), outcomes);
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

#[test]
#[ignore = "the child of another test"]
fn fails_with_a_seed() {
    let devices = Devices::new();
    cuda_soft::weaken(Weak { seed: 20_261_129, ..Weak::default() });
    assert_eq!(devices.run(&["trap;".to_owned()]), CUresult::CUDA_ERROR_LAUNCH_FAILED);
}

#[test]
fn a_kernel_that_fails_names_the_seed() {
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "seeds::fails_with_a_seed", "--ignored", "--nocapture"])
        .output()
        .expect("the child runs");
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{said}");
    let fault =
        said.lines().find(|line| line.contains("trap in kernel k")).unwrap_or_else(|| panic!("{said}"));
    assert!(fault.ends_with(" (AQUEDUCT_SOFT_SEED=20261129)"), "{fault}");
}
