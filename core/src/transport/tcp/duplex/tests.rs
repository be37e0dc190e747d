//! Connections whose peer is the test, at the other end of a socket that the service thread polls.

mod closing;
mod sending;
mod sharing;

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::super::frame::{HEADER_BYTES, MAX_PAYLOAD};
use super::super::tests::{Bytes, peer};
use super::*;
use crate::abort::AbortCause;
use crate::comm::{Communicator, HostBuffer, RegisteredMemory};
use crate::deadline::{Backoff, Deadline};
use crate::gpu::{GpuBuffer, Stream};
use crate::memory::{Place, Rights};
use crate::transport::tests::{place, resources, soon, wait_for, with_memories};

#[derive(Debug)]
struct Wire(UnixStream);

impl RawStream for Wire {
    fn read(&self, into: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
        (&self.0).read(into)
    }

    fn write(&self, from: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
        (&self.0).write(from)
    }

    fn shutdown(&self, both: bool) -> io::Result<()> {
        self.0.shutdown(if both { std::net::Shutdown::Both } else { std::net::Shutdown::Write })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The peer's end.
struct Far(UnixStream);

impl Far {
    fn say(&mut self, frames: &[Frame]) {
        self.0.write_all(&frames.iter().map(|frame| frame.encode()).collect::<Vec<_>>().concat()).unwrap();
    }

    /// The next frame; the bytes behind it are left out.
    fn hear(&mut self) -> Frame {
        let mut header = [0; HEADER_BYTES];
        self.0.read_exact(&mut header).unwrap();
        let frame = Frame::decode(&header).unwrap();
        if let Frame::Write { len, .. } | Frame::Data { len } = frame {
            let behind = io::copy(&mut (&self.0).take(len.into()), &mut io::sink()).unwrap();
            assert_eq!(behind, u64::from(len));
        }
        frame
    }
}

/// A connection to rank 1 that has no socket yet.
struct Rig<'a> {
    comm: &'a Communicator,
    duplex: &'a Arc<Duplex>,
    /// Of the peer.
    memory: &'a RegisteredMemory,
    /// The peer may write to it, under this number.
    buffer: &'a Arc<HostBuffer>,
    region: u64,
}

fn with_duplex(run: impl Fn(Rig<'_>) + Sync) {
    with_memories(|comm, [memory, _]| {
        let resources = resources(comm, None);
        let service = resources.service().unwrap();
        let duplex = &Duplex::new(&resources, &service, 1).unwrap();
        let buffer = &Arc::new(HostBuffer::new(comm.context(), 64).unwrap());
        let grant = resources.regions.grant(1, place(buffer), 64, Rights::REMOTE_WRITE);
        run(Rig { comm, duplex, memory: &memory, buffer, region: grant.number() });
    });
}

/// Gives the connection a socket whose other end is the test's.
fn attach(duplex: &Arc<Duplex>) -> Far {
    let (near, far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    duplex.attach(Box::new(Wire(near)));
    Far(far)
}

/// Gives it a socket that takes everything: what was sent, and what the peer says.
fn attach_played(duplex: &Arc<Duplex>) -> (Bytes, Bytes) {
    let (socket, sent, says) = peer();
    duplex.attach(Box::new(socket));
    (sent, says)
}

fn update(duplex: &Duplex, memory: &RegisteredMemory, value: u64) {
    let remote = memory.remote().unwrap().0;
    duplex.outbox(|outbox| outbox.update(remote, remote.region().unwrap(), 0, value));
}

#[test]
fn the_service_thread_sends_the_rest_and_asks_for_an_acknowledgement_once_nothing_follows() {
    const FRAMES: usize = 12;
    with_duplex(|Rig { comm, duplex, memory, .. }| {
        let remote = memory.remote().unwrap().0;
        let buffer = Arc::new(HostBuffer::new(comm.context(), FRAMES * MAX_PAYLOAD).unwrap());
        let len = buffer.len();
        // Before there is a socket.
        duplex.outbox(|outbox| outbox.write(remote, remote.region().unwrap(), 0, place(&buffer), len));
        duplex.kick().unwrap();
        let mut far = attach(duplex);
        duplex.kick().unwrap();
        for _ in 0..FRAMES {
            assert!(matches!(far.hear(), Frame::Write { len, .. } if len as usize == MAX_PAYLOAD));
        }
        assert_eq!(far.hear(), Frame::Ask, "nobody flushes");
        let mark = FRAMES as u64 + 1;
        assert!(!duplex.has_landed(1).unwrap());
        far.say(&[Frame::Ack { count: mark }]);
        wait_for("the acknowledgement was not noted", || duplex.has_landed(mark).unwrap());
        assert!(!duplex.has_landed(mark + 1).unwrap());
    });
}

#[test]
fn the_service_thread_receives_and_acknowledges_what_nobody_waits_for() {
    with_duplex(|Rig { duplex, buffer, region, .. }| {
        let mut far = attach(duplex);
        for value in 1..=3 {
            far.say(&[Frame::Update { region, offset: 8, value }, Frame::Ask]);
            assert_eq!(far.hear(), Frame::Ack { count: 2 * value });
            assert_eq!(buffer.memory().word64(8).unwrap().load(Ordering::Acquire), value);
        }
    });
}

/// Many waits: on a machine that is idle they follow each other so closely that user threads go on polling between them. Then
/// nobody waits any more. The models have every order of these.
#[test]
fn whoever_receives_misses_nothing() {
    const ROUNDS: u64 = 200;
    with_duplex(|Rig { duplex, memory, buffer, region, .. }| {
        let mut far = attach(duplex);
        let value = || buffer.memory().word64(8).unwrap().load(Ordering::Acquire);
        let peer = std::thread::scope(|scope| {
            let peer = scope.spawn(move || {
                for round in 1..=ROUNDS {
                    while !matches!(far.hear(), Frame::Update { value, .. } if value == round) {}
                    far.say(&[Frame::Update { region, offset: 8, value: round }]);
                }
                far
            });
            let mut backoff = Backoff::new();
            for round in 1..=ROUNDS {
                update(duplex, memory, round);
                duplex.kick().unwrap();
                let deadline = soon();
                while value() < round && !deadline.expired() {
                    duplex.assist(&mut backoff, deadline);
                }
                assert_eq!(value(), round);
            }
            peer.join().unwrap()
        });
        let mut far = peer;
        for round in ROUNDS + 1..ROUNDS + 4 {
            far.say(&[Frame::Update { region, offset: 8, value: round }]);
            wait_for("nobody received it", || value() == round);
        }
    });
}

/// A user thread has waited once, and no thread waits any more.
#[test]
fn a_wait_leaves_what_comes_later_to_the_service_thread() {
    with_duplex(|Rig { duplex, buffer, region, .. }| {
        let mut far = attach(duplex);
        duplex.assist(&mut Backoff::new(), Deadline::after(Duration::ZERO));
        far.say(&[Frame::Update { region, offset: 8, value: 7 }]);
        let value = || buffer.memory().word64(8).unwrap().load(Ordering::Acquire);
        wait_for("nobody received it", || value() == 7);
    });
}

/// A wait without news ends by itself, so that whoever waits can look around.
#[test]
fn a_wait_for_nothing_ends() {
    with_duplex(|Rig { duplex, .. }| {
        let _far = attach(duplex);
        for deadline in [soon(), Deadline::after(Duration::ZERO)] {
            duplex.assist(&mut Backoff::new(), deadline);
        }
        duplex.check().unwrap();
    });
}

#[test]
fn operations_that_are_lost_are_told_once() {
    with_duplex(|Rig { duplex, memory, .. }| {
        let far = attach(duplex);
        update(duplex, memory, 7);
        duplex.kick().unwrap();
        drop(far);
        wait_for("the end was not noticed", || duplex.failure.has_failed());
        wait_for("nobody knows that operations are lost", || duplex.has_lost());
        assert!(duplex.is_delivered() && !duplex.is_undelivered(), "nothing can be delivered any more");
        assert!(duplex.lost().is_some());
        let error = duplex.check().unwrap_err();
        assert_eq!((error.peer(), duplex.lost().is_none()), (Some(1), true), "{error}: a caller was told");
        assert_eq!(duplex.kick().unwrap_err().to_string(), error.to_string());
    });
}

/// Its last words are a better reason than its end.
#[test]
fn a_peer_that_gives_up_is_quoted() {
    with_duplex(|Rig { duplex, memory, .. }| {
        let mut far = attach(duplex);
        let words = b"the disk is full";
        far.say(&[Frame::Fail { len: words.len() as u32 }]);
        far.0.write_all(words).unwrap();
        drop(far);
        update(duplex, memory, 7);
        wait_for("the end was not noticed", || duplex.kick().is_err());
        let error = duplex.check().unwrap_err();
        assert!(error.message().contains("the disk is full"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Remote);
    });
}

#[test]
fn a_peer_that_breaks_the_protocol_is_told_so() {
    with_duplex(|Rig { duplex, region, .. }| {
        let mut far = attach(duplex);
        far.say(&[Frame::Update { region: region + 1, offset: 0, value: 1 }]);
        let Frame::Fail { len } = far.hear() else { panic!("it is not told") };
        let mut reason = vec![0; len as usize];
        far.0.read_exact(&mut reason).unwrap();
        wait_for("it goes on", || duplex.check().is_err());
        let error = duplex.check().unwrap_err();
        let reason = String::from_utf8(reason).unwrap();
        assert!(!reason.is_empty() && error.message().contains(&reason), "{error}: {reason}");
        assert!(!duplex.has_lost(), "nothing was asked for");
    });
}

#[test]
fn streams_wait_for_acknowledgements_and_not_for_ever() {
    with_duplex(|Rig { comm, duplex, memory, .. }| {
        let (_sent, says) = attach_played(duplex);
        let (event, later) = (Event::new(comm.context()).unwrap(), Event::new(comm.context()).unwrap());
        let stream = Stream::new(comm.context()).unwrap();
        update(duplex, memory, 7);
        let mark = duplex.outbox(Outbox::ask);
        duplex.kick().unwrap();
        duplex.record(&event, mark).unwrap();
        duplex.record(&later, mark + 1).unwrap();
        assert!(!event.is_done().unwrap());
        lock(&says).extend(Frame::Ack { count: mark }.encode());
        wait_for("the acknowledgement was not noted", || {
            let _ = duplex.progress();
            duplex.has_landed(mark).unwrap()
        });
        event.synchronize(soon()).unwrap();
        let early = later.is_done().unwrap();
        stream.wait_event(&later).unwrap();
        duplex.fail(&Error::new(ErrorKind::Remote, "x", "gone"), false);
        stream.synchronize(soon()).unwrap();
        assert!(!early);
        // Later ones do not wait either.
        let last = Event::new(comm.context()).unwrap();
        duplex.record(&last, mark + 2).unwrap();
        last.synchronize(soon()).unwrap();
    });
}

/// Its peer, alone of all, knows that nothing more will come.
#[test]
fn a_peer_that_ends_without_a_word_is_an_error() {
    with_duplex(|Rig { duplex, .. }| {
        let far = attach(duplex);
        far.0.shutdown(std::net::Shutdown::Write).unwrap();
        wait_for("the end was not noticed", || duplex.check().is_err());
        let error = duplex.check().unwrap_err();
        assert!(error.message().contains("has closed its end"), "{error}");
        assert!(!duplex.has_lost(), "nothing was asked for");
    });
}

/// No second kick comes, and no descriptor tells of the device.
#[test]
fn the_service_thread_waits_for_devices_and_asks_for_acknowledgements() {
    with_duplex(|Rig { comm, duplex, memory, .. }| {
        let mut far = attach(duplex);
        update(duplex, memory, 1);
        duplex.kick().unwrap();
        assert!(matches!(far.hear(), Frame::Update { value: 1, .. }));
        assert_eq!(far.hear(), Frame::Ask, "nobody flushes");
        let word = Arc::new(crate::gpu::PinnedBuffer::new(comm.context(), 8).unwrap());
        let (stream, event) = (Stream::new(comm.context()).unwrap(), Event::new(comm.context()).unwrap());
        stream.wait_value64(&word.slice(..).unwrap(), 1).unwrap();
        event.record(&stream).unwrap();
        duplex.after(&event).unwrap();
        update(duplex, memory, 2);
        duplex.kick().unwrap();
        // A wait ends all the same, so that whoever waits can look around.
        duplex.assist(&mut Backoff::new(), Deadline::after(Duration::ZERO));
        word.memory().word64(0).unwrap().store(1, Ordering::Release);
        assert!(matches!(far.hear(), Frame::Update { value: 2, .. }));
        assert_eq!(far.hear(), Frame::Ask);
        stream.synchronize(soon()).unwrap();
    });
}

#[test]
fn a_connection_that_no_thread_serves_has_failed() {
    with_duplex(|Rig { duplex, .. }| {
        duplex.unserved(&Error::new(ErrorKind::Internal, "x", "no thread"));
        assert!(duplex.check().unwrap_err().message().contains("no thread"));
    });
}

/// Everything is asked for already, so that nobody looks for idleness.
#[test]
fn the_service_thread_is_told_of_operations_that_wait_for_a_device() {
    with_duplex(|Rig { comm, duplex, memory, .. }| {
        let mut far = attach(duplex);
        far.say(&[Frame::Ask]);
        assert_eq!(far.hear(), Frame::Ack { count: 1 }, "the service thread waits for the socket");
        let word = Arc::new(crate::gpu::PinnedBuffer::new(comm.context(), 8).unwrap());
        let (stream, event) = (Stream::new(comm.context()).unwrap(), Event::new(comm.context()).unwrap());
        stream.wait_value64(&word.slice(..).unwrap(), 1).unwrap();
        event.record(&stream).unwrap();
        duplex.after(&event).unwrap();
        update(duplex, memory, 7);
        duplex.outbox(Outbox::ask);
        duplex.kick().unwrap();
        word.memory().word64(0).unwrap().store(1, Ordering::Release);
        assert!(matches!(far.hear(), Frame::Update { value: 7, .. }));
        assert_eq!(far.hear(), Frame::Ask);
        stream.synchronize(soon()).unwrap();
    });
}

/// Nothing more comes, and there is nothing to send until then.
#[test]
fn the_service_thread_looks_until_a_device_has_what_was_received_for_it() {
    with_duplex(|Rig { comm, duplex, .. }| {
        let device = Arc::new(GpuBuffer::new(comm.context(), 64).unwrap());
        let place = Place::Device(device.slice(..).unwrap());
        let grant = duplex.regions.grant(1, place, 64, Rights::REMOTE_WRITE);
        let word = Arc::new(crate::gpu::PinnedBuffer::new(comm.context(), 8).unwrap());
        lock(&duplex.inbox).stream().wait_value64(&word.slice(..).unwrap(), 1).unwrap();
        let mut far = attach(duplex);
        far.say(&[Frame::Write { region: grant.number(), offset: 0, len: 8 }]);
        far.0.write_all(&[7; 8]).unwrap();
        far.say(&[Frame::Ask]);
        // The service thread has looked by then, and must look again.
        std::thread::sleep(Duration::from_millis(20));
        word.memory().word64(0).unwrap().store(1, Ordering::Release);
        assert_eq!(far.hear(), Frame::Ack { count: 2 });
    });
}

/// Without it the memory of both ends would be held until the next call, which may never come.
#[test]
fn an_operation_from_before_there_was_a_socket_is_asked_about_without_another_call() {
    with_duplex(|Rig { duplex, memory, .. }| {
        update(duplex, memory, 7);
        duplex.kick().unwrap();
        let mut far = attach(duplex);
        assert!(matches!(far.hear(), Frame::Update { value: 7, .. }));
        assert_eq!(far.hear(), Frame::Ask);
        far.say(&[Frame::Ack { count: 2 }]);
        wait_for("not noted", || duplex.has_landed(2).unwrap());
    });
}

#[test]
fn what_the_peer_reads_is_answered_without_a_call() {
    with_duplex(|Rig { duplex, buffer, .. }| {
        let mut far = attach(duplex);
        let grant = duplex.regions.grant(1, place(buffer), 64, Rights::REMOTE_READ);
        far.say(&[Frame::Read { region: grant.number(), offset: 8, len: 16 }]);
        assert_eq!(far.hear(), Frame::Data { len: 16 });
    });
}
