//! Moves: a loop over units that are moved as vectors, and one over those that are moved by elements, because they are not
//! aligned or not whole.
//!
//! In a move within one chunk each operand has an address that advances by the same number of bytes in every turn. Chunks are
//! apart in different memories by different distances: so in a move of several chunks a turn computes the place of each of its
//! units once for each kind of memory.

use std::fmt::Display;

use super::text::Text;
use super::{Base, Element, Move, Number, Operand, Reduction};
use crate::TemplateError;
use crate::abi::SPINS_FREE;

type Done = Result<(), TemplateError>;

/// An operand with its numbers as text.
pub(super) struct Side {
    pub(super) base: Base,
    fixed: bool,
    index: String,
    pub(super) first: String,
    pub(super) rank: String,
    pub(super) register: String,
}

/// A move with its constants.
struct Plan<'m> {
    moved: &'m Move,
    sides: Vec<Side>,
    /// Bytes of a unit.
    unit: u32,
    /// Units of a turn.
    unroll: u32,
    /// Within one chunk.
    single: bool,
    /// The block's part may begin inside its range.
    split: bool,
    /// The call's number is asked for behind the first loads.
    late: bool,
}

/// Units of a turn, as loads and stores see them.
#[derive(Clone, Copy)]
struct Turn {
    units: u32,
    /// The first unit exists.
    sure: bool,
}

impl Side {
    pub(super) fn of(
        text: &mut Text<'_>,
        operand: &Operand,
        register: String,
    ) -> Result<Self, TemplateError> {
        let rank = if operand.base == Base::Packets { text.number(operand.rank)? } else { "0".to_owned() };
        Ok(Self {
            base: operand.base,
            fixed: matches!(text.resolve(operand.address), Number::Fixed(_)),
            index: text.number(operand.address)?,
            first: text.number(operand.first)?,
            rank,
            register,
        })
    }

    pub(super) fn is_users(&self) -> bool {
        matches!(self.base, Base::Input | Base::Output)
    }

    /// Writes the address of the operand's first chunk into its register.
    pub(super) fn locate(&self, text: &mut Text<'_>) -> Done {
        let double = u32::from(text.kernel.double_scratch);
        text.include(
            "plan_operand",
            &[
                ("BASE", &name(self.base)),
                ("DOUBLE", &double),
                ("FIXED", &u32::from(self.fixed)),
                ("INDEX", &self.index),
                ("FIRST", &self.first),
                ("TO", &self.register),
            ],
        )
    }
}

impl<'m> Plan<'m> {
    fn of(text: &mut Text<'_>, moved: &'m Move, loops: bool) -> Result<Self, TemplateError> {
        let operands = || moved.sources.iter().chain(&moved.targets);
        let packets = operands().any(|side| side.base == Base::Packets);
        let single = text.resolve(moved.count) == Number::Fixed(1);
        let sides =
            operands().enumerate().map(|(place, operand)| Side::of(text, operand, format!("%m_p{place}")));
        Ok(Self {
            moved,
            sides: sides.collect::<Result<_, _>>()?,
            unit: if packets { 8 } else { 16 },
            unroll: unroll(moved, packets, single, text.kernel.threads),
            single,
            split: loops || moved.share.is_some(),
            late: false,
        })
    }

    fn sources(&self) -> impl Iterator<Item = (usize, &Side)> {
        self.sides.iter().enumerate().take(self.moved.sources.len())
    }

    fn targets(&self) -> impl Iterator<Item = &Side> {
        self.sides.iter().skip(self.moved.sources.len())
    }

    /// Whether the operand's address depends on the call's number.
    fn is_late(&self, side: &Side) -> bool {
        self.late && !side.is_users()
    }

    fn has_users(&self) -> bool {
        self.sides.iter().any(Side::is_users)
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

/// Whether the move's loads do not depend on the call's number, so that they come before its first use.
pub(super) fn begins_with_loads(text: &Text<'_>, moved: &Move) -> bool {
    text.resolve(moved.count) == Number::Fixed(1)
        && moved.sources.iter().all(|source| source.base == Base::Input)
}

/// Units that a thread handles together: enough to have eight loads in flight where operands are few, as far as registers
/// suffice for blocks of 1,024 threads.
fn unroll(moved: &Move, packets: bool, single: bool, threads: u32) -> u32 {
    // A block of more threads has fewer registers for each.
    let large = threads > 512;
    match (packets, moved.sources.len(), moved.targets.len()) {
        (true, 1, 1) => 4,
        (true, ..=2, ..=2) => 2,
        (true, ..) => 1,
        (false, 1, _) if single && !large => 8,
        (false, 1, _) => 4,
        (false, 2, _) if single && !large => 4,
        (false, 2, _) => 2,
        (false, 3 | 4, _) if single && !large => 2,
        (false, ..) => 1,
    }
}

/// Writes a move. `asks`: a thread may have given up since the block met last.
pub(super) fn write(text: &mut Text<'_>, moved: &Move, loops: bool, asks: bool) -> Done {
    text.scoped(|text| {
        if asks {
            text.include("plan_unless_left", &[("PAST", &"PAST")])?;
        }
        let late = text.wants_flag();
        let plan = Plan { late, ..Plan::of(text, moved, loops)? };
        text.include(
            "plan_move",
            &[
                ("SOURCES", &moved.sources.len()),
                ("OPERANDS", &plan.sides.len()),
                ("UNROLL", &plan.unroll),
                ("WORDS", &plan.words()),
            ],
        )?;
        range(text, moved, loops)?;
        plan.sides.iter().filter(|side| !plan.is_late(side)).try_for_each(|side| side.locate(text))?;
        if may_give_up(moved) {
            text.include("plan_set", &[("TO", &"%m_spins"), ("VALUE", &SPINS_FREE)])?;
        }
        if loops {
            clear(text, &plan)?;
        }
        if plan.single {
            one(text, &plan)?
        } else {
            many(text, &plan)?
        }
        text.include("plan_label", &[("NAME", &"PAST")])
    })
}

/// Writes first values of the registers that a turn's loads fill.
fn clear(text: &mut Text<'_>, plan: &Plan<'_>) -> Done {
    let count = plan.unroll * plan.words();
    for (nth, side) in plan.sources() {
        let (ty, prefix) = if side.base == Base::Packets { ("b64", "q") } else { ("b32", "x") };
        text.include(
            "plan_clear",
            &[("TYPE", &ty), ("COUNT", &count), ("X", &format!("%m_{prefix}{nth}_"))],
        )?;
    }
    Ok(())
}

/// Writes the block's part of the range.
fn range(text: &mut Text<'_>, moved: &Move, loops: bool) -> Done {
    let count = text.number(moved.count)?;
    let (member, of) = match moved.share {
        Some(share) => (text.number(share.member)?, text.number(share.of)?),
        None => ("0".to_owned(), "1".to_owned()),
    };
    text.include(
        "plan_range",
        &[
            ("LOOPS", &u32::from(loops)),
            ("SHARES", &u32::from(moved.share.is_some())),
            ("COUNT", &count),
            ("MEMBER", &member),
            ("OF", &of),
            ("START", &"%m_start"),
            ("END", &"%m_end"),
        ],
    )
}

/// Writes a move within one chunk.
fn one(text: &mut Text<'_>, plan: &Plan<'_>) -> Done {
    let split = u32::from(plan.split);
    text.include("plan_one", &[("UNIT", &plan.unit), ("START", &"%m_start"), ("END", &"%m_end")])?;
    for side in plan.sides.iter().filter(|side| side.is_users()) {
        text.include(
            "plan_one_user",
            &[
                ("UNIT", &plan.unit),
                ("BASE", &name(side.base)),
                ("SPLIT", &split),
                ("FIRST", &side.first),
                ("START", &"%m_start"),
                ("AT", &side.register),
                ("WHOLE", &"%m_whole"),
            ],
        )?;
    }
    plan.sides.iter().filter(|side| !plan.is_late(side)).try_for_each(|side| mine(text, plan, side))?;
    text.include("plan_one_left", &[("FROM", &0), ("TO", &"%m_whole")])?;
    let turn = Turn { units: plan.unroll, sure: true };
    if plan.late {
        first(text, plan, turn)?;
    }
    one_begin(text, turn, "VECTORS", "REST")?;
    vectors(text, plan, turn)?;
    one_end(text, plan, turn, "VECTORS")?;
    text.include("plan_label", &[("NAME", &"REST")])?;
    if !plan.has_users() {
        return Ok(());
    }
    text.include("plan_one_rest", &[("PAST", &"PAST")])?;
    for side in &plan.sides {
        text.include(
            "plan_rewind",
            &[("STEP", &plan.step(side)), ("LEFT", &"%m_left"), ("AT", &side.register)],
        )?;
    }
    text.include("plan_one_left", &[("FROM", &"%m_whole"), ("TO", &"%m_units")])?;
    let turn = Turn { units: 1, ..turn };
    one_begin(text, turn, "ELEMENTS", "PAST")?;
    text.include("plan_one_offset", &[("UNIT", &plan.unit), ("START", &"%m_start")])?;
    elements(text, plan, turn)?;
    one_end(text, plan, turn, "ELEMENTS")
}

/// Writes the way from an operand's chunk to the thread's first unit.
fn mine(text: &mut Text<'_>, plan: &Plan<'_>, side: &Side) -> Done {
    let (step, width) = (plan.step(side), if side.base == Base::Packets { 32 } else { 16 });
    text.include(
        "plan_one_mine",
        &[
            ("STEP", &step),
            ("WIDTH", &width),
            ("SPLIT", &u32::from(plan.split)),
            ("START", &"%m_start"),
            ("AT", &side.register),
        ],
    )
}

/// Writes the first turn with the loads before the first use of the call's number: both are on their way at once. No branch may
/// stand between, or ptxas moves the use up.
fn first(text: &mut Text<'_>, plan: &Plan<'_>, turn: Turn) -> Done {
    let threads = text.kernel.threads;
    text.include("plan_one_first", &[("UNROLL", &turn.units), ("THREADS", &threads)])?;
    for (nth, side) in plan.sources() {
        access(text, "plan_load", plan, Turn { sure: false, ..turn }, side, &format!("%m_x{nth}_"))?;
    }
    text.flag()?;
    for side in plan.sides.iter().filter(|side| plan.is_late(side)) {
        side.locate(text)?;
        mine(text, plan, side)?;
    }
    text.include("plan_one_none", &[("PAST", &"REST")])?;
    results(text, plan, turn)?;
    one_end(text, plan, turn, "VECTORS")
}

fn one_begin(text: &mut Text<'_>, turn: Turn, again: &str, past: &str) -> Done {
    let threads = text.kernel.threads;
    text.include(
        "plan_one_turn",
        &[("UNROLL", &turn.units), ("THREADS", &threads), ("AGAIN", &again), ("PAST", &past)],
    )
}

fn one_end(text: &mut Text<'_>, plan: &Plan<'_>, turn: Turn, again: &str) -> Done {
    let units = turn.units * text.kernel.threads;
    for side in &plan.sides {
        text.include("plan_advance", &[("STEP", &(units * plan.step(side))), ("AT", &side.register)])?;
    }
    text.include("plan_one_next", &[("UNITS", &units), ("AGAIN", &again)])
}

/// Writes a move of several chunks.
fn many(text: &mut Text<'_>, plan: &Plan<'_>) -> Done {
    text.include("plan_many", &[("UNIT", &plan.unit), ("START", &"%m_start"), ("END", &"%m_end")])?;
    for (nth, side) in plan.sides.iter().filter(|side| side.is_users()).enumerate() {
        text.include(
            "plan_many_user",
            &[
                ("UNIT", &plan.unit),
                ("BASE", &name(side.base)),
                ("LEADER", &u32::from(nth == 0)),
                ("FIRST", &side.first),
                ("AT", &side.register),
            ],
        )?;
    }
    let turn = Turn { units: plan.unroll, sure: false };
    many_begin(text, plan, turn, false, "VECTORS", "REST")?;
    vectors(text, plan, turn)?;
    many_end(text, turn, "VECTORS")?;
    text.include("plan_label", &[("NAME", &"REST")])?;
    if !plan.has_users() {
        return Ok(());
    }
    text.include("plan_many_rest", &[("PAST", &"PAST")])?;
    let turn = Turn { units: 1, sure: true };
    many_begin(text, plan, turn, true, "ELEMENTS", "PAST")?;
    text.include("plan_many_skip", &[("PAST", &"ELEMENTS_NEXT")])?;
    elements(text, plan, turn)?;
    text.include("plan_label", &[("NAME", &"ELEMENTS_NEXT")])?;
    many_end(text, turn, "ELEMENTS")
}

fn many_begin(
    text: &mut Text<'_>,
    plan: &Plan<'_>,
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
            ("UNIT", &plan.unit),
            ("USER", &u32::from(plan.has_users())),
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

/// Writes a turn that moves vectors.
fn vectors(text: &mut Text<'_>, plan: &Plan<'_>, turn: Turn) -> Done {
    for (nth, side) in plan.sources().filter(|(_, side)| side.base != Base::Packets) {
        access(text, "plan_load", plan, turn, side, &format!("%m_x{nth}_"))?;
    }
    poll(text, plan, turn, "POLL")?;
    results(text, plan, turn)
}

/// Writes the reduction of what a turn has loaded, and the stores.
fn results(text: &mut Text<'_>, plan: &Plan<'_>, turn: Turn) -> Done {
    reduce(text, plan, turn)?;
    for side in plan.targets() {
        let fragment = if side.base == Base::Packets { "plan_send" } else { "plan_store" };
        access(text, fragment, plan, turn, side, "%m_x0_")?;
    }
    Ok(())
}

/// Writes a turn of one unit of which a user's buffer has only some elements, or that is not aligned.
fn elements(text: &mut Text<'_>, plan: &Plan<'_>, turn: Turn) -> Done {
    for (nth, side) in plan.sources().filter(|(_, side)| side.base != Base::Packets) {
        let words = format!("%m_x{nth}_");
        if side.is_users() {
            by_elements(text, "plan_load_elements", plan, side, &words)?;
        } else {
            access(text, "plan_load", plan, turn, side, &words)?;
        }
    }
    poll(text, plan, turn, "POLL_ONE")?;
    reduce(text, plan, turn)?;
    for side in plan.targets() {
        match side.base {
            Base::Packets => access(text, "plan_send", plan, turn, side, "%m_x0_")?,
            Base::Scratch => access(text, "plan_store", plan, turn, side, "%m_x0_")?,
            Base::Input | Base::Output => by_elements(text, "plan_store_elements", plan, side, "%m_x0_")?,
        }
    }
    Ok(())
}

/// The address of a unit, as it stands in a load or store.
fn at(text: &mut Text<'_>, plan: &Plan<'_>, side: &Side, unit: u32) -> Result<String, TemplateError> {
    if plan.single {
        return Ok(format!("{}+{}", side.register, unit * text.kernel.threads * plan.step(side)));
    }
    let kind = match side.base {
        Base::Input | Base::Output => "user",
        Base::Scratch => "scratch",
        Base::Packets => "packet",
    };
    text.include("plan_many_at", &[("AT", &side.register), ("OFFSET", &format!("%m_{kind}{unit}"))])?;
    Ok("%m_at".to_owned())
}

/// Writes loads or stores of a turn's units.
fn access(
    text: &mut Text<'_>,
    fragment: &str,
    plan: &Plan<'_>,
    turn: Turn,
    side: &Side,
    words: &str,
) -> Done {
    for unit in 0..turn.units {
        let address = at(text, plan, side, unit)?;
        text.include(
            fragment,
            &[
                ("WORDS", &plan.words()),
                ("WORD", &(unit * plan.words())),
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
fn poll(text: &mut Text<'_>, plan: &Plan<'_>, turn: Turn, again: &str) -> Done {
    let sources: Vec<_> = plan.sources().filter(|(_, side)| side.base == Base::Packets).collect();
    if sources.is_empty() {
        return Ok(());
    }
    let go = format!("{again}_ARRIVED");
    text.include("plan_label", &[("NAME", &again)])?;
    for (nth, side) in &sources {
        access(text, "plan_poll", plan, turn, side, &format!("%m_q{nth}_"))?;
    }
    text.include("plan_set", &[("TO", &"%m_miss"), ("VALUE", &0)])?;
    for (nth, _) in &sources {
        each_packet(text, "plan_examine", plan, turn, *nth, ("X", &format!("%m_x{nth}_")), None)?;
    }
    text.include(
        "plan_arrived",
        &[("MISS", &"%m_miss"), ("SPINS", &"%m_spins"), ("AGAIN", &again), ("GO", &go), ("SEEN", &"%m_seen")],
    )?;
    for (nth, side) in sources.iter().rev() {
        let seen: (&str, &dyn Display) = ("SEEN", &"%m_seen");
        each_packet(text, "plan_missing", plan, turn, *nth, ("RANK", &side.rank), Some(seen))?;
    }
    text.include("plan_give_up", &[("PEER", &"%m_miss"), ("SEEN", &"%m_seen"), ("PAST", &"PAST")])?;
    text.include("plan_label", &[("NAME", &go)])
}

/// Writes a fragment for each packet of a turn of source `nth`.
fn each_packet(
    text: &mut Text<'_>,
    fragment: &str,
    plan: &Plan<'_>,
    turn: Turn,
    nth: usize,
    own: (&str, &dyn Display),
    more: Option<(&str, &dyn Display)>,
) -> Done {
    for unit in 0..turn.units {
        let (word, sure) = (unit * plan.words(), u32::from(turn.sure && unit == 0));
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

/// Writes the reduction of a turn's words, into those of the first source.
fn reduce(text: &mut Text<'_>, plan: &Plan<'_>, turn: Turn) -> Done {
    let Some(reduction) = plan.moved.reduction else { return Ok(()) };
    if plan.moved.sources.len() == 1 && reduction != Reduction::Avg {
        return Ok(());
    }
    let (element, ranks) = (text.kernel.element, text.kernel.ranks);
    let cell = if element.bytes() == 8 { 2 } else { 1 };
    for word in (0..turn.units * plan.words()).step_by(cell) {
        text.include(
            "plan_reduce",
            &[
                ("TYPE", &type_name(element)),
                ("OP", &operation(reduction)),
                ("SOURCES", &plan.moved.sources.len()),
                ("RANKS", &ranks),
                ("WORD", &word),
                ("X", &"%m_x"),
            ],
        )?;
    }
    Ok(())
}

/// Writes the accesses of one unit by elements.
fn by_elements(text: &mut Text<'_>, fragment: &str, plan: &Plan<'_>, side: &Side, words: &str) -> Done {
    let size = text.kernel.element.bytes();
    let address = at(text, plan, side, 0)?;
    let address = address.trim_end_matches("+0");
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
    text.include(
        fragment,
        &[("WORDS", &plan.words()), ("SIZE", &size), ("AT", &address), ("BYTES", &"%m_bytes"), ("X", &words)],
    )
}

/// The base's name in fragments.
pub(super) fn name(base: Base) -> &'static str {
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

/// The element's name in fragments, which is that of PTX.
fn type_name(element: Element) -> &'static str {
    match element {
        Element::F8E4m3 => "e4m3",
        Element::F8E5m2 => "e5m2",
        Element::I8 => "s8",
        Element::I32 => "s32",
        Element::I64 => "s64",
        other => other.name(),
    }
}
