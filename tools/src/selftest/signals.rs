//! Checks of single elements, signals and their order.

use std::time::Duration;

use anyhow::Result;

use super::check::{CANARY, Check, Ran, framed, paint};
use super::group::{LEN, Pair};

pub(super) fn elements(check: &Check<'_>) -> Result<Ran> {
    let indices = [0, 1, 7, 1000, LEN / 8 - 1];
    check.each_pair("32 and 64 bits, first to last element, written and read back", |pair| {
        (0..).zip(indices).try_for_each(|(iteration, index)| element(check, pair, iteration, index))
    })
}

fn element(check: &Check<'_>, pair: &Pair, iteration: u32, index: usize) -> Result<()> {
    let word = |rank| -> Result<[u8; 8]> { Ok(paint(rank, iteration, 8).as_slice().try_into()?) };
    let (mine, theirs) = (word(check.me())?, word(pair.peer)?);
    let low = |word: [u8; 8]| [word[0], word[1], word[2], word[3]];
    pair.inbox.fill(CANARY, check.deadline())?;
    check.step(pair)?;
    pair.data.write_u64(&pair.stream, index, u64::from_le_bytes(mine))?;
    // Index from the other end, so that both directions use different elements.
    pair.data.write_u32(&pair.stream, LEN / 4 - 3 - index, u32::from_le_bytes(low(mine)))?;
    pair.data.signal(&pair.stream)?;
    pair.data.wait(&pair.stream)?;
    check.done(&pair.stream)?;
    let mut expected = framed(LEN, index * 8, &theirs);
    expected[LEN - 12 - index * 4..][..4].copy_from_slice(&low(theirs));
    check.same(&check.contents(&pair.inbox)?, &expected, format_args!("element {index} written"));

    let result = check.buffer(24)?;
    result.fill(CANARY, check.deadline())?;
    pair.data.read_u64(&pair.stream, index, &result.slice(8..16)?)?;
    pair.data.read_u32(&pair.stream, index * 2 + 1, &result.slice(20..24)?)?;
    check.done(&pair.stream)?;
    let mut expected = framed(24, 8, &mine);
    expected[20..].copy_from_slice(&mine[4..]);
    check.same(&check.contents(&result)?, &expected, format_args!("element {index} read back"));
    check.step(pair)
}

pub(super) fn counting(check: &Check<'_>) -> Result<Ran> {
    check.each_pair("five signals, two of them relaxed; each received once by wait or poll", |pair| {
        count(check, pair)
    })
}

fn count(check: &Check<'_>, pair: &Pair) -> Result<()> {
    let taken = check.buffer(4)?;
    let poll = |right: u32, when: &str| -> Result<()> {
        taken.fill(CANARY, check.deadline())?;
        pair.data.poll(&pair.stream, &taken.slice(..)?)?;
        check.done(&pair.stream)?;
        check.same(&check.contents(&taken)?, &right.to_le_bytes(), format_args!("poll {when}"));
        Ok(())
    };
    let before = pair.semaphore.counters(check.deadline())?;
    poll(0, "before any signal")?;
    check.step(pair)?;
    for _ in 0..3 {
        pair.data.signal(&pair.stream)?;
    }
    for _ in 0..2 {
        pair.data.relaxed_signal(&pair.stream)?;
    }
    check.done(&pair.stream)?;
    check.step(pair)?;
    poll(1, "after five signals")?;
    pair.data.wait(&pair.stream)?;
    pair.data.relaxed_wait(&pair.stream)?;
    pair.data.wait(&pair.stream)?;
    check.done(&pair.stream)?;
    poll(1, "for the fifth signal")?;
    poll(0, "for a sixth signal")?;
    let after = pair.semaphore.counters(check.deadline())?;
    let counted = [
        after.outbound - before.outbound,
        after.inbound - before.inbound,
        after.expected_inbound - before.expected_inbound,
    ];
    check.expect(
        counted == [5; 3],
        format_args!("sent, received, consumed: {counted:?} instead of five each"),
    );
    check.step(pair)
}

/// Checks that a wait started long before the signal holds back later work on the stream.
pub(super) fn waiting_first(check: &Check<'_>) -> Result<Ran> {
    check.each_pair("a copy behind a wait sees the data that a late signal published", |pair| {
        let waits = check.me() < pair.peer;
        wait_first(check, pair, waits)?;
        wait_first(check, pair, !waits)
    })
}

fn wait_first(check: &Check<'_>, pair: &Pair, waits: bool) -> Result<()> {
    pair.inbox.fill(CANARY, check.deadline())?;
    let iteration = 7 + u32::from(check.me() < pair.peer);
    check.load(&pair.local, &paint(check.me(), iteration, LEN))?;
    let seen = check.buffer(LEN)?;
    check.step(pair)?;
    if waits {
        pair.data.wait(&pair.stream)?;
        pair.stream.copy(&seen.slice(..)?, &pair.inbox.slice(..)?)?;
        check.done(&pair.stream)?;
        let sent = paint(pair.peer, 15 - iteration, LEN);
        check.same(&check.contents(&seen)?, &sent, "copied behind the wait");
    } else {
        std::thread::sleep(Duration::from_millis(100));
        pair.data.put_with_signal(&pair.stream, 0, 0, LEN)?;
        check.done(&pair.stream)?;
    }
    check.step(pair)
}
