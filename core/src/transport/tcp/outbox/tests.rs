//! Operations of the sending half become frames, in whatever pieces the socket takes them.

mod reads;

use std::os::fd::{BorrowedFd, OwnedFd};

use super::super::frame::HEADER_BYTES;
use super::super::tests::reads;
use super::*;
use crate::gpu::{Context, Event, PinnedBuffer, Stream};
use crate::memory::HostBuffer;
use crate::sync::{AtomicUsize, Mutex, Ordering, lock};
use crate::transport::stock::Half;
use crate::transport::tests::{place, soon, with_memories};
use crate::transport::waits::{WaitStreams, Waits};

/// A socket that takes so many more bytes.
#[derive(Debug, Default)]
struct Pipe {
    room: AtomicUsize,
    taken: Mutex<Vec<u8>>,
}

impl Pipe {
    fn with_room(room: usize) -> Self {
        Self { room: AtomicUsize::new(room), ..Self::default() }
    }

    fn make_room(&self, room: usize) {
        self.room.store(room, Ordering::Relaxed);
    }

    /// The frames that it took, with the bytes behind each.
    fn frames(&self) -> Vec<(Frame, Vec<u8>)> {
        let taken = lock(&self.taken);
        let (mut rest, mut frames) = (&taken[..], Vec::new());
        while let Some((header, behind)) = rest.split_first_chunk::<HEADER_BYTES>() {
            let frame = Frame::decode(header).unwrap();
            let len = match frame {
                Frame::Write { len, .. } | Frame::Data { len } => len as usize,
                _ => 0,
            };
            let (bytes, next) = behind.split_at(len);
            frames.push((frame, bytes.to_vec()));
            rest = next;
        }
        assert!(rest.is_empty(), "half a frame");
        frames
    }
}

impl RawStream for Pipe {
    fn read(&self, _: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
        unreachable!("an outbox receives nothing")
    }

    fn write(&self, from: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let room = self.room.load(Ordering::Relaxed);
        let count = room.min(from.len());
        lock(&self.taken).extend_from_slice(&from[..count]);
        self.make_room(room - count);
        if count == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
    }

    fn shutdown(&self, _: bool) -> io::Result<()> {
        unreachable!("an outbox ends nothing")
    }

    fn fd(&self) -> BorrowedFd<'_> {
        unreachable!("nobody waits")
    }
}

/// Runs `run` with an empty outbox, a memory of the peer and its number, and a context.
fn with_outbox(run: impl Fn(Outbox, &Arc<Remote>, u64, &Context) + Sync) {
    with_memories(|comm, [memory, _]| {
        let remote = memory.remote().unwrap().0;
        let outbox = Outbox::new(Staging::alone(comm.context(), 4), 1, reads());
        run(outbox, remote, remote.region().unwrap(), comm.context());
    });
}

#[test]
fn small_operations_share_pieces_until_there_are_enough() {
    /// Headers in a piece of 4 KiB.
    const EACH: usize = 128;
    with_outbox(|mut outbox, remote, region, context| {
        let updates = (READY * EACH) as u64;
        for value in 0..updates {
            outbox.update(remote, region, 8, value);
            assert!(!outbox.is_empty());
        }
        let counted = outbox.counts.count();
        assert!(counted > updates, "acknowledgements were asked for, too");
        assert_eq!(outbox.waiting() as u64, counted);
        assert_eq!((outbox.pieces.len(), outbox.operations.len()), (READY, counted as usize - READY * EACH));
        let buffer = HostBuffer::new(context, 8).unwrap();
        assert!(!outbox.write_now(remote, region, 0, buffer.memory()).unwrap(), "earlier operations wait");
        assert_eq!(outbox.counts.count(), counted);
        let pipe = Pipe::with_room(usize::MAX);
        assert_eq!(outbox.progress(&pipe).unwrap(), Obstacle::Nothing);
        assert_eq!((outbox.waiting(), outbox.is_empty()), (0, true));
        let frames = pipe.frames();
        assert_eq!(frames.len() as u64, counted);
        let values = frames.iter().filter_map(|(frame, _)| match frame {
            Frame::Update { region: to, offset: 8, value } if *to == region => Some(*value),
            other => (*other != Frame::Ask).then_some(u64::MAX),
        });
        assert!(values.eq(0..updates));
        outbox.acknowledge(counted).unwrap();
        assert!(outbox.is_settled() && outbox.has_delivered());
    });
}

#[test]
fn small_writes_are_copied_when_they_are_asked_for() {
    with_outbox(|mut outbox, remote, region, context| {
        let buffer = HostBuffer::new(context, SMALL).unwrap();
        for byte in 0..8 {
            buffer.memory().fill(byte);
            assert!(outbox.write_now(remote, region, u64::from(byte), buffer.memory()).unwrap());
        }
        assert_eq!((outbox.pieces.len(), outbox.waiting()), (2, 8), "4 KiB have room for seven");
        let pipe = Pipe::with_room(usize::MAX);
        assert_eq!(outbox.progress(&pipe).unwrap(), Obstacle::Nothing);
        let expected = (0..8).map(|byte: u8| {
            (Frame::Write { region, offset: byte.into(), len: SMALL as u32 }, vec![byte; SMALL])
        });
        assert!(pipe.frames().into_iter().eq(expected));
    });
}

#[test]
fn large_writes_are_cut_and_their_memory_is_given_back_once_the_socket_has_it() {
    const REST: usize = 100;
    with_outbox(|mut outbox, remote, region, context| {
        let buffer = Arc::new(HostBuffer::new(context, MAX_PAYLOAD + REST).unwrap());
        buffer.memory().fill(5);
        outbox.write(remote, region, 8, place(&buffer), MAX_PAYLOAD + REST);
        let pipe = Pipe::default();
        let deadline = soon();
        while outbox.progress(&pipe).unwrap() == Obstacle::Socket && !deadline.expired() {
            pipe.make_room(100_000);
        }
        assert!(outbox.is_empty() && outbox.waiting() == 0);
        let writes = [(8, MAX_PAYLOAD), (8 + MAX_PAYLOAD as u64, REST)];
        let expected =
            writes.map(|(offset, len)| (Frame::Write { region, offset, len: len as u32 }, vec![5; len]));
        assert!(pipe.frames() == expected);
        assert_eq!(outbox.take_spent().places.len(), 3, "the source and its two parts");
        assert!(outbox.acknowledge(3).is_err());
        outbox.acknowledge(2).unwrap();
        assert_eq!(outbox.take_spent().remotes.len(), 1);
    });
}

#[test]
fn operations_wait_while_the_socket_takes_nothing_and_are_dropped_if_nothing_more_is_sent() {
    with_outbox(|mut outbox, remote, region, context| {
        let buffer = Arc::new(HostBuffer::new(context, 1024).unwrap());
        (0..3).for_each(|value| outbox.update(remote, region, 0, value));
        for _ in 0..READY + 7 {
            outbox.write(remote, region, 0, place(&buffer), 1024);
        }
        assert_eq!(outbox.progress(&Pipe::default()).unwrap(), Obstacle::Socket);
        assert_eq!((outbox.pieces.len(), outbox.waiting(), outbox.is_empty()), (READY, 3 + 8, false));
        drop(outbox.take_spent());
        outbox.clear();
        assert_eq!((outbox.waiting(), outbox.is_empty()), (0, true));
        let spent = outbox.take_spent();
        assert_eq!((spent.places.len(), spent.remotes.len()), (READY + 7, 1));
        let pipe = Pipe::with_room(usize::MAX);
        outbox.progress(&pipe).unwrap();
        assert!(pipe.frames().is_empty());
    });
}

/// The peer may have all of them: they share a piece, and the socket does not tell where it was cut.
#[test]
fn frames_of_a_piece_that_was_taken_in_part_may_be_acknowledged() {
    with_outbox(|mut outbox, remote, region, _| {
        (0..3).for_each(|value| outbox.update(remote, region, 0, value));
        assert_eq!(outbox.progress(&Pipe::default()).unwrap(), Obstacle::Socket);
        outbox.acknowledge(1).unwrap_err();
        assert_eq!(outbox.progress(&Pipe::with_room(1)).unwrap(), Obstacle::Socket);
        outbox.acknowledge(4).unwrap_err();
        outbox.acknowledge(3).unwrap();
    });
}

#[test]
fn an_acknowledgement_passes_all_that_the_socket_has_not_begun_to_take() {
    with_outbox(|mut outbox, remote, region, context| {
        let buffer = Arc::new(HostBuffer::new(context, 1024).unwrap());
        let write = |outbox: &mut Outbox| {
            outbox.write(remote, region, 0, place(&buffer), 1024);
        };
        let pipe = Pipe::default();
        (0..2).for_each(|_| write(&mut outbox));
        outbox.progress(&pipe).unwrap();
        outbox.acknowledge_to_peer(5);
        pipe.make_room(HEADER_BYTES + 1);
        outbox.progress(&pipe).unwrap();
        outbox.acknowledge_to_peer(5);
        outbox.acknowledge_to_peer(6);
        pipe.make_room(usize::MAX);
        assert_eq!(outbox.progress(&pipe).unwrap(), Obstacle::Nothing);
        let write = Frame::Write { region, offset: 0, len: 1024 };
        let order = pipe.frames().into_iter().map(|(frame, _)| frame);
        assert!(order.eq([Frame::Ack { count: 5 }, write, Frame::Ack { count: 6 }, write]));
    });
}

/// A stream that waits for the test.
struct Stuck(Stream, Arc<PinnedBuffer>);

impl Stuck {
    /// What `outbox` is asked for from now on waits for this stream.
    fn before(outbox: &mut Outbox, context: &Context) -> Self {
        let word = Arc::new(PinnedBuffer::new(context, 8).unwrap());
        let (stream, event) = (Stream::new(context).unwrap(), Event::new(context).unwrap());
        stream.wait_value64(&word.slice(..).unwrap(), 1).unwrap();
        event.record(&stream).unwrap();
        outbox.after(Waits::new(WaitStreams::new(context)).behind(&event).unwrap());
        Self(stream, word)
    }

    fn go_on(&self) {
        self.1.memory().word64(0).unwrap().store(1, Ordering::Release);
        self.0.synchronize(soon()).unwrap();
    }
}

#[test]
fn operations_behind_work_of_a_device_wait_for_it() {
    with_outbox(|mut outbox, remote, region, context| {
        let stuck = Stuck::before(&mut outbox, context);
        outbox.update(remote, region, 0, 7);
        let pipe = Pipe::with_room(usize::MAX);
        let early = (outbox.progress(&pipe).unwrap(), pipe.frames().len());
        stuck.go_on();
        let deadline = soon();
        while outbox.progress(&pipe).unwrap() != Obstacle::Nothing && !deadline.expired() {}
        // Asserted last: nobody waits for a device that stays stuck.
        assert_eq!(early, (Obstacle::Device, 0));
        assert_eq!(pipe.frames().len(), 1);
    });
}

#[test]
fn the_service_thread_is_told_once_to_look_for_idleness_and_then_asks() {
    with_outbox(|mut outbox, remote, region, _| {
        assert!(!outbox.must_watch(), "nothing was sent");
        outbox.update(remote, region, 0, 7);
        assert!(outbox.must_watch() && !outbox.must_watch());
        let Activity::Busy(mut due) = outbox.look_for_idleness() else { panic!("it has just been told") };
        assert!(outbox.counts.is_unasked(), "more may follow");
        loop {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            match outbox.look_for_idleness() {
                Activity::Busy(next) => due = next,
                activity => break assert_eq!(activity, Activity::Idle),
            }
        }
        assert!(!outbox.counts.is_unasked());
        assert!(!outbox.must_watch(), "everything so far is asked for");
        outbox.update(remote, region, 0, 8);
        assert!(outbox.must_watch());
    });
}

/// Several pieces lie in pinned memory at a time.
#[test]
fn device_memory_is_sent_piece_by_piece() {
    const LEN: usize = 9 * MAX_PAYLOAD + 8;
    with_outbox(|mut outbox, remote, region, context| {
        let buffer = Arc::new(crate::gpu::GpuBuffer::new(context, LEN).unwrap());
        let data: Vec<u8> = (0..LEN).map(|at| (at / 1000 % 251) as u8).collect();
        buffer.upload(0, &data, soon()).unwrap();
        outbox.write(remote, region, 16, Place::Device(buffer.slice(..).unwrap()), LEN);
        let (pipe, deadline) = (Pipe::with_room(usize::MAX), soon());
        while outbox.progress(&pipe).unwrap() != Obstacle::Nothing && !deadline.expired() {}
        assert!(outbox.is_empty());
        let mut at = 0;
        for (frame, bytes) in pipe.frames() {
            assert_eq!(frame, Frame::Write { region, offset: 16 + at as u64, len: bytes.len() as u32 });
            assert!(bytes == data[at..at + bytes.len()], "the piece at {at}");
            at += bytes.len();
        }
        assert_eq!(at, LEN);
    });
}

/// A socket whose peer has gone.
#[derive(Debug)]
struct Broken;

impl RawStream for Broken {
    fn read(&self, _: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
        unreachable!("an outbox receives nothing")
    }

    fn write(&self, _: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn shutdown(&self, _: bool) -> io::Result<()> {
        unreachable!("an outbox ends nothing")
    }

    fn fd(&self) -> BorrowedFd<'_> {
        unreachable!("nobody waits")
    }
}

#[test]
fn a_socket_that_will_take_nothing_more_is_an_error() {
    with_memories(|comm, [memory, _]| {
        let mut outbox = Outbox::new(Staging::alone(comm.context(), 4), 1, reads());
        let remote = memory.remote().unwrap().0;
        assert!(!outbox.wants_room(), "it has nothing to send");
        outbox.update(remote, remote.region().unwrap(), 0, 7);
        assert!(outbox.wants_room());
        let error = outbox.progress(&Broken).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (crate::error::ErrorKind::PeerLost, Some(1)), "{error}");
    });
}

#[test]
fn a_write_that_waits_in_line_asks_nothing_of_the_socket() {
    with_memories(|comm, [memory, _]| {
        let remote = memory.remote().unwrap().0;
        let region = remote.region().unwrap();
        let half = Arc::new(Half::new(comm.context(), 1).unwrap());
        let [mut first, mut second] =
            [(); 2].map(|()| Outbox::new(Staging::new(half.clone(), None), 1, reads()));
        let device = Arc::new(crate::gpu::GpuBuffer::new(comm.context(), 64).unwrap());
        for outbox in [&mut first, &mut second] {
            outbox.write(remote, region, 0, Place::Device(device.slice(..).unwrap()), 64);
        }
        let (full, free) = (Pipe::default(), Pipe::with_room(usize::MAX));
        while first.progress(&full).unwrap() != Obstacle::Socket {}
        assert_eq!(second.progress(&free).unwrap(), Obstacle::Memory);
        assert!(first.wants_room() && !second.wants_room() && !second.is_empty());
        // Once somebody waits, what the socket does not take is moved elsewhere, and nothing follows it.
        assert_eq!((first.progress(&full).unwrap(), first.spilled, half.free()), (Obstacle::Socket, 1, 1));
        first.write(remote, region, 0, Place::Device(device.slice(..).unwrap()), 64);
        assert_eq!(first.progress(&full).unwrap(), Obstacle::Socket);
        assert_eq!((first.spilled, half.free()), (1, 1));
        let deadline = soon();
        while second.progress(&free).unwrap() != Obstacle::Nothing && !deadline.expired() {}
        assert_eq!((free.frames().len(), second.is_empty()), (1, true));
        // Although a block is free again: all of a connection whose peer takes nothing would go there, piece by piece.
        assert_eq!(first.progress(&full).unwrap(), Obstacle::Socket);
        assert_eq!((first.spilled, half.free()), (1, 1));
        while first.progress(&free).unwrap() != Obstacle::Nothing && !deadline.expired() {}
        assert_eq!((free.frames().len(), first.spilled, half.free()), (3, 0, 1));
    });
}

/// The one block that there is belongs to whoever is first in the line and can use it.
#[test]
fn a_write_whose_turn_the_socket_puts_off_leaves_the_line() {
    with_memories(|comm, [memory, _]| {
        let remote = memory.remote().unwrap().0;
        let region = remote.region().unwrap();
        let half = Arc::new(Half::new(comm.context(), 1).unwrap());
        let [mut first, mut second] =
            [(); 2].map(|()| Outbox::new(Staging::new(half.clone(), None), 1, reads()));
        let mut holder = Staging::new(half.clone(), None);
        assert!(holder.take(64).is_some());
        let device = Arc::new(crate::gpu::GpuBuffer::new(comm.context(), 64).unwrap());
        let host = Arc::new(HostBuffer::new(comm.context(), 64).unwrap());
        let (full, free) = (Pipe::default(), Pipe::with_room(usize::MAX));
        for outbox in [&mut first, &mut second] {
            outbox.write(remote, region, 0, Place::Device(device.slice(..).unwrap()), 64);
        }
        assert_eq!(first.progress(&full).unwrap(), Obstacle::Memory);
        assert_eq!(second.progress(&free).unwrap(), Obstacle::Memory);
        // Answers go before, and the peer takes none of them.
        first.answer((0..READY).map(|_| (place(&host), 64))).unwrap();
        assert_eq!(first.progress(&full).unwrap(), Obstacle::Socket);
        holder.free_oldest();
        assert_eq!(first.progress(&full).unwrap(), Obstacle::Socket);
        let deadline = soon();
        while second.progress(&free).unwrap() != Obstacle::Nothing {
            assert!(!deadline.expired(), "the block is kept for one that cannot use it");
        }
        assert_eq!(free.frames().len(), 1);
    });
}
