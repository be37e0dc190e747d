//! User objects: the user's function is called once, when the last reference to its object is gone.

use std::ffi::c_void;
use std::sync::Arc;

use parking_lot::Mutex;

use super::host;

/// A function of the user and its argument. Dropping the object calls the function.
#[derive(Debug)]
pub(crate) struct UserObject {
    destroy: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
}

// SAFETY: the pointer is only passed to the user's function, which by the API's contract runs on any thread.
unsafe impl Send for UserObject {}
// SAFETY: as above; this code never dereferences it.
unsafe impl Sync for UserObject {}

impl UserObject {
    pub(crate) fn new(destroy: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> Self {
        Self { destroy, data }
    }
}

impl Drop for UserObject {
    fn drop(&mut self) {
        // SAFETY: by the contract of the API, function and argument stay valid until this call, the only one.
        host::as_callback(|| unsafe { (self.destroy)(self.data) });
    }
}

/// The references to a user object that the caller owns. Graphs have their own.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) object: Arc<UserObject>,
    references: Mutex<u32>,
}

impl Held {
    pub(crate) fn new(object: UserObject, references: u32) -> Self {
        Self { object: Arc::new(object), references: Mutex::new(references) }
    }

    /// Takes `count` references away and returns whether none is left. `None` if there are fewer.
    pub(crate) fn release(&self, count: u32) -> Option<bool> {
        let mut references = self.references.lock();
        *references = references.checked_sub(count)?;
        Some(*references == 0)
    }
}
