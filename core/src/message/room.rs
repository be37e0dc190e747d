//! Whether there is room for another send to a peer, and that nobody sleeps who was refused where there is some.
//!
//! Room is credit for the peer's inbox, here, and whatever else a send needs, elsewhere: a wire that takes it, a place for long data. A
//! thread that is refused notes so and looks once more before it sleeps; whoever finds room looks for the note. With a sequentially
//! consistent fence between the two steps of each, one of them sees the other.
#![forbid(unsafe_code)]

use super::credit::{Amount, Credit};
use crate::error::Result;
use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};

/// Of one peer. `wake` wakes the threads of the messenger that sleep because a send was refused, and those that are about to.
#[derive(Debug)]
pub(super) struct Room {
    /// Room in the peer's inbox.
    credit: Credit,
    /// A send found no room, and none was found since.
    refused: AtomicBool,
    /// How often room was found.
    finds: AtomicU64,
}

/// Credit that was taken for one message.
#[derive(Debug)]
#[must_use = "put it back unless the message is sent"]
pub(super) struct Taken {
    bytes: usize,
    /// How often room had been found before.
    finds: u64,
}

impl Room {
    /// With a peer whose inbox takes `most`.
    pub(super) fn new(most: Amount) -> Self {
        Self { credit: Credit::new(most), refused: AtomicBool::new(false), finds: AtomicU64::new(0) }
    }

    /// Takes the credit for one message of `bytes` bytes, if there is enough.
    #[inline]
    pub(super) fn take(&self, bytes: usize) -> Option<Taken> {
        // A sender that has counted a find sees the room that was found.
        let finds = self.finds.load(Ordering::Acquire);
        self.credit.take(bytes).then_some(Taken { bytes, finds })
    }

    /// Takes back the credit for a message that was not sent, for want of room elsewhere. If such room was found meanwhile, another thread
    /// may have looked then, missed this credit, and gone to sleep; and the caller may never try again.
    #[cold]
    pub(super) fn put_back(&self, taken: &Taken, wake: impl FnOnce()) {
        self.credit.put_back(taken.bytes);
        fence(Ordering::SeqCst);
        if self.finds.load(Ordering::Relaxed) != taken.finds {
            self.found(wake);
        }
    }

    /// The peer gives `amount` back.
    ///
    /// # Errors
    /// `Remote` for more than was taken.
    pub(super) fn give(&self, amount: Amount, wake: impl FnOnce()) -> Result<()> {
        self.credit.give(amount)?;
        self.found(wake);
        Ok(())
    }

    /// A send is refused, and its thread may sleep next. The caller looks for room once more: another thread may have found it just
    /// before. [`found`](Self::found) sees the note, or this look the room.
    pub(super) fn note_refused(&self) {
        self.refused.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// There is more room, or no peer any more.
    pub(super) fn found(&self, wake: impl FnOnce()) {
        self.finds.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.refused.load(Ordering::Relaxed) && self.refused.swap(false, Ordering::AcqRel) {
            wake();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const ONE: Amount = Amount { messages: 1, bytes: 10 };

    #[test]
    fn credit_that_was_held_while_room_was_found_wakes_whoever_missed_it() {
        let room = Room::new(ONE);
        let woken = std::cell::Cell::new(0);
        let wake = || woken.set(woken.get() + 1);
        let held = room.take(10).unwrap();
        assert!(room.take(1).is_none());
        room.note_refused();
        room.found(wake);
        assert_eq!(woken.get(), 1);
        // It looks again, in vain.
        room.note_refused();
        assert!(room.take(1).is_none());
        room.put_back(&held, wake);
        assert_eq!(woken.get(), 2);
        // Threads that a full wire refuses must not wake each other for ever.
        let held = room.take(10).unwrap();
        room.note_refused();
        room.put_back(&held, wake);
        assert_eq!(woken.get(), 2);
        room.found(wake);
        room.found(wake);
        assert_eq!(woken.get(), 3);
    }

    #[test]
    fn credit_from_the_peer_wakes_whoever_was_refused() {
        let room = Room::new(ONE);
        let woken = std::cell::Cell::new(false);
        let _sent = room.take(10).unwrap();
        assert!(room.take(1).is_none());
        room.note_refused();
        assert!(room.give(Amount { messages: 2, ..ONE }, || woken.set(true)).is_err() && !woken.get());
        room.give(ONE, || woken.set(true)).unwrap();
        assert!(woken.get());
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    const ONE: Amount = Amount { messages: 1, bytes: 1 };

    /// A peer with credit for one message, a wire that is full at first, and how often sleepers were woken.
    struct Peer {
        room: Room,
        wire: AtomicBool,
        wakes: AtomicU64,
    }

    impl Peer {
        fn new() -> Arc<Self> {
            Arc::new(Self { room: Room::new(ONE), wire: AtomicBool::new(false), wakes: AtomicU64::new(0) })
        }

        fn wake(&self) {
            self.wakes.fetch_add(1, Ordering::AcqRel);
        }

        fn wakes(&self) -> u64 {
            self.wakes.load(Ordering::Acquire)
        }

        /// Whether it is sent.
        fn try_push(&self) -> bool {
            let Some(taken) = self.room.take(1) else { return false };
            let sent = self.wire.load(Ordering::Acquire);
            if !sent {
                self.room.put_back(&taken, || self.wake());
            }
            sent
        }

        /// As `Member::push` does.
        fn push(&self) -> bool {
            self.try_push() || {
                self.room.note_refused();
                self.try_push()
            }
        }
    }

    #[test]
    fn loom_nobody_sleeps_who_could_send_what_another_thread_has_given_up() {
        loom::model(|| {
            let peer = Peer::new();
            let other = thread::spawn({
                let peer = peer.clone();
                move || peer.push()
            });
            let wire = thread::spawn({
                let peer = peer.clone();
                move || {
                    peer.wire.store(true, Ordering::Release);
                    peer.room.found(|| peer.wake());
                }
            });
            // A wake from before the push ends no sleep behind it.
            let seen = peer.wakes();
            let sent = peer.push();
            let other_sent = other.join().unwrap();
            wire.join().unwrap();
            // A message that is sent has the credit; its end is another event.
            assert!(sent || other_sent || peer.wakes() > seen);
        });
    }

    #[test]
    fn loom_nobody_sleeps_on_credit_that_the_peer_has_given() {
        loom::model(|| {
            let peer = Peer::new();
            peer.wire.store(true, Ordering::Relaxed);
            assert!(peer.push());
            let progress = thread::spawn({
                let peer = peer.clone();
                move || peer.room.give(ONE, || peer.wake()).unwrap()
            });
            let sent = peer.push();
            progress.join().unwrap();
            assert!(sent || peer.wakes() > 0);
        });
    }
}
