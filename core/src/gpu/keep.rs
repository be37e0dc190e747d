//! The type of everything that unfinished work keeps alive.

use std::any::Any;
use std::sync::Arc;

/// An item that unfinished work uses, and that must not be dropped before the work is done.
pub type KeepAlive = Arc<dyn Any + Send + Sync>;
