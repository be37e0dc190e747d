//! Operands at multicast addresses: `multimem` instead of loads and stores (PTX ISA, "multimem.ld_reduce, multimem.st").

use std::fmt::Display;

use super::side::Side;
use super::text::Text;
use super::work::{Turn, Work};
use super::{Base, Element, Kernel, Move, PacketForm, Reduction};
use crate::{Target, TemplateError, failure};

type Done = Result<(), TemplateError>;

/// Whether loads from multicast addresses combine elements of this type so. The instruction has no products, no types of 8 bits,
/// and no extremes of f32 and f64; of f16 and bf16 it has some, but the ISA says nothing of NaN and -0 there. An average of 16-bit
/// types is left out because the sum would be rounded before it is divided.
pub const fn reduces_by_multicast(element: Element, reduction: Reduction) -> bool {
    match element {
        Element::F32 | Element::F64 => matches!(reduction, Reduction::Sum | Reduction::Avg),
        Element::F16 | Element::Bf16 => matches!(reduction, Reduction::Sum),
        Element::I32 | Element::U32 | Element::I64 | Element::U64 => !matches!(reduction, Reduction::Prod),
        Element::I8 | Element::U8 | Element::F8E4m3 | Element::F8E5m2 => false,
    }
}

/// Whether code for the target can have the instructions.
pub(super) fn is_known(target: Target) -> bool {
    target.sm >= 90 && target.ptx >= 82
}

/// Returns an error if a move asks for an access to a multicast address that there is not.
pub(super) fn check(kernel: &Kernel, moved: &Move) -> Done {
    let fail = |message: &str| Err(failure(&kernel.symbol, message.to_owned()));
    let sides = || moved.sources.iter().chain(&moved.targets);
    if moved.by_rows && sides().any(|side| side.multicast) {
        return fail("a move by rows has no multicast addresses");
    }
    if kernel.packets == PacketForm::Ll128 && sides().any(|side| side.multicast) {
        return fail("a kernel with LL128 packets has no multicast addresses");
    }
    for source in moved.sources.iter().filter(|source| source.multicast) {
        if source.base == Base::Packets {
            return fail("packets at a multicast address cannot be read");
        }
        if !moved.reduction.is_some_and(|reduction| reduces_by_multicast(kernel.element, reduction)) {
            return fail(
                "a load from a multicast address needs a reduction that the instruction has for the type",
            );
        }
    }
    Ok(())
}

/// Whether a move accesses memory as plain data by a multicast address, which others access by their own addresses. Packets need no
/// fence but that of a new lap: each word has its own flag.
pub(super) fn needs_fences(moved: &Move) -> bool {
    let mut sides = moved.sources.iter().chain(&moved.targets);
    sides.any(|side| side.multicast && side.base != Base::Packets)
}

/// Writes the loads of a turn's units of a plain operand.
pub(super) fn load(text: &mut Text<'_>, work: &Work<'_>, turn: Turn, side: &Side, words: &str) -> Done {
    let element = text.kernel.element;
    let operation = match work.moved.reduction {
        Some(Reduction::Min) => "min",
        Some(Reduction::Max) => "max",
        _ => "add",
    };
    // The sum of two's complement is that of unsigned numbers, and the instruction has no other one of 64 bits.
    let ty = match (element, operation) {
        (Element::I64, "add") => "u64",
        _ => element.ptx_name(),
    };
    for unit in 0..turn.units {
        let (register, offset) = work.place(text, side, unit)?;
        let word = unit * work.words();
        text.include(
            "plan_multimem_load",
            &[
                ("TYPE", &ty),
                ("OP", &operation),
                ("WORDS", &work.words()),
                ("WORD", &word),
                ("OFFSET", &offset),
                ("IF", &condition(turn, unit)),
                ("AT", &register),
                ("LIST", &list(words, word, work.words())),
                ("X", &words),
            ],
        )?;
    }
    Ok(())
}

/// Writes the stores of a turn's units to an operand, plain or as packets.
pub(super) fn store(text: &mut Text<'_>, work: &Work<'_>, turn: Turn, side: &Side, words: &str) -> Done {
    for unit in 0..turn.units {
        let (register, offset) = work.place(text, side, unit)?;
        let (word, condition) = (unit * work.words(), condition(turn, unit));
        let at: [(&str, &dyn Display); 4] =
            [("WORDS", &work.words()), ("OFFSET", &offset), ("IF", &condition), ("AT", &register)];
        let (fragment, data): (_, &[(&str, &dyn Display)]) = match side.base {
            Base::Packets => ("plan_multimem_send", &[("WORD", &word), ("X", &words)]),
            _ => ("plan_multimem_store", &[("LIST", &list(words, word, work.words()))]),
        };
        text.include(fragment, &[&at[..], data].concat())?;
    }
    Ok(())
}

/// The predicate of an access, empty if the unit exists.
fn condition(turn: Turn, unit: u32) -> String {
    if turn.sure && unit == 0 { String::new() } else { format!("@%m_have{unit}") }
}

/// Words as a vector operand.
fn list(prefix: &str, first: u32, count: u32) -> String {
    let words: Vec<_> = (first..first + count).map(|word| format!("{prefix}{word}")).collect();
    format!("{{{}}}", words.join(", "))
}
