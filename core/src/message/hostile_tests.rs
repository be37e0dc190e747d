//! Peers that misuse the handing over of memory: owners that hand over anything, and readers that take no end of it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::Wrap;
use super::head::{Head, Operation};
use super::lent::Lent;
use super::mappings::Place;
use super::ring::{RingMemory, RingWire, Rings};
use super::shared::{HEADER, WORDS};
use super::wire::{Sink, Wire};
use super::*;
use crate::env::Selection;
use crate::error::{ErrorKind, Result};
use crate::net::{Address as Socket, Claims, Network, purpose};
use crate::shm::{Published, Segment};
use crate::sync::{AtomicUsize, Mutex, Ordering, lock};

const SOON: Duration = Duration::from_secs(30);
const LENGTH: usize = 10_000;

/// Gives the descriptor to hand over in place of another one.
type Hand = dyn Fn(BorrowedFd<'_>) -> Option<OwnedFd> + Send + Sync;

/// The ways of a peer that does not keep to the rules.
#[derive(Clone)]
struct Ways {
    /// Gives the descriptor that it hands over in place of its memory; nothing at all if `None`.
    hand: Arc<Hand>,
    /// Changes the description that goes with it.
    place: fn(Place) -> Place,
    /// Whether it finds no descriptor that comes.
    loses: bool,
    /// Whether it has no place for a descriptor on its way, and sends the data.
    keeps: bool,
}

/// The wire of such a peer.
#[derive(Debug)]
struct Crooked {
    inner: Box<dyn Wire>,
    ways: Ways,
}

impl std::fmt::Debug for Ways {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ways")
    }
}

impl Wire for Crooked {
    fn name(&self) -> &'static str {
        "crooked"
    }

    fn max_body(&self) -> usize {
        self.inner.max_body()
    }

    fn push(&self, head: Head, body: &[u8]) -> Result<bool> {
        if head.operation == Operation::Mapped {
            let place = (self.ways.place)(Place::decode(body).unwrap());
            return self.inner.push(head, &place.encode());
        }
        self.inner.push(head, body)
    }

    fn push_lent(&self, head: Head, body: Lent) -> Result<bool> {
        self.inner.push_lent(head, body)
    }

    fn kick(&self) -> Result<bool> {
        self.inner.kick()
    }

    fn take_room(&self) -> bool {
        self.inner.take_room()
    }

    fn pull(&self, sink: &mut dyn Sink) -> Result<usize> {
        self.inner.pull(sink)
    }

    fn arm(&self) -> Result<bool> {
        self.inner.arm()
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.descriptors()
    }

    fn waits_for_room(&self) -> bool {
        self.inner.waits_for_room()
    }

    fn gathers(&self) -> bool {
        self.inner.gathers()
    }

    fn pull_is_syscall(&self) -> bool {
        self.inner.pull_is_syscall()
    }

    fn passes_descriptors(&self) -> bool {
        self.inner.passes_descriptors()
    }

    fn send_descriptor(&self, fd: BorrowedFd<'_>) -> bool {
        match (self.ways.hand)(fd) {
            _ if self.ways.keeps => false,
            Some(other) => self.inner.send_descriptor(other.as_fd()),
            None => true,
        }
    }

    fn take_descriptor(&self) -> Option<OwnedFd> {
        self.inner.take_descriptor().filter(|_| !self.ways.loses)
    }

    fn has_ended(&self) -> bool {
        self.inner.has_ended()
    }

    fn close(&self, both: bool) {
        self.inner.close(both);
    }
}

fn honest() -> Ways {
    let hand = Arc::new(|fd: BorrowedFd<'_>| Some(fd.try_clone_to_owned().unwrap()));
    Ways { hand, place: |place| place, loses: false, keeps: false }
}

fn messenger(rank: u32, ways: Ways) -> Messenger {
    let interfaces = Selection { names: Some("lo".into()), ..Selection::default() };
    let mut config =
        MessengerConfig::default().with_secret(Secret::from_bytes([7; 32])).with_interfaces(interfaces);
    config.wrap = Wrap(Some(Arc::new(move |inner| Box::new(Crooked { inner, ways: ways.clone() }))));
    Messenger::new(rank, config).unwrap()
}

/// The outcomes of two reads, one after the other, of shared memory full of 7, and whether the owner is still there. The first one goes to a
/// vector, the second one to shared memory.
fn read(owner: Ways, reader: Ways) -> (Vec<std::result::Result<bool, ErrorKind>>, bool) {
    let (a, b) = (messenger(0, reader), messenger(1, owner));
    let memory = SharedMemory::allocate(LENGTH).unwrap();
    memory.fill(7);
    let exposed = b.expose(&memory).unwrap();
    let (peer, seen) = (a.connect(b.address(), SOON).unwrap(), Arc::new(Mutex::new(Vec::new())));
    let into = SharedMemory::allocate(LENGTH).unwrap();
    for count in 1..=2 {
        let (log, place) = (seen.clone(), into.clone());
        let tell = move |good: Result<bool>| lock(&log).push(good.map_err(|error| error.kind()));
        let begun = if count == 1 {
            let done = move |outcome: Result<Vec<u8>>| tell(outcome.map(|bytes| bytes == [7; LENGTH]));
            peer.read(&exposed.token(), 0, vec![0; LENGTH], SOON, done).is_ok()
        } else {
            let came = move || {
                let mut bytes = [0; LENGTH];
                place.read(0, &mut bytes).map(|()| bytes == [7; LENGTH])
            };
            let done = move |outcome: Result<()>| tell(outcome.and_then(|()| came()));
            peer.read_into(&exposed.token(), 0, &into, SOON, done).is_ok()
        };
        if !begun {
            break;
        }
        let start = Instant::now();
        while lock(&seen).len() < count {
            a.poll().unwrap();
            b.poll().unwrap();
            assert!(start.elapsed() < SOON, "not in time");
        }
    }
    // The reader goes on with others.
    let (c, queue) = (messenger(2, honest()), a.queue(1).unwrap());
    assert_eq!(c.connect(a.address(), SOON).unwrap().send(1, b"hello").unwrap(), Sent::Done);
    let start = Instant::now();
    while queue.is_empty() {
        a.poll().unwrap();
        c.poll().unwrap();
        assert!(start.elapsed() < SOON, "not in time");
    }
    let seen = lock(&seen).clone();
    (seen, peer.lost().is_none())
}

fn handing(hand: impl Fn(BorrowedFd<'_>) -> Option<OwnedFd> + Send + Sync + 'static) -> Ways {
    Ways { hand: Arc::new(hand), ..honest() }
}

fn saying(place: fn(Place) -> Place) -> Ways {
    Ways { place, ..honest() }
}

/// A memfd of `length` bytes, which may be sealed against anything that it says.
fn memfd(length: usize, sealed: bool) -> OwnedFd {
    if sealed {
        return Segment::create(length).unwrap().into_parts().1;
    }
    // SAFETY: the name is a C string, the result checked and nobody else's.
    let file = unsafe {
        let fd = libc::memfd_create(c"hostile".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0);
        File::from_raw_fd(fd)
    };
    file.set_len(length as u64).unwrap();
    file.into()
}

#[test]
fn an_honest_owner_is_read() {
    assert_eq!(read(honest(), honest()), (vec![Ok(true); 2], true));
}

/// Without a descriptor, or with one that is lost on the way, the data comes through the owner.
#[test]
fn without_a_descriptor_data_is_sent() {
    assert_eq!(read(handing(|_| None), honest()), (vec![Ok(true); 2], true));
    let loses = Ways { loses: true, ..honest() };
    assert_eq!(read(honest(), loses), (vec![Ok(true); 2], true));
    let keeps = Ways { keeps: true, ..honest() };
    assert_eq!(read(keeps, honest()), (vec![Ok(true); 2], true));
    // Longer than anything that is mapped.
    let long = saying(|place| Place { length: 1 << 50, ..place });
    assert_eq!(read(long, honest()), (vec![Ok(true); 2], true));
}

/// A reader touches nothing that could end it with a signal: the owner's link ends.
#[test]
fn descriptors_of_other_things_end_the_link() {
    let whole = LENGTH + HEADER;
    let others: [(&str, Box<Hand>); 6] = [
        ("unsealed memory", Box::new(move |_| Some(memfd(whole, false)))),
        ("shorter memory", Box::new(move |_| Some(memfd(whole - 1, true)))),
        ("longer memory", Box::new(move |_| Some(memfd(whole + 1, true)))),
        ("a device", Box::new(|_| Some(File::open("/dev/zero").unwrap().into()))),
        ("a file", Box::new(|_| Some(File::open("/proc/self/exe").unwrap().into()))),
        ("a socket", Box::new(|_| Some(std::os::unix::net::UnixStream::pair().unwrap().0.into()))),
    ];
    for (what, hand) in others {
        let (outcomes, there) = read(handing(hand), honest());
        assert_eq!((outcomes, there), (vec![Err(ErrorKind::PeerLost)], false), "{what}");
    }
}

#[test]
fn places_that_cannot_be_end_the_link() {
    let places: [fn(Place) -> Place; 5] = [
        |place| Place { word: WORDS, ..place },
        |place| Place { word: u32::MAX, ..place },
        |place| Place { serial: 0, ..place },
        |place| Place { length: place.length - 1, ..place },
        |place| Place { length: place.length + 4096, ..place },
    ];
    for place in places {
        assert_eq!(read(saying(place), honest()), (vec![Err(ErrorKind::PeerLost)], false));
    }
}

/// Memory whose word says that it is not exposed is not read, whoever says so.
#[test]
fn another_word_is_a_revocation() {
    let refused = (vec![Err(ErrorKind::Remote); 2], true);
    assert_eq!(read(saying(|place| Place { serial: place.serial + 1, ..place }), honest()), refused);
    assert_eq!(read(saying(|place| Place { word: place.word + 1, ..place }), honest()), refused);
    assert_eq!(read(handing(|_| Some(memfd(LENGTH + HEADER, true))), honest()), refused);
}

/// Two ends of a link with real sockets.
fn wires() -> [RingWire; 2] {
    let network = Network::new(Secret::from_bytes([3; 32]));
    let claims = |from, to| Claims { purpose: purpose::MESSAGES, scope: 0, from, to };
    let mut listener = network.listen_unix(claims(0, Claims::ANY)).unwrap();
    let Socket::Unix(path) = listener.address().clone() else { panic!("a unix socket") };
    let client = std::thread::spawn(move || network.connect_unix(&path, claims(1, 0), SOON.into()).unwrap());
    let sockets = [listener.accept(SOON.into()).unwrap(), client.join().unwrap()];
    let rings = [(); 2].map(|()| {
        let (ring, fd) = RingMemory::create(8 << 10).unwrap();
        let size = ring.size();
        (ring, RingMemory::open(fd, size).unwrap())
    });
    let [(here, from_there), (there, from_here)] = rings;
    let [one, two] = sockets.map(|socket| socket.into_raw());
    [
        RingWire::new(one, Rings { inbound: here, outbound: from_here }),
        RingWire::new(two, Rings { inbound: there, outbound: from_there }),
    ]
}

/// A reader that asks for memory and never takes it keeps few descriptors on their way.
#[test]
fn a_reader_that_takes_nothing_gets_few_descriptors() {
    let [one, two] = wires();
    let memory = Published::create(4096, true).unwrap();
    let fd = memory.descriptor().unwrap();
    let sent = AtomicUsize::new(0);
    while one.send_descriptor(fd) {
        assert!(sent.fetch_add(1, Ordering::Relaxed) < 64, "descriptors are on their way without end");
    }
    assert!(sent.load(Ordering::Relaxed) >= 2);
    // Of those that come at once, a few are kept here, and the others closed.
    let taken = std::iter::from_fn(|| two.take_descriptor()).count();
    assert!((4..sent.load(Ordering::Relaxed)).contains(&taken), "{taken} were kept");
    assert!(one.send_descriptor(fd) && two.take_descriptor().is_some(), "it goes on");
}

/// Bytes that announce descriptors which do not come, and descriptors that nothing announces.
#[test]
fn descriptors_and_their_bytes_may_not_match() {
    let [one, two] = wires();
    let memory = Published::create(4096, true).unwrap();
    let socket = one.socket();
    for _ in 0..100 {
        assert_eq!(socket.write(&[1, 1, 0, 1], &[]).unwrap(), 4);
    }
    assert!(two.take_descriptor().is_none());
    let fd = memory.descriptor().unwrap();
    socket.write(&[0, 0], &[fd]).unwrap();
    socket.write(&[1], &[fd, fd, fd]).unwrap();
    // First the announced ones that never came, then one of three.
    let taken: Vec<bool> = (0..4).map(|_| two.take_descriptor().is_some()).collect();
    assert_eq!(taken, [false, false, false, true]);
    assert!(two.take_descriptor().is_none());
    drop(one);
    assert!(two.take_descriptor().is_none());
    assert!(two.arm().unwrap(), "the end is noticed");
}
