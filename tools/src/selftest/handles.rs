//! Checks that another process can open memory of each kind of handle.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use aqueduct::ErrorKind;
use aqueduct::comm::{RegisteredMemory, Transport};
use aqueduct::gpu::{BufferOptions, GpuBuffer, HandlePolicy};
use aqueduct::internals::probe::{self, Finding};

use super::check::{CANARY, Check, Ran, framed, paint};
use super::group::Pair;

/// Bytes of the buffer. No rank writes the first and the last `EDGE` bytes.
const SIZE: usize = 8 << 10;
const EDGE: usize = 64;

/// First tag of these checks; the pairs of a group use 0, 1 and 2.
const TAG: u64 = 0x100;

pub(super) fn shared(check: &Check<'_>, policy: HandlePolicy) -> Result<Ran> {
    let made =
        GpuBuffer::with_options(&check.rank.context, SIZE, BufferOptions { zeroed: true, handles: policy });
    // Such memory is plain memory, which can be had where its handle cannot.
    let without_handle = policy == HandlePolicy::Legacy && lacks_legacy_handles(check);
    let all = check.agree(made.is_ok() && !without_handle)?;
    let buffer = match made {
        Ok(buffer) if all => Arc::new(buffer),
        Ok(_) if without_handle => {
            return Ok(Ran::not(
                "not permitted here: this device has no legacy handles; use HandlePolicy::Fd or Auto (AQUEDUCT_HANDLE=fd or auto)",
            ));
        }
        Ok(_) => return Ok(Ran::not("another rank cannot allocate this kind of memory")),
        Err(error) if is_refusal(check, policy, &error) => {
            return Ok(Ran::not(format!("not permitted here: {}", error.message())));
        }
        Err(error) => return Err(anyhow!(error).context("allocating")),
    };
    let ran = check.each_pair("written by each partner through its own mapping, and read back", |pair| {
        exchange(check, &buffer, pair, TAG + policy as u64)
    })?;
    // Keep the buffer until no partner uses it any more.
    check.agree(true)?;
    Ok(ran)
}

fn exchange(check: &Check<'_>, buffer: &Arc<GpuBuffer>, pair: &Pair, tag: u64) -> Result<()> {
    let comm = &check.group.comm;
    let mine = comm.register_memory(buffer, Transport::CudaIpc)?;
    comm.send_memory(&mine, pair.peer, tag)?;
    let theirs = comm.recv_memory(pair.peer, tag)?;
    comm.setup(check.deadline())?;
    let theirs: RegisteredMemory = theirs.get()?;
    buffer.fill(CANARY, check.deadline())?;
    check.step(pair)?;

    let inner = EDGE..SIZE - EDGE;
    let sent = |rank| paint(rank, 1, inner.len());
    let source = check.buffer(SIZE)?;
    check.load(&source, &framed(SIZE, EDGE, &sent(check.me())))?;
    pair.stream.copy(&theirs.slice()?.slice(inner.clone())?, &source.slice(inner.clone())?)?;
    check.done(&pair.stream)?;
    check.step(pair)?;
    check.same(
        &check.contents(buffer)?,
        &framed(SIZE, EDGE, &sent(pair.peer)),
        format_args!("data written by rank {}", pair.peer),
    );

    let back = check.buffer(SIZE)?;
    pair.stream.copy(&back.slice(..)?, &theirs.slice()?.slice(..)?)?;
    check.done(&pair.stream)?;
    check.same(
        &check.contents(&back)?,
        &framed(SIZE, EDGE, &sent(check.me())),
        format_args!("read back from rank {}", pair.peer),
    );
    check.step(pair)
}

/// Whether the driver does not offer legacy handles, rather than that it failed to make one.
fn lacks_legacy_handles(check: &Check<'_>) -> bool {
    let ways = probe::sharing(&check.rank.context);
    ways.iter().any(|(way, finding)| *way == "legacy-ipc" && matches!(finding, Finding::Absent))
}

/// Whether memory with this kind of handle cannot be had here, rather than that something failed.
fn is_refusal(check: &Check<'_>, policy: HandlePolicy, error: &aqueduct::Error) -> bool {
    let device = check.rank.context.device();
    match policy {
        HandlePolicy::Fd => device.supports_fd_handles().is_ok_and(|has| !has),
        HandlePolicy::Fabric => error.kind() == ErrorKind::Unsupported || probe::is_refusal(error),
        _ => false,
    }
}
