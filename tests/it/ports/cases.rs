//! Cases that every port channel must pass, over any transport.

use aqueduct::ErrorKind;
use aqueduct::channel::PacketFormat;
use aqueduct::comm::Transport;

use super::end::{End, LEN};
use crate::data::{assert_same, bytes};
use crate::group::soon;

const CANARY: u8 = 0xA5;

/// A buffer of canaries with `data` at `start`.
fn framed(start: usize, data: &[u8]) -> Vec<u8> {
    let mut canvas = vec![CANARY; LEN];
    canvas[start..start + data.len()].copy_from_slice(data);
    canvas
}

pub(super) fn puts(end: &End<'_>) {
    let sizes = [0, 1, 3, 8, 16, 17, 4096, 65_536, 65_537, 200_000];
    for (iteration, size) in (0_u32..).zip(sizes) {
        let (to, from) = (iteration as usize * 5, iteration as usize * 3);
        end.load(&end.local, &bytes(end.me(), iteration, LEN));
        end.inbox.fill(CANARY, soon()).unwrap();
        end.rank.barrier();
        match iteration % 3 {
            0 => end.channel.put_with_signal(&end.stream, to, from, size).unwrap(),
            1 => end.channel.put_with_signal_and_flush(&end.stream, to, from, size).unwrap(),
            _ => {
                let half = size / 2;
                end.channel.put(&end.stream, to, from, half).unwrap();
                end.channel.put(&end.stream, to + half, from + half, size - half).unwrap();
                end.channel.signal(&end.stream).unwrap();
            }
        }
        end.channel.wait(&end.stream).unwrap();
        end.done();
        let sent = bytes(end.peer, iteration, LEN);
        assert_same(
            &end.contents(&end.inbox),
            &framed(to, &sent[from..from + size]),
            format_args!("put of {size} bytes from {from} to {to}"),
        );
        end.rank.barrier();
    }
}

/// Several signals arrive before the waits, and each wait consumes one.
pub(super) fn signals(end: &End<'_>) {
    let before = end.channel.counters().unwrap();
    for ahead in [1, 2, 7, 20] {
        (0..ahead).for_each(|_| end.channel.signal(&end.stream).unwrap());
        (0..ahead).for_each(|_| end.channel.wait(&end.stream).unwrap());
    }
    end.done();
    end.channel.flush(&end.stream).unwrap();
    end.done();
    let after = end.channel.counters().unwrap();
    assert_eq!((after.signals - before.signals, after.flushes - before.flushes), (30, 1));
    assert_eq!(after.puts, before.puts);
    end.rank.barrier();
    assert_eq!(taken(end), 0, "a signal too many");
}

/// Whether a poll consumes a signal: 1 or 0.
fn taken(end: &End<'_>) -> u32 {
    let result = end.rank.buffer(4);
    end.channel.poll(&end.stream, &result.slice(..).unwrap()).unwrap();
    end.done();
    let mut taken = [7_u32];
    result.download(0, &mut taken, soon()).unwrap();
    taken[0]
}

pub(super) fn polls(end: &End<'_>) {
    assert_eq!(taken(end), 0);
    end.rank.barrier();
    end.channel.signal(&end.stream).unwrap();
    end.done();
    let deadline = soon();
    while taken(end) == 0 {
        deadline.check("poll", "a signal").unwrap();
    }
    assert_eq!(taken(end), 0);
}

/// Data written to the source right after the flush does not arrive.
pub(super) fn flush(end: &End<'_>) {
    for iteration in 0..5 {
        end.load(&end.local, &bytes(end.me(), iteration, LEN));
        end.rank.barrier();
        end.channel.put_with_signal(&end.stream, 0, 0, LEN).unwrap();
        end.channel.flush(&end.stream).unwrap();
        end.stream.fill(&end.local.slice(..).unwrap(), 0xee).unwrap();
        end.channel.wait(&end.stream).unwrap();
        end.done();
        let sent = bytes(end.peer, iteration, LEN);
        assert_same(&end.contents(&end.inbox), &sent, format_args!("flush {iteration}"));
        end.rank.barrier();
    }
}

/// After many puts to one place, the data of the last one is there.
pub(super) fn order(end: &End<'_>) {
    let data = bytes(end.me(), 3, LEN);
    end.load(&end.local, &data);
    end.rank.barrier();
    let (size, count) = (1000, 60);
    (0..count).for_each(|i| end.channel.put(&end.stream, 64, i * size, size).unwrap());
    end.channel.signal(&end.stream).unwrap();
    end.channel.wait(&end.stream).unwrap();
    end.done();
    let last = &bytes(end.peer, 3, LEN)[(count - 1) * size..count * size];
    assert_same(&end.contents(&end.inbox)[64..64 + size], last, format_args!("the last of {count} puts"));
}

pub(super) fn packets(end: &End<'_>) {
    let error = end.channel.put_packets(&end.stream, PacketFormat::Ll8, 0, 0, 0, 8, 1).unwrap_err();
    assert!(error.message().contains("with_packets"), "{error}");
    let packets = match (&end.packets, end.transport) {
        (Ok(packets), Transport::CudaIpc | Transport::Ethernet) => packets,
        (Err(error), Transport::Ib(_)) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.message().contains("relaxed ordering; use put_with_signal"), "{error}");
            return;
        }
        (packets, transport) => panic!("packets over {transport}: {packets:?}"),
    };
    let mut flag = 0;
    for (format, region) in [(PacketFormat::Ll8, 0), (PacketFormat::Ll16, LEN / 2)] {
        for size in [8, 16, 1000, 4096, 40_000] {
            flag += 1;
            let (data, room) = (bytes(end.me(), flag, size), format.packet_bytes(size).unwrap());
            assert!(room <= LEN / 2);
            end.data.upload(0, &data, soon()).unwrap();
            packets.put_packets(&end.stream, format, region, region, 0, size, flag).unwrap();
            packets.unpack_packets(&end.stream, format, region, LEN / 2, size, flag).unwrap();
            packets.flush(&end.stream).unwrap();
            end.done();
            let seen = &end.contents(&end.data)[LEN / 2..LEN / 2 + size];
            assert_same(seen, &bytes(end.peer, flag, size), format_args!("{size} bytes as {format}"));
            end.rank.barrier();
        }
    }
    let error = packets.put_packets(&end.stream, PacketFormat::Ll128, 0, 0, 0, 960, 1).unwrap_err();
    assert!(error.message().contains("LL16"), "{error}");
    // Room for the data, and not for its packets, which are twice as long.
    for (format, at) in [(PacketFormat::Ll8, LEN - 4096), (PacketFormat::Ll16, LEN - 8192 + 16)] {
        for (what, dst, src) in [("of dst", at, 0), ("of src", 0, at)] {
            let error = packets.put_packets(&end.stream, format, dst, src, 0, 4096, 1).unwrap_err();
            assert!(error.message().contains(what), "{error}");
        }
    }
}

/// A captured exchange is replayed; each replay moves the data that is in the source at that time.
pub(super) fn graph(end: &End<'_>) {
    let size = 10_000;
    let graph = end.rank.capture(&end.stream, |stream| {
        end.channel.put_with_signal(stream, 0, 0, size)?;
        end.channel.wait(stream)?;
        end.channel.flush(stream)
    });
    for iteration in 10..16 {
        end.load(&end.local, &bytes(end.me(), iteration, LEN));
        end.rank.barrier();
        graph.launch(&end.stream).unwrap();
        end.done();
        let sent = &bytes(end.peer, iteration, LEN)[..size];
        assert_same(&end.contents(&end.inbox)[..size], sent, format_args!("replay {iteration}"));
        end.rank.barrier();
    }
}
