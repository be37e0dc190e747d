//! Whether there is room for another send to a peer, and that nobody sleeps who was refused where there is some.
//!
//! Room is credit for the peer's inbox, here, and whatever else a send needs, elsewhere: a wire that takes it, a place for long data. A
//! thread that is refused notes so and looks once more before it sleeps; whoever finds room looks for the note. With a sequentially
//! consistent fence between the two steps of each, one of them sees the other.
#![forbid(unsafe_code)]

use super::credit::{Amount, Credit};
use crate::error::Result;
use crate::sync::{AtomicBool, Ordering, fence};

/// Of one peer. `wake` wakes the threads of the messenger that sleep because a send was refused, and those that are about to.
#[derive(Debug)]
pub(super) struct Room {
    /// Room in the peer's inbox.
    credit: Credit,
    /// A send found no room, and none was found since.
    refused: AtomicBool,
    /// A send found no credit, perhaps because another one held it for a moment.
    missed: AtomicBool,
}

impl Room {
    /// With a peer whose inbox takes `most`.
    pub(super) fn new(most: Amount) -> Self {
        let [refused, missed] = [false; 2].map(AtomicBool::new);
        Self { credit: Credit::new(most), refused, missed }
    }

    /// Takes the credit for one message of `bytes` bytes; false if there is not enough.
    #[inline]
    pub(super) fn take(&self, bytes: usize) -> bool {
        let taken = self.credit.take(bytes);
        if !taken {
            self.missed.store(true, Ordering::Relaxed);
        }
        taken
    }

    /// Takes back the credit for a message that was not sent. Another thread may have been refused meanwhile for the want of it, and the
    /// caller may never try again.
    #[cold]
    pub(super) fn put_back(&self, bytes: usize, wake: impl FnOnce()) {
        self.credit.put_back(bytes);
        fence(Ordering::SeqCst);
        if self.missed.load(Ordering::Relaxed) && self.missed.swap(false, Ordering::AcqRel) {
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
    fn credit_that_another_send_held_in_vain_wakes_whoever_missed_it_once() {
        let room = Room::new(ONE);
        let woken = std::cell::Cell::new(0);
        let wake = || woken.set(woken.get() + 1);
        assert!(room.take(10));
        room.put_back(10, wake);
        assert_eq!(woken.get(), 0, "nobody has missed it");
        assert!(room.take(10) && !room.take(1));
        room.note_refused();
        assert!(!room.take(1));
        room.put_back(10, wake);
        assert_eq!(woken.get(), 1);
        // A wire that refuses several threads must not have them wake each other for ever.
        assert!(room.take(10));
        room.note_refused();
        room.put_back(10, wake);
        assert_eq!(woken.get(), 1);
        room.found(wake);
        room.found(wake);
        assert_eq!(woken.get(), 2);
    }

    #[test]
    fn credit_from_the_peer_wakes_whoever_was_refused() {
        let room = Room::new(ONE);
        let woken = std::cell::Cell::new(false);
        assert!(room.take(10) && !room.take(1));
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

    /// As `Member::push` does: the second look comes behind the note. True if the thread sleeps now.
    fn is_refused(room: &Room) -> bool {
        if room.take(1) {
            return false;
        }
        room.note_refused();
        !room.take(1)
    }

    #[test]
    fn loom_nobody_sleeps_on_credit_that_was_held_in_vain() {
        loom::model(|| {
            let shared = Arc::new((Room::new(Amount { messages: 1, bytes: 1 }), AtomicBool::new(false)));
            let holder = thread::spawn({
                let shared = shared.clone();
                move || {
                    let (room, woken) = &*shared;
                    // Its wire refuses the message.
                    if room.take(1) {
                        room.put_back(1, || woken.store(true, Ordering::Relaxed));
                    }
                }
            });
            let (room, woken) = &*shared;
            let sleeps = is_refused(room);
            holder.join().unwrap();
            assert!(!sleeps || woken.load(Ordering::Relaxed));
        });
    }

    #[test]
    fn loom_nobody_sleeps_on_credit_that_the_peer_has_given() {
        loom::model(|| {
            let most = Amount { messages: 1, bytes: 1 };
            let shared = Arc::new((Room::new(most), AtomicBool::new(false)));
            assert!(shared.0.take(1));
            let progress = thread::spawn({
                let shared = shared.clone();
                move || shared.0.give(most, || shared.1.store(true, Ordering::Relaxed)).unwrap()
            });
            let (room, woken) = &*shared;
            let sleeps = is_refused(room);
            progress.join().unwrap();
            assert!(!sleeps || woken.load(Ordering::Relaxed));
        });
    }
}
