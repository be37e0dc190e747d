//! The `aqueduct` command as its users run it: what it prints, how it ends, and that it leaves nothing behind.
//!
//! Everything runs on the software device over loopback, and every command has a limit of time.

mod support;

mod concurrent_jobs;
mod faults;
mod info;
mod launchers;
mod perf;
mod perf_ports;
mod run;
