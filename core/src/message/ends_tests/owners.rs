//! Owners of exposed memory, and completions: they are dropped where no lock is held.

use super::*;

/// Owns memory, and looks when it is dropped whether locks are free that its own sends and reads would take.
struct Owner {
    line: Arc<Line>,
    free: Arc<Mutex<Vec<bool>>>,
    bytes: Vec<u8>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let Line { reads, serving, offers, .. } = &*self.line;
        let free = reads.try_lock().is_ok() && serving.try_lock().is_ok() && offers.try_lock().is_ok();
        lock(&self.free).push(free);
    }
}

fn owned(line: &Arc<Line>, free: &Arc<Mutex<Vec<bool>>>, length: usize) -> Memory {
    let owner = Arc::new(Owner { line: line.clone(), free: free.clone(), bytes: vec![7; length] });
    let address = NonNull::from(owner.bytes.as_slice()).cast();
    // SAFETY: the vector is in the owner, which nothing changes, and does not move with it.
    unsafe { Memory::from_raw(address, length, owner) }
}

/// Pieces of revoked memory are on their way: progress lets go of the last one, and drops nothing of the user's.
#[test]
fn owners_of_memory_are_dropped_in_dispatch() {
    let pair = pair(false);
    let (line, free) = (pair.to_b.member.sender("test").unwrap(), Arc::<Mutex<Vec<bool>>>::default());
    let exposed = pair.a.expose(owned(line, &free, 64 << 20)).unwrap();
    pair.to_a.read(&exposed.token(), 0, vec![0; 64 << 20], SOON, |_| {}).unwrap().posted().unwrap();
    // Until a piece fills the connection.
    for _ in 0..200 {
        pair.a.progress().unwrap();
    }
    drop(exposed);
    assert_eq!(lock(&free).len(), 0, "pieces are on their way");
    let start = Instant::now();
    while !lock(&pair.to_a.member.sender("test").unwrap().reads).is_empty() {
        pair.a.progress().unwrap();
        pair.b.poll().unwrap();
        assert!(start.elapsed() < SOON, "not in time");
    }
    assert_eq!(lock(&free).len(), 0, "progress runs no code of the user's");
    pair.a.dispatch(usize::MAX);
    assert_eq!(*lock(&free), [true]);
}

/// Long data that was refused is freed by dispatch, before its completion runs.
#[test]
fn owners_of_long_data_are_dropped_in_dispatch() {
    let pair = pair(true);
    let (line, free) = (pair.to_b.member.sender("test").unwrap(), Arc::<Mutex<Vec<bool>>>::default());
    let (ended, freed) = (Arc::<Mutex<Vec<usize>>>::default(), free.clone());
    let seen = ended.clone();
    let done = move |outcome: Result<Delivery>| {
        assert_eq!(outcome.unwrap(), Delivery::Refused);
        let count = lock(&freed).len();
        lock(&seen).push(count);
    };
    assert!(pair.to_b.send_long(9, b"", owned(line, &free, 10), SOON, done).unwrap().is_posted());
    let start = Instant::now();
    while lock(&line.offers).len() > 0 {
        pair.a.progress().unwrap();
        pair.b.poll().unwrap();
        assert!(start.elapsed() < SOON, "not in time");
    }
    assert_eq!(lock(&free).len(), 0, "progress runs no code of the user's");
    assert!(pair.a.core.engine.hub.exposures.has_retired(), "nobody can read it any more");
    pair.a.dispatch(usize::MAX);
    assert_eq!((lock(&free).clone(), lock(&ended).clone()), (vec![true], vec![1]));
}

/// It ends in the middle of dispatch, which looks at the beginning for memory to free.
#[test]
fn long_data_that_a_callback_takes_back_is_freed_before_its_completion_runs() {
    let pair = pair(true);
    let (line, free) = (pair.to_b.member.sender("test").unwrap(), Arc::<Mutex<Vec<bool>>>::default());
    let (ended, freed) = (Arc::<Mutex<Vec<usize>>>::default(), free.clone());
    let seen = ended.clone();
    let done = move |outcome: Result<Delivery>| {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Aborted);
        let count = lock(&freed).len();
        lock(&seen).push(count);
    };
    let sending = pair.to_b.send_long(9, b"", owned(line, &free, 10), SOON, done).unwrap().posted().unwrap();
    pair.a.on(2, move |_| assert!(sending.cancel())).unwrap();
    assert_eq!(pair.to_a.send(2, b"").unwrap(), Sent::Done);
    until(&[], || {
        pair.a.progress().unwrap();
        pair.a.dispatch(usize::MAX) > 0
    });
    assert_eq!((lock(&free).clone(), lock(&ended).clone()), (vec![true], vec![1]));
}

/// A completion that a read refuses is dropped without locks, and so is one whose peer has ended.
#[test]
fn completions_that_are_refused_are_dropped_without_locks() {
    let pair = pair(true);
    let (line, free) = (pair.to_b.member.sender("test").unwrap(), Arc::<Mutex<Vec<bool>>>::default());
    let exposed = pair.b.expose(vec![1; 10]).unwrap();
    let most = pair.a.core.engine.hub.limits.reads;
    for _ in 0..most {
        pair.to_b.read(&exposed.token(), 0, Vec::new(), SOON, |_| {}).unwrap().posted().unwrap();
    }
    let owner = Owner { line: line.clone(), free: free.clone(), bytes: Vec::new() };
    let refused = pair.to_b.read(&exposed.token(), 0, Vec::new(), SOON, move |_| drop(owner)).unwrap();
    assert_eq!((refused.reason(), lock(&free).len()), (Some(Reason::TooManyReads), 0), "it is given back");
    drop(refused);
    assert_eq!(*lock(&free), [true]);
    until(&[&pair.a, &pair.b], || lock(&line.reads).is_empty());
    Faults::set(&pair.faults.push);
    let owner = Owner { line: line.clone(), free: free.clone(), bytes: Vec::new() };
    let lost = pair.to_b.read(&exposed.token(), 0, Vec::new(), SOON, move |_| drop(owner)).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::PeerLost);
    assert_eq!(*lock(&free), [true, true]);
}

/// A long message for which there is no room gives its memory back, and nothing else keeps it.
#[test]
fn an_offer_that_is_not_sent_exposes_nothing() {
    let pair = pair(true);
    let (line, free) = (pair.to_b.member.sender("test").unwrap(), Arc::<Mutex<Vec<bool>>>::default());
    while pair.to_b.send(1, b"x").unwrap() == Sent::Done {}
    let sent = pair.to_b.send_long(1, b"", owned(line, &free, 10), SOON, |_| panic!("it was not sent"));
    let refused = sent.unwrap();
    assert_eq!((refused.reason(), lock(&free).len()), (Some(Reason::Full), 0), "it is given back");
    drop(refused);
    assert_eq!(*lock(&free), [true]);
    let head = vec![0; pair.to_b.eager_limit() + 1];
    let error = pair.to_b.send_long(1, &head, vec![1], SOON, |_| panic!("it is too long")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUsage);
}

/// Owns memory, and panics when it is dropped.
struct Bomb {
    bytes: Vec<u8>,
    dropped: Arc<AtomicUsize>,
}

impl Drop for Bomb {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::AcqRel);
        panic!("on purpose");
    }
}

/// In dispatch, when several go at once, and when the messenger is closed: two panics at a time would end the process.
#[test]
fn owners_that_panic_take_nothing_from_others() {
    let pair = pair(true);
    let (dropped, ended) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let bomb = || {
        let owner = Arc::new(Bomb { bytes: vec![7; 10], dropped: dropped.clone() });
        let address = NonNull::from(owner.bytes.as_slice()).cast();
        // SAFETY: the vector is in the owner, which nothing changes, and does not move with it.
        unsafe { Memory::from_raw(address, 10, owner) }
    };
    let send = |kind| {
        let count = ended.clone();
        let done = move |_: Result<Delivery>| _ = count.fetch_add(1, Ordering::AcqRel);
        pair.to_b.send_long(kind, b"", bomb(), SOON, done).unwrap().posted().unwrap();
    };
    let counts = || [&dropped, &ended].map(|count| count.load(Ordering::Acquire));
    // Nothing is registered for that kind, so that they are refused.
    (0..3).for_each(|_| send(9));
    until(&[&pair.a, &pair.b], || counts() == [3, 3]);
    drop(pair.a.expose(bomb()).unwrap());
    assert_eq!(counts(), [4, 3]);
    let _offers = pair.b.queue(2).unwrap();
    (0..3).for_each(|_| send(2));
    pair.a.close(SOON).unwrap();
    assert_eq!(counts(), [7, 6]);
}
