//! channel.
