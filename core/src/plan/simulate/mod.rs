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
mod short;

#[cfg(test)]
mod tests;

pub use config::Config;
pub use element::Element;
pub use short::{Bf16, F8E4m3, F8E5m2, F16};

use config::refused;

use super::ir::Plan;
use super::{Element as Type, check, cursor, geometry, ir, position};
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

/// The same on bytes: elements of a type that is known at run time only.
///
/// # Errors
/// Those of [`run`], and [`ErrorKind::InvalidUsage`](crate::ErrorKind::InvalidUsage) for bytes that are not whole elements.
pub fn run_bytes(
    plan: &Plan,
    element: super::Element,
    calls: &[Vec<Vec<u8>>],
    config: Config,
) -> Result<Vec<Vec<Vec<u8>>>> {
    if !calls.iter().flatten().all(|input| input.len().is_multiple_of(element.bytes())) {
        return Err(Error::usage(
            "plan::simulate",
            format!("every input needs whole elements of {}", element.name()),
        ));
    }
    let run = match element {
        Type::F32 => of_bytes::<f32>,
        Type::F64 => of_bytes::<f64>,
        Type::F16 => of_bytes::<F16>,
        Type::Bf16 => of_bytes::<Bf16>,
        Type::F8E4m3 => of_bytes::<F8E4m3>,
        Type::F8E5m2 => of_bytes::<F8E5m2>,
        Type::I8 => of_bytes::<i8>,
        Type::U8 => of_bytes::<u8>,
        Type::I32 => of_bytes::<i32>,
        Type::U32 => of_bytes::<u32>,
        Type::I64 => of_bytes::<i64>,
        Type::U64 => of_bytes::<u64>,
    };
    run(plan, calls, config)
}

fn of_bytes<T: Element>(plan: &Plan, calls: &[Vec<Vec<u8>>], config: Config) -> Result<Vec<Vec<Vec<u8>>>> {
    let elements = |inputs: &Vec<Vec<u8>>| inputs.iter().map(|input| T::from_bytes(input)).collect();
    let calls: Vec<Vec<Vec<T>>> = calls.iter().map(elements).collect();
    let outputs = run(plan, &calls, config)?;
    let bytes = |outputs: &Vec<Vec<T>>| outputs.iter().map(|output| T::to_bytes(output)).collect();
    Ok(outputs.iter().map(bytes).collect())
}
