//! Memory of a device that no GPU is behind: what the contract leaves to the messenger.

use super::super::device::{DeviceMapping, DeviceMemory, Handle, ReadTarget, Resource, Staged, Underway};
use super::*;

/// Memory of which copies do what the test says.
#[derive(Debug)]
pub(super) struct Fake {
    pub(super) length: usize,
    /// Dropped in the middle of a copy, as if another thread did so.
    pub(super) revoked: Arc<Mutex<Option<Exposed>>>,
    pub(super) fails: bool,
    pub(super) mappable: bool,
}

#[derive(Debug)]
struct Copy {
    length: usize,
    revoked: Arc<Mutex<Option<Exposed>>>,
    fails: bool,
}

impl DeviceMemory for Fake {
    fn len(&self) -> usize {
        self.length
    }

    fn prepare(&self) -> Result<Resource> {
        Ok(Arc::new(()))
    }

    fn stage(&self, _: usize, length: usize) -> Result<Option<Box<dyn Staged>>> {
        Ok(Some(Box::new(Copy { length, revoked: self.revoked.clone(), fails: self.fails })))
    }

    fn is_mappable(&self) -> bool {
        self.mappable
    }

    fn export(&self) -> Result<Handle> {
        let descriptor = File::open("/proc/self/exe").unwrap().into();
        Ok(Handle { descriptor, description: vec![1] })
    }
}

/// Memory into which a read goes; what it was asked to map.
struct Into {
    bytes: Arc<Mutex<Vec<u8>>>,
    mapped: Arc<AtomicUsize>,
}

/// A copy that has ended at once, or a mapping with no bytes.
struct Nothing;

impl Underway for Nothing {
    fn is_done(&mut self) -> Result<bool> {
        Ok(true)
    }
}

impl ReadTarget for Into {
    fn len(&self) -> usize {
        lock(&self.bytes).len()
    }

    fn prepare(&mut self) -> Result<Option<Resource>> {
        Ok(None)
    }

    fn put(&self, at: usize, bytes: &[u8]) -> Result<Option<Box<dyn Underway>>> {
        lock(&self.bytes)[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(Some(Box::new(Nothing)))
    }

    fn device(&self) -> Option<usize> {
        Some(1)
    }

    fn map(&self, _: BorrowedFd<'_>, description: &[u8]) -> Result<Arc<dyn DeviceMapping>> {
        assert_eq!(description, [1]);
        self.mapped.fetch_add(1, Ordering::AcqRel);
        Err(Error::new(ErrorKind::Unsupported, "read", "the devices do not reach each other"))
    }
}

impl Staged for Copy {
    fn poll(&mut self) -> Result<Option<Vec<u8>>> {
        let revoked = lock(&self.revoked).take();
        drop(revoked);
        if self.fails {
            return Err(Error::new(ErrorKind::Cuda, "read", "failed on purpose"));
        }
        Ok(Some(vec![1; self.length]))
    }
}

/// The error of a read from memory that does so.
fn read(pair: &Pair, fails: bool, revokes: bool) -> Error {
    let revoked = Arc::<Mutex<Option<Exposed>>>::default();
    let memory =
        Memory::of_device(Arc::new(Fake { length: 100, revoked: revoked.clone(), fails, mappable: false }));
    let exposed = pair.a.expose(memory).unwrap();
    let token = exposed.token();
    let (now, _kept) = if revokes { (Some(exposed), None) } else { (None, Some(exposed)) };
    *lock(&revoked) = now;
    let ended = Arc::<Mutex<Option<Result<Vec<u8>>>>>::default();
    let outcome = ended.clone();
    pair.to_a
        .read(&token, 0, vec![0; 100], SOON, move |read| *lock(&outcome) = Some(read))
        .unwrap()
        .posted()
        .unwrap();
    until(&[&pair.a, &pair.b], || lock(&ended).is_some());
    let ended = lock(&ended).take().unwrap();
    ended.unwrap_err()
}

/// The owner may write as soon as it has revoked: what was copied meanwhile is no data.
#[test]
fn a_copy_during_which_the_token_was_revoked_is_not_sent() {
    for shared_memory in [false, true] {
        let error = read(&pair(shared_memory), false, true);
        assert!(error.kind() == ErrorKind::Remote && error.message().contains("revoked"), "{error}");
    }
}

/// A program that keeps the value of which it exposes a clone gets rid of what was exposed all the same.
#[test]
fn what_was_revoked_goes_although_its_program_keeps_the_memory() {
    let pair = pair(false);
    let fake = Fake { length: 100, revoked: Arc::default(), fails: false, mappable: true };
    let memory = Memory::of_device(Arc::new(fake));
    for _ in 0..3 {
        pair.a.expose(memory.clone()).unwrap().revoke();
    }
    assert!(!pair.a.core.engine.hub.exposures.has_retired(), "nothing of it is on its way");
}

/// A device that fails ends the reads of its memory, and nothing else.
#[test]
fn a_device_that_fails_ends_the_read_and_no_link() {
    let pair = pair(true);
    let error = read(&pair, true, false);
    assert!(error.kind() == ErrorKind::Remote && error.message().contains("device has failed"), "{error}");
    assert!(pair.to_a.lost().is_none() && pair.to_b.lost().is_none());
    let exposed = pair.a.expose(vec![5; 10]).unwrap();
    let ended = Arc::<Mutex<Option<Vec<u8>>>>::default();
    let outcome = ended.clone();
    let done = move |read: Result<Vec<u8>>| *lock(&outcome) = Some(read.unwrap());
    pair.to_a.read(&exposed.token(), 0, vec![0; 10], SOON, done).unwrap().posted().unwrap();
    until(&[&pair.a, &pair.b], || lock(&ended).is_some());
    assert_eq!(lock(&ended).take(), Some(vec![5; 10]));
}

/// Whichever descriptor cannot be handed over, and whatever the reader cannot map: the data is staged, and the next memory is mapped as if nothing
/// had been.
#[test]
fn memory_that_cannot_be_handed_over_or_mapped_is_staged() {
    for (refused, maps) in [(0b01, 0), (0b10, 0), (0, 1)] {
        let pair = pair(true);
        let fake = Fake { length: 700_000, revoked: Arc::default(), fails: false, mappable: true };
        let exposed = pair.a.expose(Memory::of_device(Arc::new(fake))).unwrap();
        let shared = SharedMemory::allocate(10).unwrap();
        shared.fill(6);
        let other = pair.a.expose(&shared).unwrap();
        pair.faults.refused.store(refused, Ordering::Release);
        let (bytes, mapped) = (Arc::new(Mutex::new(vec![0; 700_000])), Arc::new(AtomicUsize::new(0)));
        let ended = Arc::<Mutex<Vec<bool>>>::default();
        for _ in 0..2 {
            let target = Target::new(Box::new(Into { bytes: bytes.clone(), mapped: mapped.clone() }));
            let outcome = ended.clone();
            let done = move |read: Result<()>| lock(&outcome).push(read.is_ok());
            pair.to_a.read_into(&exposed.token(), 0, target, SOON, done).unwrap().posted().unwrap();
        }
        until(&[&pair.a, &pair.b], || lock(&ended).len() == 2);
        assert!(*lock(&ended) == [true; 2] && *lock(&bytes) == vec![1; 700_000]);
        assert_eq!(mapped.load(Ordering::Acquire), maps, "it is not tried again");
        let line = pair.to_a.member.sender("test").unwrap();
        assert_eq!(lock(&line.reads).transfers.spare(), 0, "an idle link keeps little");
        let outcome = ended.clone();
        let done = move |read: Result<Vec<u8>>| lock(&outcome).push(read.unwrap() == [6; 10]);
        pair.to_a.read(&other.token(), 0, vec![0; 10], SOON, done).unwrap().posted().unwrap();
        until(&[&pair.a, &pair.b], || lock(&ended).len() == 3);
        assert!(lock(&ended)[2] && pair.to_a.mappings() == 1 && pair.to_a.lost().is_none());
    }
}

/// A completion may have the memory for itself.
#[test]
fn memory_that_was_read_into_is_let_go_before_the_completion_runs() {
    let pair = pair(false);
    let exposed = pair.a.expose(vec![1; 100]).unwrap();
    let (bytes, shares) = (Arc::new(Mutex::new(vec![0; 100])), Arc::<Mutex<Vec<usize>>>::default());
    let target = Target::new(Box::new(Into { bytes: bytes.clone(), mapped: Arc::default() }));
    let seen = shares.clone();
    let done = move |read: Result<()>| {
        read.unwrap();
        lock(&seen).push(Arc::strong_count(&bytes));
    };
    pair.to_a.read_into(&exposed.token(), 0, target, SOON, done).unwrap().posted().unwrap();
    until(&[&pair.a, &pair.b], || !lock(&shares).is_empty());
    assert_eq!(*lock(&shares), [1]);
}
