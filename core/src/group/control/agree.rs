//! Agreeing on the next group over control links: gives observations and messages to
//! [`Membership`](crate::group::membership::Membership), and sends what it says.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use super::shared::Control;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::group::membership::{Envelope, Ranks, Verdict};
use crate::sync::lock;

const OP: &str = "shrink";
/// How often a rank that waits looks.
const TICK: Duration = Duration::from_millis(50);

/// Result of an agreement on the next group.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// This rank is one of the members of the next generation.
    Agreed { generation: u64, members: Ranks },
    /// Another member has the communicator of the last generation, so that all have made it.
    Completed,
}

impl Control {
    /// Takes part in agreeing on the next group, without the ranks `without`, until `deadline`. `open` is asked for links to
    /// ranks that have none.
    pub(crate) fn agree(
        &self,
        without: &Ranks,
        open: impl Fn(u32) -> Result<()>,
        deadline: Deadline,
    ) -> Result<Outcome> {
        {
            let mut state = lock(&self.state);
            if let Some(why) = &state.outside {
                return Err(Error::peer_lost(OP, self.rank, why));
            }
            if state.membership.is_completed() {
                let message = "this communicator was shrunk before; shrink the one that was made";
                return Err(Error::usage(OP, message));
            }
            state.membership.call(without.clone());
        }
        let mut next_tick = Instant::now();
        loop {
            let (seen, outbox, verdict) = {
                let mut state = lock(&self.state);
                if let Err(closed) = self.check_open(OP) {
                    state.membership.withdraw();
                    return Err(closed);
                }
                if Instant::now() >= next_tick {
                    next_tick = Instant::now() + TICK;
                    state.membership.tick();
                }
                let verdict = state.membership.verdict();
                (state.version, state.membership.take_outbox(), verdict)
            };
            for (to, envelope) in outbox {
                if self.link(to).is_none() && open(to).is_err() {
                    continue;
                }
                self.send_one(to, &envelope);
            }
            let why = match verdict {
                Verdict::Waiting(awaited) if deadline.expired() => {
                    lock(&self.state).membership.withdraw();
                    self.send_membership();
                    return Err(late(&awaited));
                }
                Verdict::Waiting(_) => {
                    self.wait(seen, deadline.min(Deadline::after(TICK)));
                    continue;
                }
                Verdict::Agreed { generation, members } => {
                    lock(&self.state).membership.take();
                    return Ok(Outcome::Agreed { generation, members });
                }
                Verdict::Completed => {
                    lock(&self.state).membership.withdraw();
                    return Ok(Outcome::Completed);
                }
                Verdict::Differs(rank) => {
                    lock(&self.state).membership.withdraw();
                    self.send_membership();
                    let message = format!("rank {rank} leaves out other ranks; give all the same list");
                    return Err(Error::usage(OP, message).with_peer(rank));
                }
                Verdict::Excluded => "the other ranks have agreed on a group without this process",
                Verdict::CutOff => "this process reaches too few of the other ranks to go on with them",
                Verdict::NoPaths => "too few of the ranks that this process reaches also reach each other",
            };
            return Err(self.step_outside(why));
        }
    }

    /// The caller has made the communicator of `generation`, and so has every member. False if it is too late: a later one is
    /// being agreed, or this rank has left, and others may go on without it.
    pub(crate) fn complete_generation(&self, generation: u64) -> bool {
        let mut state = lock(&self.state);
        let completed = !self.has_left() && state.membership.complete(generation);
        drop(state);
        self.send_membership();
        completed
    }

    /// This rank goes on in this communicator, which succeeds another one.
    pub(crate) fn activate(&self) {
        lock(&self.state).membership.activate();
        self.send_membership();
    }

    /// Whether a member of `generation`, which is being made, is gone, or seeks a later one.
    pub(crate) fn is_superseded(&self, generation: u64) -> bool {
        let state = lock(&self.state);
        state.membership.is_superseded(generation) || !state.membership.reaches_all()
    }

    /// This rank will not be a member of a later group, for the reason `why`.
    fn step_outside(&self, why: &str) -> Error {
        let mut state = lock(&self.state);
        let mut why = format!("{why}, which is rank {}", self.rank);
        if let Some(given_up) = &state.given_up {
            why = format!("{why}: {given_up}");
        }
        state.outside = Some(why.clone());
        state.membership.stand_down();
        drop(state);
        self.send_membership();
        Error::peer_lost(OP, self.rank, why)
    }

    /// A message about membership.
    pub(super) fn hear_membership(&self, peer: u32, payload: &[u8]) -> Result<()> {
        let mut state = lock(&self.state);
        let size = state.size();
        state.membership.receive(peer, Envelope::decode(payload, size)?);
        self.wake(&mut state);
        drop(state);
        self.send_membership();
        Ok(())
    }
}

fn late(awaited: &Ranks) -> Error {
    match awaited.first() {
        Some(rank) => Error::timeout(OP, format!("rank {rank} did not call shrink() before the deadline"))
            .with_peer(*rank),
        None => Error::new(ErrorKind::Timeout, OP, "the ranks did not agree before the deadline"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::links::tests::{group, soon, wait_for};

    /// Ten looks without news, the first at once.
    #[test]
    fn a_rank_without_the_others_does_not_give_up_sooner_because_it_is_woken() {
        let links = group(3, 1);
        let control = links[0].control();
        [1, 2].iter().for_each(|peer| control.lose(*peer, "it has gone"));
        let began = Instant::now();
        let outcome = std::thread::scope(|scope| {
            let agreeing = scope.spawn(|| links[0].agree(&Ranks::new(), soon()));
            wait_for("it does not give up", || {
                control.wake(&mut lock(&control.state));
                agreeing.is_finished()
            });
            agreeing.join().unwrap()
        });
        assert!(began.elapsed() >= 9 * TICK, "{:?}", began.elapsed());
        assert!(outcome.unwrap_err().message().contains("too few of the other ranks"));
    }
}
