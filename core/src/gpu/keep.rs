//! The type of everything that unfinished work keeps alive.

use std::any::Any;
use std::sync::Arc;

/// An item that unfinished work uses, and that must not be dropped before the work is done.
///
/// The library drops it in whatever call of its own comes upon the work's end, and may have locked its own state: what its `Drop` does must
/// not call the library's messengers. Those of memory that messages read, or read into, are dropped in dispatch, where no lock is held.
pub type KeepAlive = Arc<dyn Any + Send + Sync>;
