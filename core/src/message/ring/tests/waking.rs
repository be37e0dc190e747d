//! Readers that sleep while there is no room.

use super::*;

/// The peer reads all and goes to sleep between a push that finds no room and its second look.
#[test]
fn a_frame_that_finds_room_at_the_second_look_wakes_its_reader() {
    let (one, two, ..) = pair();
    let (two, body) = (Rc::new(two), body(100));
    let reader = two.clone();
    FULL.set(Some(Box::new(move || {
        while reader.pull(&mut Kept::default()).unwrap() > 0 {}
        assert!(!reader.arm().unwrap(), "nothing is left");
    })));
    while FULL.with_borrow(Option::is_some) {
        assert!(one.push(head(0, &body), &body).unwrap());
    }
    assert!(is_readable(&two));
}
