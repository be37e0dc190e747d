//! Random tables of counts and offsets, which every rank draws alike, and what a call with them must give: an oracle on plain
//! bytes that shares nothing with the library.

use crate::data::mix;

/// Elements of a buffer.
pub(super) const ROOM: usize = 4096;

/// How sizes are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Draw {
    /// Any sizes, with zeros among them.
    Any,
    /// Nothing at all.
    Nothing,
    /// Everything from one rank, and everything to one.
    One,
    /// Rooms that are exactly as large as what comes.
    Exact,
}

/// Counts and offsets of all ranks in elements: `[sender][receiver]` for what is sent, `[receiver][sender]` for the room.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    pub(super) sent: Vec<Vec<u64>>,
    pub(super) from: Vec<Vec<u64>>,
    pub(super) room: Vec<Vec<u64>>,
    pub(super) to: Vec<Vec<u64>>,
}

/// Random numbers that are the same on all ranks.
pub(super) struct Dice {
    call: u32,
    drawn: usize,
}

impl Dice {
    pub(super) fn new(call: u32) -> Self {
        Self { call, drawn: 0 }
    }

    pub(super) fn below(&mut self, end: usize) -> u64 {
        self.drawn += 1;
        u64::from(mix(77, self.call, self.drawn)) % end.max(1) as u64
    }

    /// Offsets of parts of these sizes in a buffer, in another order than that of the ranks and with gaps.
    fn placed(&mut self, sizes: &[u64]) -> Vec<u64> {
        let first = self.below(sizes.len()) as usize;
        let mut at = vec![0; sizes.len()];
        let mut end = 0;
        for place in (0..sizes.len()).map(|i| (first + sizes.len() - i) % sizes.len()) {
            // Mostly whole vectors, so that parts are aligned now and then.
            end += if self.below(3) > 0 { 16 * self.below(3) } else { self.below(7) };
            at[place] = end;
            end += sizes[place];
        }
        assert!(end <= ROOM as u64);
        at
    }
}

impl Tables {
    pub(super) fn draw(ranks: usize, draw: Draw, call: u32) -> Self {
        let mut dice = Dice::new(call);
        let most = ROOM / ranks / 2;
        let (giver, taker) = (dice.below(ranks) as usize, dice.below(ranks) as usize);
        let mut count = |sender: usize, receiver: usize| match draw {
            Draw::Nothing => 0,
            Draw::One if sender != giver || receiver != taker => 0,
            Draw::One => most as u64,
            _ if dice.below(4) == 0 => 0,
            _ if dice.below(3) == 0 => 16 * dice.below(most / 16),
            _ => dice.below(most),
        };
        let sent: Vec<Vec<u64>> = (0..ranks).map(|s| (0..ranks).map(|r| count(s, r)).collect()).collect();
        let spare = |dice: &mut Dice| if draw == Draw::Exact { 0 } else { dice.below(40) };
        let room: Vec<Vec<u64>> =
            (0..ranks).map(|r| (0..ranks).map(|s| sent[s][r] + spare(&mut dice)).collect()).collect();
        let from = sent.iter().map(|row| dice.placed(row)).collect();
        let to = room.iter().map(|row| dice.placed(row)).collect();
        Self { sent, from, room, to }
    }

    /// The output of `me`, of elements of `size` bytes, from the inputs of all ranks.
    pub(super) fn output(&self, me: usize, size: usize, inputs: &[Vec<u8>], before: &[u8]) -> Vec<u8> {
        let mut output = before.to_vec();
        for (sender, input) in inputs.iter().enumerate() {
            let bytes = self.sent[sender][me] as usize * size;
            let (from, to) = (self.from[sender][me] as usize * size, self.to[me][sender] as usize * size);
            output[to..to + bytes].copy_from_slice(&input[from..from + bytes]);
        }
        output
    }
}
