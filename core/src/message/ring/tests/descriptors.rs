//! A process that has no descriptor left for those that the peer hands over.

use super::*;

/// A socket with descriptors on their way, in a process that has room for none.
#[derive(Debug)]
pub(in crate::message) struct Exhausted(pub(in crate::message) Socket);

impl RawStream for Exhausted {
    fn read(&self, _: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(libc::EMFILE))
    }

    unsafe fn read_parts(&self, parts: &mut [libc::iovec]) -> io::Result<usize> {
        // SAFETY: passed on.
        unsafe { self.0.read_parts(parts) }
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

/// Memory is read through its owner then. What announces the descriptors is taken all the same, or it would wake this side without end.
#[test]
fn without_room_for_descriptors_the_link_goes_on() {
    let (one, two) = UnixStream::pair().unwrap();
    let [one, two] = [one, two].map(|socket| {
        socket.set_nonblocking(true).unwrap();
        Socket(socket)
    });
    let [outbound, their_inbound] = mapped();
    let [their_outbound, inbound] = mapped();
    let sender = RingWire::new(Box::new(one), Rings { inbound, outbound });
    let rings = Rings { inbound: their_inbound, outbound: their_outbound };
    let receiver = RingWire::new(Box::new(Exhausted(two)), rings);
    let mut kept = Kept::default();
    for number in 0..3 {
        assert!(!receiver.arm().unwrap());
        assert!(sender.send_descriptor(sender.socket().fd()));
        let body = body(number);
        assert!(sender.push(head(1, &body), &body).unwrap() && is_readable(&receiver));
        receiver.pull(&mut kept).unwrap();
        assert_eq!((kept.frames.len(), is_readable(&receiver)), (number + 1, false));
        assert!(receiver.take_descriptor().is_none());
        receiver.take_room();
    }
    assert!(!receiver.has_ended());
}
