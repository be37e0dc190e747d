//! Fills buffers with test data and counts what is wrong in them: by a kernel on the device, or on the host.
//!
//! A GPU makes and compares its data at the speed of its memory. So that a broken kernel cannot say that nothing is wrong, the
//! kernel first has to find planted errors, and the host compares some blocks of every buffer. The software device executes
//! kernels more slowly than the host compares memory, so there the host does all of it.

mod kernel;
mod samples;

use std::cell::RefCell;

use anyhow::{Result, bail};
use aqueduct::gpu::DeviceSlice;
use aqueduct::plan::Reduction;
use clap::ValueEnum;

use super::data::{Expected, Kind};
use crate::job::Rank;
use kernel::{KERNEL, Kernel};
use samples::samples;

/// Bytes of host memory that data goes through.
const PART: usize = 1 << 20;

/// Value of bytes that nothing may write.
pub(super) const GUARD_BYTE: u8 = 0xA5;

/// Bytes behind the data that no call may write.
pub(super) const GUARD: usize = 256;

/// Where data is made and compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckBy {
    /// By the host on the software device, otherwise by the device
    #[default]
    Auto,
    /// By a kernel on the device; the host compares some blocks of each buffer
    Device,
    /// By the host alone
    Host,
}

/// Fills and compares memory of one rank.
pub(super) struct Checker {
    kernel: Option<Kernel>,
    /// Memory of [`PART`] bytes.
    part: RefCell<Vec<u8>>,
}

impl Checker {
    /// For data of this kind and reduction. Proves the kernel on planted errors.
    pub(super) fn prepare(rank: &Rank, by: CheckBy, kind: Kind, op: Reduction) -> Result<Self> {
        let by_device = match by {
            CheckBy::Auto => !rank.context.driver().is_software(),
            CheckBy::Device => true,
            CheckBy::Host => false,
        };
        let mut checker = Self { kernel: None, part: RefCell::new(vec![0; PART]) };
        if by_device {
            let kernel = Kernel::load(rank, KERNEL)?;
            let expected = Expected { kind, op, first: 1, ranks: 3, iteration: 5, mask: !0, thin: 0 };
            kernel.prove(rank, expected)?;
            kernel.prove(rank, expected.exact(3))?;
            checker.kernel = Some(kernel);
        }
        Ok(checker)
    }

    /// How it works, for the head of the run.
    pub(super) fn meaning(&self) -> &'static str {
        match self.kernel {
            Some(_) => "by the device, samples by the host",
            None => "by the host",
        }
    }

    /// Fills `memory` with the elements of `expected` from the first one on.
    pub(super) fn fill(&self, rank: &Rank, memory: &DeviceSlice, expected: Expected) -> Result<()> {
        let Some(kernel) = &self.kernel else {
            return self.fill_parts(memory.len(), expected, |at, bytes| {
                Ok(memory.upload(at, bytes, rank.deadline())?)
            });
        };
        kernel.fill(rank, memory, expected)?;
        match self.sampled(rank, memory, expected, 0)?.0 {
            0 => Ok(()),
            wrong => bail!(
                "the kernel that makes test data made {wrong} wrong elements of {memory:?}; use --check-by host"
            ),
        }
    }

    /// Number of elements of `memory` that differ from those of `expected`. `memory` begins with element `start`.
    pub(super) fn wrong(
        &self,
        rank: &Rank,
        memory: &DeviceSlice,
        expected: Expected,
        start: u64,
    ) -> Result<u64> {
        let Some(kernel) = &self.kernel else {
            return self.wrong_parts(memory.len(), expected, start, |at, bytes| {
                Ok(memory.download(at, bytes, rank.deadline())?)
            });
        };
        let wrong = kernel.wrong(rank, memory, expected, start)?;
        let (sampled, all) = self.sampled(rank, memory, expected, start)?;
        if sampled > wrong || all && sampled < wrong {
            let of = if all { "all" } else { "samples" };
            bail!(
                "the kernel that checks test data found {wrong} wrong elements in {memory:?}, and the host {sampled} in {of} \
                 of it; use --check-by host"
            );
        }
        Ok(wrong)
    }

    /// Number of bytes of `memory` that are no longer [`GUARD_BYTE`].
    pub(super) fn touched(&self, rank: &Rank, memory: &DeviceSlice) -> Result<u64> {
        let mut seen = vec![0; memory.len()];
        memory.download(0, &mut seen, rank.deadline())?;
        Ok(touched(&seen))
    }

    /// Fills `len` bytes by `write`, which gets an offset and what to write there.
    pub(super) fn fill_parts(
        &self,
        len: usize,
        expected: Expected,
        mut write: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut part = self.part.borrow_mut();
        for at in (0..len).step_by(PART) {
            let part = &mut part[..PART.min(len - at)];
            expected.fill((at / expected.kind.bytes()) as u64, part);
            write(at, part)?;
        }
        Ok(())
    }

    /// Compares `len` bytes, which `read` fetches from an offset on.
    pub(super) fn wrong_parts(
        &self,
        len: usize,
        expected: Expected,
        start: u64,
        mut read: impl FnMut(usize, &mut [u8]) -> Result<()>,
    ) -> Result<u64> {
        let mut part = self.part.borrow_mut();
        let mut wrong = 0;
        for at in (0..len).step_by(PART) {
            let part = &mut part[..PART.min(len - at)];
            read(at, part)?;
            wrong += expected.wrong(start + (at / expected.kind.bytes()) as u64, part);
        }
        Ok(wrong)
    }

    /// Number of wrong elements that the host finds in samples, and whether the samples are all of `memory`.
    fn sampled(
        &self,
        rank: &Rank,
        memory: &DeviceSlice,
        expected: Expected,
        start: u64,
    ) -> Result<(u64, bool)> {
        let mut wrong = 0;
        let samples = samples(memory.len(), expected);
        let all = samples.iter().map(|(_, len)| len).sum::<usize>() == memory.len();
        let mut part = self.part.borrow_mut();
        for (at, len) in samples {
            let part = &mut part[..len];
            memory.download(at, part, rank.deadline())?;
            wrong += expected.wrong(start + (at / expected.kind.bytes()) as u64, part);
        }
        Ok((wrong, all))
    }
}

/// Number of bytes that are not [`GUARD_BYTE`].
pub(super) fn touched(seen: &[u8]) -> u64 {
    seen.iter().filter(|&&byte| byte != GUARD_BYTE).count() as u64
}

#[cfg(test)]
mod tests;
