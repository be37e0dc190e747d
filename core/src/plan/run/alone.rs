//! A rank's own part of `Executor::prepare`, without peers, so that benchmarks can measure it.

use std::path::Path;
use std::time::{Duration, Instant};

use super::agreement::Offer;
use super::compile::kernels;
use super::config::ExecutorConfig;
use super::ir::Plan;
use super::load::Loader;
use super::verdict::checked;
use crate::error::Result;
use crate::gpu::Context;
use crate::processors;

/// Times of the steps of one preparation.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    /// The digest that ranks compare.
    pub digest: Duration,
    /// The plan's checks.
    pub check: Duration,
    /// The kernels, from the plan until they can be launched.
    pub kernels: Duration,
}

/// Does what `rank` does on its own to prepare a plan, with compiled kernels kept in the folder `cache`.
///
/// # Errors
/// As for `Executor::prepare`.
pub fn prepare_alone(
    context: &Context,
    cache: Option<&Path>,
    plan: &Plan,
    rank: u32,
    config: &ExecutorConfig,
) -> Result<Steps> {
    let begun = Instant::now();
    let offer = Offer::new(plan, config, None);
    let digest = begun.elapsed();
    checked(plan, config, &offer, cache)?;
    let check = begun.elapsed() - digest;
    let uncompiled = kernels(plan, rank, config, &[])?;
    let loader = Loader { context, cache, threads: processors::allowed() };
    let functions = loader.load(&uncompiled.kernels().collect::<Vec<_>>(), || Ok(()))?;
    uncompiled.loaded(context, &mut functions.into_iter())?;
    Ok(Steps { digest, check, kernels: begun.elapsed() - check - digest })
}
