//! Moves with LL128 packets: lines of 128 bytes that hold 120 bytes of data and 8 of flag.
//!
//! The unit is that of `ll128_put`: a warp handles 960 bytes, which are eight lines, and every lane has two vectors of it. A line
//! is whole or not there, so no block divides a unit, and a unit lies in one chunk: a move of several chunks handles one after the
//! other. Where a plain operand ends within a unit, or is not aligned, lanes load and store elements, as in other moves.

use std::fmt::Display;

use super::side::{Side, name};
use super::text::Text;
use super::turn::{element_bytes, reduce};
use super::{Base, Move, Number, UNIT_DATA, UNIT_LINES, unroll_lines};
use crate::TemplateError;
use crate::abi::SPINS_FREE;

type Done = Result<(), TemplateError>;

/// Sources whose two vectors are in registers at once.
const AT_ONCE: usize = 3;

struct Lines<'m> {
    moved: &'m Move,
    sides: Vec<Side>,
    /// Units of a turn.
    unroll: u32,
    /// The range is one chunk.
    one: bool,
    warps: u32,
}

impl Lines<'_> {
    fn sources(&self) -> impl Iterator<Item = (usize, &Side)> {
        self.sides.iter().enumerate().take(self.moved.sources.len())
    }

    fn targets(&self) -> impl Iterator<Item = &Side> {
        self.sides.iter().skip(self.moved.sources.len())
    }

    fn arriving(&self) -> impl Iterator<Item = (usize, &Side)> {
        self.sources().filter(|(_, side)| side.base == Base::Packets)
    }

    fn plain(&self) -> impl Iterator<Item = &Side> {
        self.sides.iter().filter(|side| side.base != Base::Packets)
    }
}

fn step(side: &Side) -> u32 {
    if side.base == Base::Packets { UNIT_LINES } else { UNIT_DATA }
}

/// Writes a move. `bounds` writes the block's part of the range, in vectors, into the registers that it is given. `asks`: a thread
/// may have given up since the block met last.
pub(super) fn write(
    text: &mut Text<'_>,
    moved: &Move,
    asks: bool,
    bounds: impl FnOnce(&mut Text<'_>, [&str; 2]) -> Done,
) -> Done {
    text.scoped(|text| {
        if asks {
            text.include("plan_lines_unless_left", &[("PAST", &"DONE")])?;
        }
        let operands = moved.sources.iter().chain(&moved.targets).enumerate();
        let sides = operands.map(|(place, operand)| Side::of(text, operand, format!("%m_p{place}")));
        let lines = Lines {
            moved,
            sides: sides.collect::<Result<_, _>>()?,
            unroll: unroll_lines([moved.sources.len(), moved.targets.len()]),
            one: text.resolve(moved.count) == Number::Fixed(1),
            warps: text.kernel.threads / 32,
        };
        let (sources, operands) = (moved.sources.len(), lines.sides.len());
        text.include(
            "plan_move",
            &[("SOURCES", &sources), ("OPERANDS", &operands), ("UNROLL", &lines.unroll), ("WORDS", &4)],
        )?;
        text.include(
            "plan_lines",
            &[("SOURCES", &sources), ("OPERANDS", &operands), ("UNROLL", &lines.unroll)],
        )?;
        bounds(text, ["%m_from", "%m_to"])?;
        if lines.unroll > 1 {
            clear(text, &lines)?;
        }
        text.include("plan_set", &[("TO", &"%m_spins"), ("VALUE", &SPINS_FREE)])?;
        if lines.one {
            chunk(text, &lines, "DONE")?;
        } else {
            let count = text.number(moved.count)?;
            text.include("plan_set", &[("TO", &"%m_chunks"), ("VALUE", &count)])?;
            text.include("plan_set", &[("TO", &"%m_chunk"), ("VALUE", &0)])?;
            text.include("plan_label", &[("NAME", &"CHUNK")])?;
            chunk(text, &lines, "NEXT_CHUNK")?;
            text.include("plan_label", &[("NAME", &"NEXT_CHUNK")])?;
            text.include("plan_lines_next_chunk", &[("AGAIN", &"CHUNK")])?;
        }
        text.include("plan_label", &[("NAME", &"DONE")])
    })
}

/// Writes first values of the registers that predicated loads fill.
fn clear(text: &mut Text<'_>, lines: &Lines<'_>) -> Done {
    let count = lines.unroll * 4;
    for (nth, side) in lines.sources() {
        if side.base == Base::Packets {
            for (prefix, count) in ["q", "r", "h"].map(|prefix| (prefix, 2 * lines.unroll)) {
                let words = format!("%m_{prefix}{nth}_");
                text.include("plan_clear", &[("TYPE", &"b64"), ("COUNT", &count), ("X", &words)])?;
            }
        }
        for vector in ["x", "y"] {
            let words = format!("%m_{vector}{nth}_");
            text.include("plan_clear", &[("TYPE", &"b32"), ("COUNT", &count), ("X", &words)])?;
        }
    }
    Ok(())
}

/// Writes the part of one chunk.
fn chunk(text: &mut Text<'_>, lines: &Lines<'_>, past: &str) -> Done {
    text.include("plan_lines_chunk", &[("ONE", &u32::from(lines.one)), ("PAST", &past)])?;
    let mut here = Vec::with_capacity(lines.sides.len());
    for (place, side) in lines.sides.iter().enumerate() {
        let mut side = side.clone();
        if !lines.one {
            let first = format!("%m_f{place}");
            text.include("plan_add", &[("A", &"%m_chunk"), ("B", &side.first), ("TO", &first)])?;
            side.first = first;
        }
        here.push(side);
    }
    let lines = &Lines { sides: here, moved: lines.moved, ..*lines };
    lines.sides.iter().try_for_each(|side| side.locate(text))?;
    for side in lines.plain() {
        text.include(
            "plan_lines_whole",
            &[("BASE", &name(side.base)), ("FIRST", &side.first), ("AT", &side.register)],
        )?;
    }
    for side in &lines.sides {
        text.include("plan_lines_mine", &[("STEP", &step(side)), ("AT", &side.register)])?;
    }
    left(text, "0", "%m_whole")?;
    turns(text, lines, lines.unroll, "VECTORS", "REST", |text| {
        for (nth, side) in lines.sources().filter(|(_, side)| side.base != Base::Packets) {
            vectors(text, lines, "plan_load", side, [&format!("%m_x{nth}_"), &format!("%m_y{nth}_")])?;
        }
        results(text, lines, lines.unroll, "POLL")?;
        for side in lines.targets() {
            if side.base == Base::Packets {
                send(text, lines, lines.unroll, side)?;
            } else {
                vectors(text, lines, "plan_store", side, ["%m_x0_", "%m_y0_"])?;
            }
        }
        Ok(())
    })?;
    text.include("plan_label", &[("NAME", &"REST")])?;
    if lines.plain().next().is_none() {
        return Ok(());
    }
    text.include("plan_one_rest", &[("PAST", &past)])?;
    for side in &lines.sides {
        text.include(
            "plan_rewind",
            &[("STEP", &step(side)), ("THREAD", &"%m_warp"), ("LEFT", &"%m_left"), ("AT", &side.register)],
        )?;
    }
    left(text, "%m_whole", "%m_units")?;
    turns(text, lines, 1, "ELEMENTS", past, |text| {
        for (nth, side) in lines.sources().filter(|(_, side)| side.base != Base::Packets) {
            elements(text, "plan_load_elements", side, [&format!("%m_x{nth}_"), &format!("%m_y{nth}_")])?;
        }
        results(text, lines, 1, "POLL_ONE")?;
        for side in lines.targets() {
            if side.base == Base::Packets {
                send(text, lines, 1, side)?;
            } else {
                elements(text, "plan_store_elements", side, ["%m_x0_", "%m_y0_"])?;
            }
        }
        Ok(())
    })
}

fn left(text: &mut Text<'_>, from: &str, to: &str) -> Done {
    text.include("plan_one_left", &[("FROM", &from), ("TO", &to), ("THREAD", &"%m_warp")])
}

/// Writes a loop over turns of so many units.
fn turns(
    text: &mut Text<'_>,
    lines: &Lines<'_>,
    units: u32,
    again: &str,
    past: &str,
    body: impl FnOnce(&mut Text<'_>) -> Done,
) -> Done {
    text.include(
        "plan_lines_turn",
        &[("UNROLL", &units), ("WARPS", &lines.warps), ("AGAIN", &again), ("PAST", &past)],
    )?;
    body(text)?;
    let units = units * lines.warps;
    for side in &lines.sides {
        text.include("plan_advance", &[("STEP", &(units * step(side))), ("AT", &side.register)])?;
    }
    text.include("plan_one_next", &[("UNITS", &units), ("AGAIN", &again)])
}

/// Writes loads or stores of a turn's whole units.
fn vectors(text: &mut Text<'_>, lines: &Lines<'_>, fragment: &str, side: &Side, words: [&str; 2]) -> Done {
    text.include("plan_lines_second", &[("AT", &side.register), ("TO", &"%m_at")])?;
    let loads = fragment == "plan_load";
    for (at, exists, words) in [(&side.register[..], "have", words[0]), ("%m_at", "also", words[1])] {
        for unit in 0..lines.unroll {
            text.include(
                fragment,
                &[
                    ("WORDS", &4),
                    ("WORD", &(4 * unit)),
                    ("SURE", &u32::from(unit == 0 && (loads || exists == "have"))),
                    ("HAVE", &format!("%m_{}{unit}", if loads { "have" } else { exists })),
                    ("AT", &format!("{at}+{}", unit * lines.warps * UNIT_DATA)),
                    ("X", &words),
                ],
            )?;
        }
    }
    Ok(())
}

/// Writes loads or stores of one unit's elements.
fn elements(text: &mut Text<'_>, fragment: &str, side: &Side, words: [&str; 2]) -> Done {
    text.include("plan_lines_second", &[("AT", &side.register), ("TO", &"%m_at")])?;
    text.include(
        "plan_lines_exists",
        &[
            ("BASE", &name(side.base)),
            ("FIRST", &side.first),
            ("BYTES", &"%m_bytes"),
            ("SECOND", &"%m_second_bytes"),
        ],
    )?;
    element_bytes(text, fragment, 4, [&side.register, "%m_bytes", words[0]])?;
    element_bytes(text, fragment, 4, ["%m_at", "%m_second_bytes", words[1]])
}

/// Writes the wait for a turn's lines of all sources together, and the reduction.
fn results(text: &mut Text<'_>, lines: &Lines<'_>, units: u32, again: &str) -> Done {
    if lines.arriving().next().is_some() {
        arrive(text, lines, units, again)?;
    }
    // Second vectors are loaded once the first ones are reduced, unless registers suffice for those of all sources.
    let late = lines.arriving().count() > AT_ONCE;
    load(text, lines, units, 0)?;
    if !late {
        load(text, lines, units, 1)?;
    }
    reduce(text, lines.moved, 4 * units, "%m_x")?;
    if late {
        load(text, lines, units, 1)?;
    }
    reduce(text, lines.moved, 4 * units, "%m_y")
}

/// Writes the wait for a turn's lines. Only flags are loaded: a lane would load other parts before the flag lane sees the flag, and
/// have to load them again.
fn arrive(text: &mut Text<'_>, lines: &Lines<'_>, units: u32, again: &str) -> Done {
    let go = format!("{again}_ARRIVED");
    text.include("plan_label", &[("NAME", &again)])?;
    for (nth, side) in lines.arriving() {
        for unit in 0..units {
            let offset = unit * lines.warps * UNIT_LINES;
            let names: [(&str, &dyn Display); 3] =
                [("OFFSET", &offset), ("SURE", &u32::from(unit == 0)), ("AT", &side.register)];
            each(text, "plan_lines_flags", unit, nth, &names)?;
        }
    }
    text.include("plan_lines_none_late", &[("LATE", &"%m_late")])?;
    for (nth, _) in lines.arriving() {
        for unit in 0..units {
            each(text, "plan_lines_examine", unit, nth, &[("LATE", &"%m_late")])?;
        }
    }
    text.include(
        "plan_lines_arrived",
        &[("LATE", &"%m_late"), ("SPINS", &"%m_spins"), ("AGAIN", &again), ("GO", &go)],
    )?;
    for (nth, side) in lines.arriving().collect::<Vec<_>>().into_iter().rev() {
        for unit in 0..units {
            let names: [(&str, &dyn Display); 3] =
                [("RANK", &side.rank), ("MISS", &"%m_miss"), ("SEEN", &"%m_seen")];
            each(text, "plan_lines_missing", unit, nth, &names)?;
        }
    }
    text.include(
        "plan_lines_give_up",
        &[("LATE", &"%m_late"), ("PEER", &"%m_miss"), ("SEEN", &"%m_seen"), ("PAST", &"DONE")],
    )?;
    text.include("plan_label", &[("NAME", &go)])
}

/// Writes a fragment about the flags of a unit of source `nth`.
fn each(text: &mut Text<'_>, fragment: &str, unit: u32, nth: usize, more: &[(&str, &dyn Display)]) -> Done {
    let (word, have, flags) = (2 * unit, format!("%m_have{unit}"), format!("%m_h{nth}_"));
    let mut params: Vec<(&str, &dyn Display)> = vec![("WORD", &word), ("HAVE", &have), ("FLAGS", &flags)];
    params.extend(more);
    text.include(fragment, &params)
}

/// Writes loads of the first (0) or second (1) vectors of a turn's lines.
fn load(text: &mut Text<'_>, lines: &Lines<'_>, units: u32, half: u32) -> Done {
    for (nth, side) in lines.arriving() {
        for unit in 0..units {
            text.include(
                "plan_lines_load",
                &[
                    ("HALF", &half),
                    ("WORD", &(2 * unit)),
                    ("OFFSET", &(unit * lines.warps * UNIT_LINES)),
                    ("SURE", &u32::from(unit == 0)),
                    ("HAVE", &format!("%m_have{unit}")),
                    ("AT", &side.register),
                    ("Q", &format!("%m_{}{nth}_", ["q", "r"][half as usize])),
                    ("X", &format!("%m_{}{nth}_", ["x", "y"][half as usize])),
                ],
            )?;
        }
    }
    Ok(())
}

fn send(text: &mut Text<'_>, lines: &Lines<'_>, units: u32, side: &Side) -> Done {
    for unit in 0..units {
        text.include(
            "plan_lines_send",
            &[
                ("WORD", &(4 * unit)),
                ("OFFSET", &(unit * lines.warps * UNIT_LINES)),
                ("HAVE", &format!("%m_have{unit}")),
                ("AT", &side.register),
                ("X", &"%m_x0_"),
                ("Y", &"%m_y0_"),
            ],
        )?;
    }
    Ok(())
}
