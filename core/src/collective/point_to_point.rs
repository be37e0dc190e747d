//! Sends and receives between any ranks, all in one launch.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::config::CollectiveConfig;
use super::named::called;
use super::plans::{self, Hosts};
use super::variable::shape;
use crate::comm::{Communicator, ScratchShare};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{DeviceSlice, GpuBuffer, KeepAlive, PinnedBuffer, Stream, ThreadCaptureMode};
use crate::plan::{Element, Executor, Kind, Numbers, PlanBuffers, Rows, all_done};
use crate::sync::{Mutex, lock};

/// The part of what is left of the scratch that memory for other hosts takes, if nobody names its size.
const SHARE: u64 = 16;
/// Parts of that memory begin at multiples of this.
const LINE: usize = 128;

/// The error of a rank that shows wrong numbers, behind its number. Its host has checked lists and ranges before, so two reasons are left.
const MISFIT: &str = "sends more to ranks of other hosts than it has memory for (its log says how much; CollectiveConfig::with_staging_bytes in \
                      PointToPoint::prepare_with names more), or 16 GiB or more to one rank; send less at once";

const PREPARE: &str = "PointToPoint::prepare";
const LAUNCH: &str = "PointToPoint::launch";
/// Tables that are allocated at once. A call's table is in use until the call has ended, and that of a captured call as long as its
/// graph.
const TABLES: usize = 16;

/// Groups of sends and receives: each call moves any number of messages between any ranks in one kernel launch. Who sends what to
/// whom may differ from call to call; nothing is compiled or exchanged for it.
///
/// A call copies messages to ranks of other hosts to memory of the library first, in front of the launch, and proxies put them to the
/// receivers' buffers. Messages within a host are not copied before. Memory that goes to several ranks is copied once.
///
/// Every rank takes part in every call, perhaps with empty lists, in the same order. All calls of one `PointToPoint` belong on one
/// stream, or on streams that the caller orders. A graph can capture calls. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PointToPoint {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    comm: Communicator,
    executor: Executor,
    /// For what goes to ranks of other hosts, if there are any.
    staging: Option<Staging>,
    tables: Mutex<Vec<Arc<PinnedBuffer>>>,
}

/// Memory that proxies read from.
#[derive(Debug)]
struct Staging {
    hosts: Hosts,
    memory: Arc<Memory>,
}

/// Kept by streams, with its part of the communicator's scratch.
#[derive(Debug)]
struct Memory {
    buffer: Arc<GpuBuffer>,
    _share: ScratchShare,
}

/// Memory that every rank has shown its peers, so that they can send into it: see [`PointToPoint::buffer`].
#[derive(Clone, Debug)]
pub struct ReceiveBuffer {
    of: Arc<Inner>,
    buffer: Arc<GpuBuffer>,
    shown: PlanBuffers,
}

impl PointToPoint {
    /// Compiles the kernel and shows its memory to the peers. Collective.
    ///
    /// # Errors
    /// As for [`Executor::prepare`].
    pub fn prepare(comm: &Communicator, deadline: impl Into<Deadline>) -> Result<Self> {
        Self::prepare_with(comm, CollectiveConfig::default(), deadline)
    }

    /// The same with settings, of which [`in_any_order`](CollectiveConfig::in_any_order), [`in_call_order`](CollectiveConfig::in_call_order)
    /// and [`with_port_transport`](CollectiveConfig::with_port_transport) play a part, and between hosts
    /// [`with_staging_bytes`](CollectiveConfig::with_staging_bytes): how much of one call may go to ranks of other hosts, each message
    /// rounded up to a multiple of 128 bytes. It may differ between ranks; 0, or none named, is a sixteenth of what is left of the
    /// communicator's scratch, of which this memory is a part. Collective.
    ///
    /// # Errors
    /// `InvalidUsage` of a rank that has not as much scratch left, and `Remote` of all others; otherwise as for [`Executor::prepare`].
    pub fn prepare_with(
        comm: &Communicator,
        config: CollectiveConfig,
        deadline: impl Into<Deadline>,
    ) -> Result<Self> {
        let deadline = deadline.into();
        let _turn = comm.collective_call(PREPARE, deadline)?;
        let hosts = Hosts::of(comm);
        let mut plan = plans::variable(&Kind::AllToAll, shape(comm), &hosts).ok_or_else(no_plan)??;
        // Ranks compare it, and an all-to-all has the same plan.
        plan.name = "sends and receives".to_owned();
        let settings = config.executor(None).unchecked();
        let settings = if hosts.count() > 1 { settings.with_misfit(MISFIT) } else { settings };
        let executor = called(PREPARE, Executor::prepare(comm, &plan, settings, deadline))?;
        let tables = (0..TABLES).map(|_| new_table(comm)).collect::<Result<Vec<_>>>();
        let staging =
            || (hosts.count() > 1).then(|| Staging::new(comm, hosts, config.staging_bytes)).transpose();
        let made = tables.and_then(|tables| Ok((Mutex::new(tables), staging()?)));
        let (tables, staging) = all_done(comm, PREPARE, made, deadline)?;
        Ok(Self { inner: Arc::new(Inner { comm: comm.clone(), executor, staging, tables }) })
    }

    /// Shows memory to the peers, to receive in. Collective.
    ///
    /// # Errors
    /// `InvalidUsage` for a buffer of another device; `Timeout`; a driver error.
    pub fn buffer(&self, buffer: &Arc<GpuBuffer>, deadline: impl Into<Deadline>) -> Result<ReceiveBuffer> {
        // Ranks of this host read what they get wherever it lies.
        let source = self.inner.staging.as_ref().map_or(buffer, |staging| &staging.memory.buffer);
        let shown = self.inner.executor.prepare_buffers(source, buffer, deadline);
        let shown = called("PointToPoint::buffer", shown)?;
        Ok(ReceiveBuffer { of: Arc::clone(&self.inner), buffer: Arc::clone(buffer), shown })
    }

    /// Enqueues a group: `sends` names a rank and the memory that goes to it, `receives` a rank and where in `buffer` there is room for
    /// what it sends. A rank occurs at most once in each list, and may be this one. A message may be shorter than its
    /// room; one that is longer, or for which there is no room, is an error of the next wait for the stream, on every rank, and so is more for
    /// ranks of other hosts than there is memory for. Then no message of the group is moved. Every rank passes the buffer of one call of
    /// [`buffer`](Self::buffer); if not, this too is an error of every rank, and no message is moved. The stream keeps all memory alive.
    ///
    /// # Errors
    /// `InvalidUsage` for a rank that does not exist or occurs twice, memory of another device, ranges outside of the buffer or that
    /// overlap each other or what is sent: then the other ranks wait until this one makes the call. `PeerLost` once a rank is lost or has
    /// left; `Aborted` once the communicator is aborted; a
    /// driver error.
    pub fn launch(
        &self,
        stream: &Stream,
        buffer: &ReceiveBuffer,
        sends: &[(u32, DeviceSlice)],
        receives: &[(u32, Range<usize>)],
    ) -> Result<()> {
        let inner = &*self.inner;
        if !Arc::ptr_eq(&self.inner, &buffer.of) {
            return Err(Error::usage(LAUNCH, "this buffer was shown for another PointToPoint"));
        }
        let ranks = inner.comm.size() as usize;
        let mut table = vec![0_u64; 4 * ranks];
        once("sends", sends.iter().map(|(rank, _)| *rank), ranks)?;
        once("receives", receives.iter().map(|(rank, _)| *rank), ranks)?;
        for (rank, slice) in sends {
            slice.check_context(LAUNCH, inner.comm.context())?;
            table[*rank as usize] = slice.len() as u64;
            table[ranks + *rank as usize] = slice.ptr();
        }
        for (rank, range) in receives {
            let (start, end) = (range.start, range.end);
            if start > end || end > buffer.buffer.len() {
                let message = format!(
                    "bytes {start}..{end} do not lie in the buffer, which has {}",
                    buffer.buffer.len()
                );
                return Err(Error::usage(LAUNCH, message));
            }
            table[2 * ranks + *rank as usize] = (end - start) as u64;
            table[3 * ranks + *rank as usize] = start as u64;
        }
        check_apart(buffer, sends, receives)?;
        if let Some(staging) = &inner.staging {
            let (counts, places) = table.split_at_mut(ranks);
            let placed = staging
                .take(stream, inner.comm.rank(), sends, |rank, place| places[rank as usize] = place)?;
            if !placed {
                // Its rows say so to all ranks, which would wait for this one otherwise.
                counts.fill(u64::MAX);
            }
        }
        let array = inner.filled(&table)?;
        let numbers = |which: usize| {
            let each = array.slice(8 * ranks * which..8 * ranks * (which + 1))?;
            Ok::<_, Error>(Numbers::Each(each))
        };
        let mut keep: Vec<KeepAlive> =
            sends.iter().map(|(_, slice)| Arc::clone(slice.keep_alive())).collect();
        keep.extend(inner.staging.iter().map(|staging| Arc::clone(&staging.memory) as KeepAlive));
        let rows = Rows {
            send_counts: numbers(0)?,
            send_offsets: numbers(1)?,
            receive_counts: numbers(2)?,
            receive_offsets: numbers(3)?,
            received: None,
            anywhere: Some(keep),
            within: None,
        };
        called(LAUNCH, inner.executor.execute_by_rows(stream, &buffer.shown, &rows, (Element::U8, None)))
    }
}

impl Staging {
    fn new(comm: &Communicator, hosts: Hosts, bytes: Option<usize>) -> Result<Self> {
        let scratch = comm.scratch();
        let some = usize::try_from(scratch.left() / SHARE).unwrap_or(usize::MAX);
        let bytes = bytes.filter(|&bytes| bytes > 0).unwrap_or(some).max(1);
        let bytes = bytes.checked_next_multiple_of(LINE).unwrap_or(bytes);
        let share = scratch.take_within(bytes as u64).ok_or_else(|| {
            let message = format!(
                "memory for what goes to ranks of other hosts takes {bytes} bytes of scratch, and this rank has {} left; ask for less with \
                 with_staging_bytes(), or set AQUEDUCT_SCRATCH_BYTES (or CommunicatorConfig::with_scratch_bytes)",
                scratch.left()
            );
            Error::usage(PREPARE, message)
        })?;
        let buffer = Arc::new(GpuBuffer::new(comm.context(), bytes)?);
        Ok(Self { hosts, memory: Arc::new(Memory { buffer, _share: share }) })
    }

    /// Enqueues copies of what `me` sends to ranks of other hosts, and tells their `place`s. False, and nothing is enqueued, if it is too much.
    fn take(
        &self,
        stream: &Stream,
        me: u32,
        sends: &[(u32, DeviceSlice)],
        mut place: impl FnMut(u32, u64),
    ) -> Result<bool> {
        let buffer = &self.memory.buffer;
        let far = sends.iter().filter(|(rank, slice)| !self.hosts.share(me, *rank) && !slice.is_empty());
        // Each piece of memory once, and where it goes.
        let mut pieces: HashMap<(u64, usize), usize> = HashMap::new();
        let (mut needed, mut copies) = (0_usize, Vec::new());
        for (rank, slice) in far {
            let at = *pieces.entry((slice.ptr(), slice.len())).or_insert_with(|| {
                copies.push((needed, slice));
                let at = needed;
                needed =
                    needed.saturating_add(slice.len().checked_next_multiple_of(LINE).unwrap_or(usize::MAX));
                at
            });
            place(*rank, buffer.ptr().wrapping_add(at as u64));
        }
        if needed > buffer.len() {
            log::warn!(
                "PointToPoint::launch: {needed} bytes go to ranks of other hosts, and the memory for such has {}: the call will be an error of \
                 every rank; give CollectiveConfig::with_staging_bytes({needed}) or more to PointToPoint::prepare_with(), or send less at once",
                buffer.len()
            );
            return Ok(false);
        }
        for (at, slice) in copies {
            stream.copy(&buffer.slice(at..at + slice.len())?, slice)?;
        }
        Ok(true)
    }
}

fn new_table(comm: &Communicator) -> Result<Arc<PinnedBuffer>> {
    Ok(Arc::new(PinnedBuffer::new(comm.context(), 4 * 8 * comm.size() as usize)?))
}

impl Inner {
    fn free_table(&self) -> Option<Arc<PinnedBuffer>> {
        // A count of one means that the last call has given the table back; the lock keeps other calls from taking it.
        let mut tables = lock(&self.tables);
        let free = tables.iter_mut().find_map(|table| Arc::get_mut(table).is_some().then_some(table))?;
        Some(Arc::clone(free))
    }

    /// A table that no call uses, with these numbers. The pool grows if calls use all of them.
    fn filled(&self, numbers: &[u64]) -> Result<Arc<PinnedBuffer>> {
        let table = match self.free_table() {
            Some(table) => table,
            None => {
                // A graph keeps a table for each of its calls, so the pool also grows during captures.
                let relaxed = ThreadCaptureMode::relaxed(self.comm.context().driver())?;
                let table = new_table(&self.comm)?;
                drop(relaxed);
                lock(&self.tables).push(Arc::clone(&table));
                table
            }
        };
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        table.memory().write(0, &bytes)?;
        Ok(table)
    }
}

fn no_plan() -> Error {
    Error::new(ErrorKind::Internal, PREPARE, "no plan for an all-to-all")
}

/// An error unless each rank exists and occurs once.
fn once(list: &str, ranks: impl Iterator<Item = u32>, size: usize) -> Result<()> {
    let mut seen = vec![false; size];
    for rank in ranks {
        let message = match seen.get_mut(rank as usize) {
            None => format!("there is no rank {rank} among {size}"),
            Some(true) => format!("two {list} of rank {rank}; give each rank one, or launch again"),
            Some(seen) => {
                *seen = true;
                continue;
            }
        };
        return Err(Error::usage(LAUNCH, message));
    }
    Ok(())
}

/// An error if memory that is received in is also sent from, or received in twice: messages have no order.
fn check_apart(
    buffer: &ReceiveBuffer,
    sends: &[(u32, DeviceSlice)],
    receives: &[(u32, Range<usize>)],
) -> Result<()> {
    let base = buffer.buffer.ptr();
    let absolute = |range: &Range<usize>| base + range.start as u64..base + range.end as u64;
    let overlap = |a: &Range<u64>, b: &Range<u64>| a.start.max(b.start) < a.end.min(b.end);
    for (index, (rank, range)) in receives.iter().enumerate() {
        let range = absolute(range);
        if let Some((other, _)) =
            receives[..index].iter().find(|(_, other)| overlap(&absolute(other), &range))
        {
            let message = format!(
                "the receives of ranks {other} and {rank} overlap; receive each in memory of its own"
            );
            return Err(Error::usage(LAUNCH, message));
        }
        let sent = |slice: &DeviceSlice| slice.ptr()..slice.ptr() + slice.len() as u64;
        if let Some((other, _)) = sends.iter().find(|(_, slice)| overlap(&sent(slice), &range)) {
            let message = format!(
                "what goes to rank {other} overlaps what comes from rank {rank}; use memory of its own for each"
            );
            return Err(Error::usage(LAUNCH, message));
        }
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests;
