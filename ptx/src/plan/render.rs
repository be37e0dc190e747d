//! From a description to the text of a module.

use std::fmt::Write as _;

use super::control::{self, Since};
use super::text::Text;
use super::{Base, Kernel, Laps, Number, Step, moves};
use crate::abi::PlanArgs;
use crate::{Instance, Target, TemplateError, failure};

/// Largest size of a kernel's parameters on every architecture.
const MAX_ARGS: usize = 4096;
/// Bytes of constants that are put into the constant bank, which has 64 KiB.
const MAX_CONST: usize = 32 << 10;

impl Kernel {
    /// Bytes of the kernel's one parameter: the fixed part, the addresses, and [`args_rows`](Self::args_rows).
    pub fn args_bytes(&self) -> usize {
        self.rows_at() + 4 * self.args_rows().len()
    }

    /// Words of the parameter behind the addresses, the same in every call: the numbers of the blocks, if there is room. From memory
    /// they would come a microsecond later, because the caches of constants are empty when a kernel begins.
    pub fn args_rows(&self) -> Vec<u32> {
        let rows = Rows::of(self);
        if rows.space == Space::Param { rows.padded() } else { Vec::new() }
    }

    /// Bytes of the parameter in front of the rows.
    fn rows_at(&self) -> usize {
        size_of::<PlanArgs>() + 8 * self.addresses as usize
    }

    /// Steps, those of loops included.
    fn steps(&self) -> impl Iterator<Item = &Step> {
        self.shapes.iter().flat_map(|shape| &shape.steps).flat_map(|step| {
            let body = if let Step::Loop { body, .. } = step { &body[..] } else { &[] };
            std::iter::once(step).chain(body)
        })
    }

    /// Whether a step reads or writes packets.
    fn has_packets(&self) -> bool {
        self.steps().any(|step| match step {
            Step::Move(moved) => {
                moved.sources.iter().chain(&moved.targets).any(|side| side.base == Base::Packets)
            }
            Step::Port(port) => port.put.is_some_and(|put| put.source.base == Base::Packets),
            _ => false,
        })
    }
}

/// Writes the module of a plan's kernel.
///
/// # Errors
/// A description that contradicts itself, or one that is too large for a kernel: more than 4,096 bytes of parameters.
pub fn render(kernel: &Kernel, target: Target) -> Result<Instance, TemplateError> {
    check(kernel)?;
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
        steps(&mut text, &shape.steps, false, &mut Since::default())?;
        // Threads that did not meet may not have read the block's counter.
        let met = shape.steps.iter().any(|step| matches!(step, Step::Sync | Step::Barrier { .. }));
        let last = if met || !counts { "LEAVE" } else { "MEET" };
        meets |= last == "MEET";
        text.include("plan_go", &[("TO", &last)])?;
    }
    text.include(
        "plan_end",
        &[
            ("COUNTS", &u32::from(counts)),
            ("CALLS", &kernel.calls),
            ("MEETS", &u32::from(meets)),
            ("MEET", &"MEET"),
            ("LEAVE", &"LEAVE"),
        ],
    )?;
    text.line("}");
    Ok(Instance { text: text.into_string(), entries: vec![kernel.symbol.clone()] })
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
                    &[("ASKS", &u32::from(since.gave_up)), ("THREADS", &threads), ("LEAVE", &"LEAVE")],
                )?;
                *since = Since::default();
            }
            Step::Barrier { state, blocks } => {
                text.scoped(|text| {
                    let (state, blocks) = (text.number(*state)?, text.number(*blocks)?);
                    text.include(
                        "plan_barrier",
                        &[("THREADS", &threads), ("STATE", &state), ("BLOCKS", &blocks), ("LEAVE", &"LEAVE")],
                    )
                })?;
                *since = Since::default();
            }
            Step::Move(moved) => {
                moves::write(text, moved, loops, since.gave_up)?;
                since.gave_up |= moves::may_give_up(moved);
            }
            Step::Loop { unit, chunks, body } => repeat(text, *unit, *chunks, body, since)?,
            Step::Signal(_)
            | Step::Wait(_)
            | Step::Acquire { .. }
            | Step::Release { .. }
            | Step::Port(_)
            | Step::PortWait { .. } => {
                taken = rest.iter().take_while(|step| control::is_control(step)).count();
                control::write(text, &rest[..taken], loops, since)?;
            }
        }
        rest = &rest[taken..];
    }
    Ok(())
}

/// Writes the beginning of a lap.
fn lap(text: &mut Text<'_>, laps: &Laps) -> Result<(), TemplateError> {
    let kernel = text.kernel;
    let blocks = kernel.blocks.len();
    let meeting = [Step::Signal(laps.signals.clone()), Step::Wait(laps.waits.clone())];
    let barrier = Step::Barrier {
        state: Number::Fixed(laps.barrier),
        blocks: Number::Fixed(u32::try_from(blocks).unwrap_or(u32::MAX)),
    };
    let meet = |text: &mut Text<'_>| {
        let past = text.label("LAP_MET");
        text.include("plan_first_block", &[("PAST", &past)])?;
        steps(text, &meeting, false, &mut Since::default())?;
        text.include("plan_label", &[("NAME", &past)])?;
        steps(text, std::slice::from_ref(&barrier), false, &mut Since::default())
    };
    meet(text)?;
    text.include(
        "plan_zero",
        &[
            ("CHUNKS", &laps.chunks),
            ("BLOCKS", &blocks),
            ("THREADS", &kernel.threads),
            ("PACKETS", &laps.packets),
        ],
    )?;
    steps(text, std::slice::from_ref(&barrier), false, &mut Since::default())?;
    meet(text)
}

/// Writes a loop.
fn repeat(
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
    // The body begins as the steps before it or as it ends itself.
    let before = *since;
    let end = after(body, before);
    let mut inside = Since { gave_up: before.gave_up | end.gave_up, lanes: before.lanes | end.lanes };
    steps(text, body, true, &mut inside)?;
    *since = Since { gave_up: before.gave_up | inside.gave_up, lanes: before.lanes | inside.lanes };
    text.include("plan_loop_end", &[("AGAIN", &again), ("PAST", &past)])
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

/// The rows of all blocks that have numbers of their own.
struct Rows {
    table: Vec<u32>,
    /// Bytes from the table to the row of each block.
    starts: Vec<u32>,
    /// Bytes of a row of each shape, if its blocks differ.
    strides: Vec<Option<u32>>,
    space: Space,
}

/// Where the table lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    /// Behind the addresses in the kernel's parameter.
    Param,
    /// In the module's constants.
    Const,
    /// In a variable of the module.
    Global,
}

impl Space {
    /// The state space, as in a load.
    fn loads(self) -> &'static str {
        match self {
            Self::Param => "param",
            Self::Const => "const",
            Self::Global => "weak.global",
        }
    }
}

impl Rows {
    fn of(kernel: &Kernel) -> Self {
        let stride = |shape: usize| {
            let mut rows =
                kernel.blocks.iter().filter(|block| block.shape as usize == shape).map(|block| &block.row);
            let first = rows.next()?;
            rows.any(|row| row != first).then_some(4 * u32::try_from(first.len()).ok()?)
        };
        let strides: Vec<_> = (0..kernel.shapes.len()).map(stride).collect();
        let (mut table, mut starts) = (Vec::new(), Vec::new());
        for block in &kernel.blocks {
            starts.push(4 * u32::try_from(table.len()).unwrap_or(u32::MAX / 4));
            if strides[block.shape as usize].is_some() {
                table.extend(&block.row);
            }
        }
        let space = match 4 * table.len() {
            bytes if kernel.rows_at() + bytes.next_multiple_of(8) <= MAX_ARGS => Space::Param,
            bytes if bytes <= MAX_CONST => Space::Const,
            _ => Space::Global,
        };
        Self { table, starts, strides, space }
    }

    /// The table in whole words of 8 bytes, as parameters are.
    fn padded(mut self) -> Vec<u32> {
        self.table.resize(self.table.len().next_multiple_of(2), 0);
        self.table
    }

    fn name(&self, kernel: &Kernel) -> String {
        format!("{}_rows", kernel.symbol)
    }

    fn declaration(&self, kernel: &Kernel) -> String {
        let space = if self.space == Space::Const { ".const" } else { ".global" };
        let mut text = format!("{space} .align 4 .b32 {}[{}] = {{", self.name(kernel), self.table.len());
        for (index, value) in self.table.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            let line = if index % 16 == 0 { "\n    " } else { " " };
            let _ = write!(text, "{separator}{line}{value}");
        }
        text.push_str("\n};");
        text
    }
}

/// Every number of a step.
fn numbers(step: &Step) -> Vec<Number> {
    let operand = |side: &super::Operand| [side.address, side.first, side.rank];
    match step {
        Step::Sync => Vec::new(),
        Step::Barrier { state, blocks } => vec![*state, *blocks],
        Step::Signal(list) => list.iter().flat_map(|one| [one.outbound, one.peer, one.inbound]).collect(),
        Step::Wait(list) => list.iter().flat_map(|one| [one.inbound, one.expected, one.rank]).collect(),
        Step::Acquire { at } | Step::Release { at } => vec![*at],
        Step::PortWait { channel } => vec![*channel],
        Step::Move(moved) => {
            let sides = moved.sources.iter().chain(&moved.targets).flat_map(operand);
            let share = moved.share.iter().flat_map(|share| [share.member, share.of]);
            sides.chain(share).chain([moved.count]).collect()
        }
        Step::Port(port) => {
            let put = port.put.iter().flat_map(|put| {
                let sides = [&put.source, &put.target].into_iter().chain(&put.awaits);
                sides.flat_map(operand).chain([put.count]).collect::<Vec<_>>()
            });
            put.chain([port.channel]).collect()
        }
        Step::Loop { chunks, body, .. } => body.iter().flat_map(numbers).chain([*chunks]).collect(),
    }
}

/// Finds contradictions that would become a wrong kernel.
fn check(kernel: &Kernel) -> Result<(), TemplateError> {
    let fail = |message: String| Err(failure(&kernel.symbol, message));
    let bytes = kernel.rows_at();
    if bytes > MAX_ARGS {
        return fail(format!(
            "{} addresses make {bytes} bytes of parameters, and a kernel takes {MAX_ARGS}: the rank has too many peers",
            kernel.addresses
        ));
    }
    let starts = |c: char| c.is_ascii_alphabetic() || c == '_';
    if !kernel.symbol.starts_with(starts) || !kernel.symbol.chars().all(|c| starts(c) || c.is_ascii_digit()) {
        return fail("the symbol is no identifier: letters, digits and _ only, no digit first".to_owned());
    }
    if kernel.threads == 0 || kernel.threads > 1024 || !kernel.threads.is_multiple_of(32) {
        return fail(format!("{} threads: a block has a multiple of 32, up to 1024", kernel.threads));
    }
    if kernel.blocks.is_empty() || kernel.ranks == 0 {
        return fail("a kernel needs a block, and a plan a rank".to_owned());
    }
    for (index, shape) in kernel.shapes.iter().enumerate() {
        let row = kernel
            .blocks
            .iter()
            .find(|block| block.shape as usize == index)
            .map_or(0, |block| block.row.len());
        for number in shape.steps.iter().flat_map(numbers) {
            if matches!(number, Number::Row(entry) if entry as usize >= row) {
                return fail(format!("shape {index} asks for more than the {row} numbers of its blocks"));
            }
        }
    }
    for (index, block) in kernel.blocks.iter().enumerate() {
        let same = |other: &&super::Block| other.shape == block.shape;
        let first = kernel.blocks.iter().find(same).map_or(0, |first| first.row.len());
        if block.shape as usize >= kernel.shapes.len() || block.row.len() != first {
            return fail(format!("block {index} has no shape, or another number of constants than its like"));
        }
    }
    if kernel.has_packets() && kernel.laps.is_none() {
        return fail("packets need laps: their flags start over after 2^32 calls".to_owned());
    }
    if let Some(laps) = &kernel.laps {
        let signals = laps.signals.iter().flat_map(|signal| [signal.outbound, signal.peer, signal.inbound]);
        let waits = laps.waits.iter().flat_map(|wait| [wait.inbound, wait.expected, wait.rank]);
        if signals.chain(waits).any(|number| matches!(number, Number::Row(_))) {
            return fail("the numbers of a lap's signals and waits must be fixed".to_owned());
        }
    }
    for step in kernel.steps() {
        match step {
            Step::Loop { unit, body, .. } => {
                if *unit == 0 || !unit.is_multiple_of(16) {
                    return fail(format!("a loop over slices of {unit} bytes: a multiple of 16 is needed"));
                }
                if body.iter().any(|step| matches!(step, Step::Loop { .. })) {
                    return fail("a loop in a loop".to_owned());
                }
            }
            Step::Signal(list) if list.is_empty() => return fail("a list of no signals".to_owned()),
            Step::Wait(list) if list.is_empty() => return fail("a list of no waits".to_owned()),
            Step::Move(moved) => {
                if moved.sources.is_empty() || moved.targets.is_empty() {
                    return fail("a move needs a source and a target".to_owned());
                }
                if moved.sources.len() > 1 && moved.reduction.is_none() {
                    return fail("a move of several sources needs a reduction".to_owned());
                }
            }
            Step::Port(port) => {
                if port.put.is_none() && !port.signal && !port.flush {
                    return fail("a request to a proxy that asks for nothing".to_owned());
                }
                let packets = |side: &super::Operand| side.base == Base::Packets;
                let mixed = |put: super::PortPut| {
                    packets(&put.source) != packets(&put.target)
                        || put.awaits.is_some_and(|awaited| !packets(&awaited))
                };
                if port.put.is_some_and(mixed) {
                    return fail("a put from packets goes to packets, and only these are awaited".to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(())
}
