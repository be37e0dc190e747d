//! From a plan to JSON.

use std::fmt::Write;

use super::ir::{
    Block, Buffer, ChannelKind, Form, Move, Op, Operand, Operation, Place, Plan, PortPut, Protocol, RankPlan,
};
use super::json::quote;
use super::names::{Shape, buffer_name};
use crate::error::{Error, ErrorKind, Result};

/// The plan as a file that [`read`](super::read) gives back equal.
///
/// Neighbouring signals, waits, semaphore operations and puts that came from one operation of the author are written as one.
///
/// # Errors
/// [`ErrorKind::Plan`] if the format has no word for something: a move of a shape that MSCCL++ lacks, chunks of sizes of their
/// own, a root that is not rank 0, or a custom collective that would be read as another because of its name.
pub fn write(plan: &Plan) -> Result<String> {
    use super::collective::Kind;
    if plan.collective.kind.root().is_some_and(|root| root > 0) {
        return Err(refused("a root other than rank 0 cannot be written; renumber the ranks"));
    }
    if plan.settings.variable_chunks {
        return Err(refused(
            "chunks of sizes of their own cannot be written; the format has no word for them",
        ));
    }
    if let Kind::Custom(name) = &plan.collective.kind
        && Kind::of_name(name) != plan.collective.kind
    {
        return Err(refused(
            "a custom collective has the name of another in files; give it a name of its own",
        ));
    }
    let settings = &plan.settings;
    let mut out = String::from("{\"name\":");
    quote(&mut out, &plan.name);
    out.push_str(",\"collective\":");
    quote(&mut out, plan.collective.kind.name());
    let protocol = match settings.protocol {
        Protocol::Simple => "Simple",
        Protocol::Ll => "LL",
        Protocol::Ll128 => "LL128",
    };
    add(&mut out, format_args!(",\"protocol\":\"{protocol}\",\"inplace\":{}", plan.collective.in_place));
    add(&mut out, format_args!(",\"reuse_resources\":{}", settings.reuse_resources));
    add(&mut out, format_args!(",\"num_threads_per_block\":{}", settings.threads_per_block));
    add(&mut out, format_args!(",\"use_double_scratch_buffer\":{}", settings.double_scratch));
    add(&mut out, format_args!(",\"buffer_alignment\":{}", settings.alignment));
    add(&mut out, format_args!(",\"min_message_size\":{}", settings.min_bytes));
    add(&mut out, format_args!(",\"max_message_size\":{}", settings.max_bytes));
    out.push_str(",\"gpus\":[");
    for (index, rank) in plan.ranks.iter().enumerate() {
        separate(&mut out, index, "\n");
        write_rank(&mut out, rank, index)?;
    }
    out.push_str("]}\n");
    Ok(out)
}

/// Appends. Writing into a string cannot fail.
fn add(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}

fn separate(out: &mut String, index: usize, between: &str) {
    if index > 0 {
        out.push(',');
    }
    out.push_str(between);
}

fn refused(reason: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Plan, "plan::file::write", reason)
}

/// The numbers of `list`, separated by commas.
fn joined(list: &[u32]) -> String {
    let texts: Vec<String> = list.iter().map(u32::to_string).collect();
    texts.join(",")
}

/// Place of `item` in `list`, at whose end it is put if it is new.
fn place<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
    list.iter().position(|other| *other == item).unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    })
}

/// A peer's buffer and how it is reached.
type Remote = (u32, Buffer, ChannelKind);

fn write_rank(out: &mut String, rank: &RankPlan, id: usize) -> Result<()> {
    let (input, output, scratch) = (rank.input_chunks, rank.output_chunks, rank.scratch_chunks);
    add(out, format_args!("{{\"id\":{id},\"input_chunks\":{input},\"output_chunks\":{output},"));
    add(out, format_args!("\"scratch_chunks\":{scratch},\"threadblocks\":["));
    let mut remotes = Vec::new();
    for (index, block) in rank.blocks.iter().enumerate() {
        separate(out, index, "\n ");
        write_block(out, rank, block, index, &mut remotes)?;
    }
    out.push_str("],\"channels\":[");
    let mut entries = 0;
    for (name, peers) in [("memory", &rank.memory_channels), ("port", &rank.port_channels)] {
        if !peers.is_empty() {
            separate(out, entries, "");
            entries += 1;
            add(out, format_args!("{{\"channel_type\":\"{name}\",\"connected_to\":[{}]}}", joined(peers)));
        }
    }
    for switch in &rank.switches {
        separate(out, entries, "");
        entries += 1;
        let (buffer, size, ranks) = (buffer_name(switch.buffer), switch.ranks.len(), joined(&switch.ranks));
        add(out, format_args!("{{\"channel_type\":\"switch\",\"buffer_type\":\"{buffer}\","));
        add(out, format_args!("\"rank_groups\":[{{\"size\":{size},\"ranks\":[{ranks}]}}]}}"));
    }
    out.push_str("],\"remote_buffers\":[");
    for (index, (rank, buffer, kind)) in remotes.iter().enumerate() {
        separate(out, index, "");
        let (buffer, kind) = (buffer_name(*buffer), kind_name(*kind));
        add(
            out,
            format_args!("{{\"rank\":{rank},\"type\":\"{buffer}\",\"access_channel_types\":[\"{kind}\"]}}"),
        );
    }
    out.push_str("],\"semaphores\":[");
    for (index, value) in rank.semaphores.iter().enumerate() {
        separate(out, index, "");
        add(out, format_args!("{{\"init_value\":{value}}}"));
    }
    out.push_str("]}");
    Ok(())
}

fn kind_name(kind: ChannelKind) -> &'static str {
    match kind {
        ChannelKind::Memory => "memory",
        ChannelKind::Port => "port",
    }
}

/// A block's tables, filled while its operations are written.
struct Writer<'w> {
    rank: &'w RankPlan,
    remotes: &'w mut Vec<Remote>,
    memory: Vec<u32>,
    port: Vec<u32>,
    switches: Vec<u32>,
    memory_buffers: Vec<usize>,
    port_buffers: Vec<usize>,
}

fn write_block(
    out: &mut String,
    rank: &RankPlan,
    block: &Block,
    id: usize,
    remotes: &mut Vec<Remote>,
) -> Result<()> {
    let mut writer = Writer {
        rank,
        remotes,
        memory: Vec::new(),
        port: Vec::new(),
        switches: Vec::new(),
        memory_buffers: Vec::new(),
        port_buffers: Vec::new(),
    };
    add(out, format_args!("{{\"id\":{id},\"ops\":["));
    writer.operations(out, &block.ops)?;
    out.push_str("],\"channels\":[");
    let mut entries = 0;
    for (name, ids) in [("memory", &writer.memory), ("port", &writer.port), ("switch", &writer.switches)] {
        if !ids.is_empty() {
            separate(out, entries, "");
            entries += 1;
            add(out, format_args!("{{\"channel_type\":\"{name}\",\"channel_ids\":[{}]}}", joined(ids)));
        }
    }
    out.push_str("],\"remote_buffer_refs\":[");
    let mut entries = 0;
    for (name, ids) in [("memory", &writer.memory_buffers), ("port", &writer.port_buffers)] {
        if !ids.is_empty() {
            separate(out, entries, "");
            entries += 1;
            let ids: Vec<String> = ids.iter().map(usize::to_string).collect();
            let ids = ids.join(",");
            add(out, format_args!("{{\"access_channel_type\":\"{name}\",\"remote_buffer_ids\":[{ids}]}}"));
        }
    }
    out.push_str(if block.copy_engine { "],\"copy_engine\":true}" } else { "]}" });
    Ok(())
}

impl Writer<'_> {
    fn operations(&mut self, out: &mut String, ops: &[Operation]) -> Result<()> {
        let mut rest = ops;
        while let Some(first) = rest.first() {
            let together =
                rest.iter().take_while(|other| other.origin == first.origin && fuses(&first.op, &other.op));
            let (now, later) = rest.split_at(together.count().max(1));
            separate(out, ops.len() - rest.len(), "\n  ");
            self.operation(out, now)?;
            rest = later;
        }
        Ok(())
    }

    /// Writes operations that fuse as one.
    fn operation(&mut self, out: &mut String, ops: &[Operation]) -> Result<()> {
        match &ops[0].op {
            Op::Sync => out.push_str("{\"name\":\"nop\"}"),
            Op::Barrier(barrier) => {
                let (id, blocks) = (barrier.id, barrier.blocks);
                add(
                    out,
                    format_args!(
                        "{{\"name\":\"barrier\",\"barrier_id\":{id},\"num_threadblocks\":{blocks}}}"
                    ),
                );
            }
            Op::Signal { channel, relaxed } => {
                self.control(out, if *relaxed { "rlxsignal" } else { "signal" }, channel.kind, ops);
            }
            Op::Wait { channel } => self.control(out, "wait", channel.kind, ops),
            Op::Flush { .. } => self.control(out, "flush", ChannelKind::Port, ops),
            Op::Acquire { .. } => semaphores(out, "sem_acquire", ops),
            Op::Release { .. } => semaphores(out, "sem_release", ops),
            Op::Move(moved) => self.moved(out, moved, ops)?,
            Op::Port(put) => self.port(out, put, ops)?,
            Op::Loop(repeated) => {
                let (unit, chunks) = (repeated.unit, repeated.chunks);
                if u32::try_from(unit).is_err() {
                    return Err(refused(format!(
                        "a loop's unit of {unit} bytes cannot be written; the limit is 4 GiB"
                    )));
                }
                add(out, format_args!("{{\"name\":\"pipeline\",\"iter_context\":{{\"unit_size\":{unit},"));
                add(out, format_args!("\"num_chunks\":{chunks}}},\"ops\":["));
                self.operations(out, &repeated.body)?;
                out.push_str("]}");
            }
        }
        Ok(())
    }

    fn control(&mut self, out: &mut String, name: &str, kind: ChannelKind, ops: &[Operation]) {
        let ids: Vec<u32> = ops
            .iter()
            .filter_map(|operation| match operation.op {
                Op::Signal { channel, .. } | Op::Wait { channel, .. } => Some(channel.index),
                Op::Flush { channel } => Some(channel),
                _ => None,
            })
            .collect();
        let ids = self.channel_ids(kind, &ids);
        let kind = kind_name(kind);
        add(out, format_args!("{{\"name\":\"{name}\",\"channel_ids\":[{ids}],\"channel_type\":\"{kind}\"}}"));
    }

    /// The ids that these channels of the rank have in the block's table.
    fn channel_ids(&mut self, kind: ChannelKind, channels: &[u32]) -> String {
        let table = match kind {
            ChannelKind::Memory => &mut self.memory,
            ChannelKind::Port => &mut self.port,
        };
        let ids: Vec<String> = channels.iter().map(|&channel| place(table, channel).to_string()).collect();
        ids.join(",")
    }

    fn moved(&mut self, out: &mut String, moved: &Move, ops: &[Operation]) -> Result<()> {
        let Some(shape) = Shape::of(moved) else {
            return Err(refused("a move of a shape that MSCCL++'s format has no word for; split it"));
        };
        if shape.reduces() != moved.reduction.is_some() {
            return Err(refused(format!("{}: the reduction does not fit the number of sources", shape.name)));
        }
        let each: Vec<&Move> = ops
            .iter()
            .filter_map(|operation| match &operation.op {
                Op::Move(moved) => Some(&**moved),
                _ => None,
            })
            .collect();
        add(out, format_args!("{{\"name\":\"{}\",\"src_buff\":[", shape.name));
        for (index, (operand, count)) in
            each.iter().flat_map(|m| m.sources.iter().map(|s| (s, m.count))).enumerate()
        {
            separate(out, index, "");
            self.operand(out, operand, count);
        }
        out.push_str("],\"dst_buff\":[");
        for (index, (operand, count)) in
            each.iter().flat_map(|m| m.targets.iter().map(|t| (t, m.count))).enumerate()
        {
            separate(out, index, "");
            self.operand(out, operand, count);
        }
        out.push(']');
        if shape.name == "get" {
            let peers: Vec<u32> =
                each.iter().filter_map(|moved| self.channel_to(moved.sources[0].place)).collect();
            let ids = self.channel_ids(ChannelKind::Memory, &peers);
            add(out, format_args!(",\"channel_ids\":[{ids}]"));
        }
        if let Some(kind) = shape.channel_type() {
            add(out, format_args!(",\"channel_type\":\"{kind}\""));
        }
        if let Some(reduction) = moved.reduction {
            add(out, format_args!(",\"reduce_op\":\"{}\"", reduction.name()));
        }
        if let Some(share) = moved.share {
            add(out, format_args!(",\"tbg_info\":{{\"tb_id\":{},\"tbg_size\":{}}}", share.member, share.of));
        }
        out.push('}');
        Ok(())
    }

    /// A memory channel to the peer of `place`, one of the block's if it has any.
    fn channel_to(&self, place: Place) -> Option<u32> {
        let Place::Remote { rank, .. } = place else { return None };
        let leads = |&channel: &u32| self.rank.memory_channels.get(channel as usize) == Some(&rank);
        let any = || self.rank.memory_channels.iter().position(|&peer| peer == rank);
        self.memory.iter().copied().find(leads).or_else(|| u32::try_from(any()?).ok())
    }

    fn operand(&mut self, out: &mut String, operand: &Operand, count: u32) {
        match operand.place {
            Place::Local(buffer) => add(out, format_args!("{{\"type\":\"{}\"", buffer_name(buffer))),
            Place::Remote { rank, buffer } => {
                let id = self.buffer_id((rank, buffer, ChannelKind::Memory));
                add(out, format_args!("{{\"buffer_id\":{id}"));
            }
            Place::Switch(switch) => {
                let id = place(&mut self.switches, switch);
                add(out, format_args!("{{\"switch_channel_id\":{id}"));
            }
        }
        add(out, format_args!(",\"index\":{},\"size\":{count}}}", operand.first));
    }

    /// The id that a peer's buffer has in the block's table.
    fn buffer_id(&mut self, remote: Remote) -> usize {
        let table = match remote.2 {
            ChannelKind::Memory => &mut self.memory_buffers,
            ChannelKind::Port => &mut self.port_buffers,
        };
        place(table, place(self.remotes, remote))
    }

    fn port(&mut self, out: &mut String, put: &PortPut, ops: &[Operation]) -> Result<()> {
        let name = match (put.form, put.forward, put.signal, put.flush) {
            (Form::Plain, false, false, false) => "put",
            (Form::Plain, false, true, false) => "pws",
            (Form::Plain, false, true, true) => "pwsf",
            (Form::Packets, false, false, false) => "ppkt",
            (Form::Packets, true, false, false) => "rppkt",
            _ => return Err(refused("a port put that MSCCL++'s format has no word for; split it")),
        };
        let each: Vec<&PortPut> = ops
            .iter()
            .filter_map(|operation| match &operation.op {
                Op::Port(put) => Some(&**put),
                _ => None,
            })
            .collect();
        add(out, format_args!("{{\"name\":\"{name}\",\"src_buff\":["));
        for (index, put) in each.iter().enumerate() {
            separate(out, index, "");
            let (buffer, first, count) = (buffer_name(put.source.0), put.source.1, put.count);
            add(out, format_args!("{{\"type\":\"{buffer}\",\"index\":{first},\"size\":{count}}}"));
        }
        out.push_str("],\"dst_buff\":[");
        for (index, put) in each.iter().enumerate() {
            separate(out, index, "");
            let peer = self.rank.port_channels.get(put.channel as usize);
            let peer =
                *peer.ok_or_else(|| refused(format!("port channel {} does not exist", put.channel)))?;
            let id = self.buffer_id((peer, put.target.0, ChannelKind::Port));
            add(
                out,
                format_args!("{{\"buffer_id\":{id},\"index\":{},\"size\":{}}}", put.target.1, put.count),
            );
        }
        let channels: Vec<u32> = each.iter().map(|put| put.channel).collect();
        let ids = self.channel_ids(ChannelKind::Port, &channels);
        add(out, format_args!("],\"channel_ids\":[{ids}],\"channel_type\":\"port\"}}"));
        Ok(())
    }
}

fn semaphores(out: &mut String, name: &str, ops: &[Operation]) {
    let ids: Vec<u32> = ops
        .iter()
        .filter_map(|operation| match operation.op {
            Op::Acquire { semaphore } | Op::Release { semaphore } => Some(semaphore),
            _ => None,
        })
        .collect();
    add(out, format_args!("{{\"name\":\"{name}\",\"semaphore_ids\":[{}]}}", joined(&ids)));
}

/// Whether two neighbours of one origin are written as one operation.
pub(super) fn fuses(first: &Op, other: &Op) -> bool {
    match (first, other) {
        (Op::Signal { channel: a, relaxed: r }, Op::Signal { channel: b, relaxed: s }) => {
            a.kind == b.kind && r == s
        }
        (Op::Wait { channel: a }, Op::Wait { channel: b }) => a.kind == b.kind,
        (Op::Flush { .. }, Op::Flush { .. })
        | (Op::Acquire { .. }, Op::Acquire { .. })
        | (Op::Release { .. }, Op::Release { .. }) => true,
        (Op::Move(a), Op::Move(b)) => {
            let pairs = |moved: &Move| Shape::of(moved).filter(|shape| shape.pairs).map(|shape| shape.name);
            pairs(a).is_some() && pairs(a) == pairs(b) && a.count == b.count && a.share == b.share
        }
        (Op::Port(a), Op::Port(b)) => {
            let kind = |put: &PortPut| (put.form, put.forward, put.signal, put.flush, put.count);
            kind(a) == kind(b)
        }
        _ => false,
    }
}
