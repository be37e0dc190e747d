//! Checks of port channels: kernels push, proxies write over a connection of any transport.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use aqueduct::channel::{PacketFormat, PortChannel};
use aqueduct::comm::Transport;
use aqueduct::gpu::{GpuBuffer, Stream};
use aqueduct::proxy::{ProxyService, ProxyServiceConfig};

use super::check::{CANARY, Check, Ran, framed, paint};
use super::group::LEN;

/// Sizes of puts. They also are the distances that sources and targets move by, so alignments differ.
const SIZES: [usize; 10] = [0, 1, 3, 8, 16, 17, 4096, 8193, 65_536, 65_537];
const FEW_SIZES: [usize; 5] = [0, 1, 17, 4096, 65_537];

/// Sizes of messages as packets, and of their regions: the last one's packets are twice as long as its data.
const MESSAGES: [usize; 6] = [0, 8, 16, 1000, 4096, 20_000];
const FEW_MESSAGES: [usize; 3] = [0, 8, 4096];
const HALF: usize = LEN / 2;

/// First tag of these checks.
const TAG: u64 = 0x300;

/// One end of a port channel.
struct Port {
    peer: u32,
    stream: Stream,
    service: ProxyService,
    /// Source of this rank's puts; packets are made here.
    local: Arc<GpuBuffer>,
    /// Target of the peer's puts.
    inbox: Arc<GpuBuffer>,
    /// Source and target of what travels as packets.
    data: Arc<GpuBuffer>,
    channel: PortChannel,
}

impl Port {
    /// Connects to rank `peer`, which does the same with the same `tag`.
    fn new(check: &Check<'_>, peer: u32, transport: Transport, tag: u64, packets: bool) -> Result<Self> {
        let comm = &check.group.comm;
        let [local, inbox, data] = [check.buffer(LEN)?, check.buffer(LEN)?, check.buffer(LEN)?];
        let register = |buffer| comm.register_memory(buffer, transport);
        let (mine, targets) = (register(&local)?, register(&inbox)?);
        comm.send_memory(&targets, peer, tag)?;
        let theirs = comm.recv_memory(peer, tag)?;
        let connection = comm.connect(peer, tag, transport)?;
        let service = ProxyService::start(comm, ProxyServiceConfig::default())?;
        let semaphore = service.build_and_add_semaphore(&connection, tag)?;
        comm.setup(check.deadline())?;
        let (dst, src) = (service.add_memory(&theirs.get()?)?, service.add_memory(&mine)?);
        let channel = if packets {
            let data = register(&data)?;
            PortChannel::with_packets(&service, semaphore.get()?, dst, src, &data, &targets)?
        } else {
            PortChannel::new(&service, semaphore.get()?, dst, src)?
        };
        Ok(Self { peer, stream: Stream::new(comm.context())?, service, local, inbox, data, channel })
    }

    /// Waits for the kernels, and for what they have asked for.
    fn done(&self, check: &Check<'_>) -> Result<()> {
        check.done(&self.stream)?;
        Ok(self.channel.check()?)
    }

    /// Ends the service once the peer needs it no longer.
    fn finish(self, check: &Check<'_>) -> Result<()> {
        check.step_with(self.peer)?;
        Ok(self.service.stop(check.deadline())?)
    }
}

/// `tag` tells transports apart.
pub(super) fn puts(check: &Check<'_>, transport: Transport, tag: u64) -> Result<Ran> {
    let sizes: &[usize] = if check.quick { &FEW_SIZES } else { &SIZES };
    let what = format!("{} puts, 10 signals ahead of their waits, 3 flushes", sizes.len());
    check.each_partner(transport, what, |peer| {
        let port = Port::new(check, peer, transport, TAG + 2 * tag, false)?;
        let over = || format!("a port channel over {transport}");
        (0..)
            .zip(sizes)
            .try_for_each(|(turn, &size)| put(check, &port, turn, size))
            .and_then(|()| ahead(check, &port))
            .and_then(|()| (0..3).try_for_each(|turn| flush(check, &port, turn)))
            .with_context(over)?;
        // A put of this rank's is counted before its signal leaves, and the peer's waits say nothing about it.
        port.channel.flush(&port.stream)?;
        port.done(check)?;
        let counted = port.channel.counters()?;
        let halves = sizes.len().div_ceil(3) as u64;
        let puts = sizes.len() as u64 + halves + 3;
        check.expect(
            counted.puts == puts && counted.signals == sizes.len() as u64 + 10 + 3,
            format_args!("puts, signals counted: {}, {} of {puts}", counted.puts, counted.signals),
        );
        port.finish(check)
    })
}

/// One put in both directions: as two puts and a signal, with the signal, or with signal and flush.
fn put(check: &Check<'_>, port: &Port, turn: usize, size: usize) -> Result<()> {
    let (iteration, to, from) = (u32::try_from(turn)?, turn * 5, turn * 3);
    check.load(&port.local, &paint(check.me(), iteration, LEN))?;
    port.inbox.fill(CANARY, check.deadline())?;
    check.step_with(port.peer)?;
    match turn % 3 {
        0 => {
            let half = size / 2;
            port.channel.put(&port.stream, to, from, half)?;
            port.channel.put(&port.stream, to + half, from + half, size - half)?;
            port.channel.signal(&port.stream)?;
        }
        1 => port.channel.put_with_signal(&port.stream, to, from, size)?,
        _ => port.channel.put_with_signal_and_flush(&port.stream, to, from, size)?,
    }
    port.channel.wait(&port.stream)?;
    port.done(check)?;
    check.same(
        &check.contents(&port.inbox)?,
        &framed(LEN, to, &paint(port.peer, iteration, LEN)[from..from + size]),
        format_args!("put of {size} bytes by rank {} from {from} to {to}", port.peer),
    );
    check.step_with(port.peer)?;
    // The peer has the data, so the source was read. Only a flush says so to this process and to whoever checks it for races.
    port.channel.flush(&port.stream)?;
    port.done(check)
}

/// Signals that arrive before anybody waits; each wait takes one, and none is left.
fn ahead(check: &Check<'_>, port: &Port) -> Result<()> {
    (0..10).try_for_each(|_| port.channel.signal(&port.stream))?;
    (0..10).try_for_each(|_| port.channel.wait(&port.stream))?;
    port.channel.flush(&port.stream)?;
    port.done(check)?;
    check.step_with(port.peer)?;
    let taken = check.buffer(4)?;
    taken.fill(CANARY, check.deadline())?;
    port.channel.poll(&port.stream, &taken.slice(..)?)?;
    port.done(check)?;
    check.same(&check.contents(&taken)?, &0_u32.to_le_bytes(), "poll for an eleventh signal");
    check.step_with(port.peer)
}

/// Checks that a put is unaffected by writes to its source after a flush.
fn flush(check: &Check<'_>, port: &Port, turn: u32) -> Result<()> {
    let iteration = 100 + turn;
    check.load(&port.local, &paint(check.me(), iteration, LEN))?;
    check.step_with(port.peer)?;
    port.channel.put_with_signal(&port.stream, 0, 0, LEN)?;
    port.channel.flush(&port.stream)?;
    // The host waits before it fills: the initcheck tool of compute-sanitizer waits in a fill for the work before it, and holds a
    // lock meanwhile that the proxy's copies need, so a flush ahead in the stream would never end.
    port.done(check)?;
    port.local.fill(CANARY, check.deadline())?;
    port.channel.wait(&port.stream)?;
    port.done(check)?;
    let sent = paint(port.peer, iteration, LEN);
    check.same(&check.contents(&port.inbox)?, &sent, format_args!("a put of rank {}, flushed", port.peer));
    check.step_with(port.peer)
}

/// `tag` tells transports apart.
pub(super) fn packets(check: &Check<'_>, transport: Transport, tag: u64) -> Result<Ran> {
    let sizes: &[usize] = if check.quick { &FEW_MESSAGES } else { &MESSAGES };
    let what = format!("{} messages each as LL8 and LL16, without signals", sizes.len());
    check.each_partner(transport, what, |peer| {
        let port = Port::new(check, peer, transport, TAG + 2 * tag + 1, true)?;
        let mut flag = 0;
        // A region keeps one format for life.
        for (format, region) in [(PacketFormat::Ll8, 0), (PacketFormat::Ll16, HALF)] {
            for &size in sizes {
                flag += 1;
                carry(check, &port, format, region, size, flag)
                    .with_context(|| format!("packets of a port channel over {transport}"))?;
            }
        }
        port.finish(check)
    })
}

fn carry(
    check: &Check<'_>,
    port: &Port,
    format: PacketFormat,
    region: usize,
    size: usize,
    flag: u32,
) -> Result<()> {
    // The first half of `data` is sent, and the second receives.
    let mut canvas = paint(check.me(), flag, HALF);
    canvas.resize(LEN, CANARY);
    check.load(&port.data, &canvas)?;
    check.step_with(port.peer)?;
    port.channel.put_packets(&port.stream, format, region, region, 0, size, flag)?;
    port.channel.unpack_packets(&port.stream, format, region, HALF, size, flag)?;
    port.channel.flush(&port.stream)?;
    port.done(check)?;
    canvas[HALF..HALF + size].copy_from_slice(&paint(port.peer, flag, HALF)[..size]);
    check.same(
        &check.contents(&port.data)?,
        &canvas,
        format_args!("{size} bytes of rank {} as {format}", port.peer),
    );
    check.step_with(port.peer)
}
