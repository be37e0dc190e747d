//! Sending and receiving messages between ranks that make another group.
#![forbid(unsafe_code)]

use super::mail::{Address, Counter, Meeting, Needs, PART, Part};
use super::shared::Control;
use super::state::State;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::group::frames;
use crate::sync::lock;

/// A meeting in which this rank takes part. Dropping it ends the meeting here: messages of it that lie unread, or come later, are dropped.
#[derive(Debug)]
pub(crate) struct Attendance<'a> {
    control: &'a Control,
    meeting: Meeting,
}

impl Attendance<'_> {
    pub(crate) fn meeting(&self) -> Meeting {
        self.meeting
    }
}

impl Drop for Attendance<'_> {
    fn drop(&mut self) {
        lock(&self.control.state).mail.end(self.meeting);
    }
}

impl Control {
    /// Begins a call that all ranks make together, behind `missed` of which they will hear nothing of this rank.
    pub(crate) fn begin_call(&self, missed: u64) {
        lock(&self.state).mail.begin_call(missed);
    }

    /// Begins the next meeting of all ranks. It has the same number at each as long as all make the same calls.
    pub(crate) fn meet(&self) -> Attendance<'_> {
        let meeting = lock(&self.state).mail.begin_next(Counter::Calls);
        Attendance { control: self, meeting }
    }

    /// Begins the meeting of the members of `generation`.
    pub(crate) fn meet_for(&self, generation: u64) -> Attendance<'_> {
        let meeting = Meeting { counter: Counter::Generations, number: generation };
        let meeting = lock(&self.state).mail.begin(meeting);
        Attendance { control: self, meeting }
    }

    /// Sends a message to `to.peer`, to which there is a link.
    pub(crate) fn send_mail(&self, to: Address, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        loop {
            let (bytes, after) = rest.split_at(rest.len().min(PART));
            let part =
                Part { meeting: to.meeting, group: to.group, tag: to.tag, last: after.is_empty(), bytes };
            self.post(to.peer, frames::MAIL, &part.encode(), Vec::new())?;
            rest = after;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// The next message from `from.peer`. An error once the group cannot be made any more; `InvalidUsage` once the peer is in a later call.
    pub(crate) fn recv_mail(&self, from: Address, needs: &Needs, deadline: Deadline) -> Result<Vec<u8>> {
        let mut outcome = None;
        self.wait_until(deadline, |state| {
            let broken = |state: &State| self.check_needs_in(state, needs).err().map(Err);
            let ahead = |state: &State| state.mail.is_ahead(from).then(|| Err(ahead(needs.op, from.peer)));
            outcome = state.mail.take(from).map(Ok).or_else(|| broken(state)).or_else(|| ahead(state));
            outcome.is_some()
        });
        match outcome {
            Some(outcome) => outcome,
            None => {
                let message = format!(
                    "nothing came from rank {} before the deadline: it did not call {}(), has given it up, or waits for a rank that did not",
                    from.peer, needs.op
                );
                Err(Error::timeout(needs.op, message).with_peer(from.peer))
            }
        }
    }

    /// `Ok` while a group can be made.
    pub(crate) fn check_needs(&self, needs: &Needs) -> Result<()> {
        self.check_needs_in(&lock(&self.state), needs)
    }

    fn check_needs_in(&self, state: &State, needs: &Needs) -> Result<()> {
        self.check_open(needs.op)?;
        // The members of an agreed generation go on for all that has failed.
        if needs.generation.is_none() {
            self.abort.check(needs.op)?;
        }
        state.check_needs(needs)
    }

    /// A message has come.
    pub(super) fn hear_mail(&self, peer: u32, payload: &[u8]) -> Result<()> {
        let mut state = lock(&self.state);
        state.mail.deliver(peer, payload)?;
        self.wake(&mut state);
        Ok(())
    }
}

/// The error of a rank that waits in a call for one that is in a later call.
#[cold]
pub(crate) fn ahead(op: &'static str, peer: u32) -> Error {
    let message = format!(
        "rank {peer} has gone on to a later call: it has given up this call of {op}(), or has made a call that this rank has left out; make as \
         many calls on every rank, those that end in a timeout included"
    );
    Error::usage(op, message).with_peer(peer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::links::tests::{recorded, soon};

    /// The two messages come in the order in which they were sent.
    #[test]
    fn what_comes_for_a_meeting_that_has_ended_here_is_not_kept() {
        let (links, _recorders) = recorded(2);
        let [here, peer] = [0, 1].map(|rank| links[rank].control());
        let to = |meeting, tag| Address { peer: 0, meeting, group: 7, tag };
        let over = here.meet().meeting();
        let attendance = here.meet();
        peer.send_mail(to(over, 1), b"late").unwrap();
        peer.send_mail(to(attendance.meeting(), 2), b"in time").unwrap();
        let needs = Needs { op: "test", ranks: vec![0, 1], generation: None };
        let from = |meeting, tag| Address { peer: 1, ..to(meeting, tag) };
        assert_eq!(here.recv_mail(from(attendance.meeting(), 2), &needs, soon()).unwrap(), b"in time");
        assert_eq!(lock(&here.state).mail.take(from(over, 1)), None);
    }

    /// Ranks come to different numbers of meetings in a call that some give up, and some do not make a call at all.
    #[test]
    fn meetings_of_a_call_have_the_same_numbers_whatever_came_before() {
        let (links, _recorders) = recorded(2);
        let [here, peer] = [0, 1].map(|rank| links[rank].control());
        here.begin_call(0);
        let seen = [(); 3].map(|()| here.meet().meeting().number);
        here.begin_call(0);
        here.begin_call(0);
        let third = here.meet().meeting();
        peer.begin_call(0);
        peer.begin_call(1);
        assert_eq!(peer.meet().meeting(), third);
        assert!(seen.iter().all(|number| *number < third.number), "numbers grow");
    }

    /// A rank that is quick has said all that a slow one needs, and gone on.
    #[test]
    fn what_a_rank_said_before_it_went_on_is_heard_first() {
        let (links, _recorders) = recorded(2);
        let [here, peer] = [0, 1].map(|rank| links[rank].control());
        [here, peer].into_iter().for_each(|control| control.begin_call(0));
        let (mine, theirs) = (here.meet(), peer.meet());
        let to = |meeting, tag| Address { peer: 0, meeting, group: 7, tag };
        let from = |meeting, tag| Address { peer: 1, ..to(meeting, tag) };
        peer.send_mail(to(theirs.meeting(), 1), b"said").unwrap();
        peer.send_mail(to(theirs.meeting(), 1), b"more").unwrap();
        drop(theirs);
        peer.begin_call(0);
        let later = peer.meet();
        [2, 3].into_iter().for_each(|tag| peer.send_mail(to(later.meeting(), tag), b"later").unwrap());
        let needs = Needs { op: "test", ranks: vec![0, 1], generation: None };
        let hear = |from| here.recv_mail(from, &needs, soon());
        // They come in order: that of tag 2 lies here by then.
        assert_eq!(hear(from(later.meeting(), 3)).unwrap(), b"later");
        assert_eq!(hear(from(mine.meeting(), 1)).unwrap(), b"said");
        here.abort().abort(crate::abort::AbortCause::requested(0, "enough"));
        assert_eq!(hear(from(mine.meeting(), 1)).unwrap(), b"more");
        assert_eq!(hear(from(mine.meeting(), 1)).unwrap_err().kind(), crate::error::ErrorKind::Aborted);
    }
}
