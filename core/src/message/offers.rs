//! Long messages that the peer has not answered yet, on the side of the sender.

use std::collections::BTreeMap;

use super::exposed::{Exposed, Registration};
use super::tokens::Token;
use crate::deadline::Deadline;
use crate::error::{Error, Result};

/// The receiver's answer to an offer of long data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The receiver has read the data.
    Delivered,
    /// The receiver does not want the data, or could not read it.
    Refused,
}

/// Told what became of long data.
pub(super) type Delivered = Box<dyn FnOnce(Result<Delivery>) + Send>;

/// A long message that has ended, before its completion has run.
pub(super) struct Ended {
    pub(super) completion: Delivered,
    pub(super) outcome: Result<Delivery>,
    /// Dropped first, without locks: that takes its time, and peers' devices read the data until then.
    pub(super) registration: Option<Registration>,
    /// Ended already. It is dropped, with the memory, before the completion runs.
    pub(super) exposed: Exposed,
}

/// The long messages of one link.
#[derive(Default)]
pub(super) struct Offers {
    /// Serial number of the next one. Packets and `open` have the lower half, which starts over.
    next: u64,
    open: BTreeMap<u32, Open>,
    /// No deadline is earlier than this.
    due: Option<Deadline>,
    ended: Option<Error>,
}

struct Open {
    serial: u64,
    exposed: Exposed,
    deadline: Deadline,
    completion: Delivered,
}

impl Offers {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// The serial number of the next one, whose lower half no other has; an error if the peer is gone.
    pub(super) fn next(&mut self) -> Result<u64> {
        if let Some(error) = &self.ended {
            return Err(error.clone().of("send_long"));
        }
        // Few are open.
        while self.open.contains_key(&(self.next as u32)) {
            self.next += 1;
        }
        Ok(self.next)
    }

    /// Keeps the message that was pushed with the number [`next`](Self::next).
    pub(super) fn add(&mut self, exposed: Exposed, deadline: Deadline, completion: Delivered) {
        self.due = Some(self.due.map_or(deadline, |due| due.min(deadline)));
        let serial = self.next;
        self.open.insert(serial as u32, Open { serial, exposed, deadline, completion });
        self.next += 1;
    }

    /// As if so many had been sent.
    #[cfg(all(test, not(loom)))]
    pub(super) fn skip(&mut self, count: u64) {
        self.next += count;
    }

    /// The receiver's answer to the message that has `id` and a token with `mark`. One that comes after the message has ended is not for
    /// anybody, also if a later message has its number.
    pub(super) fn answer(&mut self, id: u32, mark: [u8; Token::MARK], delivery: Delivery) -> Option<Ended> {
        self.open.get(&id).filter(|open| open.exposed.token().mark() == mark)?;
        self.open.remove(&id).map(|open| open.end(Ok(delivery)))
    }

    /// Ends the message with this serial number because of `why`; `None` if it has ended already.
    pub(super) fn cancel(&mut self, serial: u64, why: Error) -> Option<Ended> {
        let id = serial as u32;
        self.open.get(&id).filter(|open| open.serial == serial)?;
        self.open.remove(&id).map(|open| open.end(Err(why)))
    }

    /// When to look at the deadlines; `None` if there are none.
    pub(super) fn next_deadline(&self) -> Option<Deadline> {
        self.due.filter(|_| !self.open.is_empty())
    }

    /// Those whose deadline has passed.
    pub(super) fn expire(&mut self) -> Vec<Ended> {
        if self.due.is_none_or(|due| !due.expired()) {
            return Vec::new();
        }
        let late: Vec<u32> =
            self.open.iter().filter(|(_, open)| open.deadline.expired()).map(|(id, _)| *id).collect();
        let rest = self.open.iter().filter(|(id, _)| !late.contains(id));
        self.due = rest.map(|(_, open)| open.deadline).min();
        let end = |id| {
            let text = "the deadline of long data passed before the receiver had read or refused it";
            self.open.remove(&id).map(|open| open.end(Err(Error::timeout("send_long", text))))
        };
        late.into_iter().filter_map(end).collect()
    }

    /// Ends all of them because of `why`.
    pub(super) fn fail(&mut self, why: &Error) -> Vec<Ended> {
        self.ended = Some(why.clone());
        let open = std::mem::take(&mut self.open).into_values();
        open.map(|open| open.end(Err(why.clone().of("send_long")))).collect()
    }
}

impl Open {
    /// Ends it: from now on nobody is given the data. The memory goes with the result, because locks are held here.
    fn end(self, outcome: Result<Delivery>) -> Ended {
        let registration = self.exposed.retire();
        Ended { completion: self.completion, outcome, registration, exposed: self.exposed }
    }
}

impl std::fmt::Debug for Offers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offers").field("open", &self.open.len()).finish()
    }
}
