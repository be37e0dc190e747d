//! A block's operations, from JSON.

use super::ir::{
    Barrier, Block, Buffer, Channel, ChannelKind, Form, Loop, Move, Op, Operand, Operation, Place, PortPut,
    RankPlan, Reduction, Share,
};
use super::json::Value;
use super::names::{Shape, Side, buffer, kind_of_memory_or_port, reduction_of, unknown_channel_type};
use super::tree::{Object, Path, number, text};
use crate::error::Result;

/// A rank's tables while its blocks are read.
pub(super) struct Tables {
    pub(super) rank: RankPlan,
    /// Rank and buffer of each remote buffer.
    pub(super) remote: Vec<(u32, Buffer)>,
}

/// A block's tables: what the numbers in its operations mean.
struct Local<'t> {
    tables: &'t Tables,
    memory: Vec<u32>,
    port: Vec<u32>,
    switches: Vec<u32>,
    memory_buffers: Vec<u32>,
    port_buffers: Vec<u32>,
}

pub(super) fn block(value: &Value<'_>, index: usize, tables: &Tables, path: &Path<'_>) -> Result<Block> {
    let mut object = Object::of(value, path)?;
    let id = object.number("id")?;
    if id as usize != index {
        return Err(path.key("id").error(format_args!("{id} is not the place in the list, {index}")));
    }
    let mut local = Local {
        tables,
        memory: Vec::new(),
        port: Vec::new(),
        switches: Vec::new(),
        memory_buffers: Vec::new(),
        port_buffers: Vec::new(),
    };
    let list = path.key("channels");
    for (index, item) in object.items("channels")?.iter().enumerate() {
        local.channels(item, &list.index(index))?;
    }
    let list = path.key("remote_buffer_refs");
    for (index, item) in object.items("remote_buffer_refs")?.iter().enumerate() {
        local.buffers(item, &list.index(index))?;
    }
    let ops = operations(&mut object, &local, false)?;
    let copy_engine = object.flag("copy_engine", false)?;
    object.finish()?;
    Ok(Block { ops, copy_engine })
}

fn operations(object: &mut Object<'_, '_, '_>, local: &Local<'_>, in_loop: bool) -> Result<Vec<Operation>> {
    let list = object.path.key("ops");
    let items = object.items("ops")?;
    let mut ops = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let first = ops.len();
        local.operation(item, in_loop, &mut ops, &list.index(index))?;
        let origin = u32::try_from(index).unwrap_or(u32::MAX);
        ops[first..].iter_mut().for_each(|operation| operation.origin = origin);
    }
    ops.shrink_to_fit();
    Ok(ops)
}

fn in_table(table: &[u32], index: u32, path: &Path<'_>) -> Result<u32> {
    table.get(index as usize).copied().ok_or_else(|| {
        path.error(format_args!(
            "{index} is out of range: the thread block's table has {} entries",
            table.len()
        ))
    })
}

impl Local<'_> {
    fn channels(&mut self, value: &Value<'_>, path: &Path<'_>) -> Result<()> {
        let mut object = Object::of(value, path)?;
        let rank = &self.tables.rank;
        let (mine, all) = match object.text("channel_type")? {
            "memory" => (&mut self.memory, rank.memory_channels.len()),
            "port" => (&mut self.port, rank.port_channels.len()),
            "switch" => (&mut self.switches, rank.switches.len()),
            other => return Err(unknown_channel_type(other, &path.key("channel_type"))),
        };
        extend(mine, &mut object, "channel_ids", all, "channels of that kind")?;
        object.finish()
    }

    fn buffers(&mut self, value: &Value<'_>, path: &Path<'_>) -> Result<()> {
        let mut object = Object::of(value, path)?;
        let kind = object.text("access_channel_type")?;
        let mine = match kind_of_memory_or_port(kind, &path.key("access_channel_type"))? {
            ChannelKind::Memory => &mut self.memory_buffers,
            ChannelKind::Port => &mut self.port_buffers,
        };
        extend(mine, &mut object, "remote_buffer_ids", self.tables.remote.len(), "remote buffers")?;
        object.finish()
    }

    fn operation(
        &self,
        value: &Value<'_>,
        in_loop: bool,
        ops: &mut Vec<Operation>,
        path: &Path<'_>,
    ) -> Result<()> {
        let mut object = Object::of(value, path)?;
        let name = object.text("name")?;
        match name {
            "nop" => ops.push(Op::Sync.at(0)),
            "barrier" => {
                let barrier =
                    Barrier { id: object.number("barrier_id")?, blocks: object.number("num_threadblocks")? };
                ops.push(Op::Barrier(barrier).at(0));
            }
            "signal" | "rlxsignal" | "wait" | "rlxwait" | "flush" => self.control(name, &mut object, ops)?,
            "sem_acquire" | "sem_release" => {
                let list = path.key("semaphore_ids");
                for (index, semaphore) in object.numbers("semaphore_ids")?.into_iter().enumerate() {
                    let all = self.tables.rank.semaphores.len();
                    if semaphore as usize >= all {
                        let here = list.index(index);
                        return Err(here.error(format_args!(
                            "{semaphore} is out of range: the rank has {all} semaphores"
                        )));
                    }
                    let acquire = name == "sem_acquire";
                    let op = if acquire { Op::Acquire { semaphore } } else { Op::Release { semaphore } };
                    ops.push(op.at(0));
                }
            }
            "pipeline" if in_loop => return Err(path.error("a pipeline cannot stand in a pipeline")),
            "pipeline" => {
                let here = path.key("iter_context");
                let mut context = Object::of(object.required("iter_context")?, &here)?;
                let unit = u64::from(context.number("unit_size")?);
                let chunks = context.number("num_chunks")?;
                if unit == 0 {
                    return Err(here.key("unit_size").error("a loop needs a unit of at least one byte"));
                }
                context.finish()?;
                let body = operations(&mut object, self, true)?;
                ops.push(Op::Loop(Box::new(Loop { unit, chunks, body })).at(0));
            }
            _ => self.data(name, &mut object, ops)?,
        }
        object.finish()
    }

    fn control(&self, name: &str, object: &mut Object<'_, '_, '_>, ops: &mut Vec<Operation>) -> Result<()> {
        let path = *object.path;
        let kind = kind_of_memory_or_port(object.text("channel_type")?, &path.key("channel_type"))?;
        let list = path.key("channel_ids");
        let ids = object.numbers("channel_ids")?;
        if ids.is_empty() {
            return Err(list.error("at least one channel expected"));
        }
        if name == "flush" && kind == ChannelKind::Memory {
            return Err(path.key("channel_type").error("only port channels are flushed"));
        }
        let table = if kind == ChannelKind::Memory { &self.memory } else { &self.port };
        for (index, id) in ids.into_iter().enumerate() {
            let channel = Channel { kind, index: in_table(table, id, &list.index(index))? };
            let op = match name {
                "signal" => Op::Signal { channel, relaxed: false },
                "rlxsignal" => Op::Signal { channel, relaxed: true },
                "flush" => Op::Flush { channel: channel.index },
                // A wait acquires, asked for or not.
                _ => Op::Wait { channel },
            };
            ops.push(op.at(0));
        }
        Ok(())
    }

    fn data(&self, name: &str, object: &mut Object<'_, '_, '_>, ops: &mut Vec<Operation>) -> Result<()> {
        let path = *object.path;
        let kind = match object.optional("channel_type") {
            None => None,
            Some(value) => Some(text(value, &path.key("channel_type"))?),
        };
        if kind == Some("port") {
            return self.port(name, object, ops);
        }
        let Some(shape) = Shape::named(name) else {
            return Err(path.key("name").error(format_args!("unknown operation {name:?}")));
        };
        if kind != shape.channel_type() {
            let wanted = shape
                .channel_type()
                .map_or("no channel_type".into(), |kind| format!("channel_type {kind:?}"));
            return Err(path.key("channel_type").error(format_args!("{name} needs {wanted}")));
        }
        let (sources, targets) = (object.items("src_buff")?, object.items("dst_buff")?);
        let (source_path, target_path) = (path.key("src_buff"), path.key("dst_buff"));
        let read_all = |items: &[Value<'_>], target: bool, path: &Path<'_>| -> Result<Vec<(Operand, u32)>> {
            let place = |index: usize| if shape.pairs { 0 } else { index };
            let one = |(index, item): (usize, &Value<'_>)| {
                let here = path.index(index);
                let side = shape.side(target, place(index));
                let side = side.ok_or_else(|| here.error(format_args!("{name} has no such operand")))?;
                self.operand(item, side, &here)
            };
            items.iter().enumerate().map(one).collect()
        };
        let sources = read_all(sources, false, &source_path)?;
        let targets = read_all(targets, true, &target_path)?;
        for (path, given, needed) in [
            (&source_path, sources.len(), shape.sources.len()),
            (&target_path, targets.len(), shape.targets.len()),
        ] {
            if given < needed {
                return Err(path.error(format_args!("{name} needs at least {needed} operands, not {given}")));
            }
        }
        self.named_channels(name, object)?;
        let reduction = self.reduction(name, shape, object)?;
        let share = share(object)?;
        let one_move = |sources: &[(Operand, u32)], targets: &[(Operand, u32)]| {
            let count = sources[0].1;
            if let Some((_, other)) = sources.iter().chain(targets).find(|&&(_, other)| other != count) {
                return Err(
                    path.error(format_args!("operands of {count} and {other} chunks; all must have as many"))
                );
            }
            let plain = |operands: &[(Operand, u32)]| operands.iter().map(|&(operand, _)| operand).collect();
            let moved = Move { sources: plain(sources), targets: plain(targets), count, reduction, share };
            Ok(Op::Move(Box::new(moved)).at(0))
        };
        if !shape.pairs {
            ops.push(one_move(&sources, &targets)?);
            return Ok(());
        }
        if sources.len() != targets.len() && sources.len() != 1 {
            let message =
                format!("{} sources for {} targets; one each, or one for all", sources.len(), targets.len());
            return Err(path.error(message));
        }
        for (index, target) in targets.iter().enumerate() {
            let source = if sources.len() == 1 { 0 } else { index };
            ops.push(one_move(&sources[source..=source], std::slice::from_ref(target))?);
        }
        Ok(())
    }

    /// Checks the channels that a memory operation names. They carry no meaning: the remote buffers name the peers.
    fn named_channels(&self, name: &str, object: &mut Object<'_, '_, '_>) -> Result<()> {
        let path = *object.path;
        let list = path.key("channel_ids");
        let ids = object.numbers("channel_ids")?;
        if !ids.is_empty() && name.starts_with('g') && name != "get" {
            return Err(list.error(format_args!("{name} names its channel in its operands")));
        }
        for (index, id) in ids.into_iter().enumerate() {
            in_table(&self.memory, id, &list.index(index))?;
        }
        Ok(())
    }

    fn reduction(
        &self,
        name: &str,
        shape: &Shape,
        object: &mut Object<'_, '_, '_>,
    ) -> Result<Option<Reduction>> {
        let path = object.path.key("reduce_op");
        match (object.optional("reduce_op"), shape.reduces()) {
            (None, false) => Ok(None),
            (None, true) => Err(path.error(format_args!("{name} needs a reduce_op"))),
            (Some(_), false) => Err(path.error(format_args!("{name} reduces nothing"))),
            (Some(value), true) => {
                let value = text(value, &path)?;
                let reduction = reduction_of(value);
                let unknown =
                    || path.error(format_args!("{value:?} is unknown; use sum, prod, min, max or avg"));
                reduction.ok_or_else(unknown).map(Some)
            }
        }
    }

    fn operand(&self, value: &Value<'_>, side: Side, path: &Path<'_>) -> Result<(Operand, u32)> {
        let mut object = Object::of(value, path)?;
        let place = match side {
            Side::Local | Side::LocalPackets => {
                Place::Local(buffer(object.text("type")?, &path.key("type"))?)
            }
            Side::Remote | Side::RemotePackets => {
                let (rank, buffer) = self.remote(ChannelKind::Memory, &mut object)?;
                Place::Remote { rank, buffer }
            }
            Side::Switch | Side::SwitchPackets => {
                let id = object.number("switch_channel_id")?;
                Place::Switch(in_table(&self.switches, id, &path.key("switch_channel_id"))?)
            }
        };
        let (first, count) = (object.number("index")?, object.number("size")?);
        object.finish()?;
        Ok((Operand { place, first, form: side.form() }, count))
    }

    fn remote(&self, kind: ChannelKind, object: &mut Object<'_, '_, '_>) -> Result<(u32, Buffer)> {
        let path = object.path.key("buffer_id");
        let table = if kind == ChannelKind::Memory { &self.memory_buffers } else { &self.port_buffers };
        let id = in_table(table, object.number("buffer_id")?, &path)?;
        // The table was checked against the list.
        Ok(self.tables.remote[id as usize])
    }

    fn port(&self, name: &str, object: &mut Object<'_, '_, '_>, ops: &mut Vec<Operation>) -> Result<()> {
        let path = *object.path;
        let (form, forward, signal, flush) = match name {
            "put" => (Form::Plain, false, false, false),
            "pws" => (Form::Plain, false, true, false),
            "pwsf" => (Form::Plain, false, true, true),
            "ppkt" => (Form::Packets, false, false, false),
            "rppkt" => (Form::Packets, true, false, false),
            _ => {
                return Err(path
                    .key("name")
                    .error(format_args!("{name} does not work through port channels")));
            }
        };
        let (source_path, target_path) = (path.key("src_buff"), path.key("dst_buff"));
        let (sources, targets) = (object.items("src_buff")?, object.items("dst_buff")?);
        if sources.is_empty() || (sources.len() != targets.len() && sources.len() != 1) {
            let message =
                format!("{} sources for {} targets; one each, or one for all", sources.len(), targets.len());
            return Err(path.error(message));
        }
        let ids = object.numbers("channel_ids")?;
        let list = path.key("channel_ids");
        if !ids.is_empty() && ids.len() != targets.len() {
            return Err(list.error(format_args!("{} channels for {} targets", ids.len(), targets.len())));
        }
        for (index, target) in targets.iter().enumerate() {
            let source = if sources.len() == 1 { 0 } else { index };
            let (read, count) = self.operand(&sources[source], Side::Local, &source_path.index(source))?;
            let Place::Local(read_buffer) = read.place else { continue };
            let here = target_path.index(index);
            let mut target = Object::of(target, &here)?;
            let (rank, buffer) = self.remote(ChannelKind::Port, &mut target)?;
            let (first, size) = (target.number("index")?, target.number("size")?);
            target.finish()?;
            if size != count {
                return Err(here.error(format_args!("{size} chunks, but the source has {count}")));
            }
            let leads = |&&channel: &&u32| self.tables.rank.port_channels[channel as usize] == rank;
            let channel = match ids.get(index) {
                Some(&id) => in_table(&self.port, id, &list.index(index))?,
                None => *self.port.iter().find(leads).ok_or_else(|| {
                    path.error(format_args!("the thread block has no port channel to rank {rank}"))
                })?,
            };
            if !leads(&&channel) {
                return Err(list.error(format_args!(
                    "channel {channel} does not lead to rank {rank}, whose buffer it is"
                )));
            }
            let (source, target) = ((read_buffer, read.first), (buffer, first));
            ops.push(
                Op::Port(Box::new(PortPut { channel, source, target, count, form, forward, signal, flush }))
                    .at(0),
            );
        }
        Ok(())
    }
}

/// Appends a list of ids below `all` to a block's table.
fn extend(
    table: &mut Vec<u32>,
    object: &mut Object<'_, '_, '_>,
    key: &str,
    all: usize,
    noun: &str,
) -> Result<()> {
    let path = *object.path;
    let list = path.key(key);
    for (index, item) in object.items(key)?.iter().enumerate() {
        let here = list.index(index);
        let id = number(item, &here)?;
        if id as usize >= all {
            return Err(here.error(format_args!("{id} is out of range: the rank has {all} {noun}")));
        }
        table.push(id);
    }
    Ok(())
}

fn share(object: &mut Object<'_, '_, '_>) -> Result<Option<Share>> {
    let path = object.path.key("tbg_info");
    let Some(value) = object.optional("tbg_info") else { return Ok(None) };
    let mut object = Object::of(value, &path)?;
    let share = Share { member: object.number("tb_id")?, of: object.number("tbg_size")? };
    if share.member >= share.of {
        return Err(path.error(format_args!("block {} of a group of {}", share.member, share.of)));
    }
    object.finish()?;
    Ok(Some(share))
}
