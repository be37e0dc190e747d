//! What an operation does when its turn comes.

use std::sync::Arc;

use cuda_driver_sys::CUresult;

use super::host::HostCall;
use super::memory::{MemoryOp, MemoryTask};
use super::op::Op;
use super::user_object::UserObject;
use super::{Event, EventState};
use crate::exec::{FaultKind, Launch, Step};
use crate::machine::machine;

/// The kinds of work.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Nothing: a point in the order of things.
    Marker,
    /// Records an event, each time a graph gets here.
    Record(Arc<Event>),
    /// A kernel; `grid_sync` gives it the workspace of a grid-wide barrier.
    Kernel {
        /// What to run.
        launch: Box<Launch>,
        /// Launched cooperatively.
        grid_sync: bool,
    },
    /// Copies, fills, and reads and writes of single values, in order.
    Memory(Vec<MemoryOp>),
    /// A function of the user's.
    Host(HostCall),
    /// Lets go of what a launched graph holds.
    Release(Vec<Arc<UserObject>>),
}

/// Begins the work of `op`; true if it is already over, else somebody calls [`Op::end`] later.
pub(super) fn start(op: &Arc<Op>, work: Work) -> bool {
    let Ok(machine) = machine() else { return true };
    let device = &machine.devices[op.device];
    let status = device.check();
    if let Work::Host(call) = work {
        let status = status.err().unwrap_or(CUresult::CUDA_SUCCESS);
        machine.host.post(call, status, Arc::clone(op));
        return false;
    }
    if status.is_err() {
        return true;
    }
    match work {
        Work::Marker | Work::Host(_) => true,
        Work::Release(objects) => {
            drop(objects);
            true
        }
        Work::Record(event) => {
            event.set(EventState::Recorded(Arc::clone(op)));
            true
        }
        Work::Kernel { mut launch, grid_sync } => {
            let op = Arc::clone(op);
            let workspace = grid_sync.then(|| machine.allocations.workspace(device));
            if let Some(workspace) = &workspace {
                match workspace {
                    Ok(allocation) => launch.workspace = allocation.base,
                    Err(code) => {
                        device.poison(*code);
                        return true;
                    }
                }
            }
            machine.engine.launch(*launch, move |result| {
                if let Some(Ok(allocation)) = workspace {
                    machine.allocations.remove(allocation.base);
                }
                if let Err(fault) = result {
                    eprintln!("cuda-soft: device {}: {fault}", op.device);
                    device.poison(fault_code(fault.kind));
                }
                op.end();
            });
            false
        }
        Work::Memory(ops) => {
            let mut task = MemoryTask::new(op.device, ops);
            // Small work is cheaper done than handed over.
            let mut budget = INLINE_STEPS;
            loop {
                match task.step(machine) {
                    Step::Done => return true,
                    Step::Again if budget > 0 => budget -= 1,
                    _ => break,
                }
            }
            let op = Arc::clone(op);
            machine.engine.task(move || {
                let step = task.step(machine);
                if matches!(step, Step::Done) {
                    op.end();
                }
                step
            });
            false
        }
    }
}

const INLINE_STEPS: u32 = 1;

fn fault_code(kind: FaultKind) -> CUresult {
    match kind {
        FaultKind::IllegalAddress => CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
        FaultKind::MisalignedAddress => CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
        FaultKind::Trap => CUresult::CUDA_ERROR_LAUNCH_FAILED,
        FaultKind::Assert => CUresult::CUDA_ERROR_ASSERT,
        FaultKind::IllegalInstruction => CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
        FaultKind::InvalidAddressSpace => CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
        FaultKind::InvalidPc => CUresult::CUDA_ERROR_INVALID_PC,
        FaultKind::StackOverflow => CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
        FaultKind::Timeout => CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
    }
}
