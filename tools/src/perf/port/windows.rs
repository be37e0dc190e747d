//! Windows of puts from one kernel, which overlap.

use anyhow::Result;
use aqueduct::channel::load_kernels;
use aqueduct::gpu::{Function, arg};

use super::end::End;
use crate::job::Rank;

/// How many puts of what size, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) bytes: usize,
    /// Puts of a window.
    pub(super) window: u32,
    pub(super) windows: u32,
    /// Puts that lie behind one another before they begin again.
    pub(super) places: usize,
}

/// Bytes that the puts of a measurement lie in, unless one alone is larger.
const SPREAD: usize = 64 << 20;

impl Shape {
    /// `windows`: what the user wants. Otherwise so many that a measurement moves about `moved` bytes, within reason.
    pub(super) fn choose(bytes: usize, window: u32, windows: Option<u32>, moved: usize) -> Self {
        let each = bytes.max(1).saturating_mul(window as usize);
        let default = (moved / each).clamp(4, if window == 1 { 1000 } else { 100 }) as u32;
        let places = (SPREAD / bytes.max(1)).clamp(1, window as usize);
        Self { bytes, window, windows: windows.unwrap_or(default), places }
    }

    /// Bytes that its puts lie in.
    pub(super) fn span(self) -> usize {
        self.bytes.saturating_mul(self.places)
    }

    pub(super) fn puts(self) -> u64 {
        u64::from(self.window) * u64::from(self.windows)
    }
}

pub(super) struct Windows {
    put: Function,
    take: Function,
}

impl Windows {
    pub(super) fn new(rank: &Rank) -> Result<Self> {
        match <[Function; 3]>::try_from(load_kernels(&rank.context, "perf_port", &[])?) {
            Ok([_, put, take]) => Ok(Self { put, take }),
            Err(have) => anyhow::bail!("kernel file perf_port has {} entries instead of 3", have.len()),
        }
    }

    /// Microseconds of one put on the rank that puts, zero on the other, which takes the signals.
    pub(super) fn run(&self, rank: &Rank, end: &End, shape: Shape) -> Result<f64> {
        let (handle, result) = (end.channel.device_handle(), end.result());
        let Shape { bytes, window, windows, .. } = shape;
        if !end.begins() {
            let args = [arg(&handle), arg(&windows), arg(&result)];
            // SAFETY: the parameters of the catalog row.
            unsafe { end.run(rank, &self.take, &args) }?;
            return Ok(0.0);
        }
        let (bytes, span) = (bytes as u64, shape.span() as u64);
        let args = [arg(&handle), arg(&bytes), arg(&span), arg(&window), arg(&windows), arg(&result)];
        // SAFETY: the parameters of the catalog row; both buffers hold the span.
        let told = unsafe { end.run(rank, &self.put, &args) }?;
        end.count(shape.puts(), u64::from(windows), u64::from(windows));
        Ok(told.nanoseconds as f64 / 1e3 / shape.puts() as f64)
    }

    /// Two windows of fresh data, compared where they arrive: what is wrong here.
    pub(super) fn check(&self, rank: &Rank, end: &End, shape: Shape) -> Result<u64> {
        let shape = Shape { windows: 2, ..shape };
        end.paint(rank, shape.span())?;
        rank.barrier()?;
        self.run(rank, end, shape)?;
        rank.barrier()?;
        // Only what was put to has the paint of the other.
        let wrong = if end.begins() { 0 } else { end.wrong(rank, shape.span(), 0)? };
        Ok(wrong + end.miscounted()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn puts_lie_in_bounded_memory_whatever_their_number() {
        for bytes in [0, 8, 4096, 1 << 20, 128 << 20] {
            for window in [1, 16, 65_536] {
                let shape = Shape::choose(bytes, window, None, 4 << 30);
                assert!(shape.windows >= 4 && shape.places >= 1, "{shape:?}");
                assert!(shape.span() <= SPREAD.max(bytes), "{shape:?}");
                assert!(shape.places <= window as usize, "{shape:?}");
            }
        }
        assert_eq!(Shape::choose(8, 16, Some(7), 1).puts(), 112);
    }
}
