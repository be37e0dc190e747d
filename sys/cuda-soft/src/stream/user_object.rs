//! Things of the user's that graphs hold: a function called once, when the last reference is gone.

use std::ffi::c_void;
use std::sync::Arc;

use parking_lot::Mutex;

use super::host;

/// What the function is called with, and all references to it.
#[derive(Debug)]
pub(crate) struct UserObject {
    destroy: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
}

// SAFETY: the pointer is a value handed back to the user's function, which has agreed to run on another thread.
unsafe impl Send for UserObject {}
// SAFETY: as above; nothing here reads through it.
unsafe impl Sync for UserObject {}

impl UserObject {
    pub(crate) fn new(destroy: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> Self {
        Self { destroy, data }
    }
}

impl Drop for UserObject {
    fn drop(&mut self) {
        // SAFETY: the user passed function and argument for exactly this call and keeps both valid until then.
        host::as_callback(|| unsafe { (self.destroy)(self.data) });
    }
}

/// The references that belong to the caller, not to a graph.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) object: Arc<UserObject>,
    pub(crate) references: Mutex<u32>,
}

impl Held {
    /// Takes `count` of the caller's references away: whether none is left. `None` if it has fewer.
    pub(crate) fn give_up(&self, count: u32) -> Option<bool> {
        let mut references = self.references.lock();
        *references = references.checked_sub(count)?;
        Some(*references == 0)
    }
}
