//! Runs a plan on vectors, as unkindly as hardware may.
//!
//! A seed decides the order of everything that the plan leaves open: which block goes next, how far a move gets before
//! another block runs, the order of moves between two syncs, when a proxy handles a request, when a rank begins a call. A
//! plan that lacks synchronisation gives a wrong result for some seed; one without gives the same for all.

mod config;
mod element;
mod machine;
mod memory;
mod schedule;

#[cfg(test)]
mod tests;

pub use config::Config;
pub use element::Element;

use config::refused;

use super::ir::Plan;
use super::{check, cursor, geometry, ir, position};
use crate::error::{Error, Result};

/// Runs calls of a plan one after another, as a stream of each rank would, and returns each rank's output of each call.
///
/// `calls` holds for each call the input of every rank. All inputs have the same length; with a plan that has no input, the
/// length of each is that of a chunk.
///
/// # Errors
/// [`ErrorKind::Plan`](crate::ErrorKind::Plan) if the plan is malformed, if the length does not divide into its chunks, or if the
/// ranks wait for each other for ever: the message says who waits for what.
pub fn run<T: Element>(plan: &Plan, calls: &[Vec<Vec<T>>], config: Config) -> Result<Vec<Vec<Vec<T>>>> {
    if let Some(finding) = check::structure(plan).first() {
        return Err(refused(finding.to_string()));
    }
    let elements = calls.first().and_then(|inputs| inputs.first()).map_or(0, Vec::len);
    let fits = |inputs: &Vec<Vec<T>>| {
        inputs.len() == plan.ranks.len() && inputs.iter().all(|input| input.len() == elements)
    };
    if !calls.iter().all(fits) {
        return Err(Error::usage(
            "plan::simulate",
            "every call needs one input of the same length for each rank",
        ));
    }
    let sizes = memory::Sizes::of(plan, elements, size_of::<T>())?;
    schedule::run(plan, sizes, calls, config)
}
