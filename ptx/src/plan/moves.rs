//! Moves: a loop over vectors, and one over elements where vectors do not fit.

use super::text::Text;
use super::{Base, Element, Kernel, Move, Number, Operand, Reduction};
use crate::TemplateError;

/// An operand with its numbers as text.
struct Side {
    base: Base,
    fixed: bool,
    index: String,
    first: String,
    rank: String,
    register: String,
}

/// Constants of a move.
struct Shape<'m> {
    moved: &'m Move,
    sides: Vec<Side>,
    /// Bytes of a unit: what a thread handles at once.
    unit: u32,
    unroll: u32,
    single: u32,
    count: String,
}

impl Side {
    fn of(text: &mut Text<'_>, operand: &Operand, place: usize) -> Result<Self, TemplateError> {
        Ok(Self {
            base: operand.base,
            fixed: matches!(text.resolve(operand.address), Number::Fixed(_)),
            index: text.number(operand.address)?,
            first: text.number(operand.first)?,
            rank: if operand.base == Base::Packets { text.number(operand.rank)? } else { "0".to_owned() },
            register: format!("%m_p{place}"),
        })
    }

    fn is_users(&self) -> bool {
        matches!(self.base, Base::Input | Base::Output)
    }
}

impl Shape<'_> {
    fn sources(&self) -> impl Iterator<Item = (usize, &Side)> {
        self.sides.iter().enumerate().take(self.moved.sources.len())
    }

    fn targets(&self) -> impl Iterator<Item = &Side> {
        self.sides.iter().skip(self.moved.sources.len())
    }

    fn words(&self) -> u32 {
        self.unit / 4
    }

    /// Bytes from unit to unit of an operand.
    fn step(&self, side: &Side) -> u32 {
        if side.base == Base::Packets { 2 * self.unit } else { self.unit }
    }
}

/// Whether a thread may give up in this move.
pub(super) fn may_give_up(moved: &Move) -> bool {
    moved.sources.iter().any(|source| source.base == Base::Packets)
}

/// Units that a thread handles together: enough to have eight loads in flight where operands are few.
fn unroll(moved: &Move, packets: bool) -> u32 {
    match (packets, moved.sources.len(), moved.targets.len()) {
        (true, 1, 1) => 4,
        (true, ..=2, ..=2) => 2,
        (true, ..) => 1,
        (false, 1, _) => 8,
        (false, 2, _) => 4,
        (false, 3 | 4, _) => 2,
        (false, ..) => 1,
    }
}

/// Writes a move. `asks`: a thread may have given up since the block met last.
pub(super) fn write(text: &mut Text<'_>, moved: &Move, loops: bool, asks: bool) -> Result<(), TemplateError> {
    text.scoped(|text| {
        let kernel = text.kernel;
        if asks {
            text.include("plan_unless_left", &[("PAST", &"PAST")])?;
        }
        let packets = moved.sources.iter().chain(&moved.targets).any(|side| side.base == Base::Packets);
        let operands = moved.sources.iter().chain(&moved.targets).enumerate();
        let sides =
            operands.map(|(place, operand)| Side::of(text, operand, place)).collect::<Result<_, _>>()?;
        let shape = Shape {
            moved,
            sides,
            unit: if packets { 8 } else { 16 },
            unroll: unroll(moved, packets),
            single: u32::from(text.resolve(moved.count) == Number::Fixed(1)),
            count: text.number(moved.count)?,
        };
        text.include(
            "plan_move",
            &[
                ("SOURCES", &moved.sources.len()),
                ("OPERANDS", &shape.sides.len()),
                ("UNROLL", &shape.unroll),
                ("WORDS", &shape.words()),
            ],
        )?;
        pieces(text, &shape, loops)?;
        turns(text, &shape)?;
        // Scratch is whole and aligned.
        text.include("plan_label", &[("NAME", &"REST")])?;
        if shape.sides.iter().any(Side::is_users) {
            rest(text, &shape, kernel)?;
        }
        text.include(
            "plan_chunks_end",
            &[("SINGLE", &shape.single), ("CHUNK", &"%m_chunk"), ("PIECE", &"PIECE"), ("PAST", &"PAST")],
        )
    })
}

/// Writes the block's part of the range, its first piece, and the operands' addresses there.
fn pieces(text: &mut Text<'_>, shape: &Shape<'_>, loops: bool) -> Result<(), TemplateError> {
    let kernel = text.kernel;
    let (member, of) = match shape.moved.share {
        Some(share) => (text.number(share.member)?, text.number(share.of)?),
        None => ("0".to_owned(), "1".to_owned()),
    };
    let split = loops || shape.moved.share.is_some() || shape.single == 0;
    text.include(
        "plan_range",
        &[
            ("LOOPS", &u32::from(loops)),
            ("SHARES", &u32::from(shape.moved.share.is_some())),
            ("COUNT", &shape.count),
            ("MEMBER", &member),
            ("OF", &of),
            ("START", &"%m_start"),
            ("END", &"%m_end"),
        ],
    )?;
    text.include(
        "plan_chunks",
        &[
            ("SINGLE", &shape.single),
            ("COUNT", &shape.count),
            ("START", &"%m_start"),
            ("END", &"%m_end"),
            ("CHUNK", &"%m_chunk"),
            ("LOW", &"%m_low"),
            ("LENGTH", &"%m_length"),
            ("NONE", &"%m_none"),
            ("PIECE", &"PIECE"),
            ("READY", &"READY"),
            ("PAST", &"PAST"),
        ],
    )?;
    text.include(
        "plan_units",
        &[("UNIT", &shape.unit), ("LENGTH", &"%m_length"), ("UNITS", &"%m_units"), ("WHOLE", &"%m_whole")],
    )?;
    for side in &shape.sides {
        text.include(
            "plan_operand",
            &[
                ("BASE", &base(side.base)),
                ("SINGLE", &shape.single),
                ("DOUBLE", &u32::from(kernel.double_scratch)),
                ("SPLIT", &u32::from(split)),
                ("FIXED", &u32::from(side.fixed)),
                ("INDEX", &side.index),
                ("FIRST", &side.first),
                ("CHUNK", &"%m_chunk"),
                ("LOW", &"%m_low"),
                ("TO", &side.register),
            ],
        )?;
    }
    for side in shape.sides.iter().filter(|side| side.is_users()) {
        text.include(
            "plan_whole",
            &[
                ("UNIT", &shape.unit),
                ("BASE", &base(side.base)),
                ("SINGLE", &shape.single),
                ("FIXED", &u32::from(side.fixed)),
                ("INDEX", &side.index),
                ("FIRST", &side.first),
                ("CHUNK", &"%m_chunk"),
                ("AT", &side.register),
                ("WHOLE", &"%m_whole"),
            ],
        )?;
    }
    for side in &shape.sides {
        text.include("plan_mine", &[("STEP", &shape.step(side)), ("AT", &side.register)])?;
    }
    text.include("plan_rest_left", &[("WHOLE", &0), ("UNITS", &"%m_whole"), ("LEFT", &"%m_left")])?;
    if may_give_up(shape.moved) {
        text.include("plan_set", &[("TO", &"%m_spins"), ("VALUE", &crate::abi::SPINS_FREE)])?;
    }
    Ok(())
}

/// Writes the loop over vectors.
fn turns(text: &mut Text<'_>, shape: &Shape<'_>) -> Result<(), TemplateError> {
    text.include("plan_label", &[("NAME", &"VECTORS")])?;
    begin_turn(text, shape.unroll, "REST")?;
    for (nth, side) in shape.sources().filter(|(_, side)| side.base != Base::Packets) {
        access(text, "plan_load", shape, shape.unroll, side, nth)?;
    }
    poll(text, shape, shape.unroll, "POLL")?;
    reduce(text, shape, shape.unroll)?;
    for side in shape.targets() {
        if side.base == Base::Packets {
            send(text, shape.unroll, side)?;
        } else {
            access(text, "plan_store", shape, shape.unroll, side, 0)?;
        }
    }
    end_turn(text, shape, shape.unroll, "VECTORS")
}

/// Writes the loop over units of which a user's buffer has only some elements, or that are not aligned.
fn rest(text: &mut Text<'_>, shape: &Shape<'_>, kernel: &Kernel) -> Result<(), TemplateError> {
    text.include("plan_rest", &[("WHOLE", &"%m_whole"), ("UNITS", &"%m_units"), ("PAST", &"DONE")])?;
    for side in &shape.sides {
        text.include(
            "plan_rewind",
            &[("STEP", &shape.step(side)), ("LEFT", &"%m_left"), ("AT", &side.register)],
        )?;
    }
    text.include("plan_rest_left", &[("WHOLE", &"%m_whole"), ("UNITS", &"%m_units"), ("LEFT", &"%m_left")])?;
    text.include("plan_label", &[("NAME", &"ELEMENTS")])?;
    begin_turn(text, 1, "DONE")?;
    for (nth, side) in shape.sources().filter(|(_, side)| side.base != Base::Packets) {
        if side.is_users() {
            elements(text, "plan_load_elements", shape, side, nth, kernel)?;
        } else {
            access(text, "plan_load", shape, 1, side, nth)?;
        }
    }
    poll(text, shape, 1, "POLL_ONE")?;
    reduce(text, shape, 1)?;
    for side in shape.targets() {
        match side.base {
            Base::Packets => send(text, 1, side)?,
            Base::Scratch => access(text, "plan_store", shape, 1, side, 0)?,
            Base::Input | Base::Output => {
                elements(text, "plan_store_elements", shape, side, 0, kernel)?;
            }
        }
    }
    end_turn(text, shape, 1, "ELEMENTS")?;
    text.include("plan_label", &[("NAME", &"DONE")])
}

fn begin_turn(text: &mut Text<'_>, unroll: u32, past: &str) -> Result<(), TemplateError> {
    let threads = text.kernel.threads;
    text.include(
        "plan_turn",
        &[
            ("UNROLL", &unroll),
            ("THREADS", &threads),
            ("LEFT", &"%m_left"),
            ("HAVE", &"%m_have"),
            ("PAST", &past),
        ],
    )
}

fn end_turn(text: &mut Text<'_>, shape: &Shape<'_>, unroll: u32, again: &str) -> Result<(), TemplateError> {
    let units = unroll * text.kernel.threads;
    for side in &shape.sides {
        text.include("plan_advance", &[("STEP", &(units * shape.step(side))), ("AT", &side.register)])?;
    }
    text.include("plan_next_turn", &[("UNITS", &units), ("LEFT", &"%m_left"), ("AGAIN", &again)])
}

/// Writes the loads of source `nth`, or stores of the result to a target.
fn access(
    text: &mut Text<'_>,
    fragment: &str,
    shape: &Shape<'_>,
    unroll: u32,
    side: &Side,
    nth: usize,
) -> Result<(), TemplateError> {
    let threads = text.kernel.threads;
    text.include(
        fragment,
        &[
            ("WORDS", &shape.words()),
            ("UNROLL", &unroll),
            ("THREADS", &threads),
            ("AT", &side.register),
            ("HAVE", &"%m_have"),
            ("X", &format!("%m_x{nth}_")),
        ],
    )
}

fn send(text: &mut Text<'_>, unroll: u32, side: &Side) -> Result<(), TemplateError> {
    let threads = text.kernel.threads;
    text.include(
        "plan_send",
        &[
            ("UNROLL", &unroll),
            ("THREADS", &threads),
            ("AT", &side.register),
            ("HAVE", &"%m_have"),
            ("X", &"%m_x0_"),
        ],
    )
}

/// Writes the wait for the packets of all sources together.
fn poll(text: &mut Text<'_>, shape: &Shape<'_>, unroll: u32, again: &str) -> Result<(), TemplateError> {
    let sources: Vec<_> = shape.sources().filter(|(_, side)| side.base == Base::Packets).collect();
    if sources.is_empty() {
        return Ok(());
    }
    let (threads, go) = (text.kernel.threads, format!("{again}_ARRIVED"));
    text.include("plan_label", &[("NAME", &again)])?;
    for (nth, side) in &sources {
        text.include(
            "plan_poll",
            &[
                ("UNROLL", &unroll),
                ("THREADS", &threads),
                ("AT", &side.register),
                ("HAVE", &"%m_have"),
                ("Q", &format!("%m_q{nth}_")),
            ],
        )?;
    }
    text.include("plan_set", &[("TO", &"%m_miss"), ("VALUE", &0)])?;
    for (nth, _) in &sources {
        text.include(
            "plan_examine",
            &[
                ("UNROLL", &unroll),
                ("HAVE", &"%m_have"),
                ("Q", &format!("%m_q{nth}_")),
                ("X", &format!("%m_x{nth}_")),
                ("MISS", &"%m_miss"),
            ],
        )?;
    }
    text.include(
        "plan_arrived",
        &[("MISS", &"%m_miss"), ("SPINS", &"%m_spins"), ("AGAIN", &again), ("GO", &go), ("SEEN", &"%m_seen")],
    )?;
    for (nth, side) in sources.iter().rev() {
        text.include(
            "plan_missing",
            &[
                ("UNROLL", &unroll),
                ("HAVE", &"%m_have"),
                ("RANK", &side.rank),
                ("Q", &format!("%m_q{nth}_")),
                ("MISS", &"%m_miss"),
                ("SEEN", &"%m_seen"),
            ],
        )?;
    }
    text.include("plan_give_up", &[("PEER", &"%m_miss"), ("SEEN", &"%m_seen"), ("PAST", &"PAST")])?;
    text.include("plan_label", &[("NAME", &go)])
}

/// Writes the reduction of a turn's words, into those of the first source.
fn reduce(text: &mut Text<'_>, shape: &Shape<'_>, unroll: u32) -> Result<(), TemplateError> {
    let Some(reduction) = shape.moved.reduction else { return Ok(()) };
    if shape.moved.sources.len() == 1 && reduction != Reduction::Avg {
        return Ok(());
    }
    let (element, ranks) = (text.kernel.element, text.kernel.ranks);
    let cell = if element.bytes() == 8 { 2 } else { 1 };
    for word in (0..unroll * shape.words()).step_by(cell) {
        text.include(
            "plan_reduce",
            &[
                ("TYPE", &type_name(element)),
                ("OP", &operation(reduction)),
                ("SOURCES", &shape.moved.sources.len()),
                ("RANKS", &ranks),
                ("WORD", &word),
                ("X", &"%m_x"),
            ],
        )?;
    }
    Ok(())
}

/// Writes the accesses of one unit by elements.
fn elements(
    text: &mut Text<'_>,
    fragment: &str,
    shape: &Shape<'_>,
    side: &Side,
    nth: usize,
    kernel: &Kernel,
) -> Result<(), TemplateError> {
    text.line("{");
    text.include("plan_bytes", &[])?;
    text.include(
        "plan_exists",
        &[
            ("BASE", &base(side.base)),
            ("SINGLE", &shape.single),
            ("FIXED", &u32::from(side.fixed)),
            ("INDEX", &side.index),
            ("FIRST", &side.first),
            ("CHUNK", &"%m_chunk"),
            ("AT", &side.register),
            ("BYTES", &"%m_bytes"),
        ],
    )?;
    text.include(
        fragment,
        &[
            ("WORDS", &shape.words()),
            ("SIZE", &kernel.element.bytes()),
            ("AT", &side.register),
            ("BYTES", &"%m_bytes"),
            ("X", &format!("%m_x{nth}_")),
        ],
    )?;
    text.line("}");
    Ok(())
}

fn base(base: Base) -> &'static str {
    match base {
        Base::Input => "input",
        Base::Output => "output",
        Base::Scratch => "scratch",
        Base::Packets => "packets",
    }
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

fn type_name(element: Element) -> &'static str {
    match element {
        Element::F32 => "f32",
        Element::F64 => "f64",
        Element::F16 => "f16",
        Element::Bf16 => "bf16",
        Element::F8E4m3 => "e4m3",
        Element::F8E5m2 => "e5m2",
        Element::I8 => "s8",
        Element::U8 => "u8",
        Element::I32 => "s32",
        Element::U32 => "u32",
        Element::I64 => "s64",
        Element::U64 => "u64",
    }
}
