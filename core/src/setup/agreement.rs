//! Two ranks and everything that can happen between them, in any order: both know the same end of every attempt.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::attempts::{Attempts, Heard, Next};
use super::key::{Key, Kind};
use super::message::{Message, Offer};
use crate::error::Error;
use crate::ledger::holds::HoldId;

/// One rank as `setup()` drives it: the same steps, without items.
struct Side {
    rank: u32,
    attempts: Attempts,
    running: Option<Running>,
    /// Results in order of attempts.
    results: Vec<bool>,
    /// Receipts sent and not given back; receipts in hand.
    lent: usize,
    has: usize,
    /// Receipts in hand for the attempt that is under way.
    fresh: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Step {
    Blocked,
    Asked,
    Offered,
    Accepted,
    Withdrawn,
}

struct Running {
    attempt: u64,
    step: Step,
}

enum Frame {
    Setup(u64, Message),
    Release,
}

fn late() -> Error {
    Error::timeout("setup", "late")
}

impl Side {
    fn new(rank: u32) -> Self {
        let attempts = Attempts::new(rank, 2);
        Self { rank, attempts, running: None, results: Vec::new(), lent: 0, has: 0, fresh: 0 }
    }

    fn key(&self) -> Key {
        Key::user(Kind::Semaphore, 1 - self.rank, 7)
    }

    fn offer(&mut self) -> Offer<HoldId> {
        self.lent += 1;
        Offer { holds: vec![HoldId::Token(1)], ..Offer::default() }
    }

    fn take(&mut self, heard: Heard, attempt: u64, out: &mut VecDeque<Frame>) {
        out.extend(heard.answer.map(|answer| Frame::Setup(attempt, answer)));
        out.extend(heard.unused.into_iter().flat_map(|offer| offer.holds).map(|_| Frame::Release));
    }

    /// The user's thread: one step of `setup()`; `fails` if this end cannot be built, `expired` if its time is up.
    fn step(&mut self, fails: bool, expired: bool, out: &mut VecDeque<Frame>) {
        let key = self.key();
        let Some(Running { attempt, step }) = &mut self.running else {
            let attempt = self.attempts.begin(key);
            self.running = Some(Running { attempt, step: Step::Blocked });
            return;
        };
        let attempt = *attempt;
        let mut end = None;
        if *step == Step::Blocked {
            if fails {
                end = Some(Err(late()));
            } else {
                *step = Step::Asked;
                if self.attempts.ask(key) {
                    out.push_back(Frame::Setup(attempt, Message::Ask));
                }
            }
        } else {
            let waited = match self.attempts.next(key) {
                Next::Ended(result) => {
                    end = Some(result);
                    false
                }
                Next::Offer if fails => {
                    end = Some(Err(late()));
                    false
                }
                Next::Offer => {
                    *step = Step::Offered;
                    self.attempts.offer(key);
                    let offer = self.offer();
                    out.push_back(Frame::Setup(attempt, Message::Offer(offer)));
                    false
                }
                Next::Build(offer) => {
                    if fails {
                        out.extend(offer.holds.into_iter().map(|_| Frame::Release));
                        end = Some(Err(late()));
                    } else if !key.leads(self.rank) {
                        *step = Step::Accepted;
                        self.fresh += offer.holds.len();
                        self.attempts.accept(key);
                        let mine = self.offer();
                        out.push_back(Frame::Setup(attempt, Message::Accept(mine)));
                    } else {
                        self.fresh += offer.holds.len();
                        if self.attempts.commit(key) {
                            out.push_back(Frame::Setup(attempt, Message::Commit));
                            end = Some(Ok(()));
                        }
                    }
                    false
                }
                Next::Wait => true,
            };
            if waited && expired {
                let running = self.running.as_mut().unwrap();
                match running.step {
                    Step::Accepted => {
                        running.step = Step::Withdrawn;
                        out.push_back(Frame::Setup(attempt, Message::End(late())));
                    }
                    Step::Withdrawn => {}
                    _ => end = Some(Err(late())),
                }
            }
        }
        if let Some(result) = end {
            let heard = self.attempts.end(key, result.as_ref().err());
            self.take(heard, attempt, out);
            match (std::mem::take(&mut self.fresh), &result) {
                (fresh, Ok(())) => self.has += fresh,
                // A failed attempt drops what it built, which gives the receipts back.
                (fresh, Err(_)) => out.extend((0..fresh).map(|_| Frame::Release)),
            }
            self.results.push(result.is_ok());
            self.running = None;
        }
    }

    /// The service thread: one frame from the peer.
    fn hear(&mut self, frame: Frame, out: &mut VecDeque<Frame>) {
        match frame {
            Frame::Release => self.lent = self.lent.checked_sub(1).expect("given back twice"),
            Frame::Setup(attempt, message) => {
                let heard =
                    self.attempts.hear(self.key(), attempt, message).expect("a peer that keeps to the rules");
                self.take(heard, attempt, out);
            }
        }
    }
}

/// Both ranks, and what each has sent.
struct Pair {
    sides: [Side; 2],
    wires: [VecDeque<Frame>; 2],
}

impl Default for Pair {
    fn default() -> Self {
        Self { sides: [Side::new(0), Side::new(1)], wires: Default::default() }
    }
}

impl Pair {
    fn step(&mut self, who: usize, fails: bool, expired: bool) {
        self.sides[who].step(fails, expired, &mut self.wires[who]);
    }

    fn hear(&mut self, who: usize) {
        if let Some(frame) = self.wires[1 - who].pop_front() {
            self.sides[who].hear(frame, &mut self.wires[who]);
        }
    }

    fn is_busy(&self) -> bool {
        self.sides.iter().any(|side| side.running.is_some()) || self.wires.iter().any(|wire| !wire.is_empty())
    }
}

proptest! {
    #[test]
    fn both_ends_know_the_same_end_and_everything_held_comes_back(
        script in prop::collection::vec((0..4_u8, 0..12_u8), 0..200),
    ) {
        let mut pair = Pair::default();
        for (what, luck) in script {
            let who = usize::from(what & 1);
            if what & 2 == 0 { pair.step(who, luck == 0, luck < 3) } else { pair.hear(who) }
        }
        // Everybody's time is up, and all frames arrive.
        while pair.is_busy() {
            for who in [0, 1] {
                if pair.sides[who].running.is_some() {
                    pair.step(who, false, true);
                }
                pair.hear(who);
            }
        }
        let [a, b] = pair.sides;
        let met = a.results.len().min(b.results.len());
        prop_assert_eq!(&a.results[..met], &b.results[..met]);
        prop_assert!(a.results[met..].iter().chain(&b.results[met..]).all(|ok| !ok));
        // Both ends keep exactly what succeeded.
        let made = a.results.iter().filter(|ok| **ok).count();
        prop_assert_eq!((a.lent, b.lent, a.has, b.has), (made, made, made, made));
    }
}
