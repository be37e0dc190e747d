//! Checks of put and get of a memory channel, at every size and alignment where the kernels take a different path.

use anyhow::Result;

use super::check::{CANARY, Check, Ran, framed, paint};
use super::group::{LEN, Pair};

/// Sizes at and next to those of a vector, a warp of vectors, an unrolled iteration and a block's iteration.
const SIZES: [usize; 26] = [
    0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 100, 511, 512, 513, 2047, 2048, 2049, 8191, 8192,
    8193, 65537,
];
const FEW_SIZES: [usize; 8] = [0, 1, 15, 16, 17, 513, 2049, 8193];

/// Offsets of the first byte in target and source.
const STARTS: [(usize, usize); 7] = [(0, 0), (1, 0), (0, 1), (3, 5), (16, 4), (13, 29), (8, 24)];

/// Size, first byte of the target, first byte of the source.
type Range = (usize, usize, usize);

fn ranges(quick: bool) -> Vec<Range> {
    let (sizes, turns): (&[usize], &[usize]) = if quick { (&FEW_SIZES, &[0]) } else { (&SIZES, &[0, 2, 5]) };
    let at = |i: usize, turn: usize| STARTS[(i + turn) % STARTS.len()];
    let starts = |(i, &size)| turns.iter().map(move |&turn| (size, at(i, turn).0, at(i, turn).1));
    sizes.iter().enumerate().flat_map(starts).collect()
}

pub(super) fn puts(check: &Check<'_>) -> Result<Ran> {
    let ranges = ranges(check.quick);
    let what = format!("{} puts to each partner, 0 to {} bytes, odd alignments", ranges.len(), most(&ranges));
    check.each_pair(what, |pair| {
        (0..).zip(&ranges).try_for_each(|(iteration, &range)| put(check, pair, iteration, range))
    })
}

/// Puts in both directions: every other time together with the signal, otherwise as two puts and one signal.
pub(super) fn put(check: &Check<'_>, pair: &Pair, iteration: u32, range: Range) -> Result<()> {
    let (size, to, from) = range;
    check.load(&pair.local, &paint(check.me(), iteration, LEN))?;
    pair.inbox.fill(CANARY, check.deadline())?;
    check.step(pair)?;
    if iteration.is_multiple_of(2) {
        pair.data.put_with_signal(&pair.stream, to, from, size)?;
    } else {
        let half = size / 2;
        pair.data.put(&pair.stream, to, from, half)?;
        pair.data.put(&pair.stream, to + half, from + half, size - half)?;
        pair.data.signal(&pair.stream)?;
    }
    pair.data.wait(&pair.stream)?;
    check.done(&pair.stream)?;
    let sent = paint(pair.peer, iteration, LEN);
    check.same(
        &check.contents(&pair.inbox)?,
        &framed(LEN, to, &sent[from..from + size]),
        format_args!("put of {size} bytes by rank {} from {from} to {to}", pair.peer),
    );
    check.step(pair)
}

pub(super) fn gets(check: &Check<'_>) -> Result<Ran> {
    let ranges = ranges(check.quick);
    let what =
        format!("{} gets from each partner, 0 to {} bytes, odd alignments", ranges.len(), most(&ranges));
    check.each_pair(what, |pair| {
        (0..).zip(&ranges).try_for_each(|(iteration, &range)| get(check, pair, iteration, range))
    })
}

fn get(check: &Check<'_>, pair: &Pair, iteration: u32, (size, local, remote): Range) -> Result<()> {
    let mine = paint(check.me(), iteration, LEN);
    check.load(&pair.inbox, &mine)?;
    pair.local.fill(CANARY, check.deadline())?;
    check.step(pair)?;
    pair.data.get(&pair.stream, remote, local, size)?;
    check.done(&pair.stream)?;
    let theirs = paint(pair.peer, iteration, LEN);
    check.same(
        &check.contents(&pair.local)?,
        &framed(LEN, local, &theirs[remote..remote + size]),
        format_args!("get of {size} bytes of rank {} from {remote} to {local}", pair.peer),
    );
    check.step(pair)?;
    check.same(&check.contents(&pair.inbox)?, &mine, "what a get has read");
    Ok(())
}

fn most(ranges: &[Range]) -> usize {
    ranges.iter().map(|range| range.0).max().unwrap_or(0)
}
