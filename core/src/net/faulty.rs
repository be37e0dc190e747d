//! Streams that fail where [`NetFaults`] says so.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use super::claims::{Claims, purpose};
use super::raw::{Layer, RawStream};
use super::sys;
use crate::fault::{GATHERING, LinkKind, NetAction, NetFaults, Step, Take, Track};
use crate::sync::{Mutex, lock};

impl Layer for NetFaults {
    fn wrap(&self, local: Claims, peer: Claims, raw: Box<dyn RawStream>) -> Box<dyn RawStream> {
        let kind = match local.purpose {
            purpose::RENDEZVOUS => Some(LinkKind::Rendezvous),
            purpose::BOOTSTRAP => Some(LinkKind::Bootstrap),
            purpose::CONTROL => Some(LinkKind::Control),
            purpose::DATA => Some(LinkKind::Data),
            purpose::MESSAGES => Some(LinkKind::Messages),
            _ => None,
        };
        let sent = self.track(local.from, peer.from, kind);
        let received = self.track_received(peer.from, local.from, kind);
        if sent.is_none() && received.is_none() {
            return raw;
        }
        let state = sent.map(|track| Mutex::new(State { track, inserted: Vec::new(), fate: Fate::Works }));
        Box::new(Faulty { raw, state, received: received.map(Mutex::new) })
    }
}

/// A stream of which one or both sides are tampered with.
#[derive(Debug)]
struct Faulty {
    raw: Box<dyn RawStream>,
    /// Of the sending side.
    state: Option<Mutex<State>>,
    received: Option<Mutex<Track>>,
}

#[derive(Debug)]
struct State {
    track: Track,
    /// Bytes that the sender has not asked to send; they go before its next ones.
    inserted: Vec<u8>,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Works,
    /// Writes report success and send nothing.
    Swallows,
    Dropped,
}

impl RawStream for Faulty {
    fn read(&self, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let Some(received) = &self.received else { return self.raw.read(into, fds) };
        let mut track = lock(received);
        // A read of an empty socket must not wait, nor use up a fault. A byte may still come between this look and the read: it is taken alone,
        // so that the faults to come cut the rest.
        let take = if sys::arrived(self.raw.fd())? == 0 { Take::Now(1) } else { track.take() };
        let (Take::Now(most) | Take::Gathered(most)) = take;
        let most = most.min(into.len());
        if let Take::Gathered(_) = take {
            self.gather(most)?;
        }
        let got = self.raw.read(&mut into[..most], fds)?;
        track.advance(&into[..got]);
        Ok(got)
    }

    fn write(&self, from: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let Some(state) = &self.state else { return self.raw.write(from, fds) };
        let mut state = lock(state);
        let state = &mut *state;
        loop {
            match state.fate {
                Fate::Works => {}
                Fate::Swallows => return Ok(from.len()),
                Fate::Dropped => return Err(io::ErrorKind::BrokenPipe.into()),
            }
            while !state.inserted.is_empty() {
                let written = self.raw.write(&state.inserted, &[])?;
                state.inserted.drain(..written);
            }
            let count = |bytes: usize| bytes.min(from.len());
            match state.track.step(from) {
                Step::Pass(most, pause) => {
                    std::thread::sleep(pause);
                    let written = self.raw.write(&from[..most], fds)?;
                    state.track.advance(&from[..written]);
                    return Ok(written);
                }
                Step::Act(NetAction::Drop) => {
                    state.fate = Fate::Dropped;
                    self.raw.shutdown(true)?;
                }
                Step::Act(NetAction::Truncate) => {
                    state.fate = Fate::Swallows;
                    self.raw.shutdown(false)?;
                }
                Step::Act(NetAction::Stall) => state.fate = Fate::Swallows,
                Step::Act(NetAction::Delay(time)) => std::thread::sleep(time),
                Step::Act(NetAction::Fragment | NetAction::Coalesce) => {}
                Step::Act(NetAction::Lose(bytes)) => {
                    state.track.advance(&from[..count(bytes)]);
                    return Ok(count(bytes));
                }
                Step::Act(NetAction::Duplicate(bytes)) => {
                    state.inserted.extend_from_slice(&from[..count(bytes)]);
                }
                Step::Act(NetAction::Corrupt(bytes)) => {
                    let mut changed = from[..count(bytes)].to_vec();
                    state.track.corrupt(&mut changed);
                    state.track.advance(&from[..changed.len()]);
                    let written = self.raw.write(&changed, fds).or_else(would_block_is_none)?;
                    let reported = changed.len();
                    state.inserted.extend_from_slice(&changed[written..]);
                    return Ok(reported);
                }
            }
        }
    }

    fn shutdown(&self, both: bool) -> io::Result<()> {
        match &self.state {
            Some(state) if lock(state).fate != Fate::Works => Ok(()),
            _ => self.raw.shutdown(both),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.raw.fd()
    }
}

impl Faulty {
    /// Waits until `bytes` have arrived, but not for long. The kernel keeps what has arrived, so that nothing is lost if nobody
    /// reads again.
    fn gather(&self, bytes: usize) -> io::Result<()> {
        let until = Instant::now() + GATHERING;
        while sys::arrived(self.raw.fd())? < bytes && Instant::now() < until {
            std::thread::sleep(GATHERING / 16);
        }
        Ok(())
    }
}

fn would_block_is_none(error: io::Error) -> io::Result<usize> {
    if error.kind() == io::ErrorKind::WouldBlock { Ok(0) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::fault::NetFault;

    /// A socket that keeps what came through.
    #[derive(Debug, Default)]
    struct Record {
        written: Vec<u8>,
        /// Bytes that it takes before it would block.
        room: usize,
        /// Whether both directions were shut down, in order.
        shutdowns: Vec<bool>,
    }

    /// A real socket.
    #[derive(Debug)]
    struct Socket(UnixStream);

    impl RawStream for Socket {
        fn read(&self, into: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
            (&self.0).read(into)
        }

        fn write(&self, from: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
            (&self.0).write(from)
        }

        fn shutdown(&self, _: bool) -> io::Result<()> {
            unreachable!("nobody ends it")
        }

        fn fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    #[derive(Debug)]
    struct Recorder(Arc<Mutex<Record>>);

    impl RawStream for Recorder {
        fn read(&self, into: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
            into[..3].copy_from_slice(b"abc");
            Ok(3)
        }

        fn write(&self, from: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
            let mut socket = lock(&self.0);
            let taken = from.len().min(socket.room);
            socket.room -= taken;
            socket.written.extend_from_slice(&from[..taken]);
            if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
        }

        fn shutdown(&self, both: bool) -> io::Result<()> {
            lock(&self.0).shutdowns.push(both);
            Ok(())
        }

        fn fd(&self) -> BorrowedFd<'_> {
            unreachable!("nobody waits")
        }
    }

    /// A stream of rank 0 to rank 1 for `purpose` with these faults, and its socket.
    fn stream(purpose: u16, faults: &[NetFault], room: usize) -> (Box<dyn RawStream>, Arc<Mutex<Record>>) {
        let socket = Arc::new(Mutex::new(Record { room, ..Record::default() }));
        let local = Claims { purpose, scope: 0, from: 0, to: 1 };
        let peer = Claims { from: 1, to: 0, ..local };
        let faults = NetFaults::new(faults.iter().cloned(), 1);
        (faults.wrap(local, peer, Box::new(Recorder(socket.clone()))), socket)
    }

    /// Sends `bytes` until all are reported as sent, or an error.
    fn send(stream: &dyn RawStream, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            bytes = &bytes[stream.write(bytes, &[])?..];
        }
        Ok(())
    }

    #[test]
    fn faults_meet_only_streams_of_their_kind() {
        let of_purposes = [
            (purpose::RENDEZVOUS, LinkKind::Rendezvous),
            (purpose::BOOTSTRAP, LinkKind::Bootstrap),
            (purpose::CONTROL, LinkKind::Control),
            (purpose::DATA, LinkKind::Data),
            (purpose::MESSAGES, LinkKind::Messages),
        ];
        for (purpose, own) in of_purposes {
            for (_, kind) in of_purposes {
                let (stream, _) = stream(purpose, &[NetFault::new(NetAction::Drop).on(kind)], 9);
                assert_eq!(send(&*stream, b"x").is_err(), kind == own, "{purpose}: {kind:?}");
            }
        }
        let (stream, socket) = stream(99, &[NetFault::new(NetAction::Drop).on(LinkKind::Data)], 9);
        send(&*stream, b"x").unwrap();
        assert_eq!(lock(&socket).written, b"x", "a stream of somebody else");
    }

    #[test]
    fn each_fault_does_what_it_says() {
        let run = |action| {
            let (stream, socket) = stream(purpose::DATA, &[NetFault::new(action).after_bytes(2)], 99);
            let sent = send(&*stream, b"abcdefgh").and_then(|()| send(&*stream, b"ij"));
            let mut read = [0; 8];
            assert_eq!(stream.read(&mut read, &mut Vec::new()).unwrap(), 3);
            assert_eq!(&read[..3], b"abc", "the other direction is left alone");
            stream.shutdown(true).unwrap();
            drop(stream);
            let socket = lock(&socket);
            (sent.is_ok(), socket.written.clone(), socket.shutdowns.clone())
        };
        let text = |text: &str| text.as_bytes().to_vec();
        assert_eq!(run(NetAction::Delay(Duration::ZERO)), (true, text("abcdefghij"), vec![true]));
        assert_eq!(run(NetAction::Lose(3)), (true, text("abfghij"), vec![true]));
        assert_eq!(run(NetAction::Duplicate(3)), (true, text("abcdecdefghij"), vec![true]));
        assert_eq!(run(NetAction::Stall), (true, text("ab"), vec![]));
        assert_eq!(run(NetAction::Truncate), (true, text("ab"), vec![false]));
        assert_eq!(run(NetAction::Drop), (false, text("ab"), vec![true]));
        let (sent, written, shutdowns) = run(NetAction::Corrupt(3));
        assert_eq!((sent, written.len(), shutdowns), (true, 10, vec![true]));
        assert!(written.starts_with(b"ab") && written.ends_with(b"fghij") && written[2..5] != *b"cde");
    }

    /// A pair of sockets, the second of which gathers as rank 1 from byte 5 on.
    fn gathering() -> (UnixStream, Box<dyn RawStream>, NetFaults) {
        let [one, other] = <[_; 2]>::from(UnixStream::pair().unwrap());
        other.set_nonblocking(true).unwrap();
        let local = Claims { purpose: purpose::DATA, scope: 0, from: 1, to: 0 };
        let peer = Claims { from: 0, to: 1, ..local };
        let faults = NetFaults::new([NetFault::new(NetAction::Coalesce).from_rank(0).after_bytes(5)], 1);
        let stream = faults.wrap(local, peer, Box::new(Socket(other)));
        (one, stream, faults)
    }

    #[test]
    fn gathered_reads_end_at_the_place_and_then_take_what_has_come_together() {
        let (mut one, stream, faults) = gathering();
        let bytes: Vec<u8> = (0..40_000).map(|at| (at * 7) as u8).collect();
        let read = |into: &mut [u8]| stream.read(into, &mut Vec::new());
        assert_eq!(read(&mut [0; 9]).unwrap_err().kind(), io::ErrorKind::WouldBlock, "nothing has come");
        // Sixteen writes arrive before the first read.
        bytes.chunks(2500).for_each(|write| one.write_all(write).unwrap());
        let (mut came, mut lengths) = (Vec::new(), Vec::new());
        while came.len() < bytes.len() {
            let mut into = [0; 16 << 10];
            let got = read(&mut into).unwrap();
            came.extend_from_slice(&into[..got]);
            lengths.push(got);
        }
        assert_eq!((came == bytes, lengths[0], faults.fired()), (true, 5, 1));
        assert!(lengths.iter().any(|&got| got > 2500), "some hold bytes of several writes: {lengths:?}");
        assert!(lengths[1..].iter().any(|&got| got < 64) && lengths.iter().all(|&got| got <= 8192));
        assert_eq!(read(&mut [0; 9]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(one);
        assert_eq!(read(&mut [0; 9]).unwrap(), 0, "the end of the stream comes, too");
    }

    /// Nothing follows the last byte, so no read that waits for more may wait for ever.
    #[test]
    fn a_byte_that_nothing_follows_is_read() {
        let (mut one, stream, faults) = gathering();
        one.write_all(&[1; 5]).unwrap();
        assert_eq!(stream.read(&mut [0; 99], &mut Vec::new()).unwrap(), 5);
        let nothing = stream.read(&mut [0; 99], &mut Vec::new()).unwrap_err();
        assert_eq!(
            (nothing.kind(), faults.fired()),
            (io::ErrorKind::WouldBlock, 0),
            "no byte came behind the place"
        );
        for number in 0..100 {
            one.write_all(&[number]).unwrap();
            let mut into = [0; 99];
            assert_eq!((stream.read(&mut into, &mut Vec::new()).unwrap(), into[0]), (1, number));
        }
    }

    /// The second byte of each pair leaves a little later than the first: only a read that waits has both.
    #[test]
    fn a_read_waits_a_moment_for_what_comes_behind() {
        let (mut one, stream, _) = gathering();
        one.write_all(&[1; 5]).unwrap();
        let read = || stream.read(&mut [0; 99], &mut Vec::new());
        assert_eq!(read().unwrap(), 5);
        let mut together = 0;
        // A busy machine may let the moment pass.
        for _ in 0..2000 {
            one.write_all(&[1]).unwrap();
            let mut other = one.try_clone().unwrap();
            let later = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_micros(300));
                other.write_all(&[2]).unwrap();
            });
            let got = read().unwrap();
            later.join().unwrap();
            together += u32::from(got == 2);
            if got == 1 {
                assert_eq!(read().unwrap(), 1);
            }
            if together == 40 {
                return;
            }
        }
        panic!("{together} of 2000 pairs came together");
    }

    /// The changed bytes are reported as sent, so they come before the next ones, also if the socket takes none of them now.
    #[test]
    fn corrupted_bytes_that_do_not_fit_are_sent_with_the_next() {
        for room in [2, 3] {
            let fault = NetFault::new(NetAction::Corrupt(3)).after_bytes(2);
            let (stream, socket) = stream(purpose::DATA, &[fault], room);
            assert_eq!(stream.write(b"abcdefgh", &[]).unwrap(), 2);
            assert_eq!(stream.write(b"cdefgh", &[]).unwrap(), 3, "as if all were sent");
            assert_eq!(stream.write(b"fgh", &[]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            assert_eq!(lock(&socket).written.len(), room);
            lock(&socket).room = 99;
            send(&*stream, b"fgh").unwrap();
            let written = &lock(&socket).written;
            assert_eq!(written.len(), 8);
            assert!(written.starts_with(b"ab") && written.ends_with(b"fgh") && written[2..5] != *b"cde");
        }
    }

    #[test]
    fn only_a_full_socket_counts_as_nothing_written() {
        let error = |kind: io::ErrorKind| would_block_is_none(kind.into());
        assert_eq!(error(io::ErrorKind::WouldBlock).unwrap(), 0);
        assert_eq!(error(io::ErrorKind::BrokenPipe).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
