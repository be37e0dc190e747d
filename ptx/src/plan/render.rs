//! From a description to the text of a module.

use std::fmt::Display;

use super::check::check;
use super::control::{self, Since};
use super::rows::{Rows, Space};
use super::text::{BARRIER, Text};
use super::{Kernel, Laps, Number, PacketForm, Step, moves, multicast, row_steps};
use crate::abi::TraceRecord;
use crate::{Instance, Target, TemplateError, failure};

/// Writes the module of a plan's kernel.
///
/// # Errors
/// A description that contradicts itself, or one that is too large for a kernel: more than 4,096 bytes of parameters; multicast
/// addresses for a target without them, below sm_90 or PTX 8.2.
pub fn render(kernel: &Kernel, target: Target) -> Result<Instance, TemplateError> {
    check(kernel)?;
    if kernel.has_multicast() && !multicast::is_known(target) {
        let message = format!("multicast addresses need sm_90 and PTX 8.2, not {target:?}");
        return Err(failure(&kernel.symbol, message));
    }
    let rows = Rows::of(kernel);
    let counts = kernel.double_scratch || kernel.laps.is_some() || kernel.has_packets();
    let mut text = Text::new(kernel, target, rows.space.loads());
    if let Some(laps) = &kernel.laps {
        let mut beginning = Text::new(kernel, target, rows.space.loads());
        lap(&mut beginning, laps)?;
        text.set_lap(beginning.into_string());
    }
    text.line(&target.header());
    if !rows.table.is_empty() && rows.space != Space::Param {
        text.line(&rows.declaration(kernel));
    }
    let (symbol, bytes, threads) = (&kernel.symbol, kernel.args_bytes(), kernel.threads);
    text.line(&format!(".visible .entry {symbol}(.param .align 8 .b8 args[{bytes}])"));
    // Without a lower bound of blocks that share a multiprocessor, ptxas spills to let more of them share it.
    text.line(&format!(".reqntid {threads}, 1, 1\n.minnctapersm 1\n{{"));
    text.include(
        "plan_begin",
        &[
            ("COUNTS", &u32::from(counts)),
            ("CALLS", &kernel.calls),
            ("ROW", &u32::from(!rows.table.is_empty())),
        ],
    )?;
    if kernel.rows.is_some() {
        text.include("plan_rows_registers", &[])?;
    }
    if kernel.follows {
        text.include("plan_follows", &[])?;
    }
    if let Some(trace) = kernel.trace {
        let bytes = u64::from(trace.records) * size_of::<TraceRecord>() as u64;
        text.include("plan_trace", &[("BYTES", &bytes), ("BASE", &trace.address)])?;
    }
    let runs = runs(kernel);
    dispatch(&mut text, &rows, &runs)?;
    let mut meets = false;
    for (index, shape) in kernel.shapes.iter().enumerate() {
        text.set_shape(index);
        text.include("plan_label", &[("NAME", &format!("SHAPE_{index}"))])?;
        if counts {
            text.want_flag();
        }
        // The first loads travel while the call's number does.
        if !matches!(shape.steps.first(), Some(Step::Move(moved)) if moves::begins_with_loads(&text, moved)) {
            text.flag()?;
        }
        let body = if counts { meeting_early(&shape.steps) } else { shape.steps.clone() };
        steps(&mut text, &body, false, &mut Since { gave_up: kernel.follows, lanes: false })?;
        // Threads that did not meet may not have read the block's counter.
        let met = body.iter().any(meets_block);
        let last = if met || !counts { "LEAVE" } else { "MEET" };
        meets |= last == "MEET";
        text.include("plan_go", &[("TO", &last)])?;
    }
    let advances = if text.any_grid { kernel.blocks.len() } else { 0 };
    text.include(
        "plan_end",
        &[
            ("COUNTS", &u32::from(counts)),
            ("CALLS", &kernel.calls),
            ("MEETS", &u32::from(meets)),
            ("MEET", &"MEET"),
            ("LEAVE", &"LEAVE"),
            ("ADVANCES", &advances),
            ("THREADS", &threads),
            ("BARRIER", &BARRIER),
        ],
    )?;
    text.line("}");
    Ok(Instance { text: text.into_string(), entries: vec![kernel.symbol.clone()] })
}

/// Whether all threads of the block meet in this step.
fn meets_block(step: &Step) -> bool {
    match step {
        Step::Sync | Step::Barrier { .. } => true,
        Step::Repeat { body, .. } => body.iter().any(meets_block),
        _ => false,
    }
}

/// The steps with a sync before the first wait for packets, if there is none at all: the block must meet once before it counts
/// the call, and while packets are on their way that takes no time. At the end it took 0.13 us on H200.
fn meeting_early(steps: &[Step]) -> Vec<Step> {
    let mut steps = steps.to_vec();
    let awaits = |step: &Step| matches!(step, Step::Move(moved) if moves::may_give_up(moved));
    if let Some(first) = steps.iter().position(awaits)
        && !steps.iter().any(meets_block)
    {
        steps.insert(first, Step::Sync);
    }
    steps
}

/// Writes steps in order.
fn steps(text: &mut Text<'_>, steps: &[Step], loops: bool, since: &mut Since) -> Result<(), TemplateError> {
    let threads = text.kernel.threads;
    let mut rest = steps;
    while let Some(step) = rest.first() {
        let mut taken = 1;
        match step {
            Step::Sync => {
                text.include(
                    "plan_sync",
                    &[
                        ("ASKS", &u32::from(since.gave_up)),
                        ("THREADS", &threads),
                        ("BARRIER", &BARRIER),
                        ("LEAVE", &"LEAVE"),
                    ],
                )?;
                *since = Since::default();
            }
            Step::Barrier { state, blocks } => {
                text.scoped(|text| {
                    let (state, blocks) = (text.number(*state)?, text.number(*blocks)?);
                    barrier(text, &state, &blocks)
                })?;
                *since = Since::default();
            }
            Step::Move(moved) => {
                moves::write(text, moved, loops, since.gave_up)?;
                since.gave_up |= moves::may_give_up(moved);
            }
            Step::FindRows | Step::ShowRows | Step::JudgeRows => {
                // A kernel without rows has none of these steps.
                if let Some(rows) = text.kernel.rows {
                    match step {
                        Step::FindRows => row_steps::find(text, rows)?,
                        Step::ShowRows => row_steps::show(text, rows)?,
                        _ => row_steps::judge(text, rows)?,
                    }
                }
            }
            Step::Mark { number } => text.include("plan_mark", &[("NUMBER", number)])?,
            Step::Loop { unit, chunks, body } => slices(text, *unit, *chunks, body, since)?,
            Step::Repeat { turns, stride, body } => repeat(text, (*turns, *stride), body, since)?,
            Step::Signal(_)
            | Step::Wait(_)
            | Step::Acquire { .. }
            | Step::Release { .. }
            | Step::Port(_)
            | Step::PortWait { .. }
            | Step::PutRows { .. } => {
                taken = rest.iter().take_while(|step| control::is_control(step)).count();
                control::write(text, &rest[..taken], loops, since)?;
            }
        }
        rest = &rest[taken..];
    }
    Ok(())
}

/// Writes the beginning of a lap. It stands where the flag is first needed: behind the kernel's end, with a branch back to the
/// beginning, all calls took 0.07 us longer on H200.
fn lap(text: &mut Text<'_>, laps: &Laps) -> Result<(), TemplateError> {
    let kernel = text.kernel;
    let barrier = |text: &mut Text<'_>| barrier(text, &laps.barrier, &"%nctaid.x");
    let meet = |text: &mut Text<'_>| {
        let past = text.label("LAP_MET");
        text.include("plan_first_block", &[("PAST", &past)])?;
        steps(text, &laps.meeting, false, &mut Since::default())?;
        text.include("plan_label", &[("NAME", &past)])?;
        barrier(text)
    };
    meet(text)?;
    let lines = kernel.packets == PacketForm::Ll128;
    text.include(
        "plan_zero",
        &[
            ("CHUNKS", &laps.chunks),
            ("LINES", &u32::from(lines)),
            ("THREADS", &kernel.threads),
            ("PACKETS", &laps.packets),
        ],
    )?;
    barrier(text)?;
    meet(text)?;
    if kernel.has_packets_by_multicast() {
        // The zeros were stored by the memory's own addresses: packets must not come before them.
        text.include("plan_multimem_fence", &[])?;
    }
    Ok(())
}

/// Writes a barrier of so many blocks.
fn barrier(text: &mut Text<'_>, state: &dyn Display, blocks: &dyn Display) -> Result<(), TemplateError> {
    let threads = text.kernel.threads;
    text.include(
        "plan_barrier",
        &[
            ("THREADS", &threads),
            ("BARRIER", &BARRIER),
            ("STATE", state),
            ("BLOCKS", blocks),
            ("LEAVE", &"LEAVE"),
        ],
    )
}

/// Writes a loop over slices.
fn slices(
    text: &mut Text<'_>,
    unit: u64,
    chunks: Number,
    body: &[Step],
    since: &mut Since,
) -> Result<(), TemplateError> {
    let (again, past) = (text.label("LOOP"), text.label("LOOPED"));
    // A slice of half of all granules or more is all of them; so sums of granules do not overflow.
    let unit = (unit / 16).min(1 << 30);
    text.scoped(|text| {
        let chunks = text.number(chunks)?;
        text.include("plan_loop_total", &[("CHUNKS", &chunks)])
    })?;
    text.include("plan_loop", &[("UNIT", &unit), ("AGAIN", &again), ("PAST", &past)])?;
    again_and_again(text, body, true, since)?;
    text.include("plan_loop_end", &[("AGAIN", &again), ("PAST", &past)])
}

/// Writes a repetition with other numbers in each turn.
fn repeat(
    text: &mut Text<'_>,
    (turns, stride): (u32, u32),
    body: &[Step],
    since: &mut Since,
) -> Result<(), TemplateError> {
    let again = text.label("REPEAT");
    text.line("{");
    text.include("plan_repeat", &[("TURNS", &turns), ("AGAIN", &again)])?;
    text.set_turns(Some((turns, stride)));
    let written = again_and_again(text, body, false, since);
    text.set_turns(None);
    written?;
    text.include("plan_repeat_end", &[("TURNS", &turns), ("BYTES", &(4 * stride)), ("AGAIN", &again)])?;
    text.line("}");
    Ok(())
}

/// Writes a body that begins as the steps before it or as it ends itself.
fn again_and_again(
    text: &mut Text<'_>,
    body: &[Step],
    loops: bool,
    since: &mut Since,
) -> Result<(), TemplateError> {
    let before = *since;
    let end = after(body, before);
    let mut inside = Since { gave_up: before.gave_up | end.gave_up, lanes: before.lanes | end.lanes };
    steps(text, body, loops, &mut inside)?;
    *since = Since { gave_up: before.gave_up | inside.gave_up, lanes: before.lanes | inside.lanes };
    Ok(())
}

/// The state behind a loop's body that begins with `since`.
fn after(body: &[Step], since: Since) -> Since {
    body.iter().fold(since, |since, step| match step {
        Step::Sync | Step::Barrier { .. } => Since::default(),
        Step::Move(moved) => Since { gave_up: since.gave_up | moves::may_give_up(moved), ..since },
        step => control::after(step, since),
    })
}

/// Neighbouring blocks of one shape.
struct Run {
    first: usize,
    shape: usize,
}

fn runs(kernel: &Kernel) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (first, block) in kernel.blocks.iter().enumerate() {
        let shape = block.shape as usize;
        if runs.last().is_none_or(|run| run.shape != shape) {
            runs.push(Run { first, shape });
        }
    }
    runs
}

/// Writes the way of each block to its body: a binary search.
fn dispatch(text: &mut Text<'_>, rows: &Rows, runs: &[Run]) -> Result<(), TemplateError> {
    match runs {
        [] => Ok(()),
        [run] => {
            if let Some(stride) = rows.strides[run.shape] {
                let at = i64::from(rows.starts[run.first]) - run.first as i64 * i64::from(stride);
                let (table, before) = match rows.space {
                    Space::Param => ("args".to_owned(), text.kernel.rows_at()),
                    _ => (rows.name(text.kernel), 0),
                };
                let at = at + before as i64;
                text.include("plan_row", &[("STRIDE", &stride), ("TABLE", &table), ("OFFSET", &at)])?;
            }
            text.include("plan_go", &[("TO", &format!("SHAPE_{}", run.shape))])
        }
        _ => {
            let (low, high) = runs.split_at(runs.len() / 2);
            let label = text.label("BLOCKS");
            text.include("plan_dispatch", &[("FROM", &high[0].first), ("TO", &label)])?;
            dispatch(text, rows, low)?;
            text.include("plan_label", &[("NAME", &label)])?;
            dispatch(text, rows, high)
        }
    }
}
