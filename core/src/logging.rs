//! Layer 0: logging.
