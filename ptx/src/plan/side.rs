//! Operands with their numbers as text.

use super::text::Text;
use super::{Base, Number, Operand, PacketForm};
use crate::TemplateError;

/// An operand with its numbers as text.
#[derive(Clone)]
pub(super) struct Side {
    pub(super) base: Base,
    pub(super) fixed: bool,
    pub(super) index: String,

    pub(super) first: String,
    pub(super) rank: String,
    pub(super) register: String,
    pub(super) multicast: bool,
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
            multicast: operand.multicast,
        })
    }

    /// Whether some units of the operand may have to be accessed element by element: those of a user's buffer, but for multicast
    /// addresses, of which the caller says that there are none.
    pub(super) fn has_elements(&self) -> bool {
        self.is_users() && !self.multicast
    }

    pub(super) fn is_users(&self) -> bool {
        matches!(self.base, Base::Input | Base::Output)
    }

    /// Writes the address of the operand's first chunk into its register.
    pub(super) fn locate(&self, text: &mut Text<'_>) -> Result<(), TemplateError> {
        let double = u32::from(text.kernel.double_scratch);
        text.include(
            "plan_operand",
            &[
                ("BASE", &name(self.base)),
                ("DOUBLE", &double),
                ("LINES", &u32::from(text.kernel.packets == PacketForm::Ll128)),
                ("FIXED", &u32::from(self.fixed)),
                ("INDEX", &self.index),
                ("FIRST", &self.first),
                ("TO", &self.register),
            ],
        )
    }
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
