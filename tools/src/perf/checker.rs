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
            let expected = Expected { kind, op, first: 1, ranks: 3, iteration: 5, mask: !0 };
            kernel.prove(rank, expected)?;
            kernel.prove(rank, expected.with_exact_sums(3))?;
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
mod tests {
    use std::sync::Arc;

    use aqueduct::gpu::GpuBuffer;
    use aqueduct::plan::Element;

    use super::samples::{SAMPLE, SAMPLES};
    use super::*;
    use crate::perf::data::REDUCTIONS;

    const KINDS: [Kind; 5] = [
        Kind::Byte,
        Kind::Element(Element::F32),
        Kind::Element(Element::F16),
        Kind::Element(Element::Bf16),
        Kind::Element(Element::I32),
    ];

    fn expected(kind: Kind, op: Reduction) -> Expected {
        Expected { kind, op, first: 1, ranks: if kind == Kind::Byte { 1 } else { 3 }, iteration: 4, mask: !0 }
    }

    /// A checker whose kernel nobody has proved.
    fn with_kernel(rank: &Rank, text: &str) -> Checker {
        Checker { kernel: Some(Kernel::load(rank, text).unwrap()), part: RefCell::new(vec![0; PART]) }
    }

    /// The kernel with a part of its text replaced.
    fn broken(from: &str, to: &str) -> String {
        assert_eq!(KERNEL.matches(from).count(), 1, "{from}");
        KERNEL.replace(from, to)
    }

    #[test]
    fn device_and_host_make_and_find_the_same() {
        let rank = Rank::join().unwrap();
        for (kind, op) in KINDS.into_iter().flat_map(|kind| REDUCTIONS.map(|op| (kind, op))) {
            let (expected, size) = (expected(kind, op), kind.bytes());
            let coarse = expected.with_exact_sums(3);
            let [device, host] =
                [CheckBy::Device, CheckBy::Host].map(|by| Checker::prepare(&rank, by, kind, op).unwrap());
            assert!(device.kernel.is_some() && host.kernel.is_none());
            for count in [1, 3, 257, 20_001] {
                let memory = Arc::new(GpuBuffer::new(&rank.context, count * size).unwrap());
                let memory = memory.slice(..).unwrap();
                for (maker, finder, expected) in [
                    (&device, &host, expected),
                    (&host, &device, expected),
                    (&device, &device, expected),
                    (&device, &host, coarse),
                    (&host, &device, coarse),
                ] {
                    memory.fill(GUARD_BYTE, rank.deadline()).unwrap();
                    maker.fill(&rank, &memory, expected).unwrap();
                    assert_eq!(finder.wrong(&rank, &memory, expected, 0).unwrap(), 0, "{expected:?} {count}");
                    let mut seen = vec![0_u8; count * size];
                    memory.download(0, &mut seen, rank.deadline()).unwrap();
                    // Every seventh element.
                    seen.iter_mut().step_by(7 * size).for_each(|byte| *byte ^= 1);
                    memory.upload(0, &seen, rank.deadline()).unwrap();
                    let wrong = finder.wrong(&rank, &memory, expected, 0).unwrap();
                    assert_eq!(wrong, count.div_ceil(7) as u64, "{expected:?} {count}");
                }
            }
        }
    }

    /// As for a part of a buffer, at any offset of bytes, and where the index outgrows 32 bits.
    #[test]
    fn a_comparison_may_begin_with_any_element() {
        let rank = Rank::join().unwrap();
        for kind in KINDS {
            let (expected, size) = (expected(kind, Reduction::Sum), kind.bytes());
            let checker = Checker::prepare(&rank, CheckBy::Device, kind, Reduction::Sum).unwrap();
            let memory = Arc::new(GpuBuffer::new(&rank.context, 5000 * size).unwrap());
            for start in [1, 8, 4095, (1 << 32) - 77, (1 << 34) - 77, 1 << 40] {
                let mut data = vec![0; 5000 * size];
                expected.fill(start, &mut data);
                memory.upload(0, &data, rank.deadline()).unwrap();
                let all = memory.slice(..).unwrap();
                assert_eq!(checker.wrong(&rank, &all, expected, start).unwrap(), 0, "{kind:?} {start}");
                let shifted = checker.wrong(&rank, &all, expected, start + 1).unwrap();
                assert!(shifted > 4900, "{kind:?} {start}: {shifted}");
            }
        }
    }

    #[test]
    fn a_kernel_that_finds_too_little_or_too_much_is_refused() {
        let rank = Rank::join().unwrap();
        for (from, to) in [
            ("setp.ne.u32 %differs, %seen, %bits;", "setp.ne.u32 %differs, %seen, %seen;"),
            ("setp.ne.u32 %differs, %seen, %bits;", "setp.eq.u32 %differs, %seen, %bits;"),
            ("add.u64 %found, %found, 1;", "mov.u64 %found, 2;"),
            ("mul.lo.u32 %hash, %hash, 0x846CA68B;", "mul.lo.u32 %hash, %hash, 0x846CA68D;"),
            ("mul.wide.u32 %stride, %t, %u;", "mul.wide.u32 %stride, %t, 512;"),
        ] {
            let kernel = Kernel::load(&rank, &broken(from, to)).unwrap();
            let expected = expected(Kind::Element(Element::F32), Reduction::Sum);
            let error = kernel.prove(&rank, expected).unwrap_err().to_string();
            assert!(
                error.contains("is broken on this device") && error.contains("--check-by host"),
                "{error}"
            );
        }
    }

    /// The host looks at samples of what the kernel does in the measurement, too.
    #[test]
    fn samples_show_a_kernel_that_breaks_later() {
        let rank = Rank::join().unwrap();
        let memory = Arc::new(GpuBuffer::new(&rank.context, 3 * SAMPLES * SAMPLE).unwrap());
        let all = memory.slice(..).unwrap();
        let expected = expected(Kind::Byte, Reduction::Sum);
        let blind = broken("setp.ne.u32 %differs, %seen, %bits;", "setp.ne.u32 %differs, %seen, %seen;");
        let blind = with_kernel(&rank, &blind);
        blind.fill(&rank, &all, expected).unwrap();
        assert_eq!(blind.wrong(&rank, &all, expected, 0).unwrap(), 0);
        let stale = Expected { iteration: 3, ..expected };
        let error = blind.wrong(&rank, &all, stale, 0).unwrap_err().to_string();
        assert!(error.contains("found 0 wrong elements") && error.contains("in samples of it"), "{error}");
        let idle = with_kernel(&rank, &broken("st.global.u8 [%at], %bits;", "add.u64 %at, %at, 0;"));
        memory.fill(0, rank.deadline()).unwrap();
        let error = idle.fill(&rank, &all, expected).unwrap_err().to_string();
        assert!(error.contains("the kernel that makes test data made"), "{error}");
    }

    #[test]
    fn a_touched_guard_is_counted() {
        let rank = Rank::join().unwrap();
        let checker = Checker::prepare(&rank, CheckBy::Auto, Kind::Byte, Reduction::Sum).unwrap();
        let memory = Arc::new(GpuBuffer::new(&rank.context, 100).unwrap());
        memory.fill(GUARD_BYTE, rank.deadline()).unwrap();
        memory.upload(40, &[0_u8, GUARD_BYTE, 1], rank.deadline()).unwrap();
        assert_eq!(checker.touched(&rank, &memory.slice(..).unwrap()).unwrap(), 2);
    }
}
