//! The result of an item that the next `setup()` makes.
#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::setup::key::Key;
use crate::sync::{Mutex, lock};

/// Something that exists after the next [`setup()`](crate::comm::Communicator::setup).
///
/// Until then [`get`](Self::get) is an error, never a wait. An object that is built on another takes its
/// `Pending` and is made in the same `setup()`. If the item fails, `get` returns the reason, and so does everything
/// that was built on it; other items are not touched. Cheap to clone; all clones show one result.
pub struct Pending<T> {
    cell: Arc<Cell<T>>,
}

struct Cell<T> {
    key: Key,
    state: Mutex<State<T>>,
}

enum State<T> {
    Waiting,
    Ready(T),
    Failed(Error),
}

impl<T: Clone> Pending<T> {
    /// The object.
    ///
    /// # Errors
    /// `InvalidUsage` before `setup()`; afterwards the reason why this item, or one it needs, failed.
    pub fn get(&self) -> Result<T> {
        match &*lock(&self.cell.state) {
            State::Ready(value) => Ok(value.clone()),
            State::Failed(error) => Err(error.clone()),
            State::Waiting => Err(Error::usage(
                self.cell.key.kind.op(),
                format!("{} does not exist yet: call Communicator::setup() first, then get()", self.cell.key),
            )),
        }
    }
}

impl<T> Pending<T> {
    /// The object once it is made, or the reason why not; `None` while that is open.
    pub(crate) fn outcome(&self) -> Option<Result<T>>
    where
        T: Clone,
    {
        let waiting = matches!(&*lock(&self.cell.state), State::Waiting);
        (!waiting).then(|| self.get())
    }

    pub(crate) fn new(key: Key) -> Self {
        Self { cell: Arc::new(Cell { key, state: Mutex::new(State::Waiting) }) }
    }

    /// Whether `setup()` has made the object.
    pub fn is_ready(&self) -> bool {
        matches!(&*lock(&self.cell.state), State::Ready(_))
    }

    /// Whether `setup()` has failed to make the object.
    pub fn is_failed(&self) -> bool {
        matches!(&*lock(&self.cell.state), State::Failed(_))
    }

    /// The rank at the other end.
    pub fn peer(&self) -> u32 {
        self.cell.key.peer
    }

    /// The tag given when it was asked for.
    pub fn tag(&self) -> u64 {
        self.cell.key.tag
    }

    /// Gives the result. The first one stays.
    pub(crate) fn complete(&self, result: Result<T>) {
        let mut state = lock(&self.cell.state);
        if matches!(&*state, State::Waiting) {
            *state = match result {
                Ok(value) => State::Ready(value),
                Err(error) => State::Failed(error),
            };
        }
    }
}

/// Something that an item of `setup()` builds on: an object that exists, or one that the same `setup()` makes.
#[derive(Debug)]
pub enum Dependency<T> {
    /// It exists.
    Ready(T),
    /// The same `setup()`, or an earlier one, makes it.
    Pending(Pending<T>),
}

impl<T: Clone> Dependency<T> {
    /// The object once it is made, or the reason why not; `None` while that is open.
    pub(crate) fn outcome(&self) -> Option<Result<T>> {
        match self {
            Self::Ready(value) => Some(Ok(value.clone())),
            Self::Pending(pending) => pending.outcome(),
        }
    }
}

impl<T: Clone> From<&T> for Dependency<T> {
    fn from(value: &T) -> Self {
        Self::Ready(value.clone())
    }
}

impl<T> From<&Pending<T>> for Dependency<T> {
    fn from(pending: &Pending<T>) -> Self {
        Self::Pending(pending.clone())
    }
}

impl<T> Clone for Pending<T> {
    fn clone(&self) -> Self {
        Self { cell: self.cell.clone() }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &*lock(&self.cell.state) {
            State::Waiting => "waiting for setup()".to_owned(),
            State::Ready(_) => "ready".to_owned(),
            State::Failed(error) => format!("failed: {error}"),
        };
        write!(f, "Pending({}: {state})", self.cell.key)
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::Kind;
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn get_before_setup_says_what_to_do_and_the_first_result_stays() {
        let pending = Pending::<u32>::new(Key::user(Kind::Connection, 3, 7));
        let early = pending.get().unwrap_err();
        assert_eq!(early.kind(), ErrorKind::InvalidUsage);
        assert!(early.message().contains("rank 3, tag 7") && early.message().contains("setup()"));
        assert!(!pending.is_ready() && !pending.is_failed());
        assert_eq!((pending.peer(), pending.tag()), (3, 7));
        let clone = pending.clone();
        pending.complete(Ok(5));
        pending.complete(Err(Error::usage("connect", "late")));
        assert_eq!(clone.get().unwrap(), 5);
        assert!(clone.is_ready() && !clone.is_failed());
        let failed = Pending::<u32>::new(Key::user(Kind::Connection, 3, 7));
        failed.complete(Err(Error::usage("connect", "no")));
        assert!(failed.is_failed() && !failed.is_ready());
    }
}
