//! Reports blocks that make no progress, with the thread and the address it waits for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// When to report a grid that makes no progress, and when to kill it.
#[derive(Clone)]
pub struct Watchdog {
    /// A grid without progress for this long is reported, once per grid.
    pub report_after: Duration,
    /// A grid without progress for this long fails with [`FaultKind::Timeout`](super::FaultKind::Timeout).
    pub fault_after: Option<Duration>,
    /// Called with the report.
    pub report: Arc<dyn Fn(&Stall) + Send + Sync>,
}

/// A report about a block that makes no progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The kernel's name.
    pub kernel: String,
    /// The block's index.
    pub block: [u32; 3],
    /// The first waiting thread's index in its block.
    pub thread: [u32; 3],
    /// The function that the thread is in.
    pub function: String,
    /// The source line where the thread waits, 0 if unknown.
    pub line: u32,
    /// The address that the thread polls; `None` at a barrier, and in a loop that reads nothing.
    pub address: Option<u64>,
    /// How long the block has made no progress.
    pub waited: Duration,
}

impl Default for Watchdog {
    /// Reports on standard error after a minute, never faults.
    fn default() -> Self {
        Watchdog {
            report_after: Duration::from_secs(60),
            fault_after: None,
            report: Arc::new(|stall| eprintln!("aqueduct software device: {stall}")),
        }
    }
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog")
            .field("report_after", &self.report_after)
            .field("fault_after", &self.fault_after)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([bx, by, bz], [tx, ty, tz]) = (self.block, self.thread);
        write!(
            f,
            "kernel {}, block ({bx},{by},{bz}), thread ({tx},{ty},{tz}) has waited {:.1} s",
            self.kernel,
            self.waited.as_secs_f64()
        )?;
        match self.address {
            Some(address) => write!(f, " for a change at {address:#x}")?,
            None => write!(f, " at a barrier, or in a loop that changes nothing")?,
        }
        write!(f, " (line {} of {})", self.line, self.function)
    }
}
