//! A put and a signal that bounce between two kernels.

use anyhow::{Result, bail};
use aqueduct::channel::load_kernels;
use aqueduct::gpu::{Function, arg};

use super::WORD;
use super::end::End;
use crate::job::Rank;

pub(super) struct Hop {
    function: Function,
    /// The next stamp that no launch has used.
    first: u64,
}

impl Hop {
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

    /// Microseconds one way, and the wrong words that this rank's kernel saw.
    pub(super) fn run(
        &mut self,
        rank: &Rank,
        end: &End,
        bytes: usize,
        iterations: u32,
    ) -> Result<(f64, u64)> {
        let (handle, inbox, result) = (end.channel.device_handle(), end.inbox.ptr(), end.result());
        let (size, begins, first) = (bytes as u64, u32::from(end.begins()), self.first);
        self.first += u64::from(iterations) + 1;
        let args = [
            arg(&handle),
            arg(&size),
            arg(&inbox),
            arg(&iterations),
            arg(&first),
            arg(&begins),
            arg(&result),
        ];
        // SAFETY: the parameters of the catalog row; both buffers hold the largest size.
        let told = unsafe { end.run(rank, &self.function, &args) }?;
        // One round trip is not timed.
        let rounds = u64::from(iterations) + 1;
        end.count(if bytes > 0 { rounds } else { 0 }, rounds, 0);
        Ok((told.nanoseconds as f64 / 1e3 / 2.0 / f64::from(iterations), told.wrong))
    }

    /// A few hops of fresh data, compared at both ends: what is wrong here.
    pub(super) fn check(&mut self, rank: &Rank, end: &End, bytes: usize) -> Result<u64> {
        end.paint(rank, bytes)?;
        rank.barrier()?;
        let (_, stamps) = self.run(rank, end, bytes, 2)?;
        rank.barrier()?;
        Ok(stamps + end.miscounted()? + end.wrong(rank, bytes, WORD)?)
    }
}
