//! Words of several devices at one multicast address: each device's is a place of its own.

use cuda_soft::Lines;

use crate::rig::{Devices, Outcomes, Placement};

/// One device stores at all devices, a word and then another. The other sums these, the second first.
fn outcomes(store: &str, sum: &str) -> Outcomes {
    let threads = [
        format!(
            "multimem.st.relaxed.sys.global.u32 [%all], 1; multimem.st.{store}.sys.global.u32 [%all+1024], 1;"
        ),
        format!(
            "multimem.ld_reduce.{sum}.sys.global.add.u32 %r0, [%all+1024]; multimem.ld_reduce.relaxed.sys.global.add.u32 %r1, [%all];"
        ),
    ];
    let sums = |memory: &crate::rig::Memory| vec![memory.register(1, 0, 0), memory.register(1, 0, 1)];
    Devices::with_team().count(&threads, Placement::Devices, 1, Lines::Whole, sums)
}

#[test]
fn a_sum_may_combine_old_and_new_words() {
    let found = outcomes("relaxed", "relaxed");
    for sums in [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1], [2, 2]] {
        assert!(found.contains_key(sums.as_slice()), "{sums:?} of {found:?}");
    }
}

#[test]
fn a_sum_that_acquires_is_of_no_older_words_than_were_released() {
    let found = outcomes("release", "acquire");
    assert!(found.keys().all(|sums| sums[0] == 0 || sums[1] == 2), "{found:?}");
    for sums in [[0, 0], [0, 1], [1, 2], [2, 2]] {
        assert!(found.contains_key(sums.as_slice()), "{sums:?} of {found:?}");
    }
}
