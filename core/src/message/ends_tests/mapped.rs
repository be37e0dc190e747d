//! Reads into devices that map the owner's memory and copy as slowly as the test says.

use super::super::device::{DeviceMapping, ReadTarget, Resource, Underway};
use super::staged::Fake;
use super::*;

/// Memory into which a read goes by copies that end when `ends` is set.
#[derive(Clone, Default)]
struct Slow {
    ends: Arc<AtomicBool>,
    begun: Arc<AtomicUsize>,
    /// How often it cannot be asked to copy.
    refusals: Arc<AtomicUsize>,
    put: Arc<AtomicUsize>,
    /// The link, if the device is to try the lock of its reads while it is asked, and the outcomes of that.
    line: Arc<Mutex<Weak<Line>>>,
    was_free: Arc<Mutex<Vec<bool>>>,
    /// How often it was asked whether it has ended.
    asked: Arc<AtomicUsize>,
    /// A link whose end the driver holds up: asked after it, it answers only when the copy has ended.
    holds_up: Arc<Mutex<Weak<Line>>>,
    held_up: Arc<AtomicBool>,
}

/// Memory of another process.
struct Mapped;

impl DeviceMapping for Mapped {
    fn len(&self) -> u64 {
        LENGTH as u64
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Underway for Slow {
    fn is_done(&mut self) -> Result<bool> {
        if let Some(line) = lock(&self.line).upgrade() {
            lock(&self.was_free).push(line.reads.try_lock().is_ok());
        }
        self.asked.fetch_add(1, Ordering::AcqRel);
        if lock(&self.holds_up).upgrade().is_some_and(|line| line.wire().is_none()) {
            Faults::set(&self.held_up);
            while !self.ends.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        }
        Ok(self.ends.load(Ordering::Acquire))
    }
}

const LENGTH: usize = 100;

impl ReadTarget for Slow {
    fn len(&self) -> usize {
        LENGTH
    }

    fn prepare(&mut self) -> Result<Option<Resource>> {
        Ok(None)
    }

    fn put(&self, _: usize, _: &[u8]) -> Result<Option<Box<dyn Underway>>> {
        self.put.fetch_add(1, Ordering::AcqRel);
        Ok(Some(Box::new(self.clone())))
    }

    fn device(&self) -> Option<usize> {
        Some(1)
    }

    fn map(&self, _: BorrowedFd<'_>, _: &[u8]) -> Result<Arc<dyn DeviceMapping>> {
        Ok(Arc::new(Mapped))
    }

    fn copy(
        &self,
        _: usize,
        _: &Arc<dyn DeviceMapping>,
        _: u64,
        _: usize,
    ) -> Result<Option<Box<dyn Underway>>> {
        if self.refusals.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).is_ok()
        {
            return Ok(None);
        }
        self.begun.fetch_add(1, Ordering::AcqRel);
        Ok(Some(Box::new(self.clone())))
    }
}

/// How reads have ended, in order.
type Ends = Arc<Mutex<Vec<(u32, Option<ErrorKind>)>>>;

/// Two messengers, and memory of a device of the first one that the second one's has mapped.
struct Devices {
    pair: Pair,
    exposed: Exposed,
    ends: Ends,
}

fn devices() -> Devices {
    let pair = pair(true);
    let fake = Fake { length: LENGTH, revoked: Arc::default(), fails: false, mappable: true };
    let exposed = pair.a.expose(Memory::of_device(Arc::new(fake))).unwrap();
    let devices = Devices { pair, exposed, ends: Arc::default() };
    let quick = Slow::default();
    Faults::set(&quick.ends);
    devices.read_into(0, devices.exposed.token(), &quick);
    devices.until_ends(1);
    lock(&devices.ends).clear();
    devices
}

impl Devices {
    fn note<T>(&self, number: u32) -> impl FnOnce(Result<T>) + Send + use<T> {
        let ends = self.ends.clone();
        move |ended| lock(&ends).push((number, ended.err().map(|error| error.kind())))
    }

    fn read_into(&self, number: u32, token: Token, into: &Slow) -> Read {
        let target = Target::new(Box::new(into.clone()));
        self.pair.to_a.read_into(&token, 0, target, SOON, self.note::<()>(number)).unwrap().posted().unwrap()
    }

    fn read(&self, number: u32, token: Token, within: Duration) -> Read {
        self.pair
            .to_a
            .read(&token, 0, vec![0; 10], within, self.note::<Vec<u8>>(number))
            .unwrap()
            .posted()
            .unwrap()
    }

    fn poll(&self) {
        for _ in 0..100 {
            for messenger in [&self.pair.a, &self.pair.b] {
                messenger.poll().unwrap();
            }
        }
    }

    fn until_ends(&self, count: usize) {
        until(&[&self.pair.a, &self.pair.b], || lock(&self.ends).len() >= count);
    }
}

/// A device that is still copying when the token is revoked is asked until it has ended.
#[test]
fn a_read_of_memory_that_was_revoked_meanwhile_ends_with_its_copies() {
    let Devices { pair, exposed, ends } = devices();
    let token = exposed.token();
    let kept = pair.a.expose(vec![1; 10]).unwrap();
    let devices = Devices { exposed: kept, pair, ends };
    let slow = Slow::default();
    devices.read_into(1, token, &slow);
    until(&[&devices.pair.b], || slow.begun.load(Ordering::Acquire) == 1);
    exposed.revoke();
    devices.poll();
    assert!(lock(&devices.ends).is_empty(), "the device may still write");
    Faults::set(&slow.ends);
    devices.until_ends(1);
    assert_eq!(*lock(&devices.ends), [(1, Some(ErrorKind::Remote))]);
}

/// Others free its memory meanwhile, for instance.
#[test]
fn a_device_that_cannot_be_asked_now_is_asked_again() {
    let devices = devices();
    let slow = Slow::default();
    slow.refusals.store(3, Ordering::Release);
    Faults::set(&slow.ends);
    devices.read_into(1, devices.exposed.token(), &slow);
    devices.until_ends(1);
    assert_eq!((slow.begun.load(Ordering::Acquire), lock(&devices.ends)[0]), (1, (1, None)));
}

/// However many reads there are.
#[test]
fn a_device_has_few_copies_under_way_for_one_link() {
    let devices = devices();
    let slow = Slow::default();
    for number in 1..=40 {
        devices.read_into(number, devices.exposed.token(), &slow);
    }
    devices.poll();
    assert_eq!(slow.begun.load(Ordering::Acquire), 16);
    Faults::set(&slow.ends);
    devices.until_ends(40);
    let ends = lock(&devices.ends);
    assert!(ends.iter().zip(1..).all(|(end, number)| *end == (number, None)), "{ends:?}");
}

/// A device may take its time. Other threads queue and cancel reads meanwhile, and hear at once that the link has ended.
#[test]
fn the_end_of_a_link_waits_for_its_device_without_the_lock_of_its_reads() {
    let devices = devices();
    let slow = Slow::default();
    let read = devices.read_into(1, devices.exposed.token(), &slow);
    until(&[&devices.pair.b], || slow.begun.load(Ordering::Acquire) == 1);
    let line = devices.pair.to_a.member.sender("test").unwrap();
    *lock(&slow.line) = Arc::downgrade(line);
    Faults::set(&slow.ends);
    devices.pair.to_a.close(SOON).unwrap();
    let was_free = lock(&slow.was_free).clone();
    assert!(!was_free.is_empty() && was_free.iter().all(|free| *free), "{was_free:?}");
    assert!(!read.cancel(), "it has ended");
    devices.until_ends(1);
    assert_eq!(*lock(&devices.ends), [(1, Some(ErrorKind::Stopped))]);
}

/// A read that a device has done without the owner waits for its turn, until the reads before it have ended, whichever way they do.
#[test]
fn reads_of_mapped_memory_do_not_pass_those_before_them() {
    let quick = Slow::default();
    Faults::set(&quick.ends);
    for (nth, expected) in [None, Some(ErrorKind::Aborted), Some(ErrorKind::Timeout)].into_iter().enumerate()
    {
        let devices = devices();
        let other = devices.pair.a.expose(vec![1; 10]).unwrap();
        Faults::set(&devices.pair.faults.holds);
        let within = if nth == 2 { Duration::from_millis(500) } else { SOON };
        let first = devices.read(1, other.token(), within);
        devices.read_into(2, devices.exposed.token(), &quick);
        if nth < 2 {
            devices.poll();
            assert!(lock(&devices.ends).is_empty(), "{:?}", lock(&devices.ends));
        }
        match nth {
            0 => devices.pair.faults.holds.store(false, Ordering::Release),
            1 => assert!(first.cancel()),
            _ => {}
        }
        devices.until_ends(2);
        assert_eq!(*lock(&devices.ends), [(1, expected), (2, None)]);
    }
}

/// Only those that were cancelled or are too late end early.
#[test]
fn a_refused_read_into_a_device_waits_for_its_turn() {
    let devices = devices();
    let revoked = devices.pair.a.expose(vec![1; LENGTH]).unwrap().token();
    let slow = Slow::default();
    devices.read_into(1, devices.exposed.token(), &slow);
    devices.read_into(2, revoked, &slow);
    let third = devices.read_into(3, devices.exposed.token(), &Slow::default());
    devices.poll();
    assert!(lock(&devices.ends).is_empty(), "{:?}", lock(&devices.ends));
    assert!(third.cancel());
    Faults::set(&slow.ends);
    devices.until_ends(2);
    assert_eq!(*lock(&devices.ends), [(1, None), (2, Some(ErrorKind::Remote))]);
}

/// Reads that have come and wait for their turn count as under way.
#[test]
fn reads_that_wait_for_their_turn_are_bounded() {
    let devices = devices();
    let owner = &devices.pair.a;
    let other = owner.expose(vec![1; 10]).unwrap();
    let reader = Messenger::new(2, config(true).with_reads(10, 4)).unwrap();
    let peer = reader.connect(owner.address(), SOON).unwrap();
    let slow = Slow::default();
    let target = Target::new(Box::new(slow.clone()));
    peer.read_into(&devices.exposed.token(), 0, target, SOON, devices.note::<()>(0))
        .unwrap()
        .posted()
        .unwrap();
    until(&[owner, &reader], || slow.begun.load(Ordering::Acquire) == 1);
    for number in 1..10 {
        peer.read(&other.token(), 0, vec![0; 10], SOON, devices.note::<Vec<u8>>(number))
            .unwrap()
            .posted()
            .unwrap();
        for _ in 0..100 {
            [owner, &reader].into_iter().for_each(|messenger| assert!(messenger.poll().is_ok()));
        }
    }
    let refused = peer.read(&other.token(), 0, vec![0; 10], SOON, |_| panic!("it was refused")).unwrap();
    assert_eq!(refused.reason(), Some(Reason::TooManyReads));
    assert!(lock(&devices.ends).is_empty());
    Faults::set(&slow.ends);
    until(&[owner, &reader], || lock(&devices.ends).len() == 10);
    assert!((0..10).map(|number| (number, None)).eq(lock(&devices.ends).iter().copied()));
}

/// Parts are the messenger's own, and bounded on their own.
#[test]
fn parts_of_a_read_into_a_device_are_no_reads() {
    let devices = devices();
    let other = devices.pair.a.expose(vec![1; LENGTH]).unwrap();
    let reader = Messenger::new(2, config(true).with_reads(3, 4)).unwrap();
    let peer = reader.connect(devices.pair.a.address(), SOON).unwrap();
    let target = Target::new(Box::new(Slow::default()));
    peer.read_into(&other.token(), 0, target, SOON, |_| {}).unwrap().posted().unwrap();
    // The owner makes no progress, so its part stays in the queue.
    for _ in 0..10 {
        reader.poll().unwrap();
    }
    let read = || peer.read(&other.token(), 0, vec![0; 10], SOON, |_| {}).unwrap().reason();
    assert_eq!([read(), read(), read()], [None, None, Some(Reason::TooManyReads)]);
}

/// A device that does not come to an end holds up the end of all links for a moment, not of each one.
#[test]
fn the_end_of_many_links_waits_for_their_devices_together() {
    let devices = devices();
    let reader = Messenger::new(2, config(true)).unwrap();
    let owners = [3, 4, 5].map(|rank| Messenger::new(rank, config(true)).unwrap());
    let (mut exposed, mut asked) = (Vec::new(), Vec::new());
    for (number, owner) in owners.iter().enumerate() {
        let peer = reader.connect(owner.address(), SOON).unwrap();
        exposed.push(owner.expose(vec![1; LENGTH]).unwrap());
        let (slow, token) = (Slow::default(), exposed[number].token());
        let target = Target::new(Box::new(slow.clone()));
        peer.read_into(&token, 0, target, SOON, devices.note::<()>(number as u32)).unwrap().posted().unwrap();
        until(&[owner, &reader], || slow.put.load(Ordering::Acquire) == 1);
        asked.push(slow.asked);
    }
    let counts = || [0, 1, 2].map(|number: usize| asked[number].load(Ordering::Acquire));
    let before = counts();
    reader.close(SOON).unwrap();
    let after = counts();
    let mut while_closing = [0, 1, 2].map(|number| after[number] - before[number]);
    while_closing.sort_unstable();
    // One is asked until the moment is over, and the others have no moment of their own.
    assert!(while_closing[1] <= 10 && while_closing[2] > 10, "{while_closing:?}");
    let mut ends = lock(&devices.ends).clone();
    ends.sort_by_key(|(number, _)| *number);
    assert_eq!(ends, [0, 1, 2].map(|number| (number, Some(ErrorKind::Stopped))));
}

/// The caller may use the memory again afterwards.
#[test]
fn the_end_of_a_link_waits_for_a_device_that_still_copies() {
    let devices = devices();
    let reader = Messenger::new(2, config(true)).unwrap();
    let owner = Messenger::new(3, config(true)).unwrap();
    let peer = reader.connect(owner.address(), SOON).unwrap();
    let exposed = owner.expose(vec![1; LENGTH]).unwrap();
    let slow = Slow::default();
    let target = Target::new(Box::new(slow.clone()));
    peer.read_into(&exposed.token(), 0, target, SOON, devices.note::<()>(0)).unwrap().posted().unwrap();
    until(&[&owner, &reader], || slow.put.load(Ordering::Acquire) == 1);
    let ends = Arc::clone(&slow.ends);
    let device = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        ends.store(true, Ordering::Release);
    });
    reader.close(SOON).unwrap();
    assert!(slow.ends.load(Ordering::Acquire), "it still copies");
    device.join().unwrap();
}

/// Breaks the link from `a` to `b` while a device copies for a read of `a`, has `finds` find that on a thread of its own, which the
/// device then holds up, and runs `others` meanwhile. The read has ended when it returns.
fn while_a_device_holds_up(pair: &Pair, finds: fn(&Messenger), others: impl FnOnce() + Send) {
    let exposed = pair.b.expose(vec![1; LENGTH]).unwrap();
    let (slow, log) = (Slow::default(), pair.log.clone());
    let ended = move |ended: Result<()>| lock(&log).push(format!("read {:?}", ended.unwrap_err().kind()));
    let target = Target::new(Box::new(slow.clone()));
    pair.to_b.read_into(&exposed.token(), 0, target, SOON, ended).unwrap().posted().unwrap();
    until(&[&pair.a, &pair.b], || slow.put.load(Ordering::Acquire) == 1);
    let line = pair.to_b.member.sender("test").unwrap();
    *lock(&slow.holds_up) = Arc::downgrade(line);
    Faults::set(&pair.faults.push);
    pair.to_b.member.tell(line, Operation::Cancel, 0, 7, &[]).unwrap();
    std::thread::scope(|scope| {
        let finding = scope.spawn(|| {
            while pair.to_b.lost().is_none() {
                finds(&pair.a);
            }
        });
        while !slow.held_up.load(Ordering::Acquire) && !finding.is_finished() {
            std::thread::yield_now();
        }
        let held_up = slow.held_up.load(Ordering::Acquire);
        pair.faults.push.store(false, Ordering::Release);
        let (done, returned) = std::sync::mpsc::channel();
        scope.spawn(move || {
            others();
            done.send(()).unwrap();
        });
        let returned = returned.recv_timeout(SOON);
        let told = lock(&pair.log).clone();
        Faults::set(&slow.ends);
        finding.join().unwrap();
        assert!(held_up, "the end of the link does not wait for the device");
        assert!(returned.is_ok(), "others wait for the device, too");
        let is_of_link = |line: &String| line.starts_with("read") || line.contains("damaged on purpose");
        assert!(!told.iter().any(is_of_link), "the device still copies: {told:?}");
    });
}

/// The thread that finds a link broken waits for its device, and nobody else does.
#[test]
fn others_make_progress_while_a_device_holds_up_the_end_of_a_link() {
    let finds: [fn(&Messenger); 3] = [
        |messenger| _ = messenger.progress().unwrap(),
        |messenger| _ = messenger.arm().unwrap(),
        |messenger| _ = messenger.wait(SOON).unwrap(),
    ];
    for finds in finds {
        let pair = pair(true);
        let c = Messenger::new(2, config(true)).unwrap();
        let to_c = pair.a.connect(c.address(), SOON).unwrap();
        while_a_device_holds_up(&pair, finds, || {
            pair.a.arm().unwrap();
            assert_eq!(to_c.send(1, b"x").unwrap(), Sent::Done);
            assert_eq!(pair.to_b.send(1, b"x").unwrap_err().kind(), ErrorKind::PeerLost);
            pair.a.poll().unwrap();
            pair.a.wait(Duration::ZERO).unwrap();
            pair.a.next_deadline();
        });
        until(&[&pair.a], || lock(&pair.log).len() == 2);
        let log = lock(&pair.log).clone();
        assert!(log[0] == "read PeerLost" && log[1].contains("damaged on purpose"), "{log:?}");
    }
}

/// A peer that is lost, and one that is closed.
#[test]
fn other_peers_end_while_a_device_holds_up_the_end_of_a_link() {
    let pair = pair(true);
    let [c, d] = [2, 3].map(|rank| Messenger::new(rank, config(true)).unwrap());
    let [to_c, to_d] = [&c, &d].map(|messenger| pair.a.connect(messenger.address(), SOON).unwrap());
    while_a_device_holds_up(
        &pair,
        |messenger| _ = messenger.progress().unwrap(),
        || {
            drop(c);
            until(&[&pair.a], || lock(&pair.log).len() == 1);
            assert!(to_c.lost().is_some());
            to_d.close(SOON).unwrap();
        },
    );
    until(&[&pair.a], || lock(&pair.log).len() == 4);
}

/// A life of a peer is told of after the end of the one before, although its link was there earlier; and what it has brought is taken even if
/// sending has failed meanwhile.
#[test]
fn the_next_life_of_a_peer_begins_when_a_device_lets_the_last_one_end() {
    let pair = pair(true);
    while_a_device_holds_up(
        &pair,
        |messenger| _ = messenger.progress().unwrap(),
        || {
            until(&[&pair.b], || pair.to_a.lost().is_some());
            let to_a = pair.b.connect(pair.a.address(), SOON).unwrap();
            assert_eq!(to_a.send(1, &[3]).unwrap(), Sent::Done);
            let has_come = || !pair.a.core.engine.burials.held().is_empty() || !lock(&pair.log).is_empty();
            until(&[&pair.a, &pair.b], has_come);
            let to_b = pair.a.connect(pair.b.address(), SOON).unwrap();
            Faults::set(&pair.faults.push);
            to_b.send(1, b"x").unwrap_err();
            pair.a.poll().unwrap();
        },
    );
    until(&[&pair.a], || lock(&pair.log).len() == 4);
    let log = lock(&pair.log).clone();
    assert!(log[0] == "read PeerLost" && log[2] == "message 3", "{log:?}");
    assert!(log[1].contains("damaged on purpose") && log[3].contains("damaged on purpose"), "{log:?}");
}
