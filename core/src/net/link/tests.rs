//! A link over a socket whose peer reads as fast as it is written to.

use std::time::Duration;

use super::*;
use crate::sync::AtomicU64;

/// Takes a part of every write, and is never full.
#[derive(Debug)]
struct Open {
    taken: Arc<AtomicU64>,
    /// The number of descriptors of each write.
    descriptors: Arc<Mutex<Vec<usize>>>,
    file: std::fs::File,
}

impl RawStream for Open {
    fn read(&self, _: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn write(&self, from: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        lock(&self.descriptors).push(fds.len());
        let part = from.len().min(100_000);
        self.taken.fetch_add(part as u64, Ordering::Relaxed);
        Ok(part)
    }

    fn shutdown(&self, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A service thread that counts how often it is asked to tell when a socket takes more.
#[derive(Debug, Default)]
struct Asked(AtomicU64);

impl LinkService for Asked {
    fn register(&self, _: BorrowedFd<'_>, _: u32, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn unregister(&self, _: BorrowedFd<'_>) {}

    fn watch(&self, _: BorrowedFd<'_>, events: u32, _: u64) {
        self.0.fetch_add(u64::from(events & sys::WRITE != 0), Ordering::Relaxed);
    }

    fn close(&self, _: u64) {}

    fn failed(&self, _: u64) {}

    fn rest(&self, _: u64) {}
}

fn open() -> (Link, Arc<AtomicU64>, Arc<Asked>) {
    open_noting(Arc::default())
}

/// Each write notes the number of its descriptors.
fn open_noting(descriptors: Arc<Mutex<Vec<usize>>>) -> (Link, Arc<AtomicU64>, Arc<Asked>) {
    let (taken, service) = (Arc::new(AtomicU64::new(0)), Arc::new(Asked::default()));
    let file = std::fs::File::open("/dev/null").unwrap();
    let raw = Box::new(Open { taken: taken.clone(), descriptors, file });
    let claims = Claims { purpose: 0, scope: 0, from: 1, to: 0 };
    (Link::new(1, raw, claims, u32::MAX, service.clone()), taken, service)
}

/// Otherwise a long message holds its sender, and everybody who waits for the lock, past every deadline.
#[test]
fn one_turn_writes_a_bounded_part_of_a_long_message() {
    const LONG: usize = 16 << 20;
    const MOST: u64 = 1 << 20;
    let (link, taken, service) = open();
    link.post(1, &vec![7; LONG]).unwrap();
    assert!(taken.load(Ordering::Relaxed) <= MOST, "{taken:?} bytes in one turn");
    assert_eq!(service.0.load(Ordering::Relaxed), 1, "the service thread goes on");
    let late = link.flush(Deadline::after(Duration::ZERO)).unwrap_err();
    assert_eq!((late.kind(), late.peer()), (ErrorKind::Timeout, Some(1)));
    // A short message behind it waits for its turn.
    link.post(1, b"short").unwrap();
    let mut turns = 0;
    while link.flush(Deadline::after(Duration::ZERO)).is_err() {
        let before = taken.load(Ordering::Relaxed);
        link.inner.writable();
        assert!((1..=MOST).contains(&(taken.load(Ordering::Relaxed) - before)));
        turns += 1;
    }
    assert!((15..=17).contains(&turns), "{turns} turns");
    assert_eq!(taken.load(Ordering::Relaxed), link.sent());
}

/// Whoever has sent a long message goes on when the kernel has it, although others keep the queue full.
#[test]
fn a_flush_waits_for_no_more_than_was_posted_before() {
    let (link, _, _) = open();
    link.post(1, &vec![7; 3 << 20]).unwrap();
    std::thread::scope(|scope| {
        let all = lock(&link.inner.out).posted;
        let flush = scope.spawn(|| link.flush(Deadline::after(Duration::from_secs(3600))).unwrap());
        // The next message lies behind it, and is never sent.
        while lock(&link.inner.out).written < all - (1 << 20) {
            link.inner.writable();
        }
        // Whether it has begun to wait, it need not say: then it finds the bytes written.
        std::thread::sleep(Duration::from_millis(20));
        link.post(1, &vec![7; 3 << 20]).unwrap();
        link.inner.writable();
        flush.join().unwrap();
    });
    assert!(!lock(&link.inner.out).queue.is_empty());
}

/// Threads that send more than a link holds wait for room, until their deadline.
#[test]
fn a_send_waits_for_room() {
    let (link, taken, _) = open();
    std::thread::scope(|scope| {
        let send = || link.send(1, &vec![7; 16 << 20], Deadline::after(Duration::from_secs(3600))).unwrap();
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(send)).collect();
        while lock(&link.inner.out).queued() <= MAX_QUEUED - (16 << 20) {
            std::thread::yield_now();
        }
        let late = link.send(1, &vec![7; 32 << 20], Deadline::after(Duration::ZERO)).unwrap_err();
        assert_eq!((late.kind(), late.op()), (ErrorKind::Timeout, "send"), "{late}");
        let full = link.post(1, &vec![7; 32 << 20]).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::Remote, "{full}");
        while threads.iter().any(|thread| !thread.is_finished()) {
            link.inner.writable();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(taken.load(Ordering::Relaxed), link.sent());
}

/// A socket may take a frame in parts, and the peer would get descriptors that come with each of them once too often.
#[test]
fn descriptors_go_with_the_first_part_of_their_frame_alone() {
    let noted = Arc::<Mutex<Vec<usize>>>::default();
    let (link, ..) = open_noting(noted.clone());
    let fds = |count| (0..count).map(|_| std::fs::File::open("/dev/null").unwrap().into()).collect();
    link.post_fds(1, &vec![7; 250_000], fds(2)).unwrap();
    link.post_fds(1, b"short", fds(1)).unwrap();
    assert_eq!(*lock(&noted), [2, 0, 0, 1]);
}
