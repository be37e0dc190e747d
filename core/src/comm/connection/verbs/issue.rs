//! Operations of a connection, and how they become requests.

use std::sync::Arc;

use super::super::Span;
use super::arrivals::SIGNAL;
use super::lane::{Lane, Request};
use super::road::{Mark, Road, State};
use crate::comm::memory::{Place, Remote};
use crate::error::{Error, Result};
use crate::gpu::Event;
use crate::rdma::{MemoryRegion, RemoteRange};

/// Transfers from here on are spread over all queue pairs, in pieces of this size.
const STRIPE: u64 = 256 << 10;
/// Host memory of up to this size goes into the request itself.
pub(super) const INLINE: usize = 64;

/// One operation, as it was asked for.
pub(super) enum Operation {
    Transfer {
        read: bool,
        local: MemoryRegion,
        offset: u64,
        /// Set for host memory: small amounts are sent inline.
        host: Option<Place>,
        at: RemoteRange,
        done: u64,
        remote: Arc<Remote>,
    },
    Update {
        to: RemoteRange,
        old: u64,
        value: u64,
        remote: Arc<Remote>,
    },
    After(Event),
    Mark(u64),
}

impl Operation {
    /// Moves what `ours` and `theirs` name; `nic` is ours.
    pub(super) fn transfer(
        op: &'static str,
        read: bool,
        nic: u8,
        ours: Span<'_>,
        theirs: Span<'_>,
        at: RemoteRange,
    ) -> Result<Self> {
        let missing = || {
            Error::usage(op, format!("the memory is not registered with Ib{nic}; name it when registering"))
        };
        let (region, base) = ours.memory.on_nic(nic).ok_or_else(missing)?;
        let (remote, _) = theirs.remote(op)?;
        let small = !read && ours.len <= INLINE;
        let host = match ours.memory.place() {
            Place::Host(..) if small => Some(ours.place()?),
            _ => None,
        };
        let (local, offset) = (region.clone(), base + ours.offset as u64);
        Ok(Self::Transfer { read, local, offset, host, at, done: 0, remote: remote.clone() })
    }
}

impl Road {
    /// Turns operations into requests and posts them; false if something waits for completions.
    pub(super) fn issue(&self, state: &mut State) -> Result<bool> {
        let mut all = give_back(state)?;
        while let Some(operation) = state.queue.pop_front() {
            if let Some(unfinished) = self.issue_one(state, operation)? {
                state.queue.push_front(unfinished);
                all = false;
                break;
            }
        }
        for lane in &mut state.lanes {
            lane.post()?;
        }
        Ok(all && !state.lanes.iter().any(Lane::has_unposted))
    }

    /// Gives the operation back if it cannot be finished now.
    fn issue_one(&self, state: &mut State, mut operation: Operation) -> Result<Option<Operation>> {
        let State { lanes, marks, next_lane, unfenced, flow, .. } = state;
        match &mut operation {
            Operation::After(event) => Ok((!event.is_done()?).then_some(operation)),
            Operation::Mark(number) => {
                for lane in lanes.iter_mut() {
                    if !lane.cover()? {
                        return Ok(Some(operation));
                    }
                }
                let targets = lanes.iter().map(Lane::posted).collect();
                marks.push_back(Mark { number: *number, targets });
                Ok(None)
            }
            Operation::Update { to, old, value, remote } => {
                let Some((first, others)) = lanes.split_first_mut() else { return Ok(None) };
                for lane in others.iter_mut() {
                    if !(lane.is_idle() || lane.cover()? && lane.is_idle()) {
                        return Ok(Some(operation));
                    }
                }
                let bytes = value.to_le_bytes();
                // SYNC connection.signal: behind the data, on the same queue pair, into memory without relaxed ordering.
                let (request, keep) = match (&self.device.landing, &flow) {
                    (None, None) => (Request::Inline(&bytes, *to), None),
                    (None, Some(flow)) if !flow.may_signal() => return Ok(Some(operation)),
                    (None, Some(_)) => (Request::Tell(&bytes, *to, SIGNAL), None),
                    (Some(landing), _) => {
                        let difference = value.wrapping_sub(*old);
                        (Request::Add(landing.range(0, 8)?, *to, difference), Some(landing.clone()))
                    }
                };
                let taken = first.push(request, *unfenced, false, Some((keep, remote.clone())))?;
                *unfenced &= !taken;
                if taken && let Some(flow) = flow {
                    flow.signalled();
                }
                Ok((!taken).then_some(operation))
            }
            Operation::Transfer { read, local, offset, host, at, done, remote } => {
                let spread = lanes.len() > 1 && at.len() >= 2 * STRIPE;
                while *done < at.len() {
                    let most = if spread { STRIPE } else { self.max_message };
                    let size = (at.len() - *done).min(most);
                    let place = if spread { *next_lane % lanes.len() } else { 0 };
                    let lane = &mut lanes[place];
                    let (to, keep) = (at.part(*done, size)?, (Some(local.clone()), remote.clone()));
                    let mut small = [0; INLINE];
                    let request = match host.as_ref().and_then(Place::host) {
                        Some(memory) if size as usize <= self.max_inline => {
                            let bytes = &mut small[..size as usize];
                            memory.memory().read(*done as usize, bytes)?;
                            Request::Inline(bytes, to)
                        }
                        _ if *read => Request::Read(local.range(*offset + *done, size)?, to),
                        _ => Request::Write(local.range(*offset + *done, size)?, to),
                    };
                    if !lane.push(request, *unfenced && !*read, false, Some(keep))? {
                        return Ok(Some(operation));
                    }
                    if *read {
                        *unfenced = true;
                    } else if lanes.len() == 1 {
                        *unfenced = false;
                    }
                    *next_lane += usize::from(spread);
                    *done += size;
                }
                Ok(None)
            }
        }
    }
}

/// Tells the peer of receives that are there again; false if there is no room now.
fn give_back(state: &mut State) -> Result<bool> {
    let State { lanes, flow: Some(flow), .. } = state else { return Ok(true) };
    let (Some(count), Some(first)) = (flow.owed(), lanes.first_mut()) else { return Ok(true) };
    let taken = first.push(Request::Immediate(count), false, true, None)?;
    if taken {
        flow.told();
    }
    Ok(taken)
}
