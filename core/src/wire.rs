//! Layer 0: wire.
