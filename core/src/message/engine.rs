//! Moves bytes between the wires and the inboxes, on whichever thread asks for progress.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use super::alarm::{Alarm, Sleeper};
use super::burials::Burials;
use super::handlers::Handlers;
use super::handshake::Handshake;
use super::hello::Hello;
use super::hub::Hub;
use super::line::Line;
use super::links::{Arrival, Link, Links};
use super::member::Member;
use super::wire::Wire;
use crate::error::{Error, Result};
use crate::net::ready::{Epoll, READ, WRITE};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// The epoll token of the hub's event; links have others.
const EVENT: u64 = 0;
/// Progress of one messenger.
pub(super) struct Engine {
    pub(super) hub: Arc<Hub<Member>>,
    pub(super) handlers: Handlers,
    /// Living peers by rank: of each the latest generation.
    pub(super) members: Mutex<HashMap<u32, Arc<Member>>>,
    pub(super) epoll: Epoll,
    /// Links that progress has not seen yet.
    pub(super) arrivals: Mutex<VecDeque<(Arc<Member>, Arrival)>>,
    pub(super) has_arrivals: AtomicBool,
    pub(super) turn: Mutex<Turn>,
    /// Peers that have ended, of whose operations nobody has been told.
    pub(super) burials: Burials,
    /// How often links are asked whether their peers' hosts answer. A sleeping thread wakes for that.
    pub(super) checks: Duration,
}

/// The state of whoever makes progress.
#[derive(Default)]
pub(super) struct Turn {
    /// Counts down to the next look at all descriptors, see [`advance`](Engine::advance).
    pub(super) credit: u32,
    /// Counts all rounds.
    pub(super) rounds: u32,
    pub(super) links: Links,
    /// Links that are polled directly.
    pub(super) polled: Vec<u64>,
    pub(super) events: Vec<(u64, u32)>,
    pub(super) dirty: Vec<Arc<Member>>,
    /// Peers for which something is left to send.
    pub(super) unsent: Vec<Arc<Member>>,
    /// Peers that have said goodbye on all links that are there, while another link is just being made.
    pub(super) leaving: Vec<Arc<Member>>,
    /// Peers with deadlines, and when they were looked at.
    pub(super) timed: Vec<Arc<Member>>,
    pub(super) looked: Option<Instant>,
    /// When links were asked whether their peers' hosts answer.
    pub(super) checked: Option<Instant>,
    /// Something has come up of which no descriptor tells since links were last armed: a link is polled, or a peer has something left to
    /// send or to copy. A thread that is asleep does not know.
    pub(super) unannounced: bool,
    /// The outer event loop for which the descriptors were armed, and its thread.
    pub(super) armed: Option<(Sleeper, ThreadId)>,
    /// A peer has ended in this turn: whoever has it calls [`bury`](Engine::bury) after it.
    pub(super) lost: bool,
}

impl Turn {
    /// An outer event loop that was to be woken need not be, if it is on this thread. Another thread's may be asleep.
    #[inline]
    pub(super) fn disarm(&mut self, alarm: &Alarm) {
        if self.armed.is_some() {
            self.disarm_own(alarm);
        }
    }

    #[cold]
    fn disarm_own(&mut self, alarm: &Alarm) {
        let here = std::thread::current().id();
        if let Some((sleeper, _)) = self.armed.take_if(|(_, thread)| *thread == here) {
            alarm.awake(sleeper);
        }
    }

    /// An outer event loop on this thread is to be woken, in place of an earlier one.
    pub(super) fn arm(&mut self, alarm: &Alarm) {
        if let Some((earlier, _)) = self.armed.take() {
            alarm.awake(earlier);
        }
        self.armed = Some((alarm.fall_asleep(), std::thread::current().id()));
    }
}

impl Engine {
    pub(super) fn new(hub: Arc<Hub<Member>>, checks: Duration) -> Result<Self> {
        let failed = |error| Error::system("Messenger", "cannot make an epoll instance", error);
        let epoll = Epoll::new().map_err(failed)?;
        epoll.add(hub.alarm.as_fd(), READ, EVENT).map_err(failed)?;
        Ok(Self {
            hub,
            handlers: Handlers::default(),
            members: Mutex::default(),
            epoll,
            arrivals: Mutex::default(),
            has_arrivals: AtomicBool::new(false),
            turn: Mutex::default(),
            burials: Burials::default(),
            checks,
        })
    }

    /// The descriptor that tells of work once [`arm`](Self::arm) has been called.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Begins the handshake with a peer that has connected and introduced itself with `hello`. A peer that it was in an
    /// earlier life ends soon, and counts as ended from here on: otherwise its end could come between this answer and the new
    /// link.
    pub(super) fn answer(&self, hello: &Hello) -> Handshake {
        let known = lock(&self.members).get(&hello.rank).cloned();
        if let Some(member) = known
            && member.generation == hello.generation
            && member.is_before(hello.life)
        {
            member.supersede();
        }
        Handshake::begin(&self.hub, hello.rank, hello.generation)
    }

    /// Serves `line` of `member` from now on.
    pub(super) fn add(&self, member: Arc<Member>, line: Arc<Line>) {
        self.arrive(member, Arrival::Link(line));
    }

    /// Reads what `member` sent, whose rank has connected anew, before that link is served; and ends it, if it is another process that has.
    pub(super) fn replace(&self, member: Arc<Member>, restarted: bool) {
        self.arrive(member, Arrival::Successor { restarted });
    }

    fn arrive(&self, member: Arc<Member>, arrival: Arrival) {
        lock(&self.arrivals).push_back((member, arrival));
        self.has_arrivals.store(true, Ordering::Release);
        self.hub.alarm.wake();
    }

    /// Forgets the links of `member`, which has ended: their descriptors and mappings go with them.
    pub(super) fn forget(&self, turn: &mut Turn, member: &Arc<Member>) {
        for token in turn.links.of(member) {
            turn.links.remove(token).inspect(|link| self.unwatch(link));
        }
    }

    pub(super) fn watch(&self, token: u64, wire: &dyn Wire) -> Result<()> {
        let failed = |error| Error::system("progress", "cannot watch a connection", error);
        wire.descriptors().into_iter().try_for_each(|fd| self.epoll.add(fd, READ, token).map_err(failed))
    }

    pub(super) fn unwatch(&self, link: &Link) {
        for fd in link.wire.descriptors() {
            let _ = self.epoll.remove(fd);
        }
    }

    /// Polls the links that `events` name from now on.
    pub(super) fn activate(&self, turn: &mut Turn, events: &[(u64, u32)]) {
        for (token, ready) in events {
            // No link is called `EVENT`: that descriptor wakes those who sleep, and they silence it.
            if let Some(link) = turn.links.get_mut(*token)
                && ready & !WRITE != 0
            {
                if !link.polled {
                    (link.polled, link.silent) = (true, 0);
                    turn.polled.push(*token);
                    turn.unannounced = true;
                } else if !link.calls {
                    // A descriptor tells what polling does not see, such as the end of the peer: the next silent round asks it.
                    link.silent = u32::MAX - 1;
                }
            }
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}
