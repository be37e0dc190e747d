//! Bare loops, which give a wait up after some time.

use aqueduct_ptx::{Target, instantiate};
use cuda_driver_sys::CUfunction;

use crate::device::Machine;

/// Nanoseconds that a wait may take: nearly nothing, and more than any test.
pub(crate) const IMPATIENT: u64 = 1_000_000;
pub(crate) const PATIENT: u64 = 1000 << 30;

/// The entry of `row` for rank 0 with waits that look at the clock after a few polls, not after thousands: the software device
/// lets a kernel that polls sleep in between.
pub(crate) fn looking_at_the_clock(machine: &Machine, row: &str) -> CUfunction {
    let instance = instantiate(row, Target::new(70), &[]).expect("a row of the catalog");
    let text =
        instance.text.replace("%spins, 100000;", "%spins, 10;").replace("%spins, 1000;", "%spins, 10;");
    assert_eq!(text.matches("%spins, 10;").count(), 2, "{text}");
    machine.load(0, &text, &instance.entries[0])
}
