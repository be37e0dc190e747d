//! Waits for setup messages, under loom: no message and no abort is slept over.

use std::sync::Arc;
use std::time::Duration;

use super::key::{Key, Kind};
use super::mailbox::{Message, Offer, SetupMail};
use crate::abort::{Abort, AbortCause};
use crate::deadline::Deadline;
use crate::group::subscriber::Subscriber;

const RECV: Key = Key { kind: Kind::MemoryRecv, peer: 0, tag: 1 };

/// How `setup` waits: the number of the latest change, a look at the mailbox, then the wait. No message is slept over.
#[test]
fn loom_setup_sees_every_message() {
    loom::model(|| {
        let mail = Arc::new(SetupMail::default());
        let peer = mail.clone();
        let thread = loom::thread::spawn(move || {
            peer.deliver(RECV, 1, Message::Offer(Offer::default())).unwrap();
            peer.deliver(RECV, 1, Message::Done(Ok(()))).unwrap();
        });
        let (mut offered, mut done) = (false, false);
        while !(offered && done) {
            let seen = mail.version();
            offered |= mail.with(|mailbox| mailbox.take_offer(RECV, 1)).is_some();
            done = mail.with(|mailbox| mailbox.done(RECV, 1)).is_some();
            if !(offered && done) {
                assert!(mail.wait(seen, Deadline::after(Duration::MAX)));
            }
        }
        thread.join().unwrap();
    });
}

/// The group tells of an abort after it has set the cause: `setup` ends.
#[test]
fn loom_an_abort_ends_the_wait() {
    loom::model(|| {
        let (mail, abort) = (Arc::new(SetupMail::default()), Abort::new());
        let (told, other) = (mail.clone(), abort.clone());
        let thread = loom::thread::spawn(move || {
            other.abort(AbortCause::requested(0, "enough"));
            told.changed();
        });
        loop {
            let seen = mail.version();
            if abort.is_aborted() {
                break;
            }
            mail.wait(seen, Deadline::after(Duration::MAX));
        }
        thread.join().unwrap();
    });
}
