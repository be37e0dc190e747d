//! Who may take a piece of a bounded stock, and in which order.
//!
//! Whoever holds no piece and finds none waits in a line: first come, first served. Whoever holds one never waits for another in
//! the line, and takes another only while that leaves one over for somebody who has none. So nobody holds a piece while it waits
//! for one: every piece that is held comes back as soon as its own copies are done, and the line moves.
//!
//! A holder may also have to wait for a peer, for the rest of a frame. It *parks* its piece then, which all but one may do at one
//! time: at least one piece is free, or held for nothing but copies, whatever the peers do.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use crate::sync::{Mutex, lock};

/// Tells somebody in the line that a piece is there for them.
pub(super) trait Wake {
    fn wake(&self);
}

/// The pieces of one stock, by number.
#[derive(Debug)]
pub(super) struct Pieces<W> {
    count: usize,
    state: Mutex<State<W>>,
}

#[derive(Debug)]
struct State<W> {
    free: Vec<usize>,
    /// Those who wait, each with its ticket. The first ones, as many as there are free pieces, have been woken.
    line: VecDeque<(u64, W)>,
    tickets: u64,
    parked: usize,
}

/// A place in the line, if there is one. Call [`Pieces::leave`] before dropping it.
#[derive(Debug, Default)]
pub(super) struct Place(Option<u64>);

impl Place {
    pub(super) fn is_taken(&self) -> bool {
        self.0.is_some()
    }
}

impl<W: Wake> Pieces<W> {
    pub(super) fn new(count: usize) -> Self {
        let state = State { free: (0..count).rev().collect(), line: VecDeque::new(), tickets: 0, parked: 0 };
        Self { count, state: Mutex::new(state) }
    }

    /// A piece for somebody who holds none. If there is none now, takes a place in the line, unless there is one already; `waker`
    /// is called when it is worth asking again. Whoever is woken asks again or leaves.
    pub(super) fn first(&self, place: &mut Place, waker: impl FnOnce() -> W) -> Option<usize> {
        let mut state = lock(&self.state);
        let before = match place.0 {
            None => state.line.len(),
            Some(ticket) => state.position(ticket).unwrap_or_default(),
        };
        if before < state.free.len() {
            if let Some(ticket) = place.0.take() {
                state.line.retain(|(other, _)| *other != ticket);
            }
            return state.free.pop();
        }
        if place.0.is_none() {
            state.tickets += 1;
            let ticket = state.tickets;
            state.line.push_back((ticket, waker()));
            place.0 = Some(ticket);
        }
        None
    }

    /// Another piece for somebody who holds one.
    pub(super) fn further(&self) -> Option<usize> {
        let mut state = lock(&self.state);
        if state.free.len() > state.line.len() + 1 { state.free.pop() } else { None }
    }

    /// Gives pieces back.
    pub(super) fn give(&self, pieces: impl IntoIterator<Item = usize>) {
        let mut state = lock(&self.state);
        let served = state.served();
        state.free.extend(pieces);
        state.wake_from(served);
    }

    /// Gives up a place in the line.
    pub(super) fn leave(&self, place: &mut Place) {
        let Some(ticket) = place.0.take() else { return };
        let mut state = lock(&self.state);
        let served = state.served();
        let Some(position) = state.position(ticket) else { return };
        state.line.remove(position);
        if position < served {
            state.wake_from(served - 1);
        }
    }

    /// Wakes all in the line: pieces will come back of which nobody will tell, so that they have to look by themselves.
    pub(super) fn rouse(&self) {
        lock(&self.state).line.iter().for_each(|(_, waker)| waker.wake());
    }

    /// Whether a piece may be held while a peer is waited for. If so, call [`unpark`](Self::unpark) afterwards.
    pub(super) fn park(&self) -> bool {
        let mut state = lock(&self.state);
        let may = state.parked + 1 < self.count;
        state.parked += usize::from(may);
        may
    }

    pub(super) fn unpark(&self) {
        lock(&self.state).parked -= 1;
    }

    /// Pieces that nobody holds.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        lock(&self.state).free.len()
    }
}

impl<W: Wake> State<W> {
    fn position(&self, ticket: u64) -> Option<usize> {
        self.line.iter().position(|(other, _)| *other == ticket)
    }

    /// How many in the line may take a piece.
    fn served(&self) -> usize {
        self.free.len().min(self.line.len())
    }

    /// Wakes those for whom there is a piece now, but for the first `served`. Under the lock: a waker only notes.
    fn wake_from(&self, served: usize) {
        self.line.range(served..self.served()).for_each(|(_, waker)| waker.wake());
    }
}

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
