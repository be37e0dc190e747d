//! Messengers over a given backend, and ways to run them until something has happened.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aqueduct::bootstrap::Selection;
use aqueduct::internals::rdma::Verbs;
use aqueduct::message::{Message, Messenger, MessengerConfig, Peer, Secret, Sent};

use crate::standin;

/// A time that no correct run reaches, even on a busy machine.
pub(super) const SOON: Duration = Duration::from_secs(90);
/// Nothing that a test waits for takes so long.
pub(super) const HOUR: Duration = Duration::from_secs(3600);

/// The wire under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    Tcp,
    SharedMemory,
    /// Queue pairs of the stand-in, which joins messengers of one process only; of this host's devices if the environment names some.
    Verbs,
}

/// One case over one backend.
pub(super) struct Rig {
    pub(super) backend: Backend,
    module: &'static str,
    case: &'static str,
    secret: Secret,
}

impl Rig {
    pub(super) fn new(backend: Backend, module: &'static str) -> Self {
        Self { backend, module, case: "", secret: Secret::random().unwrap() }
    }

    pub(super) fn of(mut self, case: &'static str) -> Self {
        self.case = case;
        self
    }

    /// The same in a process that the test has started, with the secret `text`.
    pub(super) fn with_secret(&self, text: &str) -> Self {
        Self { secret: text.parse().unwrap(), ..*self }
    }

    pub(super) fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The full name of this test.
    pub(super) fn test(&self) -> String {
        let (_, module) = self.module.split_once("::").expect("a module of the test's crate");
        format!("{module}::{}", self.case)
    }

    pub(super) fn config(&self) -> MessengerConfig {
        let interfaces = Selection { names: Some("=lo".into()), ..Selection::default() };
        let config = MessengerConfig::default().with_secret(self.secret.clone()).with_interfaces(interfaces);
        match self.backend {
            Backend::Tcp => config.with_shared_memory(false),
            Backend::SharedMemory => config,
            Backend::Verbs => verbs(config.with_shared_memory(false).with_verbs(true)),
        }
    }

    pub(super) fn messenger(&self, rank: u32) -> Messenger {
        Messenger::new(rank, self.config()).unwrap()
    }

    pub(super) fn pair(&self) -> [Messenger; 2] {
        [self.messenger(0), self.messenger(1)]
    }

    /// Two that do not wake once a second to look after their peers: a wake-up that is lost shows as a wait that ends at its deadline.
    pub(super) fn sleepers(&self) -> [Messenger; 2] {
        sleepers(self.config())
    }
}

/// As [`Rig::sleepers`].
pub(super) fn sleepers(config: MessengerConfig) -> [Messenger; 2] {
    let config = config.with_checks_every(HOUR);
    [0, 1].map(|rank| Messenger::new(rank, config.clone()).unwrap())
}

/// Chooses the stand-in, or the device that `AQUEDUCT_IB_DEVICES` names.
fn verbs(config: MessengerConfig) -> MessengerConfig {
    match std::env::var("AQUEDUCT_IB_DEVICES") {
        Ok(names) => config.with_ib_devices(names),
        Err(_) => {
            let library = Verbs::from_table(standin::table(), "stand-in");
            config.with_ib_devices("null0").with_verbs_library(library)
        }
    }
}

/// `from`'s peer `to`.
pub(super) fn connect(from: &Messenger, to: &Messenger) -> Peer {
    from.connect(to.address(), SOON).unwrap()
}

/// Polls all of them until `done`.
pub(super) fn until(all: &[&Messenger], mut done: impl FnMut() -> bool) {
    let mut limit = Instant::now() + SOON;
    while !done() {
        let moved: usize = all.iter().map(|messenger| messenger.poll().unwrap()).sum();
        if moved > 0 {
            limit = Instant::now() + SOON;
        } else {
            assert!(Instant::now() < limit, "nothing moves any more");
            std::thread::yield_now();
        }
    }
}

/// Makes progress on all of them without dispatching until nothing has moved for many rounds, and for as long as a device may be late.
pub(super) fn settle(all: &[&Messenger]) {
    let (mut quiet, mut since) = (0, Instant::now());
    while quiet < 50 || since.elapsed() < Duration::from_millis(20) {
        let moved: usize = all.iter().map(|messenger| messenger.progress().unwrap()).sum();
        quiet += 1;
        if moved > 0 {
            (quiet, since) = (0, Instant::now());
        }
        std::thread::yield_now();
    }
}

/// Sends, polling `all` while there is no room.
pub(super) fn send(all: &[&Messenger], peer: &Peer, kind: u16, bytes: &[u8]) {
    until(all, || peer.send(kind, bytes).unwrap() == Sent::Done);
}

/// Threads that poll a messenger until this is dropped.
pub(super) struct Pollers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Pollers {
    pub(super) fn start(messenger: &Arc<Messenger>, count: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..count).map(|_| {
            let (messenger, stop) = (messenger.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    if messenger.poll().unwrap() == 0 {
                        std::thread::yield_now();
                    }
                }
            })
        });
        Self { threads: threads.collect(), stop }
    }
}

impl Drop for Pollers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "a thread that polls has panicked");
        }
    }
}

/// A record of what callbacks have seen, in order.
pub(super) struct Log<T>(Arc<Mutex<Vec<T>>>);

impl<T> Clone for Log<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Log<T> {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, value: T) {
        self.lock().push(value);
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn take(&self) -> Vec<T> {
        std::mem::take(&mut self.lock())
    }
}

impl<T: Copy> Log<T> {
    pub(super) fn last(&self) -> Option<T> {
        self.lock().last().copied()
    }
}

impl Log<Vec<u8>> {
    /// Logs the bytes of messages of `kind`.
    pub(super) fn of(messenger: &Messenger, kind: u16) -> Self {
        let log = Self::new();
        let into = log.clone();
        messenger.on(kind, move |message| into.add(message.into_vec())).unwrap();
        log
    }
}

/// Counts messages of `kind`.
pub(super) fn count(messenger: &Messenger, kind: u16) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let seen = count.clone();
    let counted = move |_| {
        seen.fetch_add(1, Ordering::AcqRel);
    };
    messenger.on(kind, counted).unwrap();
    count
}

/// A body that tells its sender and its number, and is `length` bytes long, at least 8.
pub(super) fn numbered(sender: u32, number: u32, length: usize) -> Vec<u8> {
    let mut bytes = aqueduct_tests::paint(length.max(8), (sender * 31 + number) as usize);
    bytes[..4].copy_from_slice(&sender.to_le_bytes());
    bytes[4..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Sender and number of such a body, all of which must be as it was sent.
pub(super) fn number_of(message: &Message) -> (u32, u32) {
    let bytes = message.bytes();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (sender, number) = (word(0), word(4));
    assert_eq!(bytes, numbered(sender, number, bytes.len()), "a message came damaged");
    (sender, number)
}
