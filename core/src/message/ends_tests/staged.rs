//! Memory of a device that no GPU is behind: what the contract leaves to the messenger.

use super::super::device::{DeviceMemory, Handle, Resource, Staged};
use super::*;

/// Memory of which copies do what the test says.
#[derive(Debug)]
struct Fake {
    length: usize,
    /// Dropped in the middle of a copy, as if another thread did so.
    revoked: Arc<Mutex<Option<Exposed>>>,
    fails: bool,
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
        false
    }

    fn export(&self) -> Result<Handle> {
        Err(Error::new(ErrorKind::Unsupported, "expose", "it has no handle"))
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
    let memory = Memory::of_device(Arc::new(Fake { length: 100, revoked: revoked.clone(), fails }));
    let exposed = pair.a.expose(memory).unwrap();
    let token = exposed.token();
    let (now, _kept) = if revokes { (Some(exposed), None) } else { (None, Some(exposed)) };
    *lock(&revoked) = now;
    let ended = Arc::<Mutex<Option<Result<Vec<u8>>>>>::default();
    let outcome = ended.clone();
    pair.to_a.read(&token, 0, vec![0; 100], SOON, move |read| *lock(&outcome) = Some(read)).unwrap();
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
    pair.to_a.read(&exposed.token(), 0, vec![0; 10], SOON, done).unwrap();
    until(&[&pair.a, &pair.b], || lock(&ended).is_some());
    assert_eq!(lock(&ended).take(), Some(vec![5; 10]));
}
