use super::*;
use crate::check::access::Why;
use crate::check::history::{KEPT, Write};
use crate::check::stamp::{Stamp, WorkId};

const HERE: Object = Object::Driver(7);

fn access(block: u32, write: bool, at: u64, size: u32) -> Access {
    let who = Stamp { work: WorkId { chain: 0, seq: 1 }, block, warp: 0, lanes: 1, tick: 1 };
    Access {
        who,
        device: 0,
        strong: None,
        write,
        multicast: false,
        engine: None,
        adds: false,
        at,
        size,
        source: 0,
    }
}

#[test]
fn accesses_race_where_their_bytes_meet_and_nowhere_else() {
    let known = Clock::default();
    for (at, size, races) in
        [(0, 4, true), (3, 1, true), (4, 4, false), (2, 2, true), (1, 1, true), (PAGE - 4, 8, false)]
    {
        let mut shadow = Shadow::default();
        shadow.access(HERE, &access(0, true, 0, 4), &known).unwrap();
        let second = shadow.access(HERE, &access(1, false, at, size), &known);
        assert_eq!(second.is_err(), races, "{size} bytes at {at}");
        assert!(shadow.access(Object::Host, &access(1, true, 0, 4), &known).is_ok());
    }
    let mut shadow = Shadow::default();
    shadow.access(HERE, &access(0, true, PAGE - 1, 1), &known).unwrap();
    shadow.access(HERE, &access(1, true, PAGE - 2, 1), &known).unwrap();
    let race = shadow.access(HERE, &access(2, true, PAGE - 8, 16), &known).unwrap_err();
    assert_eq!(race, Stop::Race((access(1, true, PAGE - 2, 1), Why::Unordered)));
}

#[test]
fn a_write_races_with_every_read_that_is_not_ordered_before_it() {
    let mut shadow = Shadow::default();
    let nothing = Clock::default();
    for block in 0..3 {
        shadow.access(HERE, &access(block, false, 0, 4), &nothing).unwrap();
    }
    let mut known = Clock::default();
    for block in [0, 2] {
        known.reach(WorkId { chain: 0, seq: 1 }, block, 0, 0, 1);
    }
    let stop = shadow.access(HERE, &access(3, true, 0, 4), &known).unwrap_err();
    assert!(matches!(stop, Stop::Race((first, _)) if first.who.block == 1), "{stop:?}");
    known.reach(WorkId { chain: 0, seq: 1 }, 1, 0, 0, 1);
    shadow.access(HERE, &access(3, true, 0, 4), &known).unwrap();
}

#[test]
fn a_value_is_the_hosts_unless_kernels_or_streams_wrote_it_last() {
    let mut shadow = Shadow::default();
    assert!(!shadow.holds(HERE, 0, &[0]));
    shadow.wrote(HERE, PAGE - 4, &[7; 12]);
    assert!(shadow.holds(HERE, PAGE - 4, &[7; 4]) && shadow.holds(HERE, PAGE, &[7; 8]));
    assert!(!shadow.holds(HERE, PAGE, &[8; 8]) && !shadow.holds(HERE, PAGE + 8, &[0; 4]));
    shadow.host_wrote(HERE, PAGE, 4);
    assert!(!shadow.holds(HERE, PAGE, &[7; 4]) && shadow.holds(HERE, PAGE + 4, &[7; 4]));
    shadow.forget(HERE, PAGE - 2, 8);
    assert!(shadow.holds(HERE, PAGE - 4, &[7; 2]) && !shadow.holds(HERE, PAGE - 2, &[7]));
    assert!(!shadow.holds(HERE, PAGE + 5, &[7]) && shadow.holds(HERE, PAGE + 6, &[7; 2]));
}

fn strong_write(shadow: &mut Shadow, at: u64, size: u32, value: u64) {
    let history = shadow.history_of_write(HERE, at, size);
    if history.size() != size {
        history.restart(size, None);
    }
    history.add(history.len(), Write { value, ..Write::default() }, KEPT);
}

#[test]
fn a_weak_write_takes_away_what_was_published() {
    let known = Clock::default();
    for (write, at, left) in [(true, 8, false), (false, 8, true), (true, 16, true)] {
        let mut shadow = Shadow::default();
        strong_write(&mut shadow, 8, 8, 1);
        shadow.access(HERE, &access(0, write, at, 4), &known).unwrap();
        assert_eq!(shadow.history(HERE, 8).is_some(), left, "a write: {write}, at {at}");
    }
}

#[test]
fn what_a_copy_reads_has_settled_wherever_in_a_word_it_begins_or_ends() {
    for (from, len, settled) in [
        (8, 8, true),
        (12, 4, true),
        (8, 1, true),
        (4, 5, true),
        (15, 20, true),
        (0, 8, false),
        (16, 8, false),
    ] {
        let mut shadow = Shadow::default();
        (1..=3).for_each(|value| strong_write(&mut shadow, 8, 8, value));
        shadow.settle(HERE, from, len);
        let kept = shadow.history(HERE, 8).map(|history| history.len());
        assert_eq!(kept, Some(if settled { 1 } else { 3 }), "{len} bytes from {from}");
    }
}

/// Otherwise a value that the host wrote would count as a kernel's, if a kernel has once written the same.
#[test]
fn no_strong_write_is_left_where_the_host_has_written() {
    for (at, size) in [(8, 8), (12, 4), (8, 1)] {
        let mut shadow = Shadow::default();
        strong_write(&mut shadow, 8, 8, 1);
        strong_write(&mut shadow, 16, 8, 1);
        shadow.host_wrote(HERE, at, size);
        assert!(shadow.history(HERE, 8).is_none(), "{size} bytes at {at}");
        assert!(shadow.history(HERE, 16).is_some_and(|history| history.last(1, 8).is_some()));
    }
}

#[test]
fn what_is_forgotten_is_new() {
    let mut shadow = Shadow::default();
    let known = Clock::default();
    shadow.access(HERE, &access(0, true, 0, 4), &known).unwrap();
    shadow.access(HERE, &access(0, true, 8, 4), &known).unwrap();
    shadow.forget(HERE, 0, 8);
    assert!(shadow.access(HERE, &access(1, true, 8, 4), &known).is_err());
    shadow.access(HERE, &access(1, true, 0, 4), &known).unwrap();
}

/// Memory that is forgotten makes room again, and so do strong writes that are.
#[test]
fn an_access_that_there_is_no_room_for_is_refused() {
    let known = Clock::default();
    let room = |pages: usize, more: usize| Shadow::new((pages * WORDS + more) as u64);
    let word = |shadow: &mut Shadow, page: u64| shadow.access(HERE, &access(0, true, page * PAGE, 4), &known);
    let byte = |shadow: &mut Shadow, at: u64| shadow.access(HERE, &access(0, true, at, 1), &known);

    let mut shadow = room(2, BYTES - 1);
    assert_eq!((word(&mut shadow, 0), word(&mut shadow, 1)), (Ok(()), Ok(())));
    assert_eq!(word(&mut shadow, 0), Ok(()), "a page that is known");
    assert_eq!((word(&mut shadow, 2), byte(&mut shadow, 0)), (Err(Stop::Full), Err(Stop::Full)));
    shadow.forget(HERE, 0, PAGE);
    assert_eq!((word(&mut shadow, 2), word(&mut shadow, 0)), (Ok(()), Err(Stop::Full)));

    let mut shadow = room(1, BYTES);
    assert_eq!(
        (byte(&mut shadow, 0), byte(&mut shadow, 3), byte(&mut shadow, 4)),
        (Ok(()), Ok(()), Err(Stop::Full))
    );
    shadow.forget(HERE, 0, 4);
    assert_eq!((byte(&mut shadow, 4), byte(&mut shadow, 0)), (Ok(()), Err(Stop::Full)));

    let mut shadow = room(2, VALUES + PLACES + PLACE - 1);
    shadow.wrote(HERE, 0, &[1]);
    strong_write(&mut shadow, 8, 8, 1);
    assert_eq!(word(&mut shadow, 1), Err(Stop::Full));
    shadow.host_wrote(HERE, 8, 8);
    assert_eq!(word(&mut shadow, 1), Ok(()));
    shadow.forget(HERE, 0, 2 * PAGE);
    assert_eq!((word(&mut shadow, 0), word(&mut shadow, 1)), (Ok(()), Ok(())));
    assert_eq!(word(&mut shadow, 2), Err(Stop::Full), "no more room than at first");
}

/// As docs/race-detector.md has it.
#[test]
fn a_word_takes_some_120_bytes() {
    assert!((110..=135).contains(&(WORDS / (PAGE / WORD) as usize)), "{WORDS}");
}
