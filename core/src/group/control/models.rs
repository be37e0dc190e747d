//! Waits on the control links' state, under loom: no message and no abort is slept over.

use std::time::Duration;

use super::*;
use crate::abort::AbortCause;
use crate::memory::ledger::HoldId;
use crate::setup::key::Kind;
use crate::setup::mailbox::Offer;

struct Nobody;

impl Waiters for Nobody {
    fn dismiss(&self, _: u32) {}

    fn abandoned(&self) -> Option<Option<u32>> {
        None
    }
}

const SEND: Key = Key { kind: Kind::MemorySend, peer: 0, tag: 1 };
const RECV: Key = Key { kind: Kind::MemoryRecv, peer: 0, tag: 1 };

fn control() -> Arc<Control> {
    Control::new(0, 1, Abort::new(), Arc::new(Nobody), None)
}

/// How `setup` waits: the number of the latest change, a look at the mailbox, then the wait. No message is slept over.
#[test]
fn loom_setup_sees_every_message() {
    loom::model(|| {
        let control = control();
        let peer = control.clone();
        let thread = loom::thread::spawn(move || {
            peer.say(SEND, 1, Message::Offer(Offer::default())).unwrap();
            peer.say(SEND, 1, Message::Done(Ok(()))).unwrap();
        });
        let (mut offered, mut done) = (false, false);
        while !(offered && done) {
            let seen = control.version();
            offered |= control.with_mailbox(|mailbox| mailbox.take_offer(RECV, 1)).is_some();
            done = control.with_mailbox(|mailbox| mailbox.done(RECV, 1)).is_some();
            if !(offered && done) {
                assert!(control.wait(seen, Deadline::after(Duration::MAX)));
            }
        }
        thread.join().unwrap();
    });
}

/// An abort ends every wait: that of `setup`, and that of `close` for memory nobody gives back.
#[test]
fn loom_an_abort_wakes_who_waits() {
    loom::model(|| {
        let control = control();
        control.hold(HoldId::Memory(1), Arc::new(()), 0);
        let other = control.clone();
        let thread = loom::thread::spawn(move || other.abort().abort(AbortCause::requested(0, "enough")));
        let closing = control.clone();
        let closer = loom::thread::spawn(move || closing.wait_released(Deadline::after(Duration::MAX)));
        loop {
            let seen = control.version();
            if control.check("setup").is_err() {
                break;
            }
            control.wait(seen, Deadline::after(Duration::MAX));
        }
        assert!(thread.join().unwrap());
        assert!(!closer.join().unwrap(), "nobody gave it back");
    });
}
