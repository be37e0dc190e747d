//! The receiving half with a peer that is played by the test.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::deadline::Deadline;
use crate::gpu::{Context, Device, Driver, GpuBuffer, PinnedBuffer};
use crate::memory::{HostBuffer, Rights, register_host};
use crate::sync::AtomicU64;
use crate::transport::endpoint::Transport;
use crate::transport::stock::Half;

/// A socket from which the same message never stops coming, and how many were read.
#[derive(Debug)]
struct Flood(Vec<u8>, AtomicU64);

impl Flood {
    fn of(frame: Frame, payload: usize) -> Self {
        let mut message = frame.encode().to_vec();
        message.resize(HEADER_BYTES + payload, 7);
        Self(message, AtomicU64::new(0))
    }
}

impl RawStream for Flood {
    fn read(&self, into: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let (len, count) = (self.0.len(), into.len() / self.0.len());
        into[..count * len].copy_from_slice(&self.0.repeat(count));
        self.1.fetch_add(count as u64, Ordering::Relaxed);
        if count == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count * len) }
    }

    fn write(&self, _: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
        unreachable!("an inbox sends nothing")
    }

    fn shutdown(&self, _: bool) -> io::Result<()> {
        unreachable!("an inbox ends nothing")
    }

    fn fd(&self) -> BorrowedFd<'_> {
        unreachable!("nobody waits")
    }
}

/// An inbox whose first frame waits for a copy, and the word that lets the copy end.
fn behind_a_stuck_device() -> (Inbox, Arc<PinnedBuffer>) {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let mut inbox = Inbox::new(Staging::alone(&context, 4), 1);
    let word = Arc::new(PinnedBuffer::new(&context, 8).unwrap());
    inbox.staging.stream().wait_value64(&word.slice(..).unwrap(), 1).unwrap();
    let copied = inbox.staging.event().unwrap();
    inbox.arrived(Some(copied), false, Effect::None);
    (inbox, word)
}

/// The data before it is still being copied to a device.
#[test]
fn a_signal_in_host_memory_waits_for_what_was_sent_before_it() {
    let (mut inbox, word) = behind_a_stuck_device();
    let context = inbox.staging.stream().context().clone();
    let buffer = Arc::new(HostBuffer::new(&context, 64).unwrap());
    let memory = register_host(&buffer, 0, 64, Transport::Ethernet.into()).unwrap();
    let (regions, mut turn) = (Arc::new(Regions::default()), Turn::default());
    let grant = regions.grant(1, memory.place().clone(), memory.len(), memory.rights());
    let signal = Frame::Update { region: grant.number(), offset: 8, value: 7 };
    inbox.begin(signal, &regions, &mut turn).unwrap();
    let seen = || buffer.memory().word64(8).unwrap().load(Ordering::Acquire);
    let early = seen();
    word.memory().word64(0).unwrap().store(1, Ordering::Release);
    inbox.staging.stream().synchronize(Deadline::after(Duration::from_secs(60))).unwrap();
    inbox.land(&mut turn).unwrap();
    // Asserted last: nobody waits for a device that stays stuck.
    assert_eq!((early, seen()), (0, 7), "the signal overtakes the data");
}

/// As for a kernel that waits for a host's signal.
#[test]
fn a_signal_in_device_memory_waits_for_what_was_sent_before_it() {
    let (mut inbox, word) = behind_a_stuck_device();
    let context = inbox.staging.stream().context().clone();
    let buffer = Arc::new(GpuBuffer::new(&context, 64).unwrap());
    let (regions, mut turn) = (Arc::new(Regions::default()), Turn { copies: COPIES, ..Turn::default() });
    let place = Place::Device(buffer.slice(..).unwrap());
    let grant = regions.grant(1, place, buffer.len(), Rights::REMOTE_WRITE);
    let deadline = Deadline::after(Duration::from_secs(60));
    inbox.begin(Frame::Update { region: grant.number(), offset: 8, value: 7 }, &regions, &mut turn).unwrap();
    let seen = || {
        let mut seen = [1; 8];
        buffer.download(8, &mut seen, deadline).map(|()| u64::from_le_bytes(seen))
    };
    let (early, landed) = (seen(), inbox.landed());
    word.memory().word64(0).unwrap().store(1, Ordering::Release);
    inbox.staging.stream().synchronize(deadline).unwrap();
    inbox.land(&mut turn).unwrap();
    // Asserted last: nobody waits for a device that stays stuck.
    assert_eq!((early.unwrap(), landed), (0, 0), "the signal overtakes the data");
    assert_eq!((seen().unwrap(), inbox.landed()), (7, 2));
}

#[test]
fn a_peer_that_goes_on_behind_a_stuck_device_is_not_read() {
    let (mut inbox, word) = behind_a_stuck_device();
    let (flood, regions) = (Flood::of(Frame::Ask, 0), Regions::default());
    for _ in 0..8 {
        assert!(inbox.progress(&flood, &regions, COPIES).unwrap().again, "the buffer is looked at again");
        assert!(inbox.landings.waiting() <= MAX_LANDINGS, "{} wait", inbox.landings.waiting());
    }
    let read = flood.1.load(Ordering::Relaxed);
    assert!(read < 8 * MAX_LANDINGS as u64, "{read} were read");
    word.memory().word64(0).unwrap().store(1, Ordering::Release);
    inbox.staging.stream().synchronize(Deadline::after(Duration::from_secs(60))).unwrap();
    while flood.1.load(Ordering::Relaxed) == read {
        inbox.progress(&flood, &regions, COPIES).unwrap();
    }
    assert!(inbox.landed() > read, "what had come has landed: {} of {read}", inbox.landed());
}

/// The device finishes between the two: after the inbox stopped for want of room, and before it looks at the device.
#[test]
fn frames_left_in_the_buffer_are_looked_at_though_the_device_has_finished() {
    let (mut inbox, word) = behind_a_stuck_device();
    let (flood, regions) = (Flood::of(Frame::Ask, 0), Regions::default());
    let mut turn = Turn { copies: COPIES, ..Turn::default() };
    while inbox.landings.waiting() < MAX_LANDINGS {
        inbox.receive(&flood).unwrap();
        inbox.parse(&regions, &mut turn).unwrap();
    }
    assert!(inbox.start < inbox.end, "frames are left");
    word.memory().word64(0).unwrap().store(1, Ordering::Release);
    inbox.staging.stream().synchronize(Deadline::after(Duration::from_secs(60))).unwrap();
    let turn = inbox.rest(turn).unwrap();
    assert!(inbox.landings.waiting() == 0);
    assert!(turn.again, "nothing else would have them looked at");
}

/// Between turns this rank sends: its acknowledgements, without which the peer's flushes never end, and its own data.
#[test]
fn a_turn_ends_after_a_bounded_number_of_frames_for_the_device() {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let buffer = Arc::new(GpuBuffer::new(&context, 4096).unwrap());
    let regions = Arc::new(Regions::default());
    let place = Place::Device(buffer.slice(..).unwrap());
    let grant = regions.grant(1, place, buffer.len(), Rights::REMOTE_WRITE);
    let region = grant.number();
    for (frame, payload) in [
        (Frame::Update { region, offset: 8, value: 7 }, 0),
        (Frame::Write { region, offset: 8, len: 96 }, 96),
    ] {
        let mut inbox = Inbox::new(Staging::alone(&context, 4), 1);
        let flood = Flood::of(frame, payload);
        for turns in 1..4 {
            assert!(inbox.progress(&flood, &regions, COPIES).unwrap().again);
            let begun = inbox.landed() + inbox.landings.waiting() as u64;
            assert_eq!(begun, turns * COPIES as u64);
        }
    }
}

/// A copy, a request for an acknowledgement, a second copy, and bytes for host memory, which are there at once.
#[test]
fn what_is_there_before_earlier_data_is_not_acknowledged_in_its_place() {
    let (mut inbox, word) = behind_a_stuck_device();
    let context = inbox.staging.stream().context().clone();
    let buffer = Arc::new(HostBuffer::new(&context, 64).unwrap());
    let registration = Transport::Ethernet.into();
    let memory = register_host(&buffer, 0, 64, registration).unwrap();
    let (regions, mut turn) = (Arc::new(Regions::default()), Turn::default());
    let grant = regions.grant(1, memory.place().clone(), memory.len(), memory.rights());
    inbox.begin(Frame::Ask, &regions, &mut turn).unwrap();
    inbox.staging.stream().wait_value64(&word.slice(..).unwrap(), 2).unwrap();
    let copied = inbox.staging.event().unwrap();
    inbox.arrived(Some(copied), false, Effect::None);
    (inbox.start, inbox.end) = (0, 8);
    inbox.begin(Frame::Write { region: grant.number(), offset: 0, len: 8 }, &regions, &mut turn).unwrap();
    let early = (inbox.start, inbox.landed());
    word.memory().word64(0).unwrap().store(1, Ordering::Release);
    let deadline = Deadline::after(Duration::from_secs(60));
    while turn.acknowledge.is_none() && !deadline.expired() {
        inbox.land(&mut turn).unwrap();
    }
    let acknowledged = turn.acknowledge;
    word.memory().word64(0).unwrap().store(2, Ordering::Release);
    inbox.staging.stream().synchronize(deadline).unwrap();
    inbox.land(&mut turn).unwrap();
    // Asserted last: nobody waits for a device that stays stuck.
    assert_eq!(early, (8, 0), "its bytes are there, and have not landed");
    assert_eq!((acknowledged, inbox.landed()), (Some(2), 4), "the first copy and the request");
}

#[test]
fn acknowledgements_that_overtake_each_other_count_as_the_higher() {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let (mut inbox, mut turn) = (Inbox::new(Staging::alone(&context, 4), 1), Turn::default());
    for count in [5, 9, 7] {
        inbox.begin(Frame::Ack { count }, &Regions::default(), &mut turn).unwrap();
    }
    assert_eq!(turn.acknowledged, Some(9));
}

/// A socket that gives so many bytes at a time, and nothing every other time; behind them, the end.
#[derive(Debug)]
struct Chopped {
    bytes: Vec<u8>,
    each: usize,
    given: AtomicU64,
    calls: AtomicU64,
}

impl Chopped {
    fn new(bytes: Vec<u8>, each: usize) -> Self {
        Self { bytes, each, given: AtomicU64::new(0), calls: AtomicU64::new(0) }
    }
}

impl RawStream for Chopped {
    fn read(&self, into: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
        if self.calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let given = self.given.load(Ordering::Relaxed) as usize;
        let count = self.each.min(into.len()).min(self.bytes.len() - given);
        into[..count].copy_from_slice(&self.bytes[given..given + count]);
        self.given.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    unsafe fn read_parts(&self, parts: &mut [libc::iovec]) -> io::Result<usize> {
        let mut bytes = vec![0; parts.iter().map(|part| part.iov_len).sum()];
        let got = self.read(&mut bytes, &mut Vec::new())?;
        let mut rest = &bytes[..got];
        for part in parts {
            let (now, later) = rest.split_at(rest.len().min(part.iov_len));
            // SAFETY: the caller vouches for the part, which has room for these bytes.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), part.iov_base.cast(), now.len()) };
            rest = later;
        }
        Ok(got)
    }

    fn write(&self, _: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
        unreachable!("an inbox sends nothing")
    }

    fn shutdown(&self, _: bool) -> io::Result<()> {
        unreachable!("an inbox ends nothing")
    }

    fn fd(&self) -> BorrowedFd<'_> {
        unreachable!("nobody waits")
    }
}

/// A socket that pauses where another one would end.
#[derive(Debug)]
struct Pauses<'a>(&'a Chopped);

impl RawStream for Pauses<'_> {
    fn read(&self, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        self.0.read(into, fds)
    }

    unsafe fn read_parts(&self, parts: &mut [libc::iovec]) -> io::Result<usize> {
        // SAFETY: the caller vouches for the parts.
        match unsafe { self.0.read_parts(parts) } {
            Ok(0) => Err(io::ErrorKind::WouldBlock.into()),
            other => other,
        }
    }

    fn write(&self, from: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        self.0.write(from, fds)
    }

    fn shutdown(&self, both: bool) -> io::Result<()> {
        self.0.shutdown(both)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

/// However the network cuts them. The reads go into the memory itself, the buffer, and pinned memory for the device, which other
/// connections may need before a frame is complete.
#[test]
fn frames_are_received_in_whatever_parts_they_come() {
    [4, 1].into_iter().for_each(frames_come_in_parts);
}

fn frames_come_in_parts(blocks: usize) {
    const LEN: usize = 70_000;
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let deadline = Deadline::after(Duration::from_secs(60));
    let data: Vec<u8> = (0..LEN).map(|at| (at / 7 % 251) as u8).collect();
    for each in [1, 5, 7, 30, 4000, 20_000, usize::MAX] {
        let (host, device) = (
            Arc::new(HostBuffer::new(&context, LEN).unwrap()),
            Arc::new(GpuBuffer::new(&context, LEN).unwrap()),
        );
        let memory = register_host(&host, 0, LEN, Transport::Ethernet.into()).unwrap();
        let regions = Arc::new(Regions::default());
        let grants = [memory.place().clone(), Place::Device(device.slice(..).unwrap())]
            .map(|place| regions.grant(1, place, LEN, Rights::REMOTE_WRITE));
        let (mut sent, mut counted, mut expected) = (Vec::new(), 0, vec![0; LEN]);
        for at in [0_usize, 3, 60, 600, 5000, 6000, LEN] {
            for grant in &grants {
                let from = at / 2;
                if at > from {
                    let (offset, len) = (from as u64, (at - from) as u32);
                    sent.extend(Frame::Write { region: grant.number(), offset, len }.encode());
                    sent.extend_from_slice(&data[from..at]);
                    expected[from..at].copy_from_slice(&data[from..at]);
                    counted += 1;
                }
            }
        }
        let mut inbox = Inbox::new(Staging::alone(&context, blocks), 1);
        let words = b"enough";
        sent.extend(Frame::Fail { len: words.len() as u32 }.encode());
        sent.extend_from_slice(words);
        sent.extend_from_slice(b" of nonsense behind the reason");
        let socket = Chopped::new(sent, each);
        let error = loop {
            match inbox.progress(&socket, &regions, COPIES) {
                Ok(turn) => assert!(!turn.ended && !deadline.expired()),
                Err(error) => break error,
            }
        };
        assert!(error.message().ends_with("gave the connection up: enough"), "{error}");
        inbox.staging.stream().synchronize(deadline).unwrap();
        inbox.land(&mut Turn::default()).unwrap();
        assert_eq!(inbox.landed(), counted);
        let mut got = [vec![0; LEN], vec![0; LEN]];
        host.memory().read(0, &mut got[0]).unwrap();
        device.download(0, &mut got[1], deadline).unwrap();
        assert!(got.iter().all(|got| *got == expected), "{each} at a time");
    }
}

#[test]
fn the_end_of_a_stream_is_an_error_only_inside_a_message() {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let host = Arc::new(HostBuffer::new(&context, 4096).unwrap());
    let memory = register_host(&host, 0, 4096, Transport::Ethernet.into()).unwrap();
    let regions = Arc::new(Regions::default());
    let grant = regions.grant(1, memory.place().clone(), 4096, Rights::REMOTE_WRITE);
    let write = Frame::Write { region: grant.number(), offset: 0, len: 4096 }.encode();
    for (rest, whole) in [
        (0, true),
        (1, false),
        (HEADER_BYTES, false),
        (HEADER_BYTES + 99, false),
        (HEADER_BYTES + 4096, true),
    ] {
        let mut sent = Frame::Ask.encode().to_vec();
        sent.extend_from_slice(&[&write[..], &[7; 4096]].concat()[..rest]);
        let (socket, mut inbox) =
            (Chopped::new(sent, usize::MAX), Inbox::new(Staging::alone(&context, 4), 1));
        let end = loop {
            match inbox.progress(&socket, &regions, COPIES) {
                Ok(turn) if !turn.ended => {}
                end => break end,
            }
        };
        assert_eq!(end.is_ok(), whole, "{rest} bytes of a message");
    }
}

/// Frames fill the buffer but for a part of one.
#[test]
fn a_frame_may_lie_across_the_end_of_the_buffer() {
    const EACH: usize = 7;
    const FRAMES: usize = 4000;
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let host = Arc::new(HostBuffer::new(&context, EACH * FRAMES).unwrap());
    let memory = register_host(&host, 0, EACH * FRAMES, Transport::Ethernet.into()).unwrap();
    let regions = Arc::new(Regions::default());
    let grant = regions.grant(1, memory.place().clone(), memory.len(), Rights::REMOTE_WRITE);
    let data: Vec<u8> = (0..EACH * FRAMES).map(|at| (at / 5 % 251) as u8).collect();
    let frame = |nth: usize| {
        let offset = (EACH * nth) as u64;
        let header = Frame::Write { region: grant.number(), offset, len: EACH as u32 }.encode();
        [&header[..], &data[EACH * nth..][..EACH]].concat()
    };
    let sent: Vec<u8> = (0..FRAMES).flat_map(frame).collect();
    assert!(sent.len() > 2 * BUFFER_BYTES && !BUFFER_BYTES.is_multiple_of(HEADER_BYTES + EACH));
    let (socket, mut inbox) = (Chopped::new(sent, usize::MAX), Inbox::new(Staging::alone(&context, 4), 1));
    while !inbox.progress(&socket, &regions, COPIES).unwrap().ended {}
    let mut got = vec![0; data.len()];
    host.memory().read(0, &mut got).unwrap();
    assert!(got == data);
}

/// No copy has begun when the bytes of the last one come.
#[test]
fn bytes_for_a_stuck_device_lie_beside_each_other() {
    const LEN: usize = 300;
    let (mut inbox, word) = behind_a_stuck_device();
    let context = inbox.staging.stream().context().clone();
    let device = Arc::new(GpuBuffer::new(&context, LEN).unwrap());
    let regions = Arc::new(Regions::default());
    let place = Place::Device(device.slice(..).unwrap());
    let grant = regions.grant(1, place, LEN, Rights::REMOTE_WRITE);
    let data: Vec<u8> = (0..LEN).map(|at| (at * 7 % 251) as u8).collect();
    let frame = |nth: usize| {
        let header = Frame::Write { region: grant.number(), offset: 100 * nth as u64, len: 100 }.encode();
        [&header[..], &data[100 * nth..][..100]].concat()
    };
    let socket = Chopped::new((0..3).flat_map(frame).collect(), usize::MAX);
    let received = (0..4).map(|_| inbox.progress(&socket, &regions, COPIES).map(|turn| turn.ended));
    let received = received.collect::<Result<Vec<_>>>();
    let waiting = inbox.landings.waiting();
    word.memory().word64(0).unwrap().store(1, Ordering::Release);
    let (deadline, mut got) = (Deadline::after(Duration::from_secs(60)), vec![0; LEN]);
    inbox.staging.stream().synchronize(deadline).unwrap();
    // Asserted last: nobody waits for a device that stays stuck.
    assert!(received.is_ok_and(|ended| !ended.contains(&true)), "an end while the device is stuck");
    assert_eq!(waiting, 4, "the first that is stuck, and three copies");
    device.download(0, &mut got, deadline).unwrap();
    assert!(got == data);
}

/// The rest of a frame does not come, and all other memory is in use: what has come goes to the device at once, but no part of a word.
#[test]
fn a_frame_that_gives_its_memory_up_leaves_words_whole() {
    const LEN: usize = 512;
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let deadline = Deadline::after(Duration::from_secs(60));
    let device = Arc::new(GpuBuffer::new(&context, LEN).unwrap());
    let regions = Arc::new(Regions::default());
    let grant = regions.grant(1, Place::Device(device.slice(..).unwrap()), LEN, Rights::REMOTE_WRITE);
    let data: Vec<u8> = (1..=LEN).map(|at| (at % 251) as u8).collect();
    let header = Frame::Write { region: grant.number(), offset: 8, len: LEN as u32 - 8 }.encode();
    for cut in [3, 56, 57, 100, 300, LEN - 9] {
        device.fill(0, deadline).unwrap();
        // One piece, which nobody may park.
        let mut inbox = Inbox::new(Staging::alone(&context, 1), 1);
        let come = [&header[..], &data[8..][..cut]].concat();
        let first = Chopped::new(come, HEADER_BYTES + cut);
        while first.given.load(Ordering::Relaxed) < (HEADER_BYTES + cut) as u64 {
            assert!(!inbox.progress(&first, &regions, COPIES).unwrap().ended);
        }
        let mut got = vec![0; LEN];
        inbox.staging.stream().synchronize(deadline).unwrap();
        device.download(0, &mut got, deadline).unwrap();
        let there = got.iter().rposition(|byte| *byte != 0).map_or(8, |last| last + 1);
        assert!(
            there.is_multiple_of(8) && there + LINE > 8 + cut,
            "{cut} bytes have come, {there} are there"
        );
        assert!(got[8..there] == data[8..there]);
        let rest = Chopped::new(data[8 + cut..].to_vec(), usize::MAX);
        while !inbox.progress(&rest, &regions, COPIES).unwrap().ended {
            assert!(!deadline.expired());
        }
        device.download(0, &mut got, deadline).unwrap();
        assert!(got[8..] == data[8..] && got[..8] == [0; 8], "{cut}");
    }
}

/// A socket whose peer has gone without an end.
#[derive(Debug)]
struct Reset;

impl RawStream for Reset {
    fn read(&self, _: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
        Err(io::ErrorKind::ConnectionReset.into())
    }

    fn write(&self, _: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
        unreachable!("an inbox sends nothing")
    }

    fn shutdown(&self, _: bool) -> io::Result<()> {
        unreachable!("an inbox ends nothing")
    }

    fn fd(&self) -> BorrowedFd<'_> {
        unreachable!("nobody waits")
    }
}

#[test]
fn a_socket_that_will_give_nothing_more_is_an_error() {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let mut inbox = Inbox::new(Staging::alone(&context, 4), 1);
    let error = inbox.progress(&Reset, &Regions::default(), COPIES).unwrap_err();
    assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}");
}

/// Half of a frame has come. The only block of the stock goes to another connection meanwhile, and words are not cut.
#[test]
fn a_frame_whose_rest_is_late_holds_up_no_other_connection() {
    const LEN: usize = 1000;
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let deadline = Deadline::after(Duration::from_secs(60));
    let half = Arc::new(Half::new(&context, 1).unwrap());
    let inbox = || Inbox::new(Staging::new(half.clone(), None), 1);
    let buffers = [(); 2].map(|()| Arc::new(GpuBuffer::new(&context, LEN).unwrap()));
    let regions = Arc::new(Regions::default());
    let data: Vec<u8> = (0..LEN).map(|at| (at % 250 + 1) as u8).collect();
    let messages = buffers.each_ref().map(|buffer| {
        let grant = regions.grant(1, Place::Device(buffer.slice(..).unwrap()), LEN, Rights::REMOTE_WRITE);
        let frame = Frame::Write { region: grant.number(), offset: 8, len: LEN as u32 - 8 };
        (grant, [&frame.encode()[..], &data[8..]].concat())
    });
    let contents = |buffer: &GpuBuffer| {
        let mut contents = vec![0; LEN];
        buffer.download(0, &mut contents, deadline).map(|()| contents).unwrap()
    };
    for come in [0, 5, 500, LEN - 9] {
        buffers.iter().for_each(|buffer| buffer.fill(0, deadline).unwrap());
        let (mut slow, mut quick) = (inbox(), inbox());
        let (begun, rest) = messages[0].1.split_at(HEADER_BYTES + come);
        let begun = Chopped::new(begun.to_vec(), usize::MAX);
        let given = |socket: &Chopped| socket.given.load(Ordering::Relaxed) as usize;
        while slow.progress(&Pauses(&begun), &regions, COPIES).unwrap().again
            || given(&begun) < HEADER_BYTES + come
        {
            assert!(!deadline.expired(), "it waits for what the peer has not sent");
        }
        assert_eq!((slow.landed(), half.free()), (0, 1), "{come} bytes have come");
        let whole = contents(&buffers[0])[8..].iter().take_while(|byte| **byte != 0).count();
        assert!(whole <= come && (whole + 8).is_multiple_of(8), "{whole} of {come} bytes");
        assert!(come < 100 || whole > come - LINE, "{whole} of {come} bytes");
        let other = Chopped::new(messages[1].1.clone(), usize::MAX);
        while quick.landed() == 0 {
            quick.progress(&Pauses(&other), &regions, COPIES).unwrap();
            assert!(!deadline.expired(), "the other connection waits for it");
        }
        let rest = Chopped::new(rest.to_vec(), 100);
        while slow.landed() == 0 {
            slow.progress(&Pauses(&rest), &regions, COPIES).unwrap();
            assert!(!deadline.expired());
        }
        assert_eq!(slow.landed(), 1, "parts of a frame are not counted");
        assert!(buffers.iter().all(|buffer| contents(buffer)[8..] == data[8..]));
    }
}
