//! Where cleanup waits for work to finish: looking for it costs one load where there is none.

use super::context::{Context, WeakContext};
use super::driver::Driver;
use crate::sync::{AtomicUsize, Mutex, Ordering, lock};

/// Items that wait: of one context, or all that concern the contexts of a driver value.
#[derive(Default)]
struct Waiting(AtomicUsize);

/// Of a driver value: contexts of other values, in which cleanup waits for work in contexts of this one.
#[derive(Default)]
struct Guests(Mutex<Vec<WeakContext>>);

impl Context {
    /// Counts an item. Call it before the look that may find it too early for the item: a thread that waits for the work in its
    /// way, and then looks for cleanup, so finds the item or comes before that look. Sequentially consistent for the same reason.
    pub(super) fn begin_waiting(&self) {
        self.slot::<Waiting>().0.fetch_add(1, Ordering::SeqCst);
        self.driver().slot::<Waiting>().0.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends that for so many items.
    pub(super) fn end_waiting(&self, items: usize) {
        self.slot::<Waiting>().0.fetch_sub(items, Ordering::SeqCst);
        self.driver().slot::<Waiting>().0.fetch_sub(items, Ordering::SeqCst);
    }

    /// Number of items of this context whose cleanup waits for work to finish.
    #[doc(hidden)]
    pub fn unreaped(&self) -> usize {
        self.slot::<Waiting>().0.load(Ordering::SeqCst)
    }

    /// An item of this context, already counted, waits for work of `other`. Whoever cleans up there looks here, too. As for
    /// [`begin_waiting`](Self::begin_waiting), look once more afterwards.
    pub(super) fn wait_for(&self, other: &Driver) {
        let mut guests = lock(&other.slot::<Guests>().0);
        if !guests.iter().any(|guest| guest.is(self)) {
            guests.push(self.downgrade());
            other.slot::<Waiting>().0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// The contexts in which cleanup may wait for work in contexts of `driver`: these, and those of other values that said so.
pub(super) fn waiting_for(driver: &Driver) -> Vec<Context> {
    let waiting = &driver.slot::<Waiting>().0;
    if waiting.load(Ordering::SeqCst) == 0 {
        return Vec::new();
    }
    let mut contexts = Context::all(driver);
    // Upgraded handles are dropped outside the lock: one may be the last.
    let mut idle = Vec::new();
    lock(&driver.slot::<Guests>().0).retain(|guest| {
        let guest = guest.upgrade();
        let waits = guest.as_ref().is_some_and(|guest| guest.unreaped() > 0);
        if !waits {
            waiting.fetch_sub(1, Ordering::SeqCst);
        }
        if waits { &mut contexts } else { &mut idle }.extend(guest);
        waits
    });
    contexts
}
