//! Moves: a loop over units that are moved as vectors, and one over those that are moved by elements, because they are not
//! aligned or not whole.
//!
//! In a move within one chunk each operand has an address that advances by the same number of bytes in every turn. Chunks are
//! apart in different memories by different distances: so in a move of several chunks a turn computes the place of each of its
//! units once for each kind of memory.

use super::side::{Side, name};
use super::text::Text;
use super::turn::{access, elements, results, vectors};
use super::work::{Turn, Work};
use super::{Base, Move, Number, PacketForm, lines, multicast, row_steps};
use crate::TemplateError;
use crate::abi::SPINS_FREE;

type Done = Result<(), TemplateError>;

/// Whether a thread may give up in this move.
pub(super) fn may_give_up(moved: &Move) -> bool {
    moved.sources.iter().any(|source| source.base == Base::Packets)
}

/// Whether the move's loads do not depend on the call's number, so that they come before its first use.
pub(super) fn begins_with_loads(text: &Text<'_>, moved: &Move) -> bool {
    !by_lines(text, moved)
        && text.resolve(moved.count) == Number::Fixed(1)
        && moved.sources.iter().all(|source| source.base == Base::Input && !source.multicast)
}

/// Whether the move sends or receives LL128 packets.
fn by_lines(text: &Text<'_>, moved: &Move) -> bool {
    let packets = || moved.sources.iter().chain(&moved.targets).any(|side| side.base == Base::Packets);
    text.kernel.packets == PacketForm::Ll128 && packets()
}

/// Writes a move. `asks`: a thread may have given up since the block met last.
pub(super) fn write(text: &mut Text<'_>, moved: &Move, loops: bool, asks: bool) -> Done {
    if by_lines(text, moved) {
        return lines::write(text, moved, asks, |text, bounds| range(text, moved, loops, bounds));
    }
    text.scoped(|text| {
        if asks {
            text.include("plan_unless_left", &[("PAST", &"PAST")])?;
        }
        let late = text.wants_flag();
        let work = Work { late, ..Work::of(text, moved, loops)? };
        text.include(
            "plan_move",
            &[
                ("SOURCES", &moved.sources.len()),
                ("OPERANDS", &work.sides.len()),
                ("UNROLL", &work.unroll),
                ("WORDS", &work.words()),
            ],
        )?;
        if moved.by_rows {
            let inputs = work.sources().map(|(_, side)| side).filter(|side| side.base == Base::Input);
            // There is one, and all are equally long: `check` and the rows' comparison have seen to it.
            let row = inputs.map(|side| side.first.clone()).next().unwrap_or_default();
            row_steps::range(text, moved, &row)?;
            let (users, scratch): (Vec<_>, Vec<_>) = work.sides.iter().partition(|side| side.is_users());
            users.into_iter().try_for_each(|side| row_steps::locate(text, side))?;
            scratch.into_iter().try_for_each(|side| side.locate(text))?;
            if let [source, target] = &work.sides[..] {
                row_steps::unless_same(text, source, target, "PAST")?;
            }
        } else {
            range(text, moved, loops, ["%m_start", "%m_end"])?;
            work.sides.iter().filter(|side| !work.is_late(side)).try_for_each(|side| side.locate(text))?;
        }
        if may_give_up(moved) {
            text.include("plan_set", &[("TO", &"%m_spins"), ("VALUE", &SPINS_FREE)])?;
        }
        if loops || text.in_turns() {
            clear(text, &work)?;
        }
        let fences = multicast::needs_fences(moved);
        if fences {
            text.include("plan_multimem_fence", &[])?;
        }
        if work.single {
            one(text, &work)?
        } else {
            many(text, &work)?
        }
        text.include("plan_label", &[("NAME", &"PAST")])?;
        if fences {
            text.include("plan_multimem_fence", &[])?;
        }
        Ok(())
    })
}

/// Writes first values of the registers that a turn's loads fill.
fn clear(text: &mut Text<'_>, work: &Work<'_>) -> Done {
    let count = work.unroll * work.words();
    for (nth, side) in work.sources() {
        let (ty, prefix) = if side.base == Base::Packets { ("b64", "q") } else { ("b32", "x") };
        text.include(
            "plan_clear",
            &[("TYPE", &ty), ("COUNT", &count), ("X", &format!("%m_{prefix}{nth}_"))],
        )?;
    }
    Ok(())
}

/// Writes the block's part of the range.
fn range(text: &mut Text<'_>, moved: &Move, loops: bool, [start, end]: [&str; 2]) -> Done {
    let count = text.number(moved.count)?;
    let (shares, member, of) = match moved.share {
        Some(_) if text.any_grid => (2, "%k_block".to_owned(), "%nctaid.x".to_owned()),
        Some(share) => (1, text.number(share.member)?, text.number(share.of)?),
        None => (0, "0".to_owned(), "1".to_owned()),
    };
    text.include(
        "plan_range",
        &[
            ("LOOPS", &u32::from(loops)),
            ("SHARES", &shares),
            ("COUNT", &count),
            ("MEMBER", &member),
            ("OF", &of),
            ("START", &start),
            ("END", &end),
        ],
    )?;
    if text.kernel.packets == PacketForm::Ll128 && (loops || shares > 0) {
        let one = u32::from(text.resolve(moved.count) == Number::Fixed(1));
        for bound in [start, end] {
            text.include("plan_round", &[("ONE", &one), ("AT", &bound)])?;
        }
    }
    Ok(())
}

/// Writes a move within one chunk.
fn one(text: &mut Text<'_>, work: &Work<'_>) -> Done {
    let split = u32::from(work.split);
    text.include("plan_one", &[("UNIT", &work.unit), ("START", &"%m_start"), ("END", &"%m_end")])?;
    for side in work.sides.iter().filter(|side| side.is_users()) {
        if work.moved.by_rows {
            row_steps::limit(text, side)?;
            continue;
        }
        text.include(
            "plan_one_user",
            &[
                ("UNIT", &work.unit),
                ("BASE", &name(side.base)),
                ("SPLIT", &split),
                ("FIRST", &side.first),
                ("START", &"%m_start"),
                ("AT", &side.register),
                ("WHOLE", &"%m_whole"),
            ],
        )?;
    }
    work.sides.iter().filter(|side| !work.is_late(side)).try_for_each(|side| mine(text, work, side))?;
    text.include("plan_one_left", &[("FROM", &0), ("TO", &"%m_whole"), ("THREAD", &"%k_thread")])?;
    let turn = Turn { units: work.unroll, sure: true };
    if work.late {
        first(text, work, turn)?;
    }
    one_begin(text, turn, "VECTORS", "REST")?;
    vectors(text, work, turn)?;
    one_end(text, work, turn, "VECTORS")?;
    text.include("plan_label", &[("NAME", &"REST")])?;
    if !work.has_users() {
        return Ok(());
    }
    text.include("plan_one_rest", &[("PAST", &"PAST")])?;
    for side in &work.sides {
        text.include(
            "plan_rewind",
            &[
                ("STEP", &work.step(side)),
                ("THREAD", &"%k_thread"),
                ("LEFT", &"%m_left"),
                ("AT", &side.register),
            ],
        )?;
    }
    text.include("plan_one_left", &[("FROM", &"%m_whole"), ("TO", &"%m_units"), ("THREAD", &"%k_thread")])?;
    let turn = Turn { units: 1, ..turn };
    one_begin(text, turn, "ELEMENTS", "PAST")?;
    text.include("plan_one_offset", &[("UNIT", &work.unit), ("START", &"%m_start")])?;
    elements(text, work, turn)?;
    one_end(text, work, turn, "ELEMENTS")
}

/// Writes the way from an operand's chunk to the thread's first unit.
fn mine(text: &mut Text<'_>, work: &Work<'_>, side: &Side) -> Done {
    let (step, width) = (work.step(side), if side.base == Base::Packets { 32 } else { 16 });
    text.include(
        "plan_one_mine",
        &[
            ("STEP", &step),
            ("WIDTH", &width),
            ("SPLIT", &u32::from(work.split)),
            ("START", &"%m_start"),
            ("AT", &side.register),
        ],
    )
}

/// Writes the first turn with the loads before the first use of the call's number: both are on their way at once. No branch may
/// stand between, or ptxas moves the use up.
fn first(text: &mut Text<'_>, work: &Work<'_>, turn: Turn) -> Done {
    let threads = text.kernel.threads;
    text.include("plan_one_first", &[("UNROLL", &turn.units), ("THREADS", &threads)])?;
    for (nth, side) in work.sources() {
        access(text, "plan_load", work, Turn { sure: false, ..turn }, side, &format!("%m_x{nth}_"))?;
    }
    text.flag()?;
    for side in work.sides.iter().filter(|side| work.is_late(side)) {
        side.locate(text)?;
        mine(text, work, side)?;
    }
    text.include("plan_one_none", &[("PAST", &"REST")])?;
    results(text, work, turn)?;
    one_end(text, work, turn, "VECTORS")
}

fn one_begin(text: &mut Text<'_>, turn: Turn, again: &str, past: &str) -> Done {
    let threads = text.kernel.threads;
    text.include(
        "plan_one_turn",
        &[("UNROLL", &turn.units), ("THREADS", &threads), ("AGAIN", &again), ("PAST", &past)],
    )
}

fn one_end(text: &mut Text<'_>, work: &Work<'_>, turn: Turn, again: &str) -> Done {
    let units = turn.units * text.kernel.threads;
    for side in &work.sides {
        text.include("plan_advance", &[("STEP", &(units * work.step(side))), ("AT", &side.register)])?;
    }
    text.include("plan_one_next", &[("UNITS", &units), ("AGAIN", &again)])
}

/// Writes a move of several chunks.
fn many(text: &mut Text<'_>, work: &Work<'_>) -> Done {
    text.include("plan_many", &[("UNIT", &work.unit), ("START", &"%m_start"), ("END", &"%m_end")])?;
    for (nth, side) in work.sides.iter().filter(|side| side.is_users()).enumerate() {
        text.include(
            "plan_many_user",
            &[
                ("UNIT", &work.unit),
                ("BASE", &name(side.base)),
                ("LEADER", &u32::from(nth == 0)),
                ("FIRST", &side.first),
                ("AT", &side.register),
            ],
        )?;
    }
    let turn = Turn { units: work.unroll, sure: false };
    many_begin(text, work, turn, false, "VECTORS", "REST")?;
    vectors(text, work, turn)?;
    many_end(text, turn, "VECTORS")?;
    text.include("plan_label", &[("NAME", &"REST")])?;
    if !work.has_users() {
        return Ok(());
    }
    text.include("plan_many_rest", &[("PAST", &"PAST")])?;
    let turn = Turn { units: 1, sure: true };
    many_begin(text, work, turn, true, "ELEMENTS", "PAST")?;
    text.include("plan_many_skip", &[("PAST", &"ELEMENTS_NEXT")])?;
    elements(text, work, turn)?;
    text.include("plan_label", &[("NAME", &"ELEMENTS_NEXT")])?;
    many_end(text, turn, "ELEMENTS")
}

fn many_begin(
    text: &mut Text<'_>,
    work: &Work<'_>,
    turn: Turn,
    rests: bool,
    again: &str,
    past: &str,
) -> Done {
    let threads = text.kernel.threads;
    text.include(
        "plan_many_turn",
        &[
            ("UNROLL", &turn.units),
            ("THREADS", &threads),
            ("UNIT", &work.unit),
            ("USER", &u32::from(work.has_users())),
            ("RESTS", &u32::from(rests)),
            ("START", &"%m_start"),
            ("AGAIN", &again),
            ("PAST", &past),
        ],
    )
}

fn many_end(text: &mut Text<'_>, turn: Turn, again: &str) -> Done {
    let units = turn.units * text.kernel.threads;
    text.include("plan_many_next", &[("UNITS", &units), ("AGAIN", &again)])
}
