//! Calls of plans with blocks that copy engines run: a stream for each, which the stream of a call forks into and joins again.
#![allow(unsafe_code, reason = "enqueues copies and kernels")]

use aqueduct_ptx::abi::PlanArgs;

use super::call::Call;
use super::ir::Buffer;
use super::kernel::Kernel;
use super::lane::{Lane, Lanes, Step};
use super::lower::{Copy, End};
use super::prepared::Prepared;
use crate::error::{Error, Result};
use crate::gpu::{Event, KeepAlive, Stream};
use crate::sync::lock;

const EXECUTE: &str = "Executor::execute";

impl Call<'_> {
    /// Enqueues the block's work for a call. On the call's stream that stream keeps `keep` for each step; a stream of the block's own keeps
    /// nothing, because the call's stream joins it.
    ///
    /// # Safety
    /// As for [`enqueue_all`](Self::enqueue_all). Behind it the call's stream joins a stream of the block's own and keeps `keep`, or whoever
    /// fails to join it forgets `keep`.
    unsafe fn enqueue_lane(
        &self,
        lane: &Lane,
        stream: &Stream,
        keep: impl Iterator<Item = KeepAlive> + Clone,
    ) -> Result<()> {
        let own = lane.fork.as_ref().map(|(own, _)| own);
        let (stream, keep) = (own.unwrap_or(stream), keep.filter(|_| own.is_none()));
        for step in &lane.steps {
            match step {
                // SAFETY: the caller's promise.
                Step::Control(kernel) => unsafe { self.launch(kernel, stream, keep.clone()) }?,
                Step::Copy(copy) => {
                    let (to, from) =
                        (self.address(copy.target.address())?, self.address(copy.source.address())?);
                    for Range { from: source, to: target, bytes } in ranges(self.prepared, copy, &self.args) {
                        // Nothing to move: source and target are the same bytes.
                        if to + target == from + source {
                            continue;
                        }
                        let bytes = usize::try_from(bytes).map_err(|_| {
                            Error::usage(
                                EXECUTE,
                                format!("a copy of {bytes} bytes is too long for this host"),
                            )
                        })?;
                        // SAFETY: both ranges lie within buffers whose lengths `args` and `shown` have checked, or within arenas sized
                        // by `Parts`. They outlive the copy: the call's stream keeps `keep` for it, and a stream of the block's own is joined
                        // by the call's stream, which keeps it then, or `enqueue_all` never lets go of it.
                        unsafe { stream.copy_keeping(to + target, from + source, bytes, keep.clone()) }?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether every address of the call is there, every buffer that peers have shown long enough, and no stream of a block in another
    /// capture: the stream would wait for ever for the rest of a call of which a part was enqueued.
    pub(super) fn check(
        &self,
        lanes: Option<&Lanes>,
        kernel: Option<&Kernel>,
        stream: &Stream,
    ) -> Result<()> {
        let lanes = || lanes.iter().flat_map(|lanes| &lanes.lanes);
        let kernels = kernel.into_iter().chain(lanes().flat_map(Lane::kernels));
        for &address in kernels.flat_map(|kernel| &kernel.addresses) {
            self.address(address)?;
        }
        for step in lanes().flat_map(|lane| &lane.steps) {
            if let Step::Copy(copy) = step {
                self.address(copy.target.address())?;
                self.address(copy.source.address())?;
            }
        }
        for (own, _) in lanes().filter_map(|lane| lane.fork.as_ref()) {
            if let Some(capture) = own.capture_id()?
                && stream.capture_id()? != Some(capture)
            {
                let message = "a call of this plan is being captured into a graph; end the capture before calls outside of it";
                return Err(Error::usage(EXECUTE, message));
            }
        }
        Ok(())
    }

    /// Enqueues a call on `stream`: `kernel`, if the rank has one, beside the blocks' work. `stream` retains each of `keep` until all
    /// of it is done.
    ///
    /// # Safety
    /// What the call's parameters name must stay accessible as long as `keep` is kept.
    pub(super) unsafe fn enqueue_all(
        &self,
        lanes: &Lanes,
        kernel: Option<&Kernel>,
        stream: &Stream,
        keep: impl Iterator<Item = KeepAlive> + Clone,
    ) -> Result<()> {
        let _enqueuing = lock(&lanes.enqueuing);
        self.check(Some(lanes), kernel, stream)?;
        let forks = || lanes.lanes.iter().filter_map(|lane| lane.fork.as_ref());
        let mut forked = 0;
        let enqueued = (|| {
            for (own, event) in forks() {
                stream.precede(own, event, [])?;
                forked += 1;
            }
            if let Some(kernel) = kernel {
                // SAFETY: the caller's promise.
                unsafe { self.launch(kernel, stream, keep.clone()) }?;
            }
            // SAFETY: the caller's promise.
            lanes.lanes.iter().try_for_each(|lane| unsafe { self.enqueue_lane(lane, stream, keep.clone()) })
        })();
        // Also behind a failure: what was enqueued until then uses memory that only the call's stream keeps.
        let join = |(own, event): &(Stream, Event)| own.precede(stream, event, keep.clone());
        let joined = forks().take(forked).map(join).fold(Ok(()), Result::and);
        if joined.is_err() {
            // Streams that nothing waits for may use it for as long as the process lives.
            keep.for_each(std::mem::forget);
        }
        enqueued.and(joined)
    }
}

/// Bytes of a copy, from the beginnings of its two buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    from: u64,
    to: u64,
    bytes: u64,
}

/// What of a copy exists in a call: one range, or one for each chunk where chunks of the two buffers are not equally far apart.
fn ranges(prepared: &Prepared, copy: &Copy, args: &PlanArgs) -> impl Iterator<Item = Range> + use<> {
    let side = |end: &End| match end.buffer {
        Buffer::Scratch => Side { first: end.first, distance: args.scratch_chunk, bytes: u64::MAX },
        Buffer::Input | Buffer::Output => Side {
            first: end.first,
            distance: args.chunk,
            bytes: prepared.length(end.rank, end.buffer, args),
        },
    };
    cut(copy.count, args.chunk, side(&copy.source), side(&copy.target))
}

/// One side of a copy: its first chunk, how far chunks are apart, and how long the buffer is.
#[derive(Clone, Copy, Debug)]
struct Side {
    first: u32,
    distance: u64,
    bytes: u64,
}

fn cut(count: u32, chunk: u64, source: Side, target: Side) -> impl Iterator<Item = Range> {
    let whole = [source, target].iter().all(|side| side.distance == chunk);
    let (parts, each) = if whole { (1, u64::from(count) * chunk) } else { (count, chunk) };
    (0..parts).filter_map(move |part| {
        let at = |side: Side| (u64::from(side.first) + u64::from(part)) * side.distance;
        let left = |side: Side| side.bytes.saturating_sub(at(side));
        let bytes = each.min(left(source)).min(left(target));
        (bytes > 0).then(|| Range { from: at(source), to: at(target), bytes })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(count: u32, chunk: u64, source: Side, target: Side) -> Vec<(u64, u64, u64)> {
        cut(count, chunk, source, target).map(|Range { from, to, bytes }| (from, to, bytes)).collect()
    }

    /// Buffers whose chunks lie together are copied at once, up to the end of the shorter one; others chunk by chunk.
    #[test]
    fn copies_end_with_the_message() {
        let message = |first, bytes| Side { first, distance: 32, bytes };
        let scratch = |first| Side { first, distance: 128, bytes: u64::MAX };
        assert_eq!(ranges(3, 32, message(1, 200), message(2, 200)), [(32, 64, 96)]);
        assert_eq!(ranges(3, 32, message(1, 100), message(2, 200)), [(32, 64, 68)]);
        assert_eq!(ranges(3, 32, message(1, 200), message(2, 100)), [(32, 64, 36)]);
        assert_eq!(ranges(2, 32, message(3, 96), message(0, 96)), [], "behind the message's end");
        assert_eq!(ranges(3, 32, message(1, 70), scratch(4)), [(32, 512, 32), (64, 640, 6)]);
        assert_eq!(ranges(2, 32, scratch(0), message(1, 200)), [(0, 32, 32), (128, 64, 32)]);
        // Scratch of a message as long as the longest lies together, too.
        assert_eq!(ranges(2, 128, scratch(1), scratch(3)), [(128, 384, 256)]);
    }
}
