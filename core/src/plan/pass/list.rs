//! The passes in their order.

use super::ir::Plan;
use super::{Policy, Shapes, fuse, pipeline, refused, replicate, resources, sync};
use crate::error::Result;

/// Choices that passes leave to the author of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Which moves fusion may make; `None` for no fusion.
    pub fusion: Option<Shapes>,
    /// Bytes of the slices over which what hands data on is repeated; `None` for whole chunks, or the author's own loops.
    pub slice: Option<u64>,
    /// Instances of the program.
    pub instances: u32,
    /// Chunks of each instance.
    pub policy: Policy,
}

impl Default for Options {
    fn default() -> Self {
        Self { fusion: Some(Shapes::Any), slice: None, instances: 1, policy: Policy::Interleaved }
    }
}

/// A step from a program to the plan that is run.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// Name, for `aqueduct plan show --after`.
    pub name: &'static str,
    /// Its work in a few words.
    pub summary: &'static str,
    apply: fn(&Plan, &Options) -> Result<Plan>,
}

/// All passes, in the order in which they run.
pub const PASSES: [Pass; 5] = [
    Pass {
        name: "pipeline",
        summary: "repeats what hands data on over slices",
        apply: |plan, options| options.slice.map_or_else(|| Ok(plan.clone()), |unit| pipeline(plan, unit)),
    },
    Pass { name: "sync", summary: "inserts the fewest syncs", apply: |plan, _| sync(plan) },
    Pass {
        name: "fuse",
        summary: "joins operations that share operands",
        apply: |plan, options| options.fusion.map_or_else(|| Ok(plan.clone()), |shapes| fuse(plan, shapes)),
    },
    Pass {
        name: "replicate",
        summary: "makes instances",
        apply: |plan, options| replicate(plan, options.instances, options.policy),
    },
    Pass {
        name: "resources",
        summary: "gives up what is not used and checks the limits",
        apply: |plan, _| resources(plan),
    },
];

impl Pass {
    /// Runs the pass.
    ///
    /// # Errors
    /// [`ErrorKind::Plan`](crate::ErrorKind::Plan) if it refuses the plan.
    pub fn apply(&self, plan: &Plan, options: &Options) -> Result<Plan> {
        (self.apply)(plan, options)
    }
}

/// Runs all passes, or those up to the one named `last`.
///
/// # Errors
/// [`ErrorKind::Plan`](crate::ErrorKind::Plan) if a pass refuses the plan or there is none of that name.
pub fn run(plan: &Plan, options: &Options, last: Option<&str>) -> Result<Plan> {
    let end = match last {
        None => PASSES.len(),
        Some(last) => {
            let place = PASSES.iter().position(|pass| pass.name == last);
            let names = || PASSES.map(|pass| pass.name).join(", ");
            1 + place.ok_or_else(|| refused(format!("no pass is called {last:?}; there are {}", names())))?
        }
    };
    PASSES[..end].iter().try_fold(plan.clone(), |plan, pass| pass.apply(&plan, options))
}
