//! The kinds of work, and how each runs.

use std::sync::Arc;

use cuda_driver_sys::CUresult;

use super::event::Event;
use super::host::HostCall;
use super::memory::{MemoryOp, MemoryTask};
use super::op::Op;
use super::runtime::Runtime;
use super::user_object::UserObject;
use crate::check;
use crate::exec::{FaultKind, Launch, Step};

/// Work of a stream or graph.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Nothing: a point in the order of operations.
    Marker,
    /// Records an event. Whoever submits it sets the event.
    Record(Arc<Event>),
    /// A kernel.
    Kernel {
        /// The launch.
        launch: Box<Launch>,
        /// Whether it was launched cooperatively and so needs a workspace for its grid barrier.
        grid_sync: bool,
    },
    /// Memory operations, in order.
    Memory(Vec<MemoryOp>),
    /// A function of the user.
    Host(HostCall),
    /// Releases the user objects that a launch of a graph holds.
    Release(Vec<Arc<UserObject>>),
}

impl Work {
    /// Submits the work as an operation of `device`, which begins when all of `after` have ended.
    pub(super) fn submit<'a>(
        self,
        runtime: &Arc<Runtime>,
        device: usize,
        after: impl IntoIterator<Item = &'a Arc<Op>>,
    ) -> Arc<Op> {
        let runtime = Arc::clone(runtime);
        let Some(checker) = runtime.checker.clone() else {
            return Op::submit(after, move |op| begin(&runtime, device, op, self, None));
        };
        let (submitted, after) = (checker.submitted(), after.into_iter().cloned().collect::<Vec<_>>());
        let before = after.clone();
        Op::submit(&after, move |op| {
            let work = checker.begin(device, &submitted, before.iter().filter_map(|op| op.past()));
            drop(before);
            begin(&runtime, device, op, self, Some(work))
        })
    }
}

/// Begins the work of `op`. Returns true if it is already over; otherwise [`Op::end`] is called later.
fn begin(
    runtime: &Arc<Runtime>,
    device: usize,
    op: &Arc<Op>,
    work: Work,
    check: Option<Arc<check::Work>>,
) -> bool {
    let over = run(runtime, device, op, work, check.as_ref());
    if over && let Some(check) = check {
        op.set_past(check.end(false));
    }
    over
}

fn run(
    runtime: &Arc<Runtime>,
    device: usize,
    op: &Arc<Op>,
    work: Work,
    check: Option<&Arc<check::Work>>,
) -> bool {
    let error = &runtime.errors[device];
    let status = error.check();
    let op = Arc::clone(op);
    if let Work::Host(call) = work {
        let status = status.err().unwrap_or(CUresult::CUDA_SUCCESS);
        let check = check.cloned();
        runtime.host.post(move || {
            // Its start is as a wait for what came before it (CUDA driver API, cuLaunchHostFunc): the function may tell others
            // of that while it still runs.
            if let Some(check) = &check {
                check.host_begins();
            }
            call.run(status);
            end(&op, check.as_deref(), true);
        });
        return false;
    }
    if status.is_err() {
        return true;
    }
    match work {
        Work::Marker | Work::Record(_) | Work::Host(_) => true,
        Work::Release(objects) => {
            drop(objects);
            true
        }
        Work::Kernel { mut launch, grid_sync } => {
            let workspace = grid_sync.then(|| runtime.allocations.workspace(device)).transpose();
            let workspace = match workspace {
                Ok(workspace) => workspace,
                Err(code) => {
                    error.set(code);
                    return true;
                }
            };
            launch.workspace = workspace.as_ref().map_or(0, |w| w.base());
            launch.check = check.cloned();
            if let Some(chance) = check.and_then(|work| work.chance()) {
                launch.garbage = Some(chance.seed());
            }
            let (shared, check) = (Arc::clone(runtime), check.cloned());
            runtime.engine.launch(*launch, move |result| {
                drop(workspace);
                if let Err(fault) = result {
                    let chance = check.as_deref().and_then(check::Work::chance);
                    let seed =
                        chance.map_or_else(String::new, |c| format!(" (AQUEDUCT_SOFT_SEED={})", c.seed()));
                    eprintln!("cuda-soft: device {device}: {fault}{seed}");
                    shared.errors[device].set(fault_code(fault.kind));
                }
                end(&op, check.as_deref(), false);
            });
            false
        }
        Work::Memory(ops) => {
            let mut task = MemoryTask::new(Arc::clone(&runtime.space), device, ops, check);
            // Small operations finish here, which is cheaper than a switch to an engine thread.
            for _ in 0..INLINE_STEPS {
                match step(runtime, device, &mut task) {
                    Step::Done => return true,
                    Step::Again => {}
                    Step::Waiting { .. } => break,
                }
            }
            let (shared, check) = (Arc::clone(runtime), check.cloned());
            runtime.engine.task(move || {
                let step = step(&shared, device, &mut task);
                if matches!(step, Step::Done) {
                    end(&op, check.as_deref(), false);
                }
                step
            });
            false
        }
    }
}

/// Ends an operation. With `host`, a function of the host was part of it.
fn end(op: &Arc<Op>, check: Option<&check::Work>, host: bool) {
    if let Some(check) = check {
        op.set_past(check.end(host));
    }
    op.end();
}

/// Maximum number of steps that a memory operation makes on the thread that begins it.
const INLINE_STEPS: u32 = 2;

/// Executes a part of a memory task. A sticky error of the context ends it, and an illegal address sets that error.
fn step(runtime: &Runtime, device: usize, task: &mut MemoryTask) -> Step {
    let error = &runtime.errors[device];
    if error.check().is_err() {
        return Step::Done;
    }
    task.step().unwrap_or_else(|code| {
        error.set(code);
        Step::Done
    })
}

fn fault_code(kind: FaultKind) -> CUresult {
    match kind {
        FaultKind::IllegalAddress => CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
        FaultKind::MisalignedAddress => CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
        FaultKind::Trap
        | FaultKind::Race
        | FaultKind::TooMuch
        | FaultKind::Unchecked(_)
        | FaultKind::Diverged => CUresult::CUDA_ERROR_LAUNCH_FAILED,
        FaultKind::Assert => CUresult::CUDA_ERROR_ASSERT,
        FaultKind::IllegalInstruction => CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
        FaultKind::InvalidAddressSpace => CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
        FaultKind::InvalidPc => CUresult::CUDA_ERROR_INVALID_PC,
        FaultKind::StackOverflow => CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
        FaultKind::Timeout => CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
    }
}
