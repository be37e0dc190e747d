//! Peers that are processes of their own: killed, stopped and started again.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aqueduct::ErrorKind;
use aqueduct::message::{Address, Messenger, Peer, PeerEvent, Sent};
use aqueduct_tests::process::Process;
use aqueduct_tests::ranks;
use socket2::{Domain, Socket, Type};

use super::refusals::addresses;
use super::rig::{Log, Pollers, Rig, SOON, connect, count, numbered, send, until};

/// Variables that tell a started process the secret and whom to connect to.
const SECRET: &str = "AQUEDUCT_TEST_MESSAGES_SECRET";
const ADDRESS: &str = "AQUEDUCT_TEST_MESSAGES_ADDRESS";

/// Kinds of messages between a test and the process that it has started.
const HELLO: u16 = 1;
const ECHO: u16 = 2;
const BACK: u16 = 3;
const SINK: u16 = 4;

/// Starts a process that connects to `messenger` as `rank`.
fn start(rig: &Rig, messenger: &Messenger, rank: u32) -> Process {
    let mut command: Command = ranks::command(rank, &rig.test());
    command.env(SECRET, rig.secret().to_text().expose()).env(ADDRESS, messenger.address().to_string());
    Process::start(&mut command)
}

/// The started process greets, answers `ECHO`, and swallows `SINK` until it is killed.
fn child(rig: &Rig, rank: u32) {
    let rig = rig.with_secret(&std::env::var(SECRET).unwrap());
    let messenger = rig.messenger(rank);
    let parent: Address = std::env::var(ADDRESS).unwrap().parse().unwrap();
    messenger.on(SINK, drop).unwrap();
    messenger
        .on(ECHO, |message| {
            while matches!(message.reply(BACK, message.bytes()), Ok(Sent::Retry(_))) {
                std::thread::yield_now();
            }
        })
        .unwrap();
    let peer = messenger.connect(&parent, SOON).unwrap();
    peer.send_within(HELLO, &messenger.address().to_bytes(), SOON).unwrap();
    std::io::stdout().flush().unwrap();
    // The end of the test ends this process at the latest.
    while peer.lost().is_none() {
        messenger.wait(SOON).unwrap();
        messenger.poll().unwrap();
    }
}

/// The messenger of the test, and the peers that greeted it, with how many of them are gone.
struct Parent {
    messenger: Arc<Messenger>,
    greeted: Log<(Peer, Address)>,
    gone: Log<(u32, u64)>,
}

impl Parent {
    fn new(rig: &Rig) -> Self {
        let messenger = Arc::new(rig.messenger(0));
        let (greeted, gone) = (Log::new(), Log::new());
        let into = greeted.clone();
        let greet = move |message: aqueduct::message::Message| {
            into.add((message.peer().clone(), Address::from_bytes(message.bytes()).unwrap()));
        };
        messenger.on(HELLO, greet).unwrap();
        let into = gone.clone();
        let watch = move |event| {
            if let PeerEvent::Gone(peer, why) = event {
                assert_eq!((why.kind(), why.peer()), (ErrorKind::PeerLost, Some(peer.rank())), "{why}");
                into.add((peer.rank(), peer.generation()));
            }
        };
        messenger.on_peer(watch).unwrap();
        Self { messenger, greeted, gone }
    }

    /// The next peer that greets.
    fn next(&self) -> (Peer, Address) {
        until(&[&self.messenger], || self.greeted.len() == 1);
        self.greeted.take().remove(0)
    }
}

/// A process is killed while it is sent to and echoes, from several threads. The loss is told once, and every call ends.
pub(super) fn killed_with_operations_under_way(rig: &Rig) {
    if let Some(rank) = ranks::rank() {
        return child(rig, rank);
    }
    for round in 0..4 {
        let parent = Parent::new(rig);
        let back = count(&parent.messenger, BACK);
        let process = start(rig, &parent.messenger, 1);
        let (peer, _) = parent.next();
        let pollers = Pollers::start(&parent.messenger, 2);
        std::thread::scope(|scope| {
            for sender in 0..3 {
                let peer = &peer;
                scope.spawn(move || {
                    let kind = if sender == 0 { ECHO } else { SINK };
                    let error = (0..)
                        .find_map(|n| peer.send_within(kind, &numbered(sender, n, 300), SOON).err())
                        .unwrap();
                    assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}");
                });
            }
            until(&[], || back.load(Ordering::Acquire) > 100 * round);
            process.signal(libc::SIGKILL);
        });
        until(&[], || parent.gone.len() == 1);
        drop(pollers);
        super::rig::settle(&[&parent.messenger]);
        parent.messenger.poll().unwrap();
        assert_eq!(parent.gone.take(), [(1, peer.generation())], "told once");
    }
}

/// Binds the port of a process that has ended, and does not listen.
fn keep(address: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
    // Connections of the dead process may still be there.
    socket.set_reuse_address(true).unwrap();
    socket.bind(&address.into()).unwrap_or_else(|error| panic!("{address}: {error}"));
    socket
}

/// A process comes back three times under the same rank. It is another peer each time; handles and addresses of earlier ones
/// are refused.
pub(super) fn killed_and_started_again(rig: &Rig) {
    if let Some(rank) = ranks::rank() {
        return child(rig, rank);
    }
    let parent = Parent::new(rig);
    let back = Log::of(&parent.messenger, BACK);
    let mut old = Vec::<(Peer, Address)>::new();
    // Another test's messenger that got the port of a dead process would refuse the secret: nobody gets it.
    let mut ports = Vec::new();
    for life in 0..4_u32 {
        let process = start(rig, &parent.messenger, 1);
        let (peer, address) = parent.next();
        assert_eq!(peer.generation(), address.generation());
        send(&[&parent.messenger], &peer, ECHO, &numbered(0, life, 100));
        until(&[&parent.messenger], || back.len() == 1);
        assert_eq!(back.take(), [numbered(0, life, 100)]);
        // Also if there is less time than a refusal is tried again for.
        let limits = [SOON, Duration::from_millis(1500), Duration::from_millis(900)];
        for ((stale, address), limit) in old.iter().zip(limits) {
            assert!(*stale != peer);
            assert_eq!(stale.send(ECHO, b"stale").unwrap_err().kind(), ErrorKind::PeerLost);
            let error = parent.messenger.connect(address, limit).unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}");
        }
        process.signal(libc::SIGKILL);
        drop(process);
        ports.extend(addresses(&address).into_iter().map(keep));
        if life % 2 == 0 {
            // Otherwise the new one may be there before the loss of the old one is noticed.
            until(&[&parent.messenger], || parent.gone.len() == life as usize + 1);
        }
        old.push((peer, address));
    }
    until(&[&parent.messenger], || parent.gone.len() == 4);
    let generations: Vec<_> = old.iter().map(|(peer, _)| (1, peer.generation())).collect();
    assert_eq!(parent.gone.take(), generations);
}

/// A process that does not run for a while takes nothing; other peers go on, and nothing is lost when it runs again.
pub(super) fn stopped_and_continued(rig: &Rig) {
    if let Some(rank) = ranks::rank() {
        return child(rig, rank);
    }
    let parent = Parent::new(rig);
    let back = Log::of(&parent.messenger, BACK);
    let stopped = start(rig, &parent.messenger, 1);
    let (peer, _) = parent.next();
    let running = rig.messenger(2);
    let other = count(&running, 1);
    stopped.signal(libc::SIGSTOP);
    // The signal takes effect a little later.
    let stat = format!("/proc/{}/stat", stopped.pid());
    let has_stopped = || {
        let stat = std::fs::read_to_string(&stat).unwrap();
        stat.rsplit(") ").next().is_some_and(|fields| fields.starts_with('T'))
    };
    until(&[&parent.messenger], has_stopped);
    let mut sent = 0;
    while peer.send(ECHO, &numbered(0, sent, 1000)).unwrap() == Sent::Done {
        sent += 1;
    }
    let to_other = connect(&parent.messenger, &running);
    for n in 0..500 {
        send(&[&parent.messenger, &running], &to_other, 1, &numbered(0, n, 8));
    }
    until(&[&parent.messenger, &running], || other.load(Ordering::Acquire) == 500);
    assert_eq!((back.len(), parent.gone.len()), (0, 0));
    stopped.signal(libc::SIGCONT);
    until(&[&parent.messenger], || back.len() == sent as usize);
    assert!(back.take().into_iter().eq((0..sent).map(|n| numbered(0, n, 1000))));
}
