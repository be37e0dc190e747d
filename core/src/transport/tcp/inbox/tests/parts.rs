//! Frames that come in parts, lie across the end of a buffer, or never become whole.

use super::*;
use crate::net::parts::read_parts;

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
        // SAFETY: the caller vouches for the parts.
        unsafe { read_parts(self, parts) }
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
    let data: Vec<u8> = (0..LEN).map(|at| (at / 7 % 251) as u8).collect();
    for each in [1, 5, 7, 30, 4000, 20_000, usize::MAX] {
        // Byte by byte takes a minute with the thread sanitizer.
        let deadline = Deadline::after(Duration::from_secs(300));
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
        let mut inbox = Inbox::new(Staging::alone(&context, blocks), 1, reads());
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
            (Chopped::new(sent, usize::MAX), Inbox::new(Staging::alone(&context, 4), 1, reads()));
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
    let (socket, mut inbox) =
        (Chopped::new(sent, usize::MAX), Inbox::new(Staging::alone(&context, 4), 1, reads()));
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
        let mut inbox = Inbox::new(Staging::alone(&context, 1), 1, reads());
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
    let mut inbox = Inbox::new(Staging::alone(&context, 4), 1, reads());
    let error = inbox.progress(&Reset, &Regions::default(), COPIES).unwrap_err();
    assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}");
}

/// Freeing may wait for the device, and the service thread must not.
#[test]
fn the_memory_of_a_turn_that_fails_is_kept_for_those_who_may_block() {
    const LEN: usize = 1000;
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let mut inbox = Inbox::new(Staging::alone(&context, 4), 1, reads());
    let buffer = Arc::new(HostBuffer::new(&context, LEN).unwrap());
    let memory = register_host(&buffer, 0, LEN, Transport::Ethernet.into()).unwrap();
    let regions = Arc::new(Regions::default());
    let grant = regions.grant(1, memory.place().clone(), memory.len(), memory.rights());
    let (region, offset) = (grant.number(), 0);
    let message = [
        &Frame::Write { region, offset, len: LEN as u32 }.encode()[..],
        &[7; LEN],
        &Frame::Read { region, offset, len: 8 }.encode(),
        &[0xFF; HEADER_BYTES],
    ];
    let flood = Flood(message.concat(), AtomicU64::new(0));
    inbox.progress(&flood, &regions, COPIES).unwrap_err();
    assert_eq!(inbox.take_given_up().len(), 2, "one was written, and one was to be read");
    assert!(inbox.take_given_up().is_empty());
}

/// Half of a frame has come. The only block of the stock goes to another connection meanwhile, and words are not cut.
#[test]
fn a_frame_whose_rest_is_late_holds_up_no_other_connection() {
    const LEN: usize = 1000;
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let deadline = Deadline::after(Duration::from_secs(60));
    let half = Arc::new(Half::new(&context, 1).unwrap());
    let inbox = || Inbox::new(Staging::new(half.clone(), None), 1, reads());
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
