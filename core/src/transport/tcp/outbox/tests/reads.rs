//! Reads, in both directions: what this rank asks for, and its answers to the peer.

use super::*;

/// A write must not overwrite what a read before it still reads, and may send what that read brings.
#[test]
fn writes_and_signals_behind_a_read_wait_for_its_bytes() {
    with_outbox(|mut outbox, remote, region, context| {
        let buffer = Arc::new(HostBuffer::new(context, 1024).unwrap());
        let pipe = Pipe::with_room(usize::MAX);
        let read = Frame::Read { region, offset: 8, len: 64 };
        outbox.read(remote, region, 8, place(&buffer).part(0, 64).unwrap(), 64);
        assert!(!outbox.write_now(remote, region, 0, buffer.memory().slice(0, 8).unwrap()).unwrap());
        outbox.update(remote, region, 0, 7);
        outbox.write(remote, region, 16, place(&buffer), 1024);
        assert_eq!(outbox.progress(&pipe).unwrap(), Obstacle::Answers);
        assert!(pipe.frames().into_iter().eq([(read, Vec::new())]));
        assert!(!outbox.is_empty() && !outbox.wants_room(), "the socket has room, and only the answer helps");
        outbox.reads.begin(64).unwrap();
        outbox.reads.landed();
        assert_eq!(outbox.progress(&pipe).unwrap(), Obstacle::Nothing);
        let signal = Frame::Update { region, offset: 0, value: 7 };
        let write = Frame::Write { region, offset: 16, len: 1024 };
        let frames = pipe.frames().into_iter().map(|(frame, _)| frame);
        assert!(frames.eq([read, signal, write]));
    });
}

/// The peer refuses more, and one system call takes those that may be sent.
#[test]
fn as_many_reads_are_sent_at_a_time_as_the_two_have_agreed_on() {
    with_outbox(|mut outbox, remote, region, context| {
        let buffer = Arc::new(HostBuffer::new(context, 8).unwrap());
        (0..=WINDOW).for_each(|_| outbox.read(remote, region, 0, place(&buffer), 8));
        assert_eq!((outbox.pieces.len(), outbox.operations.len()), (1, 1));
        let pipe = Pipe::with_room(usize::MAX);
        assert_eq!((outbox.progress(&pipe).unwrap(), pipe.frames().len()), (Obstacle::Answers, WINDOW));
        outbox.reads.begin(8).unwrap();
        outbox.reads.landed();
        assert_eq!((outbox.progress(&pipe).unwrap(), pipe.frames().len()), (Obstacle::Nothing, WINDOW + 1));
    });
}

#[test]
fn reads_that_wait_for_a_device_are_looked_at_again() {
    with_outbox(|mut outbox, remote, region, context| {
        let stuck = Stuck::before(&mut outbox, context);
        let buffer = Arc::new(HostBuffer::new(context, 64).unwrap());
        outbox.read(remote, region, 0, place(&buffer), 64);
        let pipe = Pipe::with_room(usize::MAX);
        let waits = outbox.progress(&pipe).unwrap();
        let looked_at = outbox.wants_room();
        stuck.go_on();
        // Asserted last: nobody waits for a device that stays stuck.
        assert_eq!((waits, looked_at), (Obstacle::Device, true));
    });
}

/// The peer asks for one part after the other, more of them than may be under way at a time.
#[test]
fn answers_are_sent_whole_and_are_over_once_the_socket_has_them() {
    with_outbox(|mut outbox, _, _, context| {
        let buffer = Arc::new(HostBuffer::new(context, 64).unwrap());
        let pipe = Pipe::with_room(usize::MAX);
        for round in 0..=WINDOW {
            buffer.memory().fill(round as u8);
            outbox.answer([(place(&buffer), 64)]).unwrap();
            assert!(outbox.wants_room() && !outbox.is_empty());
            // It must not overtake the bytes.
            outbox.acknowledge_to_peer(round as u64 + 1);
            assert_eq!(outbox.progress(&pipe).unwrap(), Obstacle::Nothing);
            assert!(outbox.is_empty());
        }
        let expected = (0..=WINDOW).flat_map(|round| {
            let answer = (Frame::Data { len: 64 }, vec![round as u8; 64]);
            [answer, (Frame::Ack { count: round as u64 + 1 }, Vec::new())]
        });
        assert!(pipe.frames().into_iter().eq(expected));
    });
}

/// So that they are sent in one system call.
#[test]
fn answers_are_made_ready_together_whatever_operations_wait_for() {
    with_outbox(|mut outbox, remote, region, context| {
        let buffer = Arc::new(HostBuffer::new(context, 64).unwrap());
        outbox.read(remote, region, 0, place(&buffer), 64);
        outbox.progress(&Pipe::with_room(usize::MAX)).unwrap();
        outbox.update(remote, region, 0, 7);
        outbox.answer((0..3).map(|_| (place(&buffer), 64))).unwrap();
        assert_eq!(outbox.progress(&Pipe::default()).unwrap(), Obstacle::Socket);
        assert_eq!(outbox.pieces.len(), 3);
    });
}

/// The rest of a piece is sent although nothing else is; its memory counts until then, if it was moved out of pinned memory.
#[test]
fn a_piece_that_was_begun_is_sent_whole_wherever_its_bytes_lie() {
    with_memories(|comm, [memory, _]| {
        let remote = memory.remote().unwrap().0;
        let region = remote.region().unwrap();
        let half = Arc::new(Half::new(comm.context(), 1).unwrap());
        let device = Arc::new(crate::gpu::GpuBuffer::new(comm.context(), 64).unwrap());
        device.upload(0, &[3_u8; 64], soon()).unwrap();
        let host = Arc::new(HostBuffer::new(comm.context(), 64).unwrap());
        host.memory().fill(3);
        let places = [place(&host), Place::Device(device.slice(..).unwrap())];
        for (source, moved_before) in [(&places[0], false), (&places[1], false), (&places[1], true)] {
            let mut outbox = Outbox::new(Staging::new(half.clone(), None), 1, reads());
            let mut other = Staging::new(half.clone(), None);
            outbox.write(remote, region, 0, source.clone(), 64);
            let (pipe, deadline) = (Pipe::with_room(10), soon());
            while outbox.progress(&pipe).unwrap() != Obstacle::Socket && !deadline.expired() {}
            if moved_before {
                assert!(other.take(64).is_none(), "the one block is lent");
                while outbox.progress(&pipe).unwrap() != Obstacle::Socket && !deadline.expired() {}
            }
            outbox.clear_behind_begun().unwrap();
            assert_eq!(outbox.spilled, usize::from(matches!(source, Place::Device(_))));
            pipe.make_room(usize::MAX);
            assert_eq!(outbox.progress(&pipe).unwrap(), Obstacle::Nothing);
            assert_eq!((outbox.spilled, outbox.is_empty()), (0, true));
            let write = (Frame::Write { region, offset: 0, len: 64 }, vec![3; 64]);
            assert!(pipe.frames() == [write]);
            // The next round takes the block.
            drop((outbox, other));
        }
    });
}
