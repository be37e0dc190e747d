//! Whether devices reach each other's memory.

use anyhow::Result;

use super::check::{Check, Ran};

/// Checks that this device reaches the memory of every other; otherwise the row says which ranks it cannot reach.
pub(super) fn all_reachable(check: &Check<'_>) -> Result<Ran> {
    let far: Vec<String> = check
        .group
        .comm
        .topology()
        .peers()
        .iter()
        .filter(|peer| !peer.is_reachable())
        .map(|peer| peer.rank.to_string())
        .collect();
    Ok(if far.is_empty() {
        Ran::all(format!("{} ranks, loads and stores between all", check.size()))
    } else {
        Ran::not(format!("no peer access to the devices of ranks {}", far.join(", ")))
    })
}
