//! Windows of overlapping puts from one kernel.

use anyhow::Result;
use aqueduct::channel::load_kernels;
use aqueduct::gpu::{Function, arg};

use super::end::End;
use crate::job::Rank;

/// Number, size and placement of puts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) bytes: usize,
    /// Puts per window.
    pub(super) window: u32,
    pub(super) windows: u32,
    /// Number of different places. Puts use them in turn.
    pub(super) places: usize,
}

/// Bytes that the puts of a measurement are spread over, unless a single put is larger.
const SPREAD: usize = 64 << 20;

impl Shape {
    /// `windows` is the user's number. Without one, a measurement moves about `moved` bytes.
    pub(super) fn choose(bytes: usize, window: u32, windows: Option<u32>, moved: usize) -> Self {
        let each = bytes.max(1).saturating_mul(window as usize);
        let default = (moved / each).clamp(4, if window == 1 { 1000 } else { 100 }) as u32;
        let places = (SPREAD / bytes.max(1)).clamp(1, window as usize);
        Self { bytes, window, windows: windows.unwrap_or(default), places }
    }

    /// Bytes that the puts are spread over.
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

    /// Time of one put in microseconds on the rank that puts. The other rank waits for the signals and returns 0.
    pub(super) fn run(&self, rank: &Rank, end: &End, shape: Shape) -> Result<f64> {
        let (handle, result) = (end.channel.device_handle(), end.result());
        let Shape { bytes, window, windows, .. } = shape;
        if !end.begins() {
            let args = [arg(&handle), arg(&windows), arg(&result)];
            // SAFETY: the parameters of the catalog row.
            unsafe { end.run(rank, &self.take, &args, []) }?;
            return Ok(0.0);
        }
        let (bytes, span) = (bytes as u64, shape.span() as u64);
        let args = [arg(&handle), arg(&bytes), arg(&span), arg(&window), arg(&windows), arg(&result)];
        // SAFETY: the parameters of the catalog row; both buffers hold the span.
        let results = unsafe { end.run(rank, &self.put, &args, []) }?;
        end.count(shape.puts(), u64::from(windows), u64::from(windows));
        Ok(results.nanoseconds as f64 / 1e3 / shape.puts() as f64)
    }

    /// Puts two windows of fresh data and returns the number of wrong bytes at this rank.
    pub(super) fn check(&self, rank: &Rank, end: &End, shape: Shape) -> Result<u64> {
        let shape = Shape { windows: 2, ..shape };
        end.paint(rank, shape.span())?;
        rank.barrier()?;
        self.run(rank, end, shape)?;
        rank.barrier()?;
        // Only the places that were put to hold the other rank's pattern.
        let wrong = if end.begins() { 0 } else { end.wrong(rank, shape.span(), 0)? };
        Ok(wrong + end.miscounted()?)
    }
}

#[cfg(test)]
mod tests {
    use aqueduct::comm::Transport;
    use aqueduct::proxy::Idle;

    use super::*;
    use crate::job::tests::as_two_ranks;
    use crate::perf::checker::CheckBy;

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

    /// Runs `body` as both ranks, each with its end of a channel.
    fn as_both_ends<T: Send>(body: impl Fn(&Rank, &End, &Windows) -> T + Sync) -> [T; 2] {
        as_two_ranks(|rank| {
            let end = End::prepare(rank, Transport::CudaIpc, Idle::default(), CheckBy::Auto, 1024).unwrap();
            let result = body(rank, &end, &Windows::new(rank).unwrap());
            end.finish(rank).unwrap();
            result
        })
    }

    /// Rank 0 puts eight bytes more than rank 1 expects.
    #[test]
    fn a_put_that_writes_behind_the_data_is_found() {
        let wrong = as_both_ends(|rank, end, windows| {
            [0, 8].map(|more| {
                let bytes = if end.begins() { 64 + more } else { 64 };
                windows.check(rank, end, Shape { bytes, window: 2, windows: 2, places: 1 }).unwrap()
            })
        });
        assert_eq!(wrong, [[0, 0], [0, 8]]);
    }

    /// The kernel of rank 0 is said to have pushed one put more.
    #[test]
    fn a_put_that_the_service_did_not_count_is_found() {
        let wrong = as_both_ends(|rank, end, windows| {
            let shape = Shape { bytes: 64, window: 2, windows: 2, places: 2 };
            let right = windows.check(rank, end, shape).unwrap();
            end.count(u64::from(end.begins()), 0, 0);
            (right, windows.check(rank, end, shape).unwrap())
        });
        assert_eq!(wrong, [(0, 1), (0, 0)]);
    }
}
