//! `--machine`: the machine that a plan's times are predicted for.

use std::path::Path;

use anyhow::Result;
use aqueduct::plan::Plan;
use aqueduct::plan::cost::Machine;

use crate::refusal::Refusal;

/// The machine of this name, or described in this file. No file of the working folder stands in for a machine that comes with the
/// command: a name without `/` and `.` is that of a file only if no machine has it.
pub(super) fn machine(name: &str) -> Result<Machine> {
    let known = Machine::named(name);
    let found = if name.contains(['/', '.']) || (known.is_err() && Path::new(name).exists()) {
        std::fs::read_to_string(name).map_err(|error| format!("{name}: {error}")).and_then(|text| {
            Machine::parse(name, &text).map_err(|error| format!("{name}: {}", error.message()))
        })
    } else {
        known.map_err(|error| error.message().to_owned())
    };
    found.map_err(|message| Refusal::new(message).into())
}

/// The machine that comes with the command and has as many GPUs as the plan, or the largest.
pub(super) fn usual(plan: &Plan) -> Result<Machine> {
    let name = match plan.ranks.len() {
        ..=2 => "h200-x2",
        3 | 4 => "h200-x4",
        _ => "h200-x8",
    };
    machine(name)
}
