//! Calls of plans whose chunks have sizes of their own.

use std::sync::Arc;

use aqueduct_ptx::abi::{DeviceStruct as _, PlanArgs, PlanRows};
use aqueduct_ptx::plan::Element;

use super::buffers::{PlanBuffers, Window};
use super::executor::{Executor, Request, words_of};
use super::ir::Reduction;
use crate::error::{Error, Result};
use crate::gpu::{Context, DeviceSlice, KeepAlive, Stream};
use crate::outcome::Outcome;

const EXECUTE: &str = "Executor::execute_by_rows";

/// Numbers of a call, one for each rank.
#[derive(Clone, Debug)]
pub(crate) enum Numbers {
    /// An array of u64 in memory that the device reads.
    Each(DeviceSlice),
    /// One u64 for all ranks.
    One(DeviceSlice),
    /// Zero.
    Zero,
}

/// Counts and offsets of one rank, in elements.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    pub(crate) send_counts: Numbers,
    pub(crate) send_offsets: Numbers,
    pub(crate) receive_counts: Numbers,
    pub(crate) receive_offsets: Numbers,
    /// Where the elements that came from each rank are told.
    pub(crate) received: Option<DeviceSlice>,
    /// The input is not the shown one but all memory of the device: offsets are addresses, in elements of a byte. Whoever makes such
    /// rows knows that they are right, and keeps this memory alive.
    pub(crate) anywhere: Option<Vec<KeepAlive>>,
    /// Bytes of the shown input and output in which the parts lie, if not all of them.
    pub(crate) within: Option<[u64; 2]>,
}

impl Numbers {
    /// The address and the distance of the numbers.
    fn words(&self) -> [u64; 2] {
        match self {
            Self::Each(slice) => [slice.ptr(), 8],
            Self::One(slice) => [slice.ptr(), 0],
            Self::Zero => [0, 0],
        }
    }

    fn keep_alive(&self) -> Option<KeepAlive> {
        match self {
            Self::Each(slice) | Self::One(slice) => Some(Arc::clone(slice.keep_alive())),
            Self::Zero => None,
        }
    }

    /// An error unless there are as many numbers as `ranks` need.
    fn check(&self, name: &str, ranks: usize, context: &Context) -> Result<()> {
        let (slice, needed) = match self {
            Self::Each(slice) => (slice, 8 * ranks),
            Self::One(slice) => (slice, 8),
            Self::Zero => return Ok(()),
        };
        check_array(name, slice, needed, context)
    }
}

fn check_array(name: &str, slice: &DeviceSlice, needed: usize, context: &Context) -> Result<()> {
    slice.check_context(EXECUTE, context)?;
    if slice.len() < needed || !slice.ptr().is_multiple_of(8) {
        let message = format!(
            "{name} need {needed} bytes at an address that is a multiple of 8; here are {} at {:#x}",
            slice.len(),
            slice.ptr()
        );
        return Err(Error::usage(EXECUTE, message));
    }
    Ok(())
}

impl Executor {
    /// Enqueues one call of a plan whose chunks have sizes of their own, on buffers that were shown to the peers. The device reads
    /// the numbers when the call runs; they must not change until it has ended.
    ///
    /// # Errors
    /// `InvalidUsage` for arrays that are too short or misaligned, buffers of another executor, or a variant that was not prepared;
    /// `PeerLost` and `Aborted` as for `execute`; a driver error. Whether rows fit is known when the stream is waited for.
    pub(crate) fn execute_by_rows(
        &self,
        stream: &Stream,
        buffers: &PlanBuffers,
        rows: &Rows,
        (element, reduction): (Element, Option<Reduction>),
    ) -> Result<()> {
        let inner = &*self.inner;
        inner.check_shown(&buffers.inner)?;
        let shown = &buffers.inner;
        let Some(overflow) = &inner.overflow else {
            return Err(Error::usage(EXECUTE, "the chunks of this plan all have one size; call execute()"));
        };
        let (ranks, context) = (inner.plan.ranks.len(), inner.comm.context());
        rows.send_counts.check("counts of what is sent", ranks, context)?;
        rows.send_offsets.check("offsets of what is sent", ranks, context)?;
        rows.receive_counts.check("counts of what there is room for", ranks, context)?;
        rows.receive_offsets.check("offsets of what is received", ranks, context)?;
        if let Some(received) = &rows.received {
            check_array("counts of what has come", received, 8 * ranks, context)?;
        }
        let [send_counts, send_counts_stride] = rows.send_counts.words();
        let [send_offsets, send_offsets_stride] = rows.send_offsets.words();
        let [receive_counts, receive_counts_stride] = rows.receive_counts.words();
        let [receive_offsets, receive_offsets_stride] = rows.receive_offsets.words();
        let numbers = PlanRows {
            send_counts,
            send_counts_stride,
            send_offsets,
            send_offsets_stride,
            receive_counts,
            receive_counts_stride,
            receive_offsets,
            receive_offsets_stride,
            element: element.bytes() as u64,
            record: overflow.record(),
            received: rows.received.as_ref().map_or(0, DeviceSlice::ptr),
            shown: shown.number,
        };
        let words: Vec<u64> = words_of(numbers.as_bytes()).collect();
        let (input, input_bytes) = match rows.anywhere {
            Some(_) => (0, u64::MAX),
            None => (shown.input.ptr(), shown.input.len() as u64),
        };
        let output_bytes = shown.output.len() as u64;
        let [most_input, most_output] = rows.within.unwrap_or([u64::MAX; 2]);
        let all = [&rows.send_counts, &rows.send_offsets, &rows.receive_counts, &rows.receive_offsets];
        let mut keep: Vec<KeepAlive> = all.into_iter().filter_map(Numbers::keep_alive).collect();
        keep.extend(rows.received.iter().map(|received| Arc::clone(received.keep_alive())));
        keep.extend(rows.anywhere.iter().flatten().cloned());
        keep.push(overflow.clone());
        let args = PlanArgs {
            input_bytes: input_bytes.min(most_input),
            output_bytes: output_bytes.min(most_output),
            control: inner.arena.control(),
            scratch_chunk: inner.scratch.0,
            half: inner.arena.half(),
            // The host does not know how much there is; the kernel with all threads is right for all.
            vectors: u32::MAX,
            ..PlanArgs::default()
        };
        let call = Request {
            buffers: [input, shown.output.ptr()],
            shown: Some(shown),
            // Rows say where in the buffers.
            window: Window::default(),
            args,
            variant: (element, reduction),
            rows: Some(&words),
            multicast: false,
        };
        overflow.forget();
        self.enqueue(stream, call, keep)?;
        stream.depend_on(&(overflow.clone() as Arc<dyn Outcome>));
        Ok(())
    }
}
