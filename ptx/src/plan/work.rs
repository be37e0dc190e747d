//! A move with the constants of its text.

use super::side::Side;
use super::text::Text;
use super::{Base, Move, Number};
use crate::TemplateError;

/// A move with its constants.
pub(super) struct Work<'m> {
    pub(super) moved: &'m Move,
    pub(super) sides: Vec<Side>,
    /// Bytes of a unit.
    pub(super) unit: u32,
    /// Units of a turn.
    pub(super) unroll: u32,
    /// Within one chunk.
    pub(super) single: bool,
    /// The block's part may begin inside its range.
    pub(super) split: bool,
    /// The call's number is asked for behind the first loads.
    pub(super) late: bool,
}

/// Units of a turn, as loads and stores see them.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    pub(super) units: u32,
    /// The first unit exists.
    pub(super) sure: bool,
}

impl<'m> Work<'m> {
    pub(super) fn of(text: &mut Text<'_>, moved: &'m Move, loops: bool) -> Result<Self, TemplateError> {
        let operands = || moved.sources.iter().chain(&moved.targets);
        let packets = operands().any(|side| side.base == Base::Packets);
        let single = text.resolve(moved.count) == Number::Fixed(1);
        let sides =
            operands().enumerate().map(|(place, operand)| Side::of(text, operand, format!("%m_p{place}")));
        Ok(Self {
            moved,
            sides: sides.collect::<Result<_, _>>()?,
            unit: if packets { 8 } else { 16 },
            unroll: unroll([moved.sources.len(), moved.targets.len()], packets, single, text.kernel.threads),
            single,
            split: loops || moved.share.is_some(),
            late: false,
        })
    }

    pub(super) fn sources(&self) -> impl Iterator<Item = (usize, &Side)> {
        self.sides.iter().enumerate().take(self.moved.sources.len())
    }

    pub(super) fn targets(&self) -> impl Iterator<Item = &Side> {
        self.sides.iter().skip(self.moved.sources.len())
    }

    /// Whether the operand's address depends on the call's number.
    pub(super) fn is_late(&self, side: &Side) -> bool {
        self.late && !side.is_users()
    }

    pub(super) fn has_users(&self) -> bool {
        self.sides.iter().any(Side::is_users)
    }

    pub(super) fn words(&self) -> u32 {
        self.unit / 4
    }

    /// The address of a unit: a register, and bytes behind it.
    pub(super) fn place(
        &self,
        text: &mut Text<'_>,
        side: &Side,
        unit: u32,
    ) -> Result<(String, u32), TemplateError> {
        if self.single {
            return Ok((side.register.clone(), unit * text.kernel.threads * self.step(side)));
        }
        let kind = match side.base {
            Base::Input | Base::Output => "user",
            Base::Scratch => "scratch",
            Base::Packets => "packet",
        };
        text.include("plan_many_at", &[("AT", &side.register), ("OFFSET", &format!("%m_{kind}{unit}"))])?;
        Ok(("%m_at".to_owned(), 0))
    }

    /// Bytes from unit to unit of an operand.
    pub(super) fn step(&self, side: &Side) -> u32 {
        if side.base == Base::Packets { 2 * self.unit } else { self.unit }
    }
}

/// Units that a warp handles together in moves with LL128 packets: more would take the registers of blocks of 1,024 threads.
pub fn unroll_lines([sources, targets]: [usize; 2]) -> u32 {
    if (sources, targets) == (1, 1) { 2 } else { 1 }
}

/// Units that a thread of a block of so many handles together, of 8 bytes in moves with packets and of 16 in others, by the
/// sources and targets of the move: enough to have eight loads in flight where operands are few, as far as registers suffice for
/// blocks of 1,024 threads. A move within one chunk is `single`.
pub fn unroll([sources, targets]: [usize; 2], packets: bool, single: bool, threads: u32) -> u32 {
    // A block of more threads has fewer registers for each.
    let large = threads > 512;
    match (packets, sources, targets) {
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
