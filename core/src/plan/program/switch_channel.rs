//! Switch channels: reductions and broadcasts over the same chunk of a group of ranks, by the interconnect.

use super::blocks::Blocks;
use super::chunk::{Chunk, Side};
use super::ir::{Buffer as BufferType, Form, Move, Operand, Reduction, Switch};
use super::record::{Call, Fault, Recorder};

/// A buffer of each of a group of ranks, which a switch reduces from and broadcasts to.
#[derive(Clone, Debug)]
pub struct SwitchChannel<'p> {
    recorder: &'p Recorder,
    /// Members, each with the index of the channel in its table.
    members: Vec<(u32, u32)>,
}

impl<'p> SwitchChannel<'p> {
    pub(super) fn new(call: Call, recorder: &'p Recorder, ranks: Vec<u32>, buffer: BufferType) -> Self {
        let mut members = Vec::with_capacity(ranks.len());
        if ranks.is_empty() {
            recorder.fail(call, "a switch channel needs at least one rank");
        }
        for (at, &rank) in ranks.iter().enumerate() {
            let twice = ranks[..at].contains(&rank);
            let added = recorder.declare(call, rank, |plan| {
                if twice {
                    return Err(format!("a switch channel has rank {rank} twice; name each once"));
                }
                plan.switches.push(Switch { buffer, ranks: ranks.clone() });
                Ok(plan.switches.len() - 1)
            });
            let index = added.and_then(|index| u32::try_from(index).ok()).unwrap_or(0);
            members.push((rank, index));
        }
        Self { recorder, members }
    }

    /// The channel as seen by one of its members.
    #[track_caller]
    pub fn at_rank(&self, rank: u32) -> SwitchAt<'p> {
        let member = self.members.iter().find(|&&(member, _)| member == rank);
        if member.is_none() {
            let fault = format!("rank {rank} is no member of this switch channel");
            self.recorder.fail(Call::of("SwitchChannel::at_rank"), &fault);
        }
        let index = member.map_or(0, |&(_, index)| index);
        SwitchAt { recorder: self.recorder, rank, index }
    }
}

/// A [`SwitchChannel`] as seen by one of its members: the operations of that rank's blocks.
///
/// Offsets are chunks of the channel's buffer, at every member the same; in scratch they count over all of a rank's scratch
/// buffers ([`Buffer::first`](super::Buffer::first)).
#[derive(Clone, Copy, Debug)]
pub struct SwitchAt<'p> {
    recorder: &'p Recorder,
    rank: u32,
    index: u32,
}

impl SwitchAt<'_> {
    /// Reduces the chunks from `offset` on of all members to `dst`, of this rank.
    #[track_caller]
    pub fn reduce<'b>(&self, dst: Chunk, offset: u32, reduction: Reduction, tb: impl Into<Blocks<'b>>) {
        let made = self.local(dst, "target").map(|(target, count)| Move {
            sources: vec![Operand::switch(self.index, offset)],
            targets: vec![target],
            count,
            reduction: Some(reduction),
            share: None,
        });
        self.recorder.moved(Call::of("SwitchAt::reduce"), self.rank, tb.into(), made);
    }

    /// Stores `src`, of this rank, to the chunks from `offset` on of all members.
    #[track_caller]
    pub fn broadcast<'b>(&self, offset: u32, src: Chunk, tb: impl Into<Blocks<'b>>) {
        self.stored(Call::of("SwitchAt::broadcast"), offset, src, Form::Plain, tb.into());
    }

    /// Stores `src`, of this rank, as packets to the scratch chunks from `offset` on of all members.
    #[track_caller]
    pub fn broadcast_packets<'b>(&self, offset: u32, src: Chunk, tb: impl Into<Blocks<'b>>) {
        self.stored(Call::of("SwitchAt::broadcast_packets"), offset, src, Form::Packets, tb.into());
    }

    fn stored(&self, call: Call, offset: u32, src: Chunk, form: Form, blocks: Blocks<'_>) {
        let made = self.local(src, "source").map(|(source, count)| Move {
            sources: vec![source],
            targets: vec![Operand { form, ..Operand::switch(self.index, offset) }],
            count,
            reduction: None,
            share: None,
        });
        self.recorder.moved(call, self.rank, blocks, made);
    }

    fn local(&self, chunk: Chunk, role: &str) -> Result<(Operand, u32), Fault> {
        let Chunk { buffer, first, count, .. } = Side::plain(chunk, self.rank).owned(role)?;
        Ok((Operand::local(buffer, first), count))
    }
}
