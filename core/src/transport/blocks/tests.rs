//! The line, with blocks that are numbers.

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::sync::{AtomicUsize, Ordering};

/// Counts how often it is woken.
#[derive(Clone, Debug, Default)]
struct Woken(Arc<AtomicUsize>);

impl Wake for Woken {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Woken {
    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn blocks_go_to_those_who_have_waited_longest() {
    let blocks = Blocks::new(2);
    let mut places = [(); 4].map(|()| (Place::default(), Woken::default()));
    let ask = |(place, woken): &mut (Place, Woken)| blocks.first(place, Some(&*woken));
    let held = [(); 2].map(|()| blocks.first(&mut Place::default(), None).unwrap());
    assert!(places[1..].iter_mut().all(|place| ask(place).is_none() && place.0.is_in_line()));
    assert!(places.iter_mut().skip(1).all(|place| ask(place).is_none()), "asking again changes nothing");
    blocks.give([held[0]]);
    assert_eq!(places.each_ref().map(|(_, woken)| woken.count()), [0, 1, 0, 0]);
    assert_eq!((ask(&mut places[3]), ask(&mut places[0])), (None, None), "another one is first");
    // The first in the line cannot use it.
    blocks.leave(&mut places[1].0);
    assert_eq!(places.each_ref().map(|(_, woken)| woken.count()), [0, 1, 1, 0]);
    assert_eq!(ask(&mut places[2]), Some(held[0]));
    assert!(!places[2].0.is_in_line());
    blocks.give([held[0], held[1]]);
    assert_eq!(places.each_ref().map(|(_, woken)| woken.count()), [1, 1, 1, 1]);
    assert!(ask(&mut places[3]).is_some() && ask(&mut places[0]).is_some());
}

#[test]
fn whoever_holds_a_block_leaves_the_last_one_to_others() {
    let blocks = Blocks::<Woken>::new(3);
    let (mut one, mut two) = (Place::default(), Place::default());
    let held = blocks.first(&mut one, None).unwrap();
    let more = blocks.further().unwrap();
    assert_eq!(blocks.further(), None);
    let last = blocks.first(&mut two, None).unwrap();
    blocks.give([more, last]);
    let mut three = Place::default();
    assert!(blocks.first(&mut three, None).is_some());
    assert!(blocks.first(&mut two, None).is_some());
    assert!(blocks.first(&mut three, None).is_none());
    blocks.give([more]);
    assert_eq!(blocks.further(), None, "somebody waits in line");
    blocks.leave(&mut three);
    blocks.give([held]);
    assert!(blocks.further().is_some());
}

#[test]
fn all_but_one_block_may_be_parked() {
    for count in 1..4 {
        let blocks = Blocks::<Woken>::new(count);
        assert_eq!((0..4).filter(|_| blocks.park()).count(), count - 1);
        if count > 1 {
            blocks.unpark();
            assert!(blocks.park() && !blocks.park());
        }
    }
}

#[test]
fn holders_are_told_when_a_line_begins() {
    let blocks = Blocks::new(2);
    let mut places = [(); 4].map(|()| (Place::default(), Woken::default()));
    let ask = |(place, woken): &mut (Place, Woken)| blocks.first(place, Some(&*woken));
    let held = [ask(&mut places[0]).unwrap(), ask(&mut places[1]).unwrap()];
    blocks.give([held[0]]);
    blocks.release(&mut places[0].0);
    assert!(blocks.further().is_none() && !blocks.has_line());
    assert!(ask(&mut places[0]).is_some() && ask(&mut places[2]).is_none() && blocks.has_line());
    let woken = |places: &[(Place, Woken); 4]| places.each_ref().map(|(_, woken)| woken.count());
    assert_eq!(woken(&places), [1, 1, 0, 0]);
    assert!(ask(&mut places[3]).is_none());
    assert_eq!(woken(&places), [1, 1, 0, 0], "there was a line");
    blocks.give([held[1]]);
    blocks.release(&mut places[1].0);
    blocks.leave(&mut places[2].0);
    blocks.leave(&mut places[3].0);
    assert!(ask(&mut places[2]).is_some() && ask(&mut places[3]).is_none());
    assert_eq!(woken(&places)[..2], [2, 1], "the second holds nothing any more");
}

proptest! {
    /// Whatever happens in between: no block is given out twice, those in the line are served in order, each of them is woken
    /// once there is a block for it, and the line moves until everybody had a turn.
    #[test]
    fn blocks_are_lent_once_and_in_order(count in 1usize..4, steps in prop::collection::vec((0usize..6, 0u8..4), 1..200)) {
        let blocks = Blocks::new(count);
        let mut places: Vec<_> = (0..6).map(|_| (Place::default(), Woken::default(), Vec::new())).collect();
        let (mut line, mut woken) = (VecDeque::new(), [0; 6]);
        for (who, what) in steps {
            let (place, waker, held) = &mut places[who];
            match what {
                0 if held.is_empty() => {
                    let ahead = line.iter().position(|other| *other == who).unwrap_or(line.len());
                    let fits = ahead < blocks.free();
                    match blocks.first(place, Some(&*waker)) {
                        Some(block) => {
                            prop_assert!(fits);
                            line.retain(|other| *other != who);
                            held.push(block);
                        }
                        None => {
                            prop_assert!(!fits && place.is_in_line());
                            if ahead == line.len() {
                                line.push_back(who);
                                woken[who] = waker.count();
                            }
                        }
                    }
                }
                1 if !held.is_empty() => held.extend(blocks.further()),
                2 => {
                    blocks.give(held.drain(..));
                    blocks.release(place);
                }
                3 => {
                    blocks.leave(place);
                    line.retain(|other| *other != who);
                }
                _ => {}
            }
            let mut all: Vec<_> = places.iter().flat_map(|(_, _, held)| held).copied().collect();
            all.sort_unstable();
            all.dedup();
            prop_assert_eq!(all.len() + blocks.free(), count);
            for who in line.iter().take(blocks.free()) {
                prop_assert!(places[*who].1.count() > woken[*who], "{who} was not woken");
            }
        }
    }
}
