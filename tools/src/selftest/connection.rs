//! Checks of connections: one-sided writes, reads, counters and signals, driven by the host.

use anyhow::{Context as _, Result};
use aqueduct::comm::Transport;

use super::check::{CANARY, Check, Ran, framed, paint};
use super::group::LEN;
use super::link::{Kind, Link, contents, load};

/// The last word of the inbox is the counter.
const COUNTER: usize = LEN - 8;

/// Size, first byte of the target, first byte of the source.
const RANGES: [(usize, usize, usize); 7] =
    [(0, 0, 0), (1, 3, 5), (15, 1, 0), (16, 16, 16), (4095, 0, 1), (65537, 13, 29), (COUNTER - 64, 64, 0)];

/// Memory at this end and at the other.
const KINDS: [(Kind, Kind); 4] = [
    (Kind::Device, Kind::Device),
    (Kind::Host, Kind::Host),
    (Kind::Device, Kind::Host),
    (Kind::Host, Kind::Device),
];

/// First tag of these checks; those of different kinds of memory follow each other.
const TAG: u64 = 0x200;

/// `tag` tells transports apart.
pub(super) fn one_sided(check: &Check<'_>, transport: Transport, tag: u64) -> Result<Ran> {
    if transport == Transport::CudaIpc && !check.rank.context.device().supports_64_bit_stream_values()? {
        return Ok(Ran::not("this device cannot write 64-bit values in stream order"));
    }
    let kinds = &KINDS[..if check.quick { 2 } else { KINDS.len() }];
    let reads = if has_reads(transport) { ", reads" } else { "" };
    let what = format!(
        "{} rounds of writes{reads}, counters and signals, each flushed; {} kinds of memory",
        RANGES.len(),
        kinds.len()
    );
    check.each_partner(transport, what, |peer| {
        (TAG + 0x10 * tag..).zip(kinds).try_for_each(|(tag, &kinds)| {
            let link = Link::new(check, peer, transport, kinds, tag)?;
            let between = || format!("over {transport}, from {} to {} memory", kinds.0, kinds.1);
            all_rounds(check, &link).with_context(between)
        })
    })
}

/// TCP has no one-sided reads.
fn has_reads(transport: Transport) -> bool {
    transport != Transport::Ethernet
}

fn all_rounds(check: &Check<'_>, link: &Link) -> Result<()> {
    for (iteration, range) in (1..).zip(RANGES) {
        write(check, link, iteration, range)?;
        if has_reads(link.connection.transport()) {
            read(check, link, iteration, range)?;
        }
        signal(check, link, iteration, range)?;
    }
    let turns = RANGES.len() as u64;
    let (counters, signals) = (link.connection.counters(), link.semaphore.counters()?);
    let counted = [counters.writes, counters.reads, counters.signals, counters.flushes];
    let reads = if has_reads(link.connection.transport()) { turns } else { 0 };
    check.expect(
        counted == [2 * turns, reads, 3 * turns, 2 * turns + reads],
        format_args!("writes, reads, signals, flushes counted: {counted:?}"),
    );
    let counted = [signals.outbound, signals.inbound, signals.expected_inbound];
    check.expect(
        counted == [2 * turns; 3],
        format_args!("signals sent, received, consumed: {counted:?} instead of {} each", 2 * turns),
    );
    // Neither end goes while the other's NIC still waits for it to acknowledge the last signal.
    link.connection.flush(check.deadline())?;
    check.step_with(link.peer)
}

fn write(
    check: &Check<'_>,
    link: &Link,
    iteration: u32,
    (size, to, from): (usize, usize, usize),
) -> Result<()> {
    load(check, &link.local, &paint(check.me(), iteration, LEN))?;
    load(check, &link.inbox, &[CANARY; LEN])?;
    check.step_with(link.peer)?;
    let value = |rank: u32| u64::from(rank) << 32 | u64::from(iteration);
    let mut counter = 0;
    link.connection.write(&link.theirs, to, &link.local, from, size)?;
    link.connection.update_and_sync(&link.theirs, COUNTER, &mut counter, value(check.me()))?;
    link.connection.flush(check.deadline())?;
    check.expect(counter == value(check.me()), "update_and_sync did not advance the caller's counter");
    check.step_with(link.peer)?;
    let mut expected = framed(LEN, to, &paint(link.peer, iteration, LEN)[from..from + size]);
    expected[COUNTER..].copy_from_slice(&value(link.peer).to_le_bytes());
    check.same(
        &contents(check, &link.inbox)?,
        &expected,
        format_args!("write of {size} bytes by rank {} from {from} to {to}, and its counter", link.peer),
    );
    check.step_with(link.peer)
}

fn read(
    check: &Check<'_>,
    link: &Link,
    iteration: u32,
    (size, to, from): (usize, usize, usize),
) -> Result<()> {
    load(check, &link.inbox, &paint(check.me(), 100 + iteration, LEN))?;
    load(check, &link.local, &[CANARY; LEN])?;
    check.step_with(link.peer)?;
    link.connection.read(&link.local, to, &link.theirs, from, size)?;
    link.connection.flush(check.deadline())?;
    check.same(
        &contents(check, &link.local)?,
        &framed(LEN, to, &paint(link.peer, 100 + iteration, LEN)[from..from + size]),
        format_args!("read of {size} bytes of rank {} from {from} to {to}", link.peer),
    );
    check.step_with(link.peer)
}

/// A write, and a signal behind it that the peer's host waits for: no other message says that the data is there.
fn signal(
    check: &Check<'_>,
    link: &Link,
    iteration: u32,
    (size, to, from): (usize, usize, usize),
) -> Result<()> {
    load(check, &link.local, &paint(check.me(), 200 + iteration, LEN))?;
    load(check, &link.inbox, &[CANARY; LEN])?;
    check.step_with(link.peer)?;
    link.connection.write(&link.theirs, to, &link.local, from, size)?;
    link.semaphore.signal()?;
    link.semaphore.wait(check.deadline())?;
    check.same(
        &contents(check, &link.inbox)?,
        &framed(LEN, to, &paint(link.peer, 200 + iteration, LEN)[from..from + size]),
        format_args!("{size} bytes of rank {} from {from} to {to}, behind whose signal", link.peer),
    );
    link.connection.flush(check.deadline())?;
    // The peer has read the data before it is written again.
    link.semaphore.signal()?;
    Ok(link.semaphore.wait(check.deadline())?)
}
