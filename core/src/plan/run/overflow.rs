//! How a call whose rows do not fit becomes an error.

use std::sync::Arc;

use aqueduct_ptx::abi::OverflowRecord;

use super::collective::Kind;
use crate::error::{Error, Result};
use crate::gpu::{Context, PinnedBuffer};
use crate::outcome::Outcome;
use crate::sync::{AtomicU64, Ordering};

/// A kernel records this in place of the bytes if two ranks pass buffers of different numbers.
const OTHER_BUFFERS: u64 = u64::MAX - 1;

/// The record that kernels write, and how much of it has been told.
#[derive(Debug)]
pub(super) struct Overflow {
    record: Arc<PinnedBuffer>,
    /// How many calls did not fit when a wait last said so.
    told: AtomicU64,
    /// How many of them came before the latest call.
    earlier: AtomicU64,
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
        let (told, earlier) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { record, told, earlier, equal, longest, misfit })
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

/// Asked once the work is done, and so is the record. Every wait that sees an overflow reports it, until a call or a graph's launch comes
/// behind one that has.
impl Outcome for Overflow {
    fn forget(&self) {
        self.earlier.fetch_max(self.told.load(Ordering::Acquire), Ordering::AcqRel);
    }

    /// Asked by the library itself, so nobody has been told.
    fn has_failed(&self) -> bool {
        let calls = self.word(std::mem::offset_of!(OverflowRecord, calls));
        calls.map_or(true, |calls| self.earlier.load(Ordering::Acquire) != calls)
    }

    fn outcome(&self, op: &'static str) -> Result<()> {
        use std::mem::offset_of;
        let calls = self.word(offset_of!(OverflowRecord, calls))?;
        if self.earlier.load(Ordering::Acquire) == calls {
            return Ok(());
        }
        self.told.fetch_max(calls, Ordering::AcqRel);
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
                            "counts and offsets of rank {sender} leave its buffers, or a part has 16 GiB or more{}",
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::gpu::{CaptureMode, Device, Driver, Event, GraphExec, Stream};

    const SOON: Duration = Duration::from_secs(20);

    /// As a kernel that finds that the rows of its call do not fit.
    fn overflow(of: &Overflow) {
        let word = of.record.memory().word64(std::mem::offset_of!(OverflowRecord, calls)).unwrap();
        word.fetch_add(1, Ordering::Release);
    }

    #[test]
    fn every_wait_is_told_until_there_is_another_call() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let record = Arc::new(Overflow::new(&context, &Kind::AllToAll, None, None).unwrap());
        let outcome: Arc<dyn Outcome> = record.clone();
        let (stream, other) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
        let event = Event::new(&context).unwrap();
        stream.depend_on(&outcome);
        event.record(&stream).unwrap();
        other.wait_event(&event).unwrap();
        overflow(&record);
        for _ in 0..2 {
            other.synchronize(SOON).unwrap_err();
            event.synchronize(SOON).unwrap_err();
            stream.synchronize(SOON).unwrap_err();
        }
        // Other work of the one stream is no call: the other stream's is still the one that failed.
        event.record(&stream).unwrap();
        stream.synchronize(SOON).unwrap();
        other.synchronize(SOON).unwrap_err();
        outcome.forget();
        stream.depend_on(&outcome);
        stream.synchronize(SOON).unwrap();
        outcome.forget();
        stream.depend_on(&outcome);
        overflow(&record);
        stream.synchronize(SOON).unwrap_err();
    }

    /// Nobody has been told of the first one when the second begins.
    #[test]
    fn a_call_makes_nobody_forget_what_no_wait_has_said() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let record = Arc::new(Overflow::new(&context, &Kind::AllToAll, None, None).unwrap());
        overflow(&record);
        assert!(record.has_failed());
        record.forget();
        record.outcome("test").unwrap_err();
    }

    #[test]
    fn launches_of_a_graph_tell_their_own_failures() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let record = Arc::new(Overflow::new(&context, &Kind::AllToAll, None, None).unwrap());
        let outcome: Arc<dyn Outcome> = record.clone();
        let stream = Stream::new(&context).unwrap();
        let graph = GraphExec::capture(&stream, CaptureMode::ThreadLocal, |stream| {
            stream.depend_on(&outcome);
            Event::new(&context)?.record(stream)
        });
        let graph = graph.unwrap();
        let event = Event::new(&context).unwrap();
        for fails in [true, false, true, true, false] {
            graph.launch(&stream).unwrap();
            event.record(&stream).unwrap();
            fails.then(|| overflow(&record));
            assert_eq!(event.synchronize(SOON).is_err(), fails);
        }
        graph.launch(&stream).unwrap();
        overflow(&record);
        stream.synchronize(SOON).unwrap_err();
        stream.synchronize(SOON).unwrap_err();
        graph.launch(&stream).unwrap();
        stream.synchronize(SOON).unwrap();
    }
}
