//! The device ABI: every structure that host code and PTX both read or write.
//!
//! All structures are `repr(C)`, hold integers only (device pointers are `u64` *global* addresses) and are
//! declared through one macro, which freezes each offset with a constant assertion and exports it by name to
//! the kernel templates: the field `dst` of [`MemoryChannelHandle`] is `${MEMORY_CHANNEL_DST}` there. No PTX file
//! contains a typed offset.
//!
//! Counters are 64 bits wide, absolute and never reset. Ownership is stated per field: "mine" is the rank
//! that launches the kernel, "peer" the rank at the other end.

mod abort;
mod grid_barrier;
mod lap;
mod layout;
mod memory_channel;
mod plan;
mod port;
mod symbols;
mod trigger;
mod turn;

pub use abort::{
    ABORT_CLAIM_FREE, ABORT_CLAIM_TAKEN, ABORT_RECORD_COMPLETE, ABORT_RECORD_EMPTY, ABORT_WORD_RUN,
    AbortClaim, AbortHandle, AbortRecord, NO_PEER, Operation, SPINS_FREE, SPINS_PER_ABORT_READ,
};
pub use grid_barrier::{GridBarrierHandle, GridBarrierState};
pub use lap::{FIRST_EPOCH_OF_LAP, LAST_EPOCH};
pub use layout::{DeviceStruct, Field, StructLayout};
pub use memory_channel::{MemoryChannelHandle, SemaphoreHandle};
pub use plan::{OverflowRecord, PlanArgs, PlanRow, PlanRows, TraceRecord};
pub use port::{LEFT_CLOSED, LEFT_NOT, LEFT_REFUSED, LEFT_TOLD, PortChannelHandle};
pub use symbols::{ABI_VERSION, CONSTANTS, STRUCTS, symbol, symbols};
pub use trigger::{ChannelTrigger, FifoHandle, ProxyTrigger, TriggerError, TriggerKind, lap_bit};
pub use turn::{TURN_FREE, TurnQueue};
