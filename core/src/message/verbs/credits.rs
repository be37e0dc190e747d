//! Credits: how many packets may be sent, so that each meets a receive.
//!
//! Each end posts [`RECEIVES`] receives before the other end knows its address, and posts one again when it has used up the
//! packet in it. A packet with data costs a credit, of which an end begins with [`CREDITS`]. Receives that were posted again are
//! told in the header of the next packet, or, once it is [`BUNDLE`], in a packet of its own. That one needs no credit: it gives back at
//! least `BUNDLE` of the `CREDITS` that the peer does not know to have, so at most `CREDITS / BUNDLE` of them are under way.
#![forbid(unsafe_code)]

use super::packet::broken;
use crate::error::Result;

/// Packets with data that may be under way, or not used up yet, in one direction.
pub(super) const CREDITS: u32 = 16;
/// Of so many receives the peer is told in a packet of its own.
const BUNDLE: u32 = CREDITS / 2;
/// Receives that an end keeps posted.
pub(super) const RECEIVES: u32 = CREDITS + CREDITS / BUNDLE;

/// The credits of a link, in both directions.
#[derive(Debug)]
pub(super) struct Credits {
    /// Packets that this end may still send.
    left: u32,
    /// Packets of the peer that are not used up.
    held: u32,
    /// Packets of the peer that were used up, and of which it was not told.
    owed: u32,
}

impl Credits {
    pub(super) fn new() -> Self {
        Self { left: CREDITS, held: 0, owed: 0 }
    }

    /// Whether a packet with data may be sent.
    #[inline]
    pub(super) fn may_send(&self) -> bool {
        self.left > 0
    }

    /// A packet with data was sent.
    #[inline]
    pub(super) fn sent(&mut self) {
        self.left -= 1;
    }

    /// Whether a packet should be sent only to give back receives.
    #[inline]
    pub(super) fn owes_bundle(&self) -> bool {
        self.owed >= BUNDLE
    }

    /// The number of receives for the header of the next packet: the peer is told of them.
    #[inline]
    pub(super) fn take_owed(&mut self) -> u32 {
        std::mem::take(&mut self.owed)
    }

    /// A packet of the peer has come, which gives back `returned` receives and has data or not.
    #[inline]
    pub(super) fn arrived(&mut self, returned: u32, has_data: bool) -> Result<()> {
        let under_way = CREDITS - self.left;
        if returned > under_way {
            return Err(broken(format!("it gave back {returned} receives of {under_way}")));
        }
        self.left += returned;
        if has_data {
            if self.held + self.owed >= CREDITS {
                return Err(broken("it sent more packets than it may".into()));
            }
            self.held += 1;
        }
        Ok(())
    }

    /// A packet with data was used up, and its receive posted again.
    #[inline]
    pub(super) fn used(&mut self) {
        self.held -= 1;
        self.owed += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// Two ends, the packets on the way to each or in it, and how many of those that it has seen are not used up.
    struct Ends {
        credits: [Credits; 2],
        under_way: [VecDeque<(u32, bool)>; 2],
        unused: [usize; 2],
    }

    impl Ends {
        fn send(&mut self, from: usize, has_data: bool) {
            let owed = self.credits[from].take_owed();
            self.under_way[1 - from].push_back((owed, has_data));
            let taken = self.under_way[1 - from].len() + self.unused[1 - from];
            assert!(taken <= RECEIVES as usize, "a packet without a receive");
        }

        fn data(&mut self, from: usize) -> bool {
            let may = self.credits[from].may_send();
            if may {
                self.credits[from].sent();
                self.send(from, true);
            }
            may
        }

        fn give_back(&mut self, from: usize) {
            if self.credits[from].owes_bundle() {
                self.send(from, false);
            }
        }

        fn receive(&mut self, at: usize) -> bool {
            let Some((returned, has_data)) = self.under_way[at].pop_front() else { return false };
            self.credits[at].arrived(returned, has_data).unwrap();
            self.unused[at] += usize::from(has_data);
            true
        }

        fn use_up(&mut self, at: usize) -> bool {
            let any = self.unused[at] > 0;
            if any {
                self.unused[at] -= 1;
                self.credits[at].used();
            }
            any
        }
    }

    proptest! {
        /// Whatever the ends do, no packet is without a receive; and once both have used up everything, both may send.
        #[test]
        fn there_is_always_a_receive(steps in proptest::collection::vec((0..2_usize, 0..4_u8, 1..30_u32), 1..300)) {
            let mut ends = Ends { credits: [Credits::new(), Credits::new()], under_way: Default::default(), unused: [0; 2] };
            for (end, what, times) in steps {
                for _ in 0..times {
                    match what {
                        0 => drop(ends.data(end)),
                        1 => drop(ends.receive(end)),
                        2 => drop(ends.use_up(end)),
                        _ => ends.give_back(end),
                    }
                }
            }
            for _ in 0..2 {
                while ends.receive(0) || ends.receive(1) || ends.use_up(0) || ends.use_up(1) {}
                ends.give_back(0);
                ends.give_back(1);
            }
            while ends.receive(0) || ends.receive(1) {}
            prop_assert!(ends.credits.iter().all(Credits::may_send));
        }
    }

    #[test]
    fn a_peer_that_does_not_keep_to_it_is_refused() {
        let mut credits = Credits::new();
        assert!(credits.arrived(1, false).is_err(), "nothing was sent");
        credits.sent();
        assert!(credits.arrived(2, true).is_err());
        credits.arrived(1, false).unwrap();
        (0..CREDITS).for_each(|_| credits.arrived(0, true).unwrap());
        assert!(credits.arrived(0, true).is_err(), "it was told of none");
        credits.used();
        assert!(credits.arrived(0, true).is_err(), "it was not told yet");
        assert_eq!(credits.take_owed(), 1);
        credits.arrived(0, true).unwrap();
    }
}
