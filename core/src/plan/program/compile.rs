//! From what the author wrote to what runs.

use super::pass::{Options, PASSES, Policy, Shapes};
use super::collective_program::{CollectiveProgram, ReplicationPolicy};
use crate::error::Result;
use crate::plan::Plan;

impl CollectiveProgram {
    /// The plan that runs: [`build`](Self::build), then the [passes](crate::plan::pass) that the program asks for.
    ///
    /// # Errors
    /// As for [`build`](Self::build); [`ErrorKind::Plan`](crate::ErrorKind::Plan) if a pass refuses the plan.
    pub fn compile(self) -> Result<Plan> {
        let passes = self.passes();
        let options = Options {
            fusion: passes.fusion.then_some(Shapes::Any),
            instances: passes.instances,
            policy: match passes.replication {
                ReplicationPolicy::Interleaved => Policy::Interleaved,
                ReplicationPolicy::None => Policy::None,
            },
        };
        let wanted = PASSES.iter().filter(|pass| passes.auto_sync || pass.name != "sync");
        { wanted }.try_fold(self.build()?, |plan, pass| pass.apply(&plan, &options))
    }
}
