//! Layer 0: sync.
