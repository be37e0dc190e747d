//! Contradictions in a description.

use super::rows::MAX_ARGS;
use super::{Base, Kernel, Number, Operand, PacketForm, Step, multicast};
use crate::{TemplateError, failure};

impl Kernel {
    /// Steps, those of loops included.
    fn steps(&self) -> impl Iterator<Item = &Step> {
        self.shapes.iter().flat_map(|shape| &shape.steps).flat_map(|step| {
            let body =
                if let Step::Loop { body, .. } | Step::Repeat { body, .. } = step { &body[..] } else { &[] };
            std::iter::once(step).chain(body)
        })
    }

    /// Whether a step accesses a multicast address.
    pub(super) fn has_multicast(&self) -> bool {
        self.has_side(|side| side.multicast)
    }

    /// Whether a step reads or writes packets.
    pub(super) fn has_packets(&self) -> bool {
        self.has_side(|side| side.base == Base::Packets)
            || self.steps().any(|step| match step {
                Step::Port(port) => port.put.is_some_and(|put| put.source.base == Base::Packets),
                _ => false,
            })
    }

    /// Whether a step writes packets at a multicast address.
    pub(super) fn has_packets_by_multicast(&self) -> bool {
        self.has_side(|side| side.multicast && side.base == Base::Packets)
    }

    /// Whether a move has such a source or target.
    fn has_side(&self, is: impl Fn(&Operand) -> bool) -> bool {
        self.steps().any(|step| match step {
            Step::Move(moved) => moved.sources.iter().chain(&moved.targets).any(&is),
            _ => false,
        })
    }
}

/// Every number of a step.
fn numbers(step: &Step) -> Vec<Number> {
    let operand = |side: &Operand| [side.address, side.first, side.rank];
    match step {
        Step::Sync | Step::FindRows | Step::ShowRows | Step::JudgeRows | Step::Mark { .. } => Vec::new(),
        Step::Barrier { state, blocks } => vec![*state, *blocks],
        Step::Signal(list) => list.iter().flat_map(|one| [one.outbound, one.peer, one.inbound]).collect(),
        Step::Wait(list) => list.iter().flat_map(|one| [one.inbound, one.expected, one.rank]).collect(),
        Step::Acquire { at } | Step::Release { at } => vec![*at],
        Step::PortWait { channel } | Step::PutRows { channel } => vec![*channel],
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
        Step::Repeat { turns, stride, body } => {
            let last = |number| match number {
                Number::Row(entry) => {
                    Number::Row(entry.saturating_add(stride.saturating_mul(turns.saturating_sub(1))))
                }
                fixed => fixed,
            };
            body.iter().flat_map(numbers).map(last).collect()
        }
    }
}

fn repeats(step: &Step) -> bool {
    matches!(step, Step::Loop { .. } | Step::Repeat { .. })
}

/// Finds contradictions that would become a wrong kernel.
pub(super) fn check(kernel: &Kernel) -> Result<(), TemplateError> {
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
    if let Some(rows) = kernel.rows {
        if rows.reached == 0 || rows.reached > kernel.ranks || rows.reached < kernel.ranks && !rows.shared {
            return fail(format!(
                "a rank reaches {} of {} ranks: itself at least, and all where blocks have tables of their own",
                rows.reached, kernel.ranks
            ));
        }
        if !kernel.double_scratch {
            return fail("rows need counted calls: use double scratch".to_owned());
        }
        if rows.words.saturating_add(11) > kernel.addresses
            || rows.controls.saturating_add(rows.reached) > kernel.addresses
        {
            return fail(
                "rows need the addresses of all reached control areas, and the 11 words of their numbers"
                    .to_owned(),
            );
        }
    }
    let by_rows = |step: &Step| match step {
        Step::FindRows | Step::ShowRows | Step::JudgeRows | Step::PutRows { .. } => true,
        Step::Port(port) => port.put.is_some_and(|put| put.by_rows),
        _ => false,
    };
    if kernel.rows.is_none() && kernel.steps().any(by_rows) {
        return fail("a step of rows in a kernel that has none".to_owned());
    }
    if let Some(laps) = &kernel.laps {
        let fits = |step: &Step| match step {
            Step::Signal(_) | Step::Wait(_) | Step::PortWait { .. } => true,
            // Data could be packets, whose flag is not known yet.
            Step::Port(port) => port.put.is_none() && port.signal,
            _ => false,
        };
        if !laps.meeting.iter().all(fits) {
            return fail("a lap begins with signals and waits only".to_owned());
        }
        if laps.meeting.iter().flat_map(numbers).any(|number| matches!(number, Number::Row(_))) {
            return fail("the numbers of a lap's signals and waits must be fixed".to_owned());
        }
    }
    if kernel.trace.is_some_and(|trace| trace.address >= kernel.addresses || trace.records >= 1 << 27) {
        return fail("the records of a trace have no address, or are too many".to_owned());
    }
    for step in kernel.steps() {
        match step {
            Step::Mark { .. } if kernel.trace.is_none() => {
                return fail("a time to note, and no records to note it in".to_owned());
            }
            Step::Loop { unit, body, .. } => {
                if *unit == 0 || !unit.is_multiple_of(16) {
                    return fail(format!("a loop over slices of {unit} bytes: a multiple of 16 is needed"));
                }
                if body.iter().any(repeats) {
                    return fail("a loop in a loop".to_owned());
                }
            }
            Step::Repeat { turns, body, .. } => {
                if *turns < 2 {
                    return fail(format!("a repetition of {turns} turns: at least 2 are needed"));
                }
                if body.iter().any(repeats) {
                    return fail("a loop in a loop".to_owned());
                }
            }
            Step::Signal(list) if list.is_empty() => return fail("a list of no signals".to_owned()),
            Step::Wait(list) if list.is_empty() => return fail("a list of no waits".to_owned()),
            Step::Move(moved) => {
                if moved.sources.is_empty() || moved.targets.is_empty() {
                    return fail("a move needs a source and a target".to_owned());
                }
                multicast::check(kernel, moved)?;
                let users = |side: &Operand| matches!(side.base, Base::Input | Base::Output);
                if moved.by_rows
                    && (moved.count != Number::Fixed(1)
                        || moved.sources.iter().any(|source| source.base == Base::Packets)
                        || !moved.targets.iter().all(users)
                        || !moved.sources.iter().any(|source| source.base == Base::Input))
                {
                    return fail(
                        "a move by rows is of one chunk, from an input, and others in scratch, to inputs and outputs"
                            .to_owned(),
                    );
                }
                if moved.by_rows && kernel.rows.is_none() {
                    return fail("a move by rows in a kernel that has none".to_owned());
                }
                if moved.share.is_some_and(|share| matches!(share.of, Number::Fixed(of) if of > 1 << 16)) {
                    return fail("a range shared by more than 65,536 blocks".to_owned());
                }
                if moved.sources.len() > 1 && moved.reduction.is_none() {
                    return fail("a move of several sources needs a reduction".to_owned());
                }
            }
            Step::Port(port) => {
                if port.put.is_none() && !port.signal && !port.flush {
                    return fail("a request to a proxy that asks for nothing".to_owned());
                }
                let packets = |side: &Operand| side.base == Base::Packets;
                let mixed = |put: super::PortPut| {
                    packets(&put.source) != packets(&put.target)
                        || put.awaits.is_some_and(|awaited| !packets(&awaited))
                };
                let has_packets = |put: super::PortPut| packets(&put.source);
                if let Some(put) = port.put.filter(|put| put.by_rows)
                    && (put.count != Number::Fixed(1)
                        || put.source.base != Base::Input
                        || put.awaits.is_some()
                        || !matches!(put.target.base, Base::Output | Base::Scratch))
                {
                    return fail(
                        "a put by rows is of one chunk, from an input to an output or to scratch".to_owned(),
                    );
                }
                if kernel.packets == PacketForm::Ll128 && port.put.is_some_and(has_packets) {
                    return fail("a proxy keeps no lines whole: it puts LL16 packets only".to_owned());
                }
                if port.put.is_some_and(mixed) {
                    return fail("a put from packets goes to packets, and only these are awaited".to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(())
}
