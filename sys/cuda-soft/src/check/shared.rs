//! Parts of clocks, which clocks share as long as they are equal.

use std::sync::Arc;

/// Clocks of some threads.
pub(super) trait Shared: Clone {
    fn includes(&self, other: &Self) -> bool;
    fn add(&mut self, other: &Self);
}

pub(super) fn includes<T: Shared>(own: &Arc<T>, other: &Arc<T>) -> bool {
    Arc::ptr_eq(own, other) || own.includes(other)
}

/// Adds `other` to `own`: shares it where it includes the other, and copies `own` only if that changes it and others share it.
pub(super) fn join<T: Shared>(own: &mut Arc<T>, other: &Arc<T>) {
    if includes(own, other) {
        return;
    }
    if other.includes(own) {
        *own = Arc::clone(other);
        return;
    }
    Arc::make_mut(own).add(other);
}
