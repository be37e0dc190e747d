//! The NIC that checks of verbs use.

use anyhow::Result;
use aqueduct::comm::Transport;

use super::check::{Check, Ran};
use crate::info;

/// Runs `check` over the NIC nearest to this rank's device, if every rank has one with an active port. Its row names the
/// NIC and the port.
pub(super) fn over_verbs(
    check: &Check<'_>,
    run: impl FnOnce(&Check<'_>, Transport) -> Result<Ran>,
) -> Result<Ran> {
    let mine = info::active_nic(&check.group.comm);
    let all = check.agree(mine.is_ok())?;
    match mine {
        Err(error) => Ok(Ran::not(format!("no NIC with an active port: {error}"))),
        Ok(_) if !all => Ok(Ran::not("another rank has no NIC with an active port")),
        Ok((transport, name)) => Ok(match run(check, transport)? {
            Ran::All(what) => Ran::all(format!("{transport}, {name}: {what}")),
            not => not,
        }),
    }
}
