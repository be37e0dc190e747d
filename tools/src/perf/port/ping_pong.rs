//! A put and a signal that bounce between two kernels.

use anyhow::{Result, bail};
use aqueduct::channel::load_kernels;
use aqueduct::gpu::{Function, arg};

use super::end::{End, Results};
use crate::job::Rank;

/// Sizes are multiples of this: the kernel checks the first and the last word of each message.
pub(super) const WORD: usize = 8;

/// Round trips of a check.
const CHECKED: u32 = 10;

pub(super) struct PingPong {
    function: Function,
    /// The next unused stamp.
    first: u64,
}

impl PingPong {
    pub(super) fn new(rank: &Rank) -> Result<Self> {
        let functions = load_kernels(&rank.context, "perf_port", &[])?;
        let Some(function) = functions.into_iter().next() else {
            bail!("kernel file perf_port has no entry");
        };
        Ok(Self { function, first: 1 })
    }

    pub(super) fn default_iterations(&self, rank: &Rank, bytes: usize) -> u32 {
        if rank.context.driver().is_software() {
            return 20;
        }
        ((256usize << 20) / bytes.max(1)).clamp(10, 1000) as u32
    }

    /// Half a round trip in microseconds.
    pub(super) fn run(&mut self, rank: &Rank, end: &End, bytes: usize, iterations: u32) -> Result<f64> {
        let results = self.bounce(rank, end, bytes, iterations, false)?;
        Ok(results.nanoseconds as f64 / 1e3 / 2.0 / f64::from(iterations))
    }

    fn bounce(
        &mut self,
        rank: &Rank,
        end: &End,
        bytes: usize,
        iterations: u32,
        check: bool,
    ) -> Result<Results> {
        let (handle, inbox, result) = (end.channel.device_handle(), end.inbox.ptr(), end.result());
        let (size, begins, check, first) =
            (bytes as u64, u32::from(end.begins()), u32::from(check), self.first);
        self.first += u64::from(iterations) + 1;
        let args = [
            arg(&handle),
            arg(&size),
            arg(&inbox),
            arg(&iterations),
            arg(&first),
            arg(&begins),
            arg(&check),
            arg(&result),
        ];
        // SAFETY: the parameters of the catalog row; both buffers hold the largest size.
        let results = unsafe { end.run(rank, &self.function, &args, []) }?;
        // The first round trip is not timed.
        let rounds = u64::from(iterations) + 1;
        end.count(if bytes > 0 { rounds } else { 0 }, rounds, 0);
        Ok(results)
    }

    /// Bounces fresh data a few times and returns the number of wrong bytes and counts at this rank.
    pub(super) fn check(&mut self, rank: &Rank, end: &End, bytes: usize) -> Result<u64> {
        end.paint(rank, bytes)?;
        rank.barrier()?;
        let results = self.bounce(rank, end, bytes, CHECKED, true)?;
        rank.barrier()?;
        Ok(results.wrong + end.miscounted()? + end.wrong(rank, bytes, WORD)?)
    }
}
