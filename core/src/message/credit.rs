//! Credit for messages: room in the receiver's inbox, counted by the sender.
//!
//! Each side tells in its introduction how many messages, and how many bytes of them, wait in its inbox at most. A message costs
//! a credit of one message and of its bytes. The receiver gives credits back once about half of them are due ([`Debt`]), in a
//! frame of its own. So a receiver never has to stop reading: whatever it gets fits, and answers pass messages that wait. A
//! sender without credit waits.
#![forbid(unsafe_code)]

use super::config::Limits;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{AtomicU64, Ordering};
use crate::wire::Reader;

/// A number of messages, and of bytes of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) messages: u32,
    pub(super) bytes: u32,
}

impl Amount {
    /// Bytes of the wire form.
    pub(super) const BYTES: usize = 8;

    /// The room of an inbox with `limits`.
    pub(super) fn of(limits: &Limits) -> Self {
        let clamp = |value| u32::try_from(value).unwrap_or(u32::MAX);
        Self { messages: clamp(limits.inbox_messages), bytes: clamp(limits.inbox_bytes) }
    }

    pub(super) fn encode(self) -> [u8; Self::BYTES] {
        self.to_word().to_le_bytes()
    }

    /// The counterpart of [`encode`](Self::encode).
    ///
    /// # Errors
    /// `Remote` for another number of bytes.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes);
        let word = r.u64()?;
        r.finish()?;
        Ok(Self::from_word(word))
    }

    fn to_word(self) -> u64 {
        u64::from(self.messages) << 32 | u64::from(self.bytes)
    }

    pub(super) fn from_word(word: u64) -> Self {
        Self { messages: (word >> 32) as u32, bytes: word as u32 }
    }

    fn checked_add(self, other: Self) -> Option<Self> {
        let messages = self.messages.checked_add(other.messages)?;
        Some(Self { messages, bytes: self.bytes.checked_add(other.bytes)? })
    }

    fn checked_sub(self, other: Self) -> Option<Self> {
        let messages = self.messages.checked_sub(other.messages)?;
        Some(Self { messages, bytes: self.bytes.checked_sub(other.bytes)? })
    }

    fn fits(self, most: Self) -> bool {
        self.messages <= most.messages && self.bytes <= most.bytes
    }
}

/// The credit that this side has with a peer.
#[derive(Debug)]
pub(super) struct Credit {
    /// Messages and bytes left, in one word, so that both change together. The word orders no other memory.
    left: AtomicU64,
    most: Amount,
}

impl Credit {
    /// The credit of a side that has sent nothing, with a peer whose inbox has room for `most`.
    pub(super) fn new(most: Amount) -> Self {
        Self { left: AtomicU64::new(most.to_word()), most }
    }

    /// Takes the credit for one message of `bytes` bytes; false if there is not enough.
    #[inline]
    pub(super) fn take(&self, bytes: usize) -> bool {
        let Some(cost) = cost(bytes) else { return false };
        let take = |left| Amount::from_word(left).checked_sub(cost).map(Amount::to_word);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Takes back the credit for a message that was not sent.
    pub(super) fn put_back(&self, bytes: usize) {
        if let Some(cost) = cost(bytes) {
            self.left.fetch_add(cost.to_word(), Ordering::Relaxed);
        }
    }

    /// The peer gives `amount` back.
    ///
    /// # Errors
    /// `Remote` for more than was taken.
    pub(super) fn give(&self, amount: Amount) -> Result<()> {
        let give = |left| {
            let sum = Amount::from_word(left).checked_add(amount)?;
            sum.fits(self.most).then(|| sum.to_word())
        };
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, give) {
            Ok(_) => Ok(()),
            Err(_) => {
                let text = format!("it gave back credit for {amount:?}, which is more than was used");
                Err(Error::new(ErrorKind::Remote, "progress", text))
            }
        }
    }
}

fn cost(bytes: usize) -> Option<Amount> {
    Some(Amount { messages: 1, bytes: u32::try_from(bytes).ok()? })
}

/// Credit that this side owes a peer: its messages were dispatched, and it was not told.
#[derive(Debug, Default)]
pub(super) struct Debt(Amount);

impl Debt {
    /// Adds `messages` of `bytes` bytes in all. Returns all that is owed once the peer is to be told of it.
    ///
    /// The peer is told so early that it has credit for at least one message of the longest size when nothing of it is left here.
    #[inline]
    pub(super) fn add(&mut self, messages: usize, bytes: usize, limits: &Limits) -> Option<Amount> {
        // Both are parts of what the peer had credit for.
        self.0.messages += messages as u32;
        self.0.bytes += bytes as u32;
        let most = Amount::of(limits);
        let spare = most.bytes.saturating_sub(limits.eager as u32);
        let due = self.0.messages >= (most.messages / 2).max(1)
            || self.0.bytes >= (most.bytes / 2).min(spare).max(1);
        due.then(|| std::mem::take(&mut self.0))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits(eager: usize, inbox_messages: usize, inbox_bytes: usize) -> Limits {
        Limits { eager, inbox_messages, inbox_bytes, send_buffer: eager, reads: 1, read_depth: 1, longs: 1 }
    }

    proptest! {
        /// Whatever is sent and dispatched, no more waits than the inbox holds; and once all is dispatched, the longest message
        /// can be sent.
        #[test]
        fn a_sender_never_starves_and_never_overruns(
            eager in 1usize..50, messages in 1usize..20, more in 0usize..100,
            steps in proptest::collection::vec((0usize..50, any::<bool>()), 1..200),
        ) {
            let limits = limits(eager, messages, eager + more);
            let (credit, mut debt) = (Credit::new(Amount::of(&limits)), Debt::default());
            let mut inbox = std::collections::VecDeque::new();
            for (length, sends) in steps {
                if sends {
                    let length = length % (eager + 1);
                    if credit.take(length) {
                        inbox.push_back(length);
                    }
                } else if let Some(length) = inbox.pop_front()
                    && let Some(amount) = debt.add(1, length, &limits)
                {
                    credit.give(amount).unwrap();
                }
                prop_assert!(inbox.len() <= messages && inbox.iter().sum::<usize>() <= eager + more);
            }
            for length in inbox {
                debt.add(1, length, &limits).into_iter().for_each(|amount| credit.give(amount).unwrap());
            }
            prop_assert!(credit.take(eager));
        }
    }

    #[test]
    fn credit_that_was_not_used_is_not_taken_back() {
        let credit = Credit::new(Amount { messages: 4, bytes: 100 });
        assert!(credit.give(Amount { messages: 1, bytes: 0 }).is_err());
        assert!(credit.take(60) && !credit.take(41) && credit.take(40) && credit.take(0) && credit.take(0));
        assert!(!credit.take(0), "four messages");
        assert!(credit.give(Amount { messages: 1, bytes: 101 }).is_err());
        assert!(credit.give(Amount { messages: u32::MAX, bytes: 0 }).is_err());
        credit.give(Amount { messages: 1, bytes: 60 }).unwrap();
        assert!(credit.take(60));
        credit.put_back(60);
        assert!(credit.take(60) && !credit.take(0));
    }

    #[test]
    fn amounts_round_trip() {
        let amount = Amount { messages: 3, bytes: u32::MAX };
        assert_eq!(Amount::decode(&amount.encode()).unwrap(), amount);
        assert!(Amount::decode(&amount.encode()[..7]).is_err() && Amount::decode(&[0; 9]).is_err());
    }
}
