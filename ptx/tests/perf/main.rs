//! The kernels of `aqueduct perf` that push to a host: they do the work that they claim, count what is wrong, and end.
//! (`ll128.rs` has the loops between two devices.)

mod clock;
#[path = "../device/mod.rs"]
mod device;
mod fifo;
mod port;
mod relay;
#[path = "../ring/mod.rs"]
#[expect(dead_code, reason = "the words of 32 bits are other tests'")]
mod ring;

use std::time::{Duration, Instant};

use crate::device::LaunchShape;

const ONE: LaunchShape = LaunchShape { grid: 1, block: 32 };
/// Long enough for a kernel that does not wait to have ended.
const WHILE: Duration = Duration::from_millis(30);

/// Asks until there is an answer; a kernel that never gives one is told to leave.
fn until<T>(machine: &device::Machine, what: &str, ask: impl Fn() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        if since.elapsed() > device::patience() {
            machine.abort();
            panic!("{what} did not come");
        }
        std::thread::yield_now();
    }
}
