//! Times that traced kernels noted.

use std::collections::HashMap;

use aqueduct_ptx::abi::TraceRecord;

use super::cost::Span;
use super::ir::RankPlan;
use super::lower::mark;
use crate::comm::Communicator;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::gpu::GpuBuffer;

/// Records of a rank's blocks.
#[derive(Debug)]
pub(super) struct Trace {
    buffer: GpuBuffer,
    records: usize,
    /// Numbers of the blocks that have threads.
    blocks: Vec<u32>,
}

impl Trace {
    pub(super) fn new(
        comm: &Communicator,
        plan: &RankPlan,
        records: u32,
        deadline: Deadline,
    ) -> Result<Self> {
        let records = records as usize;
        let blocks = (0..).zip(&plan.blocks).filter(|(_, block)| !block.copy_engine);
        let blocks: Vec<u32> = blocks.map(|(index, _)| index).collect();
        let bytes = blocks.len().max(1) * records * size_of::<TraceRecord>();
        let buffer = GpuBuffer::new(comm.context(), bytes)?;
        // A record of zeros would be one of operation 0; a block's end is there before the first call, too.
        buffer.fill(0xff, deadline)?;
        Ok(Self { buffer, records, blocks })
    }

    pub(super) fn address(&self) -> u64 {
        self.buffer.ptr()
    }

    /// The operations of the last call.
    pub(super) fn spans(&self, rank: u32, deadline: Deadline) -> Result<Vec<Span>> {
        let mut bytes = vec![0; self.buffer.len()];
        self.buffer.download(0, &mut bytes, deadline)?;
        let size = size_of::<TraceRecord>();
        let rows = bytes.chunks_exact(self.records * size);
        let rows = rows.map(|row| row.chunks_exact(size).map(record).collect::<Vec<_>>());
        Ok(self.blocks.iter().zip(rows).flat_map(|(&block, row)| spans(rank, block, &row)).collect())
    }
}

/// Time and number of a record.
fn record(bytes: &[u8]) -> (u64, u64) {
    let word =
        |at: usize| bytes[at..at + 8].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
    (word(std::mem::offset_of!(TraceRecord, time)), word(std::mem::offset_of!(TraceRecord, number)))
}

/// Operations between the records of a block, up to its end. A block whose records did not suffice has no end.
fn spans(rank: u32, block: u32, records: &[(u64, u64)]) -> Vec<Span> {
    let mut turns: HashMap<u64, u64> = HashMap::new();
    let mut spans = Vec::new();
    for pair in records.windows(2) {
        let [(start, number), (end, _)] = [pair[0], pair[1]];
        if number == mark::END {
            break;
        }
        let (op, inner) = mark::operation(number);
        let turn = turns.entry(number).or_default();
        let iteration = *turn;
        *turn += 1;
        spans.push(Span { rank, block, op, inner, iteration, start, end });
    }
    spans
}
