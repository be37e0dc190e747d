//! Layer 0: env.
