//! Steps that a block does again and again with other numbers, as around a ring.

use std::collections::HashMap;
use std::ops::Range;

use aqueduct_ptx::plan as ptx;

/// Fewer steps are written one after the other: a turn loads its numbers, and steps in a row have theirs in the instructions.
const LEAST_SAVED: usize = 32;
/// The longest body that is looked for. A block of most plans does less between two meetings with a peer.
const LONGEST: usize = 64;

/// Neighbouring steps of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Steps that are done once.
    Once(Range<usize>),
    /// Steps that are done `turns` times, each time those behind the last.
    Again { body: Range<usize>, turns: usize },
}

/// Cuts steps, which are without numbers, into parts: from the front on, the repetition that saves most.
pub(super) fn parts(bare: &[ptx::Step]) -> Vec<Part> {
    let mut numbers: HashMap<&ptx::Step, usize> = HashMap::new();
    let kinds: Vec<usize> = (0..)
        .zip(bare)
        .map(|(index, step)| match step {
            // Neither repetitions nor marks, which differ, stand in a repetition.
            ptx::Step::Loop { .. } | ptx::Step::Repeat { .. } | ptx::Step::Mark { .. } => bare.len() + index,
            step => *numbers.entry(step).or_insert(index),
        })
        .collect();
    let (mut parts, mut once, mut at) = (Vec::new(), 0, 0);
    while at < kinds.len() {
        let Some((period, turns)) = best(&kinds[at..]) else {
            at += 1;
            continue;
        };
        if once < at {
            parts.push(Part::Once(once..at));
        }
        parts.push(Part::Again { body: at..at + period, turns });
        at += period * turns;
        once = at;
    }
    if once < at {
        parts.push(Part::Once(once..at));
    }
    parts
}

/// The period and number of turns, from the first step on, that save most.
fn best(kinds: &[usize]) -> Option<(usize, usize)> {
    let turns = |period: usize| {
        let same = kinds.iter().zip(&kinds[period..]).take_while(|(step, next)| step == next).count();
        1 + same / period
    };
    let periods = (1..=LONGEST.min(kinds.len() / 2)).map(|period| (period, turns(period)));
    let saves = |(period, turns): &(usize, usize)| period * (turns - 1);
    // Of equal savings the shortest body.
    periods.rev().max_by_key(saves).filter(|best| saves(best) >= LEAST_SAVED)
}

#[cfg(test)]
mod tests {
    use super::Part::{Again, Once};
    use super::*;
    use ptx::Number::Fixed;

    fn steps(text: &str) -> Vec<ptx::Step> {
        let step = |letter| match letter {
            's' => ptx::Step::Sync,
            'm' => ptx::Step::Mark { number: 0 },
            letter => ptx::Step::PortWait { channel: Fixed(letter.into()) },
        };
        text.chars().map(step).collect()
    }

    #[test]
    fn the_longest_repetitions_are_found_and_short_ones_left() {
        let long = |text: &str| text.repeat(20);
        let cut = |text: &str| parts(&steps(text));
        assert_eq!(cut(""), []);
        assert_eq!(cut(&"ab".repeat(16)), [Once(0..32)]);
        assert_eq!(cut(&"ab".repeat(17)), [Again { body: 0..2, turns: 17 }]);
        assert_eq!(cut(&"a".repeat(33)), [Again { body: 0..1, turns: 33 }]);
        let text = format!("xy{}z{}x", long("abs"), long("cc"));
        let expected = [
            Once(0..2),
            Again { body: 2..5, turns: 20 },
            Once(62..63),
            Again { body: 63..64, turns: 40 },
            Once(103..104),
        ];
        assert_eq!(cut(&text), expected);
        assert_eq!(cut(&long("abm")), [Once(0..60)]);
    }
}
