//! Who may take a block of a bounded stock, and in which order.
//!
//! Whoever holds no block and finds none waits in a line: first come, first served. Whoever holds one never waits for another in
//! the line, and takes another only while that leaves one over for somebody who has none. So nobody holds a block while it waits
//! for one.
//!
//! A holder may have to wait for its peer, who decides when that ends. For that, one of two things is done, so that the line moves
//! whatever the peers do. A receiver *parks* its block, which all but one may do at one time: at least one block is free, or held for
//! nothing but copies. A sender is told when a line begins, and puts what its peer does not take elsewhere.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use crate::sync::{Mutex, lock};

/// Tells somebody to look again. Called with the line locked: it only notes.
pub(super) trait Wake: Clone {
    fn wake(&self);
}

/// The blocks of one stock, by number.
#[derive(Debug)]
pub(super) struct Blocks<W> {
    count: usize,
    state: Mutex<State<W>>,
}

#[derive(Debug)]
struct State<W> {
    free: Vec<usize>,
    /// Those who wait, each with its ticket. The first ones, as many as there are free blocks, have been woken.
    line: VecDeque<(u64, Option<W>)>,
    /// Those who hold blocks and want to be told when a line begins.
    holders: Vec<(u64, W)>,
    tickets: u64,
    parked: usize,
}

/// A place in the line, or among the holders, or none. Before it is dropped, [`Blocks::leave`] and [`Blocks::release`].
#[derive(Debug, Default)]
pub(super) struct Place {
    waits: Option<u64>,
    holds: Option<u64>,
}

impl Place {
    /// Whether it is one in the line.
    pub(super) fn is_in_line(&self) -> bool {
        self.waits.is_some()
    }
}

impl<W: Wake> Blocks<W> {
    pub(super) fn new(count: usize) -> Self {
        let free = (0..count).rev().collect();
        let (line, holders) = (VecDeque::new(), Vec::new());
        Self { count, state: Mutex::new(State { free, line, holders, tickets: 0, parked: 0 }) }
    }

    /// A block for somebody who holds none. If there is none now, takes a place in the line, unless there is one already; `waker`
    /// is woken when it is worth asking again. Whoever is woken asks again or leaves. Once there is a block, `waker` is woken when
    /// a line begins, until [`release`](Self::release).
    pub(super) fn first(&self, place: &mut Place, waker: Option<&W>) -> Option<usize> {
        let mut state = lock(&self.state);
        let before = match place.waits {
            None => state.line.len(),
            Some(ticket) => state.position(ticket).unwrap_or_default(),
        };
        if before < state.free.len() {
            if let Some(ticket) = place.waits.take() {
                state.line.retain(|(other, _)| *other != ticket);
            }
            if let Some(waker) = waker {
                let ticket = state.ticket();
                state.holders.push((ticket, waker.clone()));
                place.holds = Some(ticket);
            }
            return state.free.pop();
        }
        if place.waits.is_none() {
            if state.line.is_empty() {
                state.holders.iter().for_each(|(_, holder)| holder.wake());
            }
            let ticket = state.ticket();
            state.line.push_back((ticket, waker.cloned()));
            place.waits = Some(ticket);
        }
        None
    }

    /// Whether somebody waits in the line.
    pub(super) fn has_line(&self) -> bool {
        !lock(&self.state).line.is_empty()
    }

    /// The last block has been given back.
    pub(super) fn release(&self, place: &mut Place) {
        if let Some(ticket) = place.holds.take() {
            lock(&self.state).holders.retain(|(other, _)| *other != ticket);
        }
    }

    /// Another block for somebody who holds one.
    pub(super) fn further(&self) -> Option<usize> {
        let mut state = lock(&self.state);
        if state.free.len() > state.line.len() + 1 { state.free.pop() } else { None }
    }

    /// Gives blocks back.
    pub(super) fn give(&self, blocks: impl IntoIterator<Item = usize>) {
        let mut state = lock(&self.state);
        let served = state.served();
        state.free.extend(blocks);
        state.wake_from(served);
    }

    /// Gives up a place in the line.
    pub(super) fn leave(&self, place: &mut Place) {
        let Some(ticket) = place.waits.take() else { return };
        let mut state = lock(&self.state);
        let served = state.served();
        let Some(position) = state.position(ticket) else { return };
        state.line.remove(position);
        if position < served {
            state.wake_from(served - 1);
        }
    }

    /// Wakes all in the line: blocks will come back of which nobody will tell, so that they have to look by themselves.
    pub(super) fn rouse(&self) {
        lock(&self.state).line.iter().filter_map(|(_, waker)| waker.as_ref()).for_each(Wake::wake);
    }

    /// Whether a block may be held while a peer is waited for. If so, call [`unpark`](Self::unpark) afterwards.
    pub(super) fn park(&self) -> bool {
        let mut state = lock(&self.state);
        let may = state.parked + 1 < self.count;
        state.parked += usize::from(may);
        may
    }

    pub(super) fn unpark(&self) {
        lock(&self.state).parked -= 1;
    }

    /// How many holders would be told that a line begins.
    #[cfg(all(test, not(loom)))]
    pub(super) fn holders(&self) -> usize {
        lock(&self.state).holders.len()
    }

    /// Blocks that nobody holds.
    #[cfg(all(test, not(loom)))]
    pub(super) fn free(&self) -> usize {
        lock(&self.state).free.len()
    }
}

impl<W: Wake> State<W> {
    fn position(&self, ticket: u64) -> Option<usize> {
        self.line.iter().position(|(other, _)| *other == ticket)
    }

    /// How many in the line may take a block.
    fn served(&self) -> usize {
        self.free.len().min(self.line.len())
    }

    /// Wakes those for whom there is a block now, but for the first `served`.
    fn wake_from(&self, served: usize) {
        let now = self.line.range(served..self.served());
        now.filter_map(|(_, waker)| waker.as_ref()).for_each(Wake::wake);
    }

    fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }
}

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
