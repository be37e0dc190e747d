//! collective.
