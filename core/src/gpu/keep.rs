//! What unfinished work keeps alive.

use std::any::Any;
use std::sync::Arc;

/// Something that unfinished work uses and that therefore must not be dropped yet.
pub type KeepAlive = Arc<dyn Any + Send + Sync>;
