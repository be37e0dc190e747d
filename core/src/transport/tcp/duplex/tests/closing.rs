//! Connections that are dropped, given up, or closed with their communicator.

use super::*;
use crate::sync::AtomicUsize;

#[test]
fn a_dropped_connection_lingers_until_everything_is_acknowledged_and_it_has_said_bye() {
    with_duplex(|Rig { duplex, memory, .. }| {
        let (sent, says) = attach_played(duplex);
        assert_eq!(Delivery::peer(&**duplex), 1);
        assert!(duplex.is_delivered() && !duplex.is_undelivered(), "nothing was asked for");
        update(duplex, memory, 7);
        duplex.kick().unwrap();
        assert!(!duplex.is_delivered());
        wait_for("nobody asks", || lock(&sent).ends_with(&Frame::Ask.encode()));
        assert!(!duplex.is_undelivered() && !duplex.lingers(), "its owner is there");
        duplex.close();
        assert!(duplex.is_undelivered() && duplex.lingers());
        lock(&says).extend(Frame::Ack { count: 2 }.encode());
        wait_for("it does not end", || {
            let _ = duplex.progress();
            !duplex.is_undelivered()
        });
        assert!(lock(&sent).ends_with(&Frame::Bye.encode()));
        assert!(duplex.is_delivered() && !duplex.lingers() && duplex.lost().is_none());
    });
}

/// The peer has not connected yet.
#[test]
fn a_dropped_connection_without_a_socket_lingers_only_with_operations() {
    for operations in [0, 1] {
        with_duplex(|Rig { comm, duplex, memory, .. }| {
            (0..operations).for_each(|value| update(duplex, memory, value));
            assert!(!duplex.is_attached());
            duplex.close();
            assert_eq!(duplex.is_undelivered(), operations > 0);
            // After an abort nobody will connect.
            comm.exchange().group.abort().abort(AbortCause::requested(0, "enough"));
            wait_for("it lingers after an abort", || !duplex.is_undelivered());
            assert!(duplex.check().is_err());
            wait_for("nobody knows that operations are lost", || duplex.has_lost() || operations == 0);
            assert_eq!(duplex.has_lost(), operations > 0);
        });
    }
}

/// The socket has no room for it at once.
#[test]
fn what_a_dropped_connection_had_taken_is_sent_by_the_service_thread() {
    const FRAMES: usize = 64;
    with_duplex(|Rig { comm, duplex, memory, .. }| {
        let remote = memory.remote().unwrap().0;
        let mut far = attach(duplex);
        assert!(duplex.is_attached());
        let buffer = Arc::new(HostBuffer::new(comm.context(), FRAMES * MAX_PAYLOAD).unwrap());
        let len = buffer.len();
        duplex.outbox(|outbox| outbox.write(remote, remote.region().unwrap(), 0, place(&buffer), len));
        duplex.close();
        for _ in 0..FRAMES {
            assert!(matches!(far.hear(), Frame::Write { .. }));
        }
        assert_eq!(far.hear(), Frame::Ask);
        far.say(&[Frame::Ack { count: FRAMES as u64 + 1 }]);
        assert_eq!(far.hear(), Frame::Bye);
    });
}

/// Its last word is still on its way, and the process must not end before.
#[test]
fn a_dropped_connection_lingers_until_the_socket_has_its_bye() {
    with_duplex(|Rig { duplex, .. }| {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let mut stuffed = 0;
        while let Ok(count) = (&near).write(&[0; 4096]) {
            stuffed += count as u64;
        }
        duplex.attach(Box::new(Wire(near)));
        duplex.close();
        assert!(duplex.is_undelivered() && duplex.lingers());
        io::copy(&mut (&far).take(stuffed), &mut io::sink()).unwrap();
        wait_for("it goes on lingering", || !duplex.is_undelivered());
        assert_eq!(Far(far).hear(), Frame::Bye);
    });
}

/// The peer says so when nothing more will come.
#[test]
fn a_dropped_connection_receives_until_the_peer_has_said_bye() {
    with_duplex(|Rig { duplex, buffer, region, .. }| {
        let mut far = attach(duplex);
        duplex.close();
        assert_eq!(far.hear(), Frame::Bye);
        for value in 1..=3 {
            far.say(&[Frame::Update { region, offset: 8, value }, Frame::Ask]);
            while !matches!(far.hear(), Frame::Ack { count } if count == 2 * value) {}
            assert_eq!(buffer.memory().word64(8).unwrap().load(Ordering::Acquire), value);
        }
        far.say(&[Frame::Bye]);
        let mut rest = Vec::new();
        far.0.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty(), "it ends: {rest:?}");
    });
}

/// Without a call that sends.
#[test]
fn who_closes_the_communicator_has_everything_sent() {
    with_duplex(|Rig { duplex, memory, .. }| {
        let mut far = attach(duplex);
        update(duplex, memory, 7);
        assert!(!duplex.is_delivered());
        assert!(matches!(far.hear(), Frame::Update { value: 7, .. }));
        assert_eq!(far.hear(), Frame::Ask);
    });
}

/// A peer that is told why may have more on its way, which must not destroy the words that it has not read.
#[test]
fn a_connection_that_is_given_up_reads_on_only_if_the_peer_is_told() {
    for tell in [false, true] {
        with_duplex(|Rig { duplex, .. }| {
            let mut far = attach(duplex);
            duplex.fail(&Error::new(ErrorKind::Remote, "x", "gone"), tell);
            let mut heard = Vec::new();
            far.0.read_to_end(&mut heard).unwrap();
            assert_eq!(heard.ends_with(b"gone"), tell);
            assert_eq!(far.0.write(&[0]).is_ok(), tell);
        });
    }
}

/// A socket that takes so many bytes and no more.
#[derive(Debug)]
struct Sips {
    room: Arc<AtomicUsize>,
    taken: Bytes,
    fd: UnixStream,
}

impl RawStream for Sips {
    fn read(&self, _: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn write(&self, from: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let taken = from.len().min(self.room.load(Ordering::Relaxed));
        if taken == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.room.fetch_sub(taken, Ordering::Relaxed);
        lock(&self.taken).extend(&from[..taken]);
        Ok(taken)
    }

    fn shutdown(&self, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Wherever the frame on its way was cut off: the peer must not take the reason for bytes of that frame.
#[test]
fn the_reason_stands_behind_the_frame_that_has_begun() {
    let whole = HEADER_BYTES + 1000;
    let reason = [&Frame::Fail { len: 4 }.encode()[..], b"gone"].concat();
    for (sent, room) in [(0, usize::MAX), (7, usize::MAX), (HEADER_BYTES + 1, usize::MAX), (7, 500)] {
        with_duplex(|Rig { comm, duplex, memory, .. }| {
            let remote = memory.remote().unwrap().0;
            let buffer = Arc::new(HostBuffer::new(comm.context(), 1000).unwrap());
            duplex.outbox(|outbox| outbox.write(remote, remote.region().unwrap(), 0, place(&buffer), 1000));
            update(duplex, memory, 7);
            let (socket, taken) = (Arc::new(AtomicUsize::new(sent)), Bytes::default());
            let fd = UnixStream::pair().unwrap().0;
            duplex.attach_unserved(Box::new(Sips { room: socket.clone(), taken: taken.clone(), fd }));
            duplex.kick().unwrap();
            assert_eq!(lock(&taken).len(), sent);
            socket.store(room, Ordering::Relaxed);
            duplex.fail(&Error::new(ErrorKind::Remote, "x", "gone"), true);
            let taken = std::mem::take(&mut *lock(&taken));
            match (sent, room) {
                (0, _) => assert_eq!(taken, reason),
                (_, usize::MAX) => assert!(taken.len() == whole + reason.len() && taken.ends_with(&reason)),
                _ => assert_eq!(taken.len(), sent + room, "the peer sees that it ends inside a frame"),
            }
        });
    }
}

/// Freeing may wait for the device: the next call of the user does it.
#[test]
fn pinned_memory_of_a_dropped_connection_is_left_to_the_next_call() {
    with_memories(|comm, _| {
        let resources = resources(comm, None);
        let duplex = Duplex::new(&resources, &resources.service().unwrap(), 3).unwrap();
        assert_eq!(Delivery::peer(&*duplex), 3);
        let kernels = Arc::downgrade(duplex.kernel_abort());
        drop(duplex);
        assert_eq!(kernels.strong_count(), 1);
        comm.check().unwrap();
        assert_eq!(kernels.strong_count(), 0);
    });
}
