//! Checks of each packet format: the peer puts packets, and this rank unpacks them.

use anyhow::Result;
use aqueduct::channel::PacketFormat;

use super::check::{CANARY, Check, Ran, paint};
use super::group::{LEN, PACKET_REGION, Pair};

/// Sizes around a packet, a warp of packets, a unit of LL128 and a block's iteration.
const SIZES: [usize; 17] =
    [0, 4, 8, 12, 120, 124, 256, 480, 956, 960, 964, 1024, 1920, 4096, 9600, 16384, 24000];
const FEW_SIZES: [usize; 6] = [0, 4, 124, 956, 964, 4096];

/// Half of a buffer: the first holds the data to send, the second the data received.
const HALF: usize = LEN / 2;

pub(super) fn carried(check: &Check<'_>, format: PacketFormat) -> Result<Ran> {
    let topology = check.group.comm.topology();
    let whole = |pair: &Pair| topology.peer(pair.peer).is_some_and(|peer| peer.is_nvlink());
    if format == PacketFormat::Ll128
        && let Some(pair) = check.group.pairs.iter().find(|pair| !whole(pair))
    {
        let why = "and without it a 128-byte line of LL128 may be split";
        return Ok(Ran::not(format!("no NVLink to rank {}, {why}", pair.peer)));
    }
    let sizes: &[usize] = if check.quick { &FEW_SIZES } else { &SIZES };
    let most = sizes.iter().max().copied().unwrap_or(0);
    let what = format!("{} messages to and from each partner, 0 to {most} bytes", sizes.len());
    check.each_pair(what, |pair| {
        sizes.iter().enumerate().try_for_each(|(turn, &size)| carry(check, pair, format, turn, size))
    })
}

fn carry(check: &Check<'_>, pair: &Pair, format: PacketFormat, turn: usize, size: usize) -> Result<()> {
    let (grain, align) = (format.granularity(), format.alignment());
    let size = size.next_multiple_of(grain);
    // Each message has its own flag, never 0, and offsets as unaligned as the format allows.
    let flag = u32::try_from(turn)? + 1;
    let (from, to) = (grain * (turn % 5), HALF + grain * (turn % 7));
    let at = format as usize * PACKET_REGION + align * (turn % 3);
    let mut canvas = paint(check.me(), flag, HALF);
    canvas.resize(LEN, CANARY);
    check.load(&pair.local, &canvas)?;
    check.step(pair)?;
    pair.packets.put_packets(&pair.stream, format, at, from, size, flag)?;
    pair.packets.unpack_packets(&pair.stream, format, at, to, size, flag)?;
    check.done(&pair.stream)?;
    canvas[to..to + size].copy_from_slice(&paint(pair.peer, flag, HALF)[from..from + size]);
    check.same(
        &check.contents(&pair.local)?,
        &canvas,
        format_args!("{format} of {size} bytes of rank {} from {from} by way of {at} to {to}", pair.peer),
    );
    check.step(pair)
}
