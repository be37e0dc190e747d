//! Single elements, counters, and the order they keep.

use std::time::Duration;

use anyhow::Result;

use super::group::{LEN, Pair};
use super::stage::{CANARY, Ran, Stage, framed, paint};

pub(super) fn elements(stage: &Stage<'_>) -> Result<Ran> {
    let indices = [0, 1, 7, 1000, LEN / 8 - 1];
    stage.each_pair("32 and 64 bits, first to last element, written and read back", |pair| {
        (0..).zip(indices).try_for_each(|(iteration, index)| element(stage, pair, iteration, index))
    })
}

fn element(stage: &Stage<'_>, pair: &Pair, iteration: u32, index: usize) -> Result<()> {
    let word = |rank| -> Result<[u8; 8]> { Ok(paint(rank, iteration, 8).as_slice().try_into()?) };
    let (mine, theirs) = (word(stage.me())?, word(pair.peer)?);
    let low = |word: [u8; 8]| [word[0], word[1], word[2], word[3]];
    pair.inbox.fill(CANARY, stage.deadline())?;
    stage.step(pair)?;
    pair.data.write_u64(&pair.stream, index, u64::from_le_bytes(mine))?;
    // From the other end, so that both meet nowhere.
    pair.data.write_u32(&pair.stream, LEN / 4 - 3 - index, u32::from_le_bytes(low(mine)))?;
    pair.data.signal(&pair.stream)?;
    pair.data.wait(&pair.stream)?;
    stage.done(&pair.stream)?;
    let mut expected = framed(LEN, index * 8, &theirs);
    expected[LEN - 12 - index * 4..][..4].copy_from_slice(&low(theirs));
    stage.same(&stage.contents(&pair.inbox)?, &expected, format_args!("element {index} written"));

    let result = stage.buffer(24)?;
    result.fill(CANARY, stage.deadline())?;
    pair.data.read_u64(&pair.stream, index, &result.slice(8..16)?)?;
    pair.data.read_u32(&pair.stream, index * 2 + 1, &result.slice(20..24)?)?;
    stage.done(&pair.stream)?;
    let mut expected = framed(24, 8, &mine);
    expected[20..].copy_from_slice(&mine[4..]);
    stage.same(&stage.contents(&result)?, &expected, format_args!("element {index} read back"));
    stage.step(pair)
}

pub(super) fn counting(stage: &Stage<'_>) -> Result<Ran> {
    stage.each_pair("five signals, two of them relaxed; each taken once by wait or poll", |pair| {
        count(stage, pair)
    })
}

fn count(stage: &Stage<'_>, pair: &Pair) -> Result<()> {
    let taken = stage.buffer(4)?;
    let poll = |right: u32, when: &str| -> Result<()> {
        taken.fill(CANARY, stage.deadline())?;
        pair.data.poll(&pair.stream, &taken.slice(..)?)?;
        stage.done(&pair.stream)?;
        stage.same(&stage.contents(&taken)?, &right.to_le_bytes(), format_args!("poll {when}"));
        Ok(())
    };
    let before = pair.semaphore.counters(stage.deadline())?;
    poll(0, "before any signal")?;
    stage.step(pair)?;
    for _ in 0..3 {
        pair.data.signal(&pair.stream)?;
    }
    for _ in 0..2 {
        pair.data.relaxed_signal(&pair.stream)?;
    }
    stage.done(&pair.stream)?;
    stage.step(pair)?;
    poll(1, "after five signals")?;
    pair.data.wait(&pair.stream)?;
    pair.data.relaxed_wait(&pair.stream)?;
    pair.data.wait(&pair.stream)?;
    stage.done(&pair.stream)?;
    poll(1, "for the fifth signal")?;
    poll(0, "for a sixth signal")?;
    let after = pair.semaphore.counters(stage.deadline())?;
    let counted = [
        after.outbound - before.outbound,
        after.inbound - before.inbound,
        after.expected_inbound - before.expected_inbound,
    ];
    stage.expect(counted == [5; 3], format_args!("sent, received, taken: {counted:?} instead of five each"));
    stage.step(pair)
}

/// A wait that begins long before the signal holds back what follows it on the stream.
pub(super) fn waiting_first(stage: &Stage<'_>) -> Result<Ran> {
    stage.each_pair("a copy behind a wait sees what the late signal has published", |pair| {
        let waits = stage.me() < pair.peer;
        wait_first(stage, pair, waits)?;
        wait_first(stage, pair, !waits)
    })
}

fn wait_first(stage: &Stage<'_>, pair: &Pair, waits: bool) -> Result<()> {
    pair.inbox.fill(CANARY, stage.deadline())?;
    let iteration = 7 + u32::from(stage.me() < pair.peer);
    stage.load(&pair.local, &paint(stage.me(), iteration, LEN))?;
    let seen = stage.buffer(LEN)?;
    stage.step(pair)?;
    if waits {
        pair.data.wait(&pair.stream)?;
        pair.stream.copy(&seen.slice(..)?, &pair.inbox.slice(..)?)?;
        stage.done(&pair.stream)?;
        let sent = paint(pair.peer, 15 - iteration, LEN);
        stage.same(&stage.contents(&seen)?, &sent, "copied behind the wait");
    } else {
        std::thread::sleep(Duration::from_millis(100));
        pair.data.put_with_signal(&pair.stream, 0, 0, LEN)?;
        stage.done(&pair.stream)?;
    }
    stage.step(pair)
}
