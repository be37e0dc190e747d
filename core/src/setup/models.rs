//! Waits for setup messages, under loom: no message and no abort is slept over.

use std::sync::Arc;
use std::time::Duration;

use super::attempts::Next;
use super::key::{Key, Kind};
use super::mailbox::SetupMail;
use super::message::{Message, Offer};
use crate::abort::{Abort, AbortCause};
use crate::deadline::Deadline;
use crate::group::subscriber::Subscriber;

/// Follows rank 1.
const RECV: Key = Key { kind: Kind::MemoryRecv, peer: 1, space: super::key::Namespace::User, tag: 1 };

/// How `setup` waits: the number of the latest change, a look at the attempt, then the wait. No message is slept over.
#[test]
fn loom_setup_sees_every_message() {
    loom::model(|| {
        let mail = Arc::new(SetupMail::new(0, 2));
        mail.with(|attempts| {
            attempts.begin(RECV);
            attempts.ask(RECV);
        });
        let peer = mail.clone();
        let thread = loom::thread::spawn(move || {
            drop(peer.hear(RECV, 1, Message::Offer(Offer::default())).unwrap());
            drop(peer.hear(RECV, 1, Message::End(crate::Error::timeout("recv_memory", "late"))).unwrap());
        });
        loop {
            let seen = mail.version();
            match mail.with(|attempts| attempts.next(RECV)) {
                Next::Ended(result) => break assert!(result.is_err()),
                Next::Build(_) => {}
                _ => assert!(mail.wait(seen, Deadline::after(Duration::MAX))),
            }
        }
        thread.join().unwrap();
    });
}

/// The leader's commit and the follower's withdrawal, at the same time: one of them decides, and both ends know which.
#[test]
fn loom_a_commit_and_a_withdrawal_agree() {
    loom::model(|| {
        let (leader, send) = (Arc::new(SetupMail::new(1, 2)), RECV.mirrored(0));
        leader.with(|attempts| {
            attempts.begin(send);
            attempts.ask(send);
            assert!(attempts.offer(send));
            drop(attempts.hear(send, 1, Message::Accept(Offer::default())).unwrap());
            assert!(matches!(attempts.next(send), Next::Build(_)));
        });
        let service = leader.clone();
        let thread = loom::thread::spawn(move || {
            let late = crate::Error::timeout("recv_memory", "late");
            service.hear(send, 1, Message::End(late)).unwrap().answer.is_some()
        });
        let committed = leader.with(|attempts| attempts.commit(send));
        let refused = thread.join().unwrap();
        assert_ne!(committed, refused, "the follower hears COMMIT or END, and never both");
    });
}

/// The group tells of an abort after it has set the cause: `setup` ends.
#[test]
fn loom_an_abort_ends_the_wait() {
    loom::model(|| {
        let (mail, abort) = (Arc::new(SetupMail::new(0, 1)), Abort::new());
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
