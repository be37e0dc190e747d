//! Every name that templates and the C header may use: offsets, sizes and constants.

use super::abort::{
    ABORT_CLAIM_FREE, ABORT_CLAIM_TAKEN, ABORT_RECORD_COMPLETE, ABORT_RECORD_EMPTY, ABORT_WORD_RUN,
    AbortClaim, AbortHandle, AbortRecord, NO_PEER, Operation, SPINS_FREE, SPINS_PER_ABORT_READ,
};
use super::grid_barrier::{GridBarrierHandle, GridBarrierState};
use super::lap::{FIRST_EPOCH_OF_LAP, LAST_EPOCH};
use super::layout::{DeviceStruct, StructLayout};
use super::memory_channel::{MemoryChannelHandle, SemaphoreHandle};
use super::plan::{OverflowRecord, PlanArgs, PlanRow, PlanRows, TraceRecord};
use super::port::{LEFT_CLOSED, LEFT_NOT, LEFT_REFUSED, LEFT_TOLD, PortChannelHandle};
use super::trigger::{FifoHandle, ID_BITS, OFFSET_BITS, ProxyTrigger, SIZE_BITS, TriggerKind};
use super::turn::{TURN_FREE, TurnQueue};

/// Version of everything in this module. Ranks compare it when they connect; a difference is refused.
pub const ABI_VERSION: u32 = 6;

/// Constants other than offsets that templates may name, as `(name, value)`.
pub const CONSTANTS: &[(&str, u64)] = &[
    ("ABI_VERSION", ABI_VERSION as u64),
    ("SPINS_FREE", SPINS_FREE as u64),
    ("SPINS_PER_ABORT_READ", SPINS_PER_ABORT_READ as u64),
    ("ABORT_WORD_RUN", ABORT_WORD_RUN as u64),
    ("ABORT_RECORD_EMPTY", ABORT_RECORD_EMPTY as u64),
    ("ABORT_RECORD_COMPLETE", ABORT_RECORD_COMPLETE as u64),
    ("ABORT_CLAIM_FREE", ABORT_CLAIM_FREE as u64),
    ("ABORT_CLAIM_TAKEN", ABORT_CLAIM_TAKEN as u64),
    ("NO_PEER", NO_PEER as u64),
    ("OPERATION_WAIT", Operation::WAIT.0 as u64),
    ("OPERATION_UNPACK_LL8", Operation::UNPACK_LL8.0 as u64),
    ("OPERATION_UNPACK_LL16", Operation::UNPACK_LL16.0 as u64),
    ("OPERATION_UNPACK_LL128", Operation::UNPACK_LL128.0 as u64),
    ("OPERATION_GRID_BARRIER", Operation::GRID_BARRIER.0 as u64),
    ("OPERATION_FIFO", Operation::FIFO.0 as u64),
    ("OPERATION_PERF", Operation::PERF.0 as u64),
    ("OPERATION_FLUSH", Operation::FLUSH.0 as u64),
    ("OPERATION_PLAN", Operation::PLAN.0 as u64),
    ("OPERATION_TURN", Operation::TURN.0 as u64),
    ("LEFT_NOT", LEFT_NOT as u64),
    ("LEFT_TOLD", LEFT_TOLD as u64),
    ("LEFT_REFUSED", LEFT_REFUSED as u64),
    ("LEFT_CLOSED", LEFT_CLOSED as u64),
    ("TRIGGER_DATA", TriggerKind::DATA.0 as u64),
    ("TRIGGER_FLAG", TriggerKind::FLAG.0 as u64),
    ("TRIGGER_SYNC", TriggerKind::SYNC.0 as u64),
    ("TRIGGER_OFFSET_BITS", OFFSET_BITS as u64),
    ("TRIGGER_SIZE_BITS", SIZE_BITS as u64),
    ("TRIGGER_ID_BITS", ID_BITS as u64),
    ("LAST_EPOCH", LAST_EPOCH as u64),
    ("FIRST_EPOCH_OF_LAP", FIRST_EPOCH_OF_LAP as u64),
    ("TURN_FREE", TURN_FREE as u64),
];

/// Every structure of the ABI, in the order in which a C header can declare them.
pub const STRUCTS: &[&StructLayout] = &[
    &AbortHandle::LAYOUT,
    &AbortClaim::LAYOUT,
    &AbortRecord::LAYOUT,
    &SemaphoreHandle::LAYOUT,
    &MemoryChannelHandle::LAYOUT,
    &GridBarrierState::LAYOUT,
    &GridBarrierHandle::LAYOUT,
    &ProxyTrigger::LAYOUT,
    &FifoHandle::LAYOUT,
    &PortChannelHandle::LAYOUT,
    &PlanArgs::LAYOUT,
    &PlanRows::LAYOUT,
    &PlanRow::LAYOUT,
    &OverflowRecord::LAYOUT,
    &TraceRecord::LAYOUT,
    &TurnQueue::LAYOUT,
];

/// All symbols templates may use without being given them: `PREFIX_SUFFIX` per field (its offset),
/// `PREFIX_SIZE` per structure (its bytes), and the module's constants.
pub fn symbols() -> Vec<(String, u64)> {
    let mut table = Vec::new();
    for layout in STRUCTS {
        table.push((format!("{}_SIZE", layout.prefix), layout.size as u64));
        for field in layout.fields {
            table.push((format!("{}_{}", layout.prefix, field.suffix), field.offset as u64));
        }
    }
    table.extend(CONSTANTS.iter().map(|&(name, value)| (name.to_owned(), value)));
    table
}

/// The value of one symbol.
pub fn symbol(name: &str) -> Option<u64> {
    symbols().into_iter().find(|(known, _)| known == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_unique_and_agree_with_the_compiler() {
        let mut names: Vec<String> = symbols().into_iter().map(|(name, _)| name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "two symbols share a name");
        assert_eq!(symbol("MEMORY_CHANNEL_DST"), Some(std::mem::offset_of!(MemoryChannelHandle, dst) as u64));
        assert_eq!(symbol("PLAN_ARGS_SIZE"), Some(size_of::<PlanArgs>() as u64));
        assert_eq!(symbol("PLAN_ARGS_NOTHING"), None);
    }
}
