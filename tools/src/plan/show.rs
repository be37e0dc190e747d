//! A plan as text.

use std::io::{Result, Write};

use aqueduct::plan::{
    Buffer, Channel, ChannelKind, Form, Move, Op, Operand, Operation, Place, Plan, PortPut,
};

use crate::printable::printable;

pub(super) fn show(out: &mut impl Write, plan: &Plan) -> Result<()> {
    let (settings, place) =
        (&plan.settings, if plan.collective.in_place { "in place" } else { "out of place" });
    let (name, kind) = (printable(&plan.name), printable(plan.collective.kind.name()));
    writeln!(out, "{name}: {kind} of {} ranks, {place}", plan.ranks.len())?;
    let scratch = if settings.double_scratch { "double scratch" } else { "single scratch" };
    writeln!(out, "{} threads per block, {scratch}", settings.threads_per_block)?;
    for (index, rank) in plan.ranks.iter().enumerate() {
        let (input, output, scratch) = (rank.input_chunks, rank.output_chunks, rank.scratch_chunks);
        writeln!(out, "rank {index}: {input} input, {output} output, {scratch} scratch chunks")?;
        for (name, peers) in [("memory", &rank.memory_channels), ("port", &rank.port_channels)] {
            if !peers.is_empty() {
                writeln!(out, "  {name} channels to ranks {peers:?}")?;
            }
        }
        for (index, switch) in rank.switches.iter().enumerate() {
            writeln!(out, "  switch {index}: {} of ranks {:?}", letter(switch.buffer), switch.ranks)?;
        }
        for (index, block) in rank.blocks.iter().enumerate() {
            let by = if block.copy_engine { ", by a copy engine" } else { "" };
            writeln!(out, "  block {index}{by}")?;
            operations(out, &block.ops, 4)?;
        }
    }
    Ok(())
}

fn operations(out: &mut impl Write, ops: &[Operation], indent: usize) -> Result<()> {
    for operation in ops {
        let origin = operation.origin;
        if let Op::Loop(repeated) = &operation.op {
            let (unit, chunks) = (repeated.unit, repeated.chunks);
            writeln!(out, "{:indent$}{origin}: loop over {chunks} chunks by {unit} bytes", "")?;
            operations(out, &repeated.body, indent + 4)?;
        } else {
            writeln!(out, "{:indent$}{origin}: {}", "", text(&operation.op))?;
        }
    }
    Ok(())
}

/// An operation in words.
pub(super) fn text(op: &Op) -> String {
    match op {
        Op::Sync => "sync".into(),
        Op::Barrier(barrier) => format!("barrier {} of {} blocks", barrier.id, barrier.blocks),
        Op::Signal { channel, relaxed } => {
            format!("{}signal {}", if *relaxed { "relaxed " } else { "" }, name(*channel))
        }
        Op::Wait { channel } => format!("wait {}", name(*channel)),
        Op::Flush { channel } => format!("flush port {channel}"),
        Op::Acquire { semaphore } => format!("acquire semaphore {semaphore}"),
        Op::Release { semaphore } => format!("release semaphore {semaphore}"),
        Op::Move(moved) => moved_text(moved),
        Op::Port(put) => port_text(put),
        Op::Loop(_) => "loop".into(),
    }
}

fn name(channel: Channel) -> String {
    let kind = match channel.kind {
        ChannelKind::Memory => "memory",
        ChannelKind::Port => "port",
    };
    format!("{kind} {}", channel.index)
}

fn moved_text(moved: &Move) -> String {
    let list = |operands: &[Operand]| {
        let texts: Vec<String> = operands.iter().map(|operand| operand_text(operand, moved.count)).collect();
        texts.join(", ")
    };
    let reduction =
        moved.reduction.map_or_else(|| "move".into(), |reduction| format!("{reduction:?}").to_lowercase());
    let share =
        moved.share.map_or_else(String::new, |share| format!(", part {} of {}", share.member, share.of));
    format!("{reduction} {} -> {}{share}", list(&moved.sources), list(&moved.targets))
}

fn operand_text(operand: &Operand, count: u32) -> String {
    let place = match operand.place {
        Place::Local(buffer) => letter(buffer).to_owned(),
        Place::Remote { rank, buffer } => format!("rank {rank} {}", letter(buffer)),
        Place::Switch(switch) => format!("switch {switch} "),
    };
    format!(
        "{place}{}{}",
        range(operand.first, count),
        if operand.form == Form::Packets { " packets" } else { "" }
    )
}

fn port_text(put: &PortPut) -> String {
    let (from, to) = (range(put.source.1, put.count), range(put.target.1, put.count));
    let mut text =
        format!("port {} put {}{from} -> {}{to}", put.channel, letter(put.source.0), letter(put.target.0));
    for (is, word) in [
        (put.form == Form::Packets, ", packets"),
        (put.forward, ", when they have come"),
        (put.signal, ", signal"),
        (put.flush, ", flush"),
    ] {
        text.push_str(if is { word } else { "" });
    }
    text
}

fn range(first: u32, count: u32) -> String {
    if count == 1 {
        format!("[{first}]")
    } else {
        format!("[{first}..{}]", u64::from(first) + u64::from(count))
    }
}

fn letter(buffer: Buffer) -> &'static str {
    match buffer {
        Buffer::Input => "input",
        Buffer::Output => "output",
        Buffer::Scratch => "scratch",
    }
}
