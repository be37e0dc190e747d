//! The receiving half with a peer that is played by the test.

mod answers;
mod parts;
mod refused;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::super::tests::reads;
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
    let mut inbox = Inbox::new(Staging::alone(&context, 4), 1, reads());
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
    inbox.rest(&mut turn).unwrap();
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
        let mut inbox = Inbox::new(Staging::alone(&context, 4), 1, reads());
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
    let (mut inbox, mut turn) = (Inbox::new(Staging::alone(&context, 4), 1, reads()), Turn::default());
    for count in [5, 9, 7] {
        inbox.begin(Frame::Ack { count }, &Regions::default(), &mut turn).unwrap();
    }
    assert_eq!(turn.acknowledged, Some(9));
}
