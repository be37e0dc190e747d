//! Layer 0: abort.
