//! Exit codes of `aqueduct plan`, beside success.

/// Exit code if a plan is wrong.
pub(super) const FINDINGS: u8 = 1;
/// Exit code if a file cannot be read: what the command was given is wrong, not the plan in it.
pub(super) const USAGE: u8 = 2;
