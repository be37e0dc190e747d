//! How a call whose rows do not fit becomes an error.

use std::sync::Arc;

use aqueduct_ptx::abi::OverflowRecord;

use super::collective::Kind;
use crate::error::{Error, Result};
use crate::gpu::{Context, PinnedBuffer};
use crate::outcome::Outcome;
use crate::sync::{AtomicU64, Ordering};

/// What a record has for the bytes of ranks that pass buffers of different numbers.
const OTHER_BUFFERS: u64 = u64::MAX - 1;

/// The record that kernels write, and how much of it has been told.
#[derive(Debug)]
pub(super) struct Overflow {
    record: Arc<PinnedBuffer>,
    /// Calls that did not fit and of which some wait has said so.
    told: AtomicU64,
    /// What goes to a rank and its room must be equally long: a reduce-scatter has one part for each rank.
    equal: bool,
    /// The longest part, in bytes, that ranks of several hosts reduce.
    longest: Option<u64>,
    /// The words of the error, behind the rank's number, if a rank shows numbers that are wrong by themselves.
    misfit: Option<&'static str>,
}

impl Overflow {
    /// For a plan of `kind`, whose parts have at most `longest` bytes, and `misfit` to say of a rank whose numbers are wrong.
    pub(super) fn new(
        context: &Context,
        kind: &Kind,
        longest: Option<u64>,
        misfit: Option<&'static str>,
    ) -> Result<Self> {
        let record = Arc::new(PinnedBuffer::new(context, size_of::<OverflowRecord>())?);
        let equal = matches!(kind, Kind::ReduceScatter);
        Ok(Self { record, told: AtomicU64::new(0), equal, longest, misfit })
    }

    /// The record's address for kernels.
    pub(super) fn record(&self) -> u64 {
        self.record.device_ptr()
    }

    fn word(&self, offset: usize) -> Result<u64> {
        let mut bytes = [0; 8];
        self.record.memory().read(offset, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn rank(&self, offset: usize) -> Result<u32> {
        let mut bytes = [0; 4];
        self.record.memory().read(offset, &mut bytes)?;
        Ok(u32::from_ne_bytes(bytes))
    }
}

/// Asked once the work is done, and so is the record. The first wait that sees an overflow reports it, and only this one: graphs
/// that are replayed do not come by here to begin anew.
impl Outcome for Overflow {
    fn has_failed(&self) -> bool {
        let calls = self.word(std::mem::offset_of!(OverflowRecord, calls));
        calls.map_or(true, |calls| self.told.load(Ordering::Acquire) != calls)
    }

    fn outcome(&self, op: &'static str) -> Result<()> {
        use std::mem::offset_of;
        let calls = self.word(offset_of!(OverflowRecord, calls))?;
        if self.told.swap(calls, Ordering::AcqRel) == calls {
            return Ok(());
        }
        let bytes = self.word(offset_of!(OverflowRecord, bytes))?;
        let room = self.word(offset_of!(OverflowRecord, room))?;
        let sender = self.rank(offset_of!(OverflowRecord, sender))?;
        let receiver = self.rank(offset_of!(OverflowRecord, receiver))?;
        let message = match bytes {
            OTHER_BUFFERS => format!(
                "ranks {sender} and {receiver} pass buffers that were not shown together; on every rank, pass those of one collective call that \
                 showed them; no rank has moved anything in this call"
            ),
            u64::MAX => {
                let longer = self.longest.map(|longest| {
                    format!(
                        ", or a part of it is longer than the {longest} bytes of scratch that there are for one from another host \
                         (AQUEDUCT_SCRATCH_BYTES or CommunicatorConfig::with_scratch_bytes gives more)"
                    )
                });
                let wrong = match self.misfit {
                    Some(misfit) => format!("rank {sender} {misfit}"),
                    None => {
                        format!(
                            "counts and offsets of rank {sender} leave its buffers{}",
                            longer.unwrap_or_default()
                        )
                    }
                };
                format!("{wrong}; no rank has moved anything in this call")
            }
            _ if self.equal => format!(
                "rank {sender} has {bytes} bytes for rank {receiver}, whose own part has {room}; give the same counts on all \
                 ranks; no rank has moved anything in this call"
            ),
            _ => format!(
                "rank {sender} has {bytes} bytes for rank {receiver}, which has room for {room}; no rank has moved anything in \
                 this call"
            ),
        };
        Err(Error::usage(op, message).with_peer(sender))
    }
}
