//! Fuzz target of a ring whose peer writes anything at all into it, see [`crate::fuzzing`].

use std::collections::VecDeque;

use super::protocol::{Consumer, PREFIX, Producer, Push, Storage, Violation};
use crate::sync::{AtomicU64, Ordering};

const CELLS: usize = 8;
const WORDS: usize = 8;
/// The longest body that the consumer is to accept: less than the ring takes.
const LIMIT: usize = 200;

/// A ring in memory of this process. The first words are the head, the sleeping word and the full word.
struct Ring(Vec<AtomicU64>);

impl Storage for Ring {
    type Word = AtomicU64;
    const CELL_WORDS: usize = WORDS;

    fn cells(&self) -> usize {
        CELLS
    }

    fn cell(&self, index: usize) -> &[AtomicU64] {
        &self.0[3 + index * WORDS..][..WORDS]
    }

    fn head(&self) -> &AtomicU64 {
        &self.0[0]
    }

    fn sleeping(&self) -> &AtomicU64 {
        &self.0[1]
    }

    fn full(&self) -> &AtomicU64 {
        &self.0[2]
    }
}

/// Steps of both sides of a ring, each a byte and what belongs to it: 0 to write a word (its number, eight bytes), 1 to push a frame
/// (its length in fours), 2 to sleep for want of one, 3 to sleep for want of room; any other reads a frame. What comes out is what
/// was pushed, until a word is written; after that, anything that fits, or an error.
pub fn message_ring(mut script: &[u8]) -> Option<Vec<u8>> {
    let ring = Ring((0..3 + CELLS * WORDS).map(|_| AtomicU64::new(0)).collect());
    let (producer, mut consumer) = (Producer::new(0), Consumer::new(&ring, 0, LIMIT));
    let (mut pushed, mut honest, mut out) = (VecDeque::new(), true, Vec::new());
    // Only a word that was written may be wrong.
    fn fair<T>(outcome: Result<T, Violation>, honest: bool) -> Option<T> {
        assert!(!honest || outcome.is_ok(), "a violation that nobody has committed");
        outcome.ok()
    }
    while let Some((step, rest)) = script.split_first() {
        script = rest;
        match step {
            0 => {
                let (word, rest) = script.split_first()?;
                let (value, rest) = rest.split_first_chunk()?;
                script = rest;
                let word = &ring.0[usize::from(*word) % ring.0.len()];
                word.store(u64::from_le_bytes(*value), Ordering::Relaxed);
                honest = false;
            }
            1 => {
                let (fours, rest) = script.split_first()?;
                script = rest;
                let body = vec![*fours; (usize::from(*fours) * 4).min(LIMIT)];
                let mut number = 0;
                let prefix = |next| {
                    number = next;
                    [u64::from(next); PREFIX]
                };
                if fair(producer.push(&ring, prefix, &body), honest)? != Push::Full {
                    pushed.push_back((number, body));
                }
            }
            2 => _ = fair(consumer.arm(&ring), honest)?,
            3 => _ = fair(producer.arm(&ring, LIMIT), honest)?,
            _ => {
                let Some(frame) = fair(consumer.peek(&ring), honest)? else {
                    assert!(!honest || pushed.is_empty(), "a frame that was pushed is there");
                    continue;
                };
                assert!(frame.body.len() <= LIMIT);
                let whole = pushed.pop_front();
                if honest {
                    let (number, body) = whole.expect("a frame that nobody pushed");
                    assert_eq!((frame.prefix, frame.body), ([u64::from(number); PREFIX], &body[..]));
                }
                out.extend_from_slice(frame.body);
                let len = frame.body.len();
                consumer.pop(&ring, len);
            }
        }
    }
    Some(out)
}

pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let lap = [1, 0, 1, 3, 9, 9, 1, 50, 9].repeat(6);
    let asleep = [2, 3, 1, 50, 1, 50, 3, 9, 2, 9, 9];
    // The header of a frame of the first lap, in its first cell.
    let header = [&[0, 3][..], &(1_u64 << 32 | 1 << 31 | 40).to_le_bytes(), &[9, 9]].concat();
    let head = [&[1, 50, 9, 1, 50, 0, 0][..], &6_u64.to_le_bytes(), &[1, 50, 1, 50, 9]].concat();
    [lap, asleep.to_vec(), header, head].map(|script| ("message-ring", script)).into()
}
