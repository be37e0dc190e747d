//! The `aqueduct` command as its users run it: what it prints, how it ends, and that it leaves nothing behind.
//!
//! Everything runs on the software device over loopback, and every command has a limit of time.

mod support;

mod information;
mod launchers;
mod launching;
mod measuring;
mod neighbours;
mod ports;
mod trouble;
