//! The links that progress serves, found by the token under which epoll reports them.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::line::Line;
use super::member::Member;
use super::wire::Wire;
use crate::sync::lock;

/// The next turn takes these in the order in which they came.
pub(super) enum Arrival {
    /// A new link of the peer.
    Link(Arc<Line>),
    /// Its rank has connected anew: in a later life, or under another generation.
    Successor { restarted: bool },
}

/// One link, as the thread that makes progress sees it.
pub(super) struct Link {
    pub(super) member: Arc<Member>,
    pub(super) line: Arc<Line>,
    pub(super) wire: Arc<dyn Wire>,
    /// Read in each round, whether or not its descriptors tell of something.
    pub(super) polled: bool,
    /// Reading it is a system call.
    pub(super) calls: bool,
    /// Rounds since it brought something.
    pub(super) silent: u32,
    /// Watched for room to write.
    pub(super) wants_room: bool,
}

impl Link {
    /// A new link, which is polled at first; `None` if it has ended already.
    pub(super) fn new(member: Arc<Member>, line: Arc<Line>) -> Option<Self> {
        let wire = line.wire()?;
        let calls = wire.pull_is_syscall();
        Some(Self { member, line, wire, polled: true, calls, silent: 0, wants_room: false })
    }
}

impl Drop for Link {
    /// Frees the place of data that was landing: only progress pulls, and it has let the link go.
    fn drop(&mut self) {
        let landing = lock(&self.line.reads).take_landing();
        drop(landing);
    }
}

/// A table of links. A token names a slot and how often the slot was used before, so the token of a link that is gone finds
/// nothing. No token is 0.
#[derive(Default)]
pub(super) struct Links {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

struct Slot {
    age: u32,
    link: Option<Link>,
}

fn token(index: usize, age: u32) -> u64 {
    u64::from(age) << 32 | (index as u64 + 1)
}

impl Links {
    /// Adds `link`; returns its token.
    pub(super) fn insert(&mut self, link: Link) -> u64 {
        let index = match self.free.pop() {
            Some(index) => index as usize,
            None => {
                self.slots.push(Slot { age: 0, link: None });
                self.slots.len() - 1
            }
        };
        self.slots[index].link = Some(link);
        token(index, self.slots[index].age)
    }

    fn slot(&mut self, token: u64) -> Option<&mut Slot> {
        let index = (token as u32).checked_sub(1)?;
        self.slots.get_mut(index as usize).filter(|slot| slot.age == (token >> 32) as u32)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, token: u64) -> Option<&mut Link> {
        self.slot(token)?.link.as_mut()
    }

    pub(super) fn remove(&mut self, token: u64) -> Option<Link> {
        let slot = self.slot(token)?;
        let link = slot.link.take()?;
        slot.age = slot.age.wrapping_add(1);
        self.free.push(token as u32 - 1);
        Some(link)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Link)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(index, Slot { age, link })| Some((token(index, *age), link.as_ref()?)))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Link)> {
        let slots = self.slots.iter_mut().enumerate();
        slots.filter_map(|(index, Slot { age, link })| Some((token(index, *age), link.as_mut()?)))
    }

    /// Tokens of the links of `member`.
    pub(super) fn of(&self, member: &Arc<Member>) -> Vec<u64> {
        self.iter().filter(|(_, link)| Arc::ptr_eq(&link.member, member)).map(|(token, _)| token).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }
}
