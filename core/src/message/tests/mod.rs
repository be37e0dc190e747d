//! Messengers of one process that talk to each other: over TCP as module `tests`, over shared memory as `tests_over_rings`, and over
//! the queue pairs of a stand-in as `tests_over_verbs`.

mod faults;
mod idle;
mod lives;
mod long;
mod messages;
mod peers;
mod reads;
mod shared;
mod threads;
mod waiting;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::Deadline;
use crate::env::Selection;
use crate::error::{ErrorKind, Result};
use crate::sync::{Mutex, lock};

/// Long enough for everything that is to happen, also on a busy machine.
const SOON: Duration = Duration::from_secs(30);
/// Nothing that a test waits for takes so long.
const HOUR: Duration = Duration::from_secs(3600);

fn config() -> MessengerConfig {
    let interfaces = Selection { names: Some("lo".into()), ..Selection::default() };
    let config =
        MessengerConfig::default().with_secret(Secret::from_bytes([7; 32])).with_interfaces(interfaces);
    let config = config.with_shared_memory(module_path!().ends_with("tests_over_rings"));
    if !module_path!().ends_with("tests_over_verbs") {
        return config;
    }
    let verbs = crate::rdma::Verbs::from_table(crate::rdma::standin::table(), "stand-in");
    config.with_verbs(true).with_ib_devices("null0").with_verbs_library(verbs)
}

fn messenger(rank: u32) -> Messenger {
    Messenger::new(rank, config()).unwrap()
}

/// Polls all of them until `done`.
fn until(all: &[&Messenger], mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        for messenger in all {
            messenger.poll().unwrap();
        }
        assert!(start.elapsed() < SOON, "not in time");
    }
}

/// A record of what callbacks have seen, in order.
struct Seen<T>(Arc<Mutex<Vec<T>>>);

impl<T> Seen<T> {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Vec::new())))
    }

    /// A function that adds to it.
    fn adder(&self) -> impl Fn(T) + Send + Sync + 'static
    where
        T: Send + 'static,
    {
        let seen = self.0.clone();
        move |value| lock(&seen).push(value)
    }

    fn len(&self) -> usize {
        lock(&self.0).len()
    }

    fn take(&self) -> Vec<T> {
        std::mem::take(&mut *lock(&self.0))
    }
}

/// The kinds of errors, for comparison.
fn kinds<T>(outcomes: Vec<Result<T>>) -> Vec<std::result::Result<T, ErrorKind>> {
    outcomes.into_iter().map(|outcome| outcome.map_err(|error| error.kind())).collect()
}

/// The events of `messenger`, as text.
fn events(messenger: &Messenger) -> Seen<String> {
    let seen = Seen::new();
    let add = seen.adder();
    let on = move |event| match event {
        PeerEvent::Connected(peer) => add(format!("connected {}", peer.rank())),
        PeerEvent::Gone(peer, why) => add(format!("gone {}: {why}", peer.rank())),
    };
    messenger.on_peer(on).unwrap();
    seen
}
