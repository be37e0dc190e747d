//! Two halves of a block at once: one sends, the other waits for packets.
//!
//! Threads that send first and wait afterwards look at what has come only when the last of their stores is on its way: the link is
//! idle while the block reads the packets, and the block is while the link moves them. Moves between two syncs have no order, so
//! those without packets to wait for may go to one half of the warps and those with to the other.

use super::text::Text;
use super::{Base, Kernel, PacketForm, Step, moves};
use crate::TemplateError;

type Done = Result<(), TemplateError>;

/// Neighbouring moves that two halves of a block take.
pub(super) struct Halves<'s> {
    pub(super) sends: &'s [Step],
    pub(super) receives: &'s [Step],
}

impl<'s> Halves<'s> {
    /// The halves that `steps` of the kernel begin with, if its blocks have two.
    pub(super) fn of(steps: &'s [Step], kernel: &Kernel) -> Option<Self> {
        if !kernel.threads.is_multiple_of(64) {
            return None;
        }
        // Measured, not understood: on 2 H100, an all-reduce of 1 MiB by LL128 packets took 6.4 and 6.5 us by all warps, and 6.8 and
        // 6.9 by halves.
        let reduces = |step: &Step| matches!(step, Step::Move(moved) if moved.sources.len() > 1);
        let by_all = |steps: &[Step]| kernel.packets == PacketForm::Ll128 && steps.iter().any(reduces);
        let plain = |step: &Step| matches!(step, Step::Move(moved) if !moved.by_rows);
        let waits = |step: &Step| matches!(step, Step::Move(moved) if moves::may_give_up(moved));
        let sends = |step: &Step| {
            let to_packets = |side: &super::Operand| side.base == Base::Packets;
            matches!(step, Step::Move(moved) if moved.targets.iter().any(to_packets))
        };
        let run = steps.iter().take_while(|step| plain(step)).count();
        let first = steps[..run].iter().position(waits)?;
        let (before, behind) = steps[..run].split_at(first);
        (before.iter().any(sends) && !by_all(behind)).then_some(Self { sends: before, receives: behind })
    }

    pub(super) fn steps(&self) -> usize {
        self.sends.len() + self.receives.len()
    }
}

impl Kernel {
    /// Whether some block sends with one half of its threads and waits for packets with the other, so that half of them share an
    /// operation.
    pub fn has_halves(&self) -> bool {
        let anywhere = |steps: &[Step]| (0..steps.len()).any(|at| Halves::of(&steps[at..], self).is_some());
        self.shapes.iter().any(|shape| anywhere(&shape.steps))
    }
}

/// Writes both halves. `asks`: a thread may have given up since the block met last. `meets`: the block has not met before it counts the
/// call; it does once both halves know the call's number.
pub(super) fn write(text: &mut Text<'_>, halves: &Halves<'_>, asks: bool, meets: bool) -> Done {
    let late = text.wants_flag();
    if meets && !late {
        text.meet()?;
    }
    let (second, past) = (text.label("RECEIVES"), text.label("HALVES"));
    let half = text.kernel.threads / 2;
    text.include("plan_halves", &[("HALF", &half), ("SECOND", &second)])?;
    text.set_half(meets && late);
    part(text, halves.sends, asks)?;
    text.include("plan_halves_next", &[("HALF", &half), ("SECOND", &second), ("PAST", &past)])?;
    if late {
        text.want_flag();
    }
    part(text, halves.receives, asks)?;
    text.set_whole();
    text.include("plan_halves_end", &[("HALF", &half), ("PAST", &past)])
}

/// Writes the moves of one half.
fn part(text: &mut Text<'_>, steps: &[Step], mut asks: bool) -> Done {
    for (nth, step) in steps.iter().enumerate() {
        let Step::Move(moved) = step else { continue };
        // The first loads travel while the call's number does.
        if nth > 0 || !moves::begins_with_loads(text, moved) {
            text.flag()?;
        }
        moves::write(text, moved, false, asks)?;
        asks |= moves::may_give_up(moved);
    }
    Ok(())
}
