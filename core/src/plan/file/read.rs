//! From JSON to a plan.

use super::collective::{Collective, Kind};
use super::ir::{Buffer, Plan, Protocol, RankPlan, Settings, Switch};
use super::json::{self, Value};
use super::names::{buffer, kind_of_memory_or_port, unknown_channel_type};
use super::read_ops::{Tables, block};
use super::repair::complete;
use super::tree::{Object, Path, text};
use crate::error::{Error, ErrorKind, Result};

/// The largest file that [`read`] takes. A ring all-reduce of 1,024 ranks has about 400 MiB.
pub const MAX_BYTES: usize = 512 << 20;

/// Reads a plan file.
///
/// # Errors
/// [`ErrorKind::Plan`], with line and column if the text is no JSON, and with the path of what is wrong otherwise. A plan that
/// is read may still be wrong: see [`check`](crate::plan::check).
pub fn read(json: &str) -> Result<Plan> {
    let refuse = |reason: String| Error::new(ErrorKind::Plan, "plan::file::read", reason);
    if json.len() > MAX_BYTES {
        return Err(refuse(format!("the file has {} bytes; the limit is {MAX_BYTES}", json.len())));
    }
    let root = json::parse(json).map_err(refuse)?;
    plan(&root, &Path::ROOT)
}

fn plan(value: &Value<'_>, path: &Path<'_>) -> Result<Plan> {
    let mut object = Object::of(value, path)?;
    let name = object.text("name")?.to_owned();
    let kind = Kind::of_name(object.text("collective")?);
    let protocol = match object.text("protocol")? {
        "Simple" => Protocol::Simple,
        "LL" => Protocol::Ll,
        "LL128" => Protocol::Ll128,
        other => {
            return Err(path.key("protocol").error(format_args!("{other:?} is unknown; use Simple or LL")));
        }
    };
    object.required("inplace")?;
    let in_place = object.flag("inplace", false)?;
    let default = Settings::default();
    let settings = Settings {
        protocol,
        threads_per_block: object.number_or("num_threads_per_block", default.threads_per_block)?,
        alignment: object.number_or("buffer_alignment", default.alignment)?,
        double_scratch: object.flag("use_double_scratch_buffer", default.double_scratch)?,
        variable_chunks: default.variable_chunks,
        reuse_resources: object.flag("reuse_resources", default.reuse_resources)?,
        min_bytes: object.long("min_message_size", default.min_bytes)?,
        max_bytes: object.long("max_message_size", default.max_bytes)?,
    };
    object.required("gpus")?;
    let gpus_path = path.key("gpus");
    let gpus = object.items("gpus")?;
    let mut ranks = Vec::with_capacity(gpus.len());
    for (index, gpu) in gpus.iter().enumerate() {
        ranks.push(rank(gpu, index, gpus.len(), &gpus_path.index(index))?);
    }
    object.finish()?;
    let mut plan = Plan { name, collective: Collective { kind, in_place }, settings, ranks };
    complete(&mut plan);
    Ok(plan)
}

fn rank(value: &Value<'_>, index: usize, ranks: usize, path: &Path<'_>) -> Result<RankPlan> {
    let mut object = Object::of(value, path)?;
    let id = object.number("id")?;
    if id as usize != index {
        return Err(path.key("id").error(format_args!("{id} is not the place in the list, {index}")));
    }
    let mut tables = Tables { rank: RankPlan::default(), remote: Vec::new() };
    tables.rank.input_chunks = object.number("input_chunks")?;
    tables.rank.output_chunks = object.number("output_chunks")?;
    tables.rank.scratch_chunks = object.number("scratch_chunks")?;
    let list = path.key("channels");
    for (index, item) in object.items("channels")?.iter().enumerate() {
        channels(item, &mut tables.rank, ranks, &list.index(index))?;
    }
    let list = path.key("remote_buffers");
    for (index, item) in object.items("remote_buffers")?.iter().enumerate() {
        tables.remote.push(remote_buffer(item, ranks, &list.index(index))?);
    }
    let list = path.key("semaphores");
    for (index, item) in object.items("semaphores")?.iter().enumerate() {
        let here = list.index(index);
        let mut item = Object::of(item, &here)?;
        tables.rank.semaphores.push(item.number("init_value")?);
        item.finish()?;
    }
    let list = path.key("threadblocks");
    let items = object.items("threadblocks")?;
    let mut blocks = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        blocks.push(block(item, index, &tables, &list.index(index))?);
    }
    object.finish()?;
    tables.rank.blocks = blocks;
    Ok(tables.rank)
}

fn known_rank(rank: u32, ranks: usize, path: &Path<'_>) -> Result<u32> {
    if (rank as usize) < ranks {
        Ok(rank)
    } else {
        Err(path.error(format_args!("rank {rank} is none of the plan's {ranks}")))
    }
}

fn channels(value: &Value<'_>, rank: &mut RankPlan, ranks: usize, path: &Path<'_>) -> Result<()> {
    let mut object = Object::of(value, path)?;
    let list = match object.text("channel_type")? {
        "memory" => &mut rank.memory_channels,
        "port" => &mut rank.port_channels,
        "switch" => {
            let buffer = buffer(object.text("buffer_type")?, &path.key("buffer_type"))?;
            let list = path.key("rank_groups");
            for (index, item) in object.items("rank_groups")?.iter().enumerate() {
                rank.switches.push(switch(item, buffer, ranks, &list.index(index))?);
            }
            return object.finish();
        }
        other => return Err(unknown_channel_type(other, &path.key("channel_type"))),
    };
    let here = path.key("connected_to");
    for (index, peer) in object.numbers("connected_to")?.into_iter().enumerate() {
        list.push(known_rank(peer, ranks, &here.index(index))?);
    }
    object.finish()
}

fn switch(value: &Value<'_>, buffer: Buffer, ranks: usize, path: &Path<'_>) -> Result<Switch> {
    let mut object = Object::of(value, path)?;
    let size = object.number("size")?;
    let list = path.key("ranks");
    let members = object.numbers("ranks")?;
    if members.len() != size as usize {
        return Err(list.error(format_args!("{} ranks, but the size is {size}", members.len())));
    }
    for (index, &member) in members.iter().enumerate() {
        known_rank(member, ranks, &list.index(index))?;
    }
    object.finish()?;
    Ok(Switch { buffer, ranks: members })
}

fn remote_buffer(value: &Value<'_>, ranks: usize, path: &Path<'_>) -> Result<(u32, Buffer)> {
    let mut object = Object::of(value, path)?;
    let rank = known_rank(object.number("rank")?, ranks, &path.key("rank"))?;
    let buffer = buffer(object.text("type")?, &path.key("type"))?;
    let list = path.key("access_channel_types");
    for (index, item) in object.items("access_channel_types")?.iter().enumerate() {
        let here = list.index(index);
        kind_of_memory_or_port(text(item, &here)?, &here)?;
    }
    object.finish()?;
    Ok((rank, buffer))
}
