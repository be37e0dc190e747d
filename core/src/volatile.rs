//! Layer 0: volatile.
