//! One turn of a move: loads, the wait for packets, the reduction, stores.

use std::fmt::Display;

use super::side::{Side, name};
use super::text::Text;
use super::work::{Turn, Work};
use super::{Base, Move, Reduction, multicast};
use crate::TemplateError;

type Done = Result<(), TemplateError>;

/// Writes a turn that moves vectors.
pub(super) fn vectors(text: &mut Text<'_>, work: &Work<'_>, turn: Turn) -> Done {
    for (nth, side) in work.sources().filter(|(_, side)| side.base != Base::Packets) {
        load(text, work, turn, side, &format!("%m_x{nth}_"))?;
    }
    poll(text, work, turn, "POLL")?;
    results(text, work, turn)
}

/// Writes the reduction of what a turn has loaded, and the stores.
pub(super) fn results(text: &mut Text<'_>, work: &Work<'_>, turn: Turn) -> Done {
    reduce(text, work.moved, turn.units * work.words(), "%m_x")?;
    work.targets().try_for_each(|side| store(text, work, turn, side))
}

/// Writes the loads of a turn's units of a plain operand.
fn load(text: &mut Text<'_>, work: &Work<'_>, turn: Turn, side: &Side, words: &str) -> Done {
    match side.multicast {
        true => multicast::load(text, work, turn, side, words),
        false => access(text, "plan_load", work, turn, side, words),
    }
}

/// Writes the stores of a turn's units to an operand.
fn store(text: &mut Text<'_>, work: &Work<'_>, turn: Turn, side: &Side) -> Done {
    if side.multicast {
        return multicast::store(text, work, turn, side, "%m_x0_");
    }
    let fragment = if side.base == Base::Packets { "plan_send" } else { "plan_store" };
    access(text, fragment, work, turn, side, "%m_x0_")
}

/// Writes a turn of one unit of which a user's buffer has only some elements, or that is not aligned.
pub(super) fn elements(text: &mut Text<'_>, work: &Work<'_>, turn: Turn) -> Done {
    for (nth, side) in work.sources().filter(|(_, side)| side.base != Base::Packets) {
        let words = format!("%m_x{nth}_");
        if side.has_elements() {
            by_elements(text, "plan_load_elements", work, side, &words)?;
        } else {
            load(text, work, turn, side, &words)?;
        }
    }
    poll(text, work, turn, "POLL_ONE")?;
    reduce(text, work.moved, turn.units * work.words(), "%m_x")?;
    for side in work.targets() {
        if side.has_elements() {
            by_elements(text, "plan_store_elements", work, side, "%m_x0_")?;
        } else {
            store(text, work, turn, side)?;
        }
    }
    Ok(())
}

/// The address of a unit, as it stands in a load or store.
fn at(text: &mut Text<'_>, work: &Work<'_>, side: &Side, unit: u32) -> Result<String, TemplateError> {
    let (register, offset) = work.place(text, side, unit)?;
    Ok(if work.single { format!("{register}+{offset}") } else { register })
}

/// Writes loads or stores of a turn's units.
pub(super) fn access(
    text: &mut Text<'_>,
    fragment: &str,
    work: &Work<'_>,
    turn: Turn,
    side: &Side,
    words: &str,
) -> Done {
    for unit in 0..turn.units {
        let address = at(text, work, side, unit)?;
        text.include(
            fragment,
            &[
                ("WORDS", &work.words()),
                ("WORD", &(unit * work.words())),
                ("SURE", &u32::from(turn.sure && unit == 0)),
                ("HAVE", &format!("%m_have{unit}")),
                ("AT", &address),
                ("X", &words),
            ],
        )?;
    }
    Ok(())
}

/// Writes the wait for a turn's packets of all sources together.
pub(super) fn poll(text: &mut Text<'_>, work: &Work<'_>, turn: Turn, again: &str) -> Done {
    let sources: Vec<_> = work.sources().filter(|(_, side)| side.base == Base::Packets).collect();
    if sources.is_empty() {
        return Ok(());
    }
    let go = format!("{again}_ARRIVED");
    text.include("plan_label", &[("NAME", &again)])?;
    for (nth, side) in &sources {
        access(text, "plan_poll", work, turn, side, &format!("%m_q{nth}_"))?;
    }
    text.include("plan_set", &[("TO", &"%m_miss"), ("VALUE", &0)])?;
    for (nth, _) in &sources {
        each_packet(text, "plan_examine", work, turn, *nth, ("X", &format!("%m_x{nth}_")), None)?;
    }
    text.include(
        "plan_arrived",
        &[("MISS", &"%m_miss"), ("SPINS", &"%m_spins"), ("AGAIN", &again), ("GO", &go), ("SEEN", &"%m_seen")],
    )?;
    for (nth, side) in sources.iter().rev() {
        let seen: (&str, &dyn Display) = ("SEEN", &"%m_seen");
        each_packet(text, "plan_missing", work, turn, *nth, ("RANK", &side.rank), Some(seen))?;
    }
    text.include("plan_give_up", &[("PEER", &"%m_miss"), ("SEEN", &"%m_seen"), ("PAST", &"PAST")])?;
    text.include("plan_label", &[("NAME", &go)])
}

/// Writes a fragment for each packet of a turn of source `nth`.
fn each_packet(
    text: &mut Text<'_>,
    fragment: &str,
    work: &Work<'_>,
    turn: Turn,
    nth: usize,
    own: (&str, &dyn Display),
    more: Option<(&str, &dyn Display)>,
) -> Done {
    for unit in 0..turn.units {
        let (word, sure) = (unit * work.words(), u32::from(turn.sure && unit == 0));
        let (have, packets) = (format!("%m_have{unit}"), format!("%m_q{nth}_"));
        let mut params: Vec<(&str, &dyn Display)> = vec![
            ("WORD", &word),
            ("SURE", &sure),
            ("HAVE", &have),
            ("Q", &packets),
            ("MISS", &"%m_miss"),
            own,
        ];
        params.extend(more);
        text.include(fragment, &params)?;
    }
    Ok(())
}

/// Writes the reduction of so many words with these prefixes, into those of the first source.
pub(super) fn reduce(text: &mut Text<'_>, moved: &Move, words: u32, prefix: &str) -> Done {
    let Some(reduction) = moved.reduction else { return Ok(()) };
    if moved.sources.len() == 1 && reduction != Reduction::Avg {
        return Ok(());
    }
    let (element, ranks) = (text.kernel.element, text.kernel.ranks);
    let cell = if element.bytes() == 8 { 2 } else { 1 };
    for word in (0..words).step_by(cell) {
        text.include(
            "plan_reduce",
            &[
                ("TYPE", &element.ptx_name()),
                ("OP", &operation(reduction)),
                ("SOURCES", &moved.sources.len()),
                ("RANKS", &ranks),
                ("WORD", &word),
                ("X", &prefix),
            ],
        )?;
    }
    Ok(())
}

/// Writes the accesses of one unit by elements.
fn by_elements(text: &mut Text<'_>, fragment: &str, work: &Work<'_>, side: &Side, words: &str) -> Done {
    let address = at(text, work, side, 0)?;
    let address = address.trim_end_matches("+0");
    if work.moved.by_rows {
        text.include("plan_rows_exists", &[("OFFSET", &"%m_offset"), ("BYTES", &"%m_bytes")])?;
    } else {
        text.include(
            "plan_exists",
            &[
                ("BASE", &name(side.base)),
                ("FIRST", &side.first),
                ("OFFSET", &"%m_offset"),
                ("INSIDE", &"%m_inside"),
                ("BYTES", &"%m_bytes"),
            ],
        )?;
    }
    element_bytes(text, fragment, work.words(), [address, "%m_bytes", words])
}

/// Writes the accesses of a unit of so many words by elements: its address, the bytes that exist from there on, and the words.
pub(super) fn element_bytes(
    text: &mut Text<'_>,
    fragment: &str,
    words: u32,
    [at, bytes, prefix]: [&str; 3],
) -> Done {
    let size = text.kernel.element.bytes();
    text.include(
        fragment,
        &[("WORDS", &words), ("SIZE", &size), ("AT", &at), ("BYTES", &bytes), ("X", &prefix)],
    )
}

fn operation(reduction: Reduction) -> &'static str {
    match reduction {
        Reduction::Sum => "sum",
        Reduction::Prod => "prod",
        Reduction::Min => "min",
        Reduction::Max => "max",
        Reduction::Avg => "avg",
    }
}
