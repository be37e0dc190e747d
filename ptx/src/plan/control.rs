//! Steps of one thread, or of neighbouring threads of the first warp.

use super::text::Text;
use super::{Number, Port, Rows, Signal, Step, Wait, port};
use crate::TemplateError;

/// Steps of a list that lanes of the first warp take at once.
const LANES: usize = 32;

/// A step that lanes take at once.
enum Act<'s> {
    Signal(&'s [Signal]),
    Wait(&'s [Wait]),
    Semaphore { at: Number, acquires: bool },
    Port(&'s Port),
    PortWait { channel: Number },
    PutRows { channel: Number, rows: Rows },
}

impl Act<'_> {
    fn lanes(&self) -> usize {
        match self {
            Self::Signal(list) => list.len(),
            Self::Wait(list) => list.len(),
            Self::Semaphore { .. } | Self::PortWait { .. } => 1,
            Self::Port(port) if awaits(port) => LANES,
            Self::Port(_) | Self::PutRows { .. } => 1,
        }
    }

    fn may_give_up(&self) -> bool {
        match self {
            Self::Signal(_) => false,
            Self::Wait(_) => true,
            Self::Semaphore { acquires, .. } => *acquires,
            Self::Port(_) | Self::PortWait { .. } | Self::PutRows { .. } => true,
        }
    }
}

/// Events since the block met last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Since {
    /// A thread may have given up.
    pub(super) gave_up: bool,
    /// Several lanes took a step.
    pub(super) lanes: bool,
}

/// Whether the step is one thread's, or one thread's of a warp.
pub(super) fn is_control(step: &Step) -> bool {
    use Step::{Acquire, Port, PortWait, PutRows, Release, Signal, Wait};
    matches!(
        step,
        Signal(_) | Wait(_) | Acquire { .. } | Release { .. } | Port(_) | PortWait { .. } | PutRows { .. }
    )
}

/// Whether the first warp waits for packets.
fn awaits(port: &Port) -> bool {
    port.put.is_some_and(|put| put.awaits.is_some())
}

/// The state behind a step of this kind.
pub(super) fn after(step: &Step, since: Since) -> Since {
    let gives_up = matches!(
        step,
        Step::Wait(_) | Step::Acquire { .. } | Step::Port(_) | Step::PortWait { .. } | Step::PutRows { .. }
    );
    let lanes = match step {
        Step::Signal(list) => list.len() > 1,
        Step::Wait(list) => list.len() > 1,
        Step::Port(port) => awaits(port),
        _ => false,
    };
    Since { gave_up: since.gave_up | gives_up, lanes: since.lanes | lanes }
}

/// Writes neighbouring steps of this kind.
pub(super) fn write(
    text: &mut Text<'_>,
    steps: &[Step],
    loops: bool,
    since: &mut Since,
) -> Result<(), TemplateError> {
    let acts: Vec<Act<'_>> = steps.iter().flat_map(|step| acts(text, step)).collect();
    let many = acts.iter().any(|act| act.lanes() > 1);
    text.scoped(|text| {
        // Lanes of an earlier step come before the first thread's next one.
        let meets = since.lanes || many;
        let past = "PAST";
        text.include("plan_control", &[("LANES", &if meets { LANES } else { 1 }), ("PAST", &past)])?;
        // Lanes wait for packets together or not at all.
        let together = acts.iter().any(|act| matches!(act, Act::Port(port) if awaits(port)));
        if since.lanes || together && since.gave_up {
            text.include("plan_together", &[("ASKS", &u32::from(since.gave_up))])?;
        }
        for (nth, act) in acts.iter().enumerate() {
            let skip = text.label("SKIP");
            if since.gave_up {
                text.include("plan_unless_left", &[("PAST", &skip)])?;
            }
            if meets {
                text.include("plan_lane", &[("LANES", &act.lanes()), ("PAST", &skip)])?;
            }
            write_act(text, act, loops)?;
            text.include("plan_label", &[("NAME", &skip)])?;
            since.gave_up |= act.may_give_up();
            if meets && nth + 1 < acts.len() {
                text.include("plan_together", &[("ASKS", &u32::from(since.gave_up))])?;
            }
        }
        since.lanes |= many;
        text.include("plan_label", &[("NAME", &past)])
    })
}

fn write_act(text: &mut Text<'_>, act: &Act<'_>, loops: bool) -> Result<(), TemplateError> {
    match act {
        Act::Signal(list) => {
            let outbound = lanes(text, list.iter().map(|signal| signal.outbound))?;
            let inbound = lanes(text, list.iter().map(|signal| signal.inbound))?;
            let peer = lanes(text, list.iter().map(|signal| signal.peer))?;
            text.address(&peer, "%n_address")?;
            text.include(
                "plan_signal",
                &[
                    ("RELAXED", &u32::from(list[0].relaxed)),
                    ("OUTBOUND", &outbound),
                    ("PEER", &"%n_address"),
                    ("INBOUND", &inbound),
                ],
            )
        }
        Act::Wait(list) => {
            let inbound = lanes(text, list.iter().map(|wait| wait.inbound))?;
            let expected = lanes(text, list.iter().map(|wait| wait.expected))?;
            let rank = lanes(text, list.iter().map(|wait| wait.rank))?;
            text.include("plan_wait", &[("INBOUND", &inbound), ("EXPECTED", &expected), ("PEER", &rank)])
        }
        Act::Semaphore { at, acquires } => {
            let at = text.number(*at)?;
            text.include("plan_semaphore", &[("ACQUIRES", &u32::from(*acquires)), ("AT", &at)])
        }
        Act::Port(port) => port::write(text, port, loops),
        Act::PortWait { channel } => port::wait(text, *channel),
        Act::PutRows { channel, rows } => port::put_rows(text, *channel, *rows),
    }
}

/// A number of each lane: digits if all have the same, else a register.
fn lanes(text: &mut Text<'_>, numbers: impl Iterator<Item = Number>) -> Result<String, TemplateError> {
    let numbers: Vec<_> = numbers.map(|number| text.resolve(number)).collect();
    if numbers.iter().all(|number| *number == numbers[0]) {
        return text.number(numbers[0]);
    }
    if let Some(fixed) =
        all(&numbers, |number| if let Number::Fixed(value) = number { Some(value) } else { None })
        && let Some(step) = stride(&fixed)
    {
        let to = text.register();
        text.include("plan_lane_number", &[("BASE", &fixed[0]), ("STEP", &step), ("TO", &to)])?;
        return Ok(to);
    }
    if let Some(rows) =
        all(&numbers, |number| if let Number::Row(index) = number { Some(index) } else { None })
        && let Some(step) = stride(&rows)
    {
        let (to, space, step) = (text.register(), text.space(), step.cast_signed());
        text.include(
            "plan_lane_row",
            &[("SPACE", &space), ("INDEX", &rows[0]), ("STEP", &step), ("TO", &to)],
        )?;
        return Ok(to);
    }
    let to = text.register();
    for (lane, number) in numbers.into_iter().enumerate() {
        let value = text.number(number)?;
        if lane == 0 {
            text.include("plan_set", &[("TO", &to), ("VALUE", &value)])?;
        } else {
            text.include("plan_lane_choose", &[("LANE", &lane), ("VALUE", &value), ("TO", &to)])?;
        }
    }
    Ok(to)
}

fn all(numbers: &[Number], value: impl Fn(Number) -> Option<u32>) -> Option<Vec<u32>> {
    numbers.iter().map(|&number| value(number)).collect()
}

/// The distance of neighbours modulo 2^32, if it is always the same.
fn stride(values: &[u32]) -> Option<u32> {
    let step = values[1].wrapping_sub(values[0]);
    values.windows(2).all(|pair| pair[1].wrapping_sub(pair[0]) == step).then_some(step)
}

/// Parts of a step that lanes take at once.
fn acts<'s>(text: &Text<'_>, step: &'s Step) -> Vec<Act<'s>> {
    match step {
        Step::Signal(list) => {
            let parts = split(list, |a, b| a.relaxed == b.relaxed && differ(text, a.outbound, b.outbound));
            parts.into_iter().map(Act::Signal).collect()
        }
        Step::Wait(list) => {
            let parts = split(list, |a, b| differ(text, a.inbound, b.inbound));
            parts.into_iter().map(Act::Wait).collect()
        }
        Step::Acquire { at } => vec![Act::Semaphore { at: *at, acquires: true }],
        Step::Release { at } => vec![Act::Semaphore { at: *at, acquires: false }],
        Step::Port(port) => vec![Act::Port(port)],
        Step::PortWait { channel } => vec![Act::PortWait { channel: *channel }],
        // A kernel without rows has no such step.
        Step::PutRows { channel } => {
            text.kernel.rows.iter().map(|&rows| Act::PutRows { channel: *channel, rows }).collect()
        }
        _ => Vec::new(),
    }
}

/// Runs of a list in which any two agree, no longer than a warp.
fn split<T>(list: &[T], agree: impl Fn(&T, &T) -> bool) -> Vec<&[T]> {
    let mut parts = Vec::new();
    let mut rest = list;
    while !rest.is_empty() {
        let fits = |&end: &usize| rest[..end].iter().all(|other| agree(other, &rest[end]));
        let end = (1..rest.len().min(LANES)).take_while(fits).last().map_or(1, |last| last + 1);
        let (part, more) = rest.split_at(end);
        parts.push(part);
        rest = more;
    }
    parts
}

/// Whether two numbers differ in every block of the shape.
fn differ(text: &Text<'_>, a: Number, b: Number) -> bool {
    let value = |number, row: &[u32]| match number {
        Number::Fixed(value) => value,
        Number::Row(index) => row[index as usize],
    };
    text.rows().all(|row| value(a, row) != value(b, row))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that has given up takes no later step, whoever of it and the step behind writes that.
    #[test]
    fn whatever_waits_may_give_up() {
        let number = Number::Fixed(0);
        let rows = Rows {
            me: 0,
            reached: 1,
            tables: 0,
            shared: true,
            controls: 0,
            words: 1,
            exact: false,
            bounded: false,
        };
        let cases = [
            (Step::Wait(Vec::new()), Act::Wait(&[]), true),
            (Step::Acquire { at: number }, Act::Semaphore { at: number, acquires: true }, true),
            (Step::PortWait { channel: number }, Act::PortWait { channel: number }, true),
            (Step::PutRows { channel: number }, Act::PutRows { channel: number, rows }, true),
            (Step::Signal(Vec::new()), Act::Signal(&[]), false),
            (Step::Release { at: number }, Act::Semaphore { at: number, acquires: false }, false),
        ];
        for (step, act, gives_up) in cases {
            assert!(is_control(&step), "{step:?}");
            assert_eq!(act.may_give_up(), gives_up, "{step:?}");
            assert_eq!(after(&step, Since::default()).gave_up, gives_up, "{step:?}");
            assert!(after(&step, Since { gave_up: true, lanes: false }).gave_up, "{step:?}");
        }
    }
}
