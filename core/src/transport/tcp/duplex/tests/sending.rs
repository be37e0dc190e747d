//! Connections that cannot send.

use super::*;

/// Two ranks that fill each other's sockets would otherwise wait for each other.
#[test]
fn a_peer_that_reads_nothing_is_still_read() {
    with_duplex(|Rig { comm, duplex, memory, buffer, region }| {
        let mut far = attach(duplex);
        far.say(&[Frame::Ask]);
        assert_eq!(far.hear(), Frame::Ack { count: 1 }, "the service thread waits for the socket");
        let remote = memory.remote().unwrap().0;
        let large = Arc::new(HostBuffer::new(comm.context(), 8 * MAX_PAYLOAD).unwrap());
        let len = large.len();
        duplex.outbox(|outbox| outbox.write(remote, remote.region().unwrap(), 0, place(&large), len));
        duplex.outbox(Outbox::ask);
        duplex.kick().unwrap();
        // The turn of the service thread has ended by then: the second kick is the last that it hears of.
        std::thread::sleep(Duration::from_millis(5));
        duplex.kick().unwrap();
        far.say(&[Frame::Update { region, offset: 8, value: 7 }]);
        wait_for("nobody receives while nothing can be sent", || {
            duplex.kick().unwrap();
            buffer.memory().word64(8).unwrap().load(Ordering::Acquire) == 7
        });
        assert!(!duplex.outbox(|outbox| outbox.is_empty()), "the socket has taken everything");
        duplex.fail(&Error::new(ErrorKind::Remote, "x", "the test ends"), false);
    });
}

/// A socket that takes nothing any more, and has the peer's last words, or none.
#[derive(Debug)]
struct Quit(Mutex<Vec<u8>>, UnixStream);

impl RawStream for Quit {
    fn read(&self, into: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let mut words = lock(&self.0);
        let count = words.len().min(into.len());
        into[..count].copy_from_slice(&words[..count]);
        words.drain(..count);
        if count == 0 { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(count) }
    }

    fn write(&self, _: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn shutdown(&self, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.1.as_fd()
    }
}

/// Only calls send and receive.
#[test]
fn whoever_cannot_send_quotes_the_peers_last_words_if_there_are_any() {
    let words = b"the disk is full";
    let last = [&Frame::Fail { len: words.len() as u32 }.encode()[..], words].concat();
    for (said, kind, quoted) in
        [(last, ErrorKind::Remote, "the disk is full"), (Vec::new(), ErrorKind::PeerLost, "broken pipe")]
    {
        with_duplex(|Rig { duplex, memory, .. }| {
            let socket = Quit(Mutex::new(said.clone()), UnixStream::pair().unwrap().0);
            duplex.attach_unserved(Box::new(socket));
            update(duplex, memory, 7);
            let error = duplex.kick().unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(quoted), "{error}");
        });
    }
}
