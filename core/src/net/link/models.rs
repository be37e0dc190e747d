//! Every order in which a sender and the service thread can meet.

use std::time::Duration;

use super::*;
use crate::sync::AtomicU32;

/// A socket that is full until somebody makes room, and takes everything then.
#[derive(Debug)]
struct Narrow {
    room: Arc<AtomicU32>,
    file: std::fs::File,
}

impl RawStream for Narrow {
    fn read(&self, _: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn write(&self, from: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
        match self.room.load(Ordering::Acquire) {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(from.len()),
        }
    }

    fn shutdown(&self, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A service thread that does nothing.
#[derive(Debug)]
struct Nobody;

impl LinkService for Nobody {
    fn register(&self, _: BorrowedFd<'_>, _: u32, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn unregister(&self, _: BorrowedFd<'_>) {}

    fn watch(&self, _: BorrowedFd<'_>, _: u32, _: u64) {}

    fn close(&self, _: u64) {}

    fn failed(&self, _: u64) {}

    fn rest(&self, _: u64) {}
}

fn link() -> (Link, Arc<AtomicU32>) {
    let room = Arc::new(AtomicU32::new(0));
    let file = std::fs::File::open("/dev/null").unwrap();
    let claims = Claims { purpose: 0, scope: 0, from: 1, to: 0 };
    let raw = Box::new(Narrow { room: room.clone(), file });
    (Link::new(1, raw, claims, 64, Arc::new(Nobody)), room)
}

/// A frame that met a full socket is sent by the service thread, and a flush of it always ends.
#[test]
fn loom_a_flush_is_woken_when_the_socket_takes_more() {
    loom::model(|| {
        let (link, room) = link();
        let service = link.clone();
        let thread = loom::thread::spawn(move || {
            room.store(1, Ordering::Release);
            service.inner.writable();
        });
        link.post(1, b"x").unwrap();
        // If the service thread looked before the post, epoll makes it look again.
        let service = link.clone();
        let again = loom::thread::spawn(move || {
            thread.join().unwrap();
            service.inner.writable();
        });
        link.flush(Deadline::after(Duration::MAX)).unwrap();
        again.join().unwrap();
    });
}

/// A flush ends with the reason when the link fails, whichever comes first.
#[test]
fn loom_a_flush_is_woken_when_the_link_fails() {
    loom::model(|| {
        let (link, _room) = link();
        let service = link.clone();
        let thread = loom::thread::spawn(move || {
            service.inner.fail(Error::peer_lost("recv", 1, "its connection ended"));
        });
        let posted = link.post(1, b"x");
        let flushed = link.flush(Deadline::after(Duration::MAX));
        if posted.is_ok() {
            assert_eq!(flushed.unwrap_err().peer(), Some(1), "what was posted was never sent");
        }
        thread.join().unwrap();
        assert!(link.post(1, b"y").is_err());
    });
}
