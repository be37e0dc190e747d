//! Checks of a connection: one-sided writes, reads and counters, driven by the host.

use anyhow::Result;

use super::check::{CANARY, Check, Ran, framed, paint};
use super::group::{LEN, Pair};

/// The last word of the inbox is the counter.
const COUNTER: usize = LEN - 8;

/// Size, first byte of the target, first byte of the source.
const RANGES: [(usize, usize, usize); 7] =
    [(0, 0, 0), (1, 3, 5), (15, 1, 0), (16, 16, 16), (4095, 0, 1), (65537, 13, 29), (COUNTER - 64, 64, 0)];

pub(super) fn one_sided(check: &Check<'_>) -> Result<Ran> {
    if !check.rank.context.device().supports_64_bit_stream_values()? {
        return Ok(Ran::not("this device cannot write 64-bit values in stream order"));
    }
    let what = format!("{} rounds of write, update_and_sync and read, each flushed", RANGES.len());
    check.each_pair(what, |pair| {
        let before = pair.connection.counters();
        for (iteration, range) in (1..).zip(RANGES) {
            write(check, pair, iteration, range)?;
            read(check, pair, iteration, range)?;
        }
        let (after, turns) = (pair.connection.counters(), RANGES.len() as u64);
        let counted = [
            after.writes - before.writes,
            after.reads - before.reads,
            after.signals - before.signals,
            after.flushes - before.flushes,
        ];
        check.expect(
            counted == [turns, turns, turns, 2 * turns],
            format_args!("writes, reads, signals, flushes counted: {counted:?}"),
        );
        Ok(())
    })
}

fn write(
    check: &Check<'_>,
    pair: &Pair,
    iteration: u32,
    (size, to, from): (usize, usize, usize),
) -> Result<()> {
    check.load(&pair.local, &paint(check.me(), iteration, LEN))?;
    pair.inbox.fill(CANARY, check.deadline())?;
    check.step(pair)?;
    let value = |rank: u32| u64::from(rank) << 32 | u64::from(iteration);
    let mut counter = 0;
    pair.connection.write(&pair.theirs, to, &pair.local_memory, from, size)?;
    pair.connection.update_and_sync(&pair.theirs, COUNTER, &mut counter, value(check.me()))?;
    pair.connection.flush(check.deadline())?;
    check.expect(counter == value(check.me()), "update_and_sync did not advance the caller's counter");
    check.step(pair)?;
    let mut expected = framed(LEN, to, &paint(pair.peer, iteration, LEN)[from..from + size]);
    expected[COUNTER..].copy_from_slice(&value(pair.peer).to_le_bytes());
    check.same(
        &check.contents(&pair.inbox)?,
        &expected,
        format_args!("write of {size} bytes by rank {} from {from} to {to}, and its counter", pair.peer),
    );
    check.step(pair)
}

fn read(
    check: &Check<'_>,
    pair: &Pair,
    iteration: u32,
    (size, to, from): (usize, usize, usize),
) -> Result<()> {
    check.load(&pair.inbox, &paint(check.me(), 100 + iteration, LEN))?;
    pair.local.fill(CANARY, check.deadline())?;
    check.step(pair)?;
    pair.connection.read(&pair.local_memory, to, &pair.theirs, from, size)?;
    pair.connection.flush(check.deadline())?;
    check.same(
        &check.contents(&pair.local)?,
        &framed(LEN, to, &paint(pair.peer, 100 + iteration, LEN)[from..from + size]),
        format_args!("read of {size} bytes of rank {} from {from} to {to}", pair.peer),
    );
    check.step(pair)
}
