//! Tests of the `aqueduct` command as users run it: output, exit codes, and that it leaves nothing behind.
//!
//! Everything runs on the software device over loopback, and every command has a time limit.

mod support;

mod bench;
mod clean;
mod concurrent_jobs;
mod faults;
mod first_crate;
mod folders;
mod info;
mod input;
mod launchers;
mod limits;
mod output;
mod pairs;
mod perf;
mod perf_check;
mod perf_compare;
mod perf_idle;
mod perf_messages;
mod perf_options;
mod perf_output;
mod perf_ports;
mod perf_schema;
mod perf_types;
mod plan;
mod progress;
mod run;
mod tune;
