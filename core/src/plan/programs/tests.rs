//! The programs are right.

use super::judge::{right, runs};
use super::{all, all_reduce, synchronised};

#[test]
fn programs_are_right() {
    for ranks in [2, 3, 4, 8] {
        all(ranks).into_iter().for_each(|program| right(&synchronised(program)));
        runs(&synchronised(all_reduce::two_shot_packets(ranks)));
    }
    right(&synchronised(all_reduce::recursive_halving(64)));
}
