//! Links that end, and links that make room.

use super::*;

/// The end of a peer ends the links that it has then, so nobody would ever close a later one.
#[test]
fn a_peer_that_has_ended_gets_no_link() {
    let member = member();
    member.finish(&crate::Error::peer_lost("test", 1, "on purpose")).unwrap();
    assert!(member.add_line(line(&kept(0))).is_err());
    assert!(member.lines().is_empty() && member.sender("test").is_err());
}

/// It would hold staging memory as long as handles keep the link, and a call that is about to serve it would go on.
#[test]
fn a_link_that_has_ended_serves_nothing() {
    let (table, _exposed, body) = served(0, 100);
    let wire = kept(100);
    let line = line(&wire);
    lock(&line.serving).add(Head::new(Operation::Read, 0, 1, body.len()), &body, 8).unwrap();
    line.end();
    assert_eq!(lock(&line.serving).serve(&table, &wire).unwrap(), Served::All);
    assert!(wire.operations().is_empty());
}

/// A thread that sends in place of those who sleep takes the news of room: they would not find it any more.
#[test]
fn room_that_is_found_in_place_of_a_sleeper_wakes_it() {
    let (wire, member) = (kept(10), member());
    member.add_line(line(&wire)).unwrap();
    let sleeper = member.hub.alarm.fall_asleep();
    let before = member.hub.news();
    member.note_refused();
    wire.made_room.store(true, Ordering::Release);
    member.mark_dirty();
    assert_ne!(member.hub.news(), before);
    member.hub.alarm.awake(sleeper);
}
