//! Reads of shared memory, whose owners die, leave, revoke and fork.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use aqueduct::message::{Address, Begun, Messenger, Peer, SharedMemory, Token};
use aqueduct::{ErrorKind, Result};
use aqueduct_tests::process::Process;
use aqueduct_tests::{paint, ranks};

use super::rig::{Backend, Log, Pollers, Rig, SOON, connect, until};

/// Variables that tell a started process the secret and whom to connect to.
const SECRET: &str = "AQUEDUCT_TEST_MESSAGES_SECRET";
const ADDRESS: &str = "AQUEDUCT_TEST_MESSAGES_ADDRESS";

/// The message with which an owner's process hands its token over.
const TOKEN: u16 = 1;
const LENGTH: usize = 24 << 20;

type Outcomes = Log<(usize, Result<Vec<u8>>)>;

fn shared(bytes: &[u8]) -> SharedMemory {
    let memory = SharedMemory::allocate(bytes.len()).unwrap();
    memory.write(0, bytes).unwrap();
    memory
}

/// Starts a read that logs its number and what became of it; an error if the peer is lost already.
fn read(
    peer: &Peer,
    token: &Token,
    (offset, length): (u64, usize),
    number: usize,
    log: &Outcomes,
) -> Result<()> {
    let log = log.clone();
    peer.read(token, offset, vec![0; length], SOON, move |outcome| log.add((number, outcome)))
        .and_then(Begun::posted)
        .map(drop)
}

/// Sizes at which a backend may change its way, of both kinds of memory in turn, in order.
pub(super) fn both_kinds_in_order(rig: &Rig) {
    let [a, b] = rig.pair();
    let bytes = paint(2 << 20, 5);
    let exposed = [b.expose(shared(&bytes)).unwrap(), b.expose(bytes.clone()).unwrap()];
    let (peer, log) = (connect(&a, &b), Log::new());
    let sizes = [0, 1, 4095, 4096, 512 << 10, (512 << 10) + 1, 1 << 20, (1 << 20) + 1];
    let ranges: Vec<_> = (0..200).map(|n: usize| (n as u64 * 2621, sizes[n % 8] / (1 + n / 32))).collect();
    for (number, range) in ranges.iter().enumerate() {
        read(&peer, &exposed[number / 5 % 2].token(), *range, number, &log).unwrap();
    }
    until(&[&a, &b], || log.len() == ranges.len());
    for ((at, (number, outcome)), (offset, length)) in log.take().into_iter().enumerate().zip(ranges) {
        assert_eq!(number, at, "completions come in the order of the calls");
        assert!(outcome.unwrap() == bytes[offset as usize..][..length], "{length} bytes at {offset}");
    }
}

/// The owner writes while it is read, and says when it has: what it wrote before a message is read after it.
pub(super) fn written_before_a_message(rig: &Rig) {
    let [a, b] = rig.pair();
    let memory = SharedMemory::allocate(100_000).unwrap();
    let exposed = b.expose(&memory).unwrap();
    let (token, bad, rounds) =
        (exposed.token(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (wrong, count) = (bad.clone(), rounds.clone());
    a.on(1, move |message| {
        let (value, wrong, count) = (message.bytes()[0], wrong.clone(), count.clone());
        let done = move |outcome: Result<Vec<u8>>| {
            let right = outcome.is_ok_and(|bytes| bytes.iter().all(|byte| *byte == value));
            wrong.fetch_add(usize::from(!right), Ordering::AcqRel);
            count.fetch_add(1, Ordering::AcqRel);
        };
        message.peer().read(&token, 0, vec![0; 100_000], SOON, done).unwrap().posted().unwrap();
    })
    .unwrap();
    let peer = connect(&b, &a);
    for round in 0..100 {
        memory.fill(round as u8 + 1);
        super::rig::send(&[&a, &b], &peer, 1, &[round as u8 + 1]);
        until(&[&a, &b], || rounds.load(Ordering::Acquire) == round + 1);
    }
    assert_eq!(bad.load(Ordering::Acquire), 0);
}

/// Ends threads that read, also if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The owner exposes, revokes and overwrites again and again while threads read: no read brings other bytes than its token stands for.
pub(super) fn revoked_while_threads_read(rig: &Rig) {
    let all = rig.pair().map(Arc::new);
    let (peer, memory) = (connect(&all[0], &all[1]), SharedMemory::allocate(200_000).unwrap());
    let pollers = [Pollers::start(&all[0], 2), Pollers::start(&all[1], 1)];
    let (stop, good, refused) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let current = std::sync::Mutex::new(None::<(Token, u8)>);
    std::thread::scope(|scope| {
        let ends = Stop(&stop);
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    let Some((token, value)) = *current.lock().unwrap() else { continue };
                    let log = Log::new();
                    read(&peer, &token, (0, 200_000), 0, &log).unwrap();
                    until(&[], || log.len() == 1);
                    match log.take().remove(0).1 {
                        Ok(bytes) => {
                            assert!(bytes.iter().all(|byte| *byte == value), "bytes of another token");
                            good.fetch_add(1, Ordering::AcqRel);
                        }
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Remote, "{error}");
                            refused.fetch_add(1, Ordering::AcqRel);
                        }
                    }
                }
            });
        }
        let mut round = 0_u32;
        while round < 200 || good.load(Ordering::Acquire) < 20 || refused.load(Ordering::Acquire) < 5 {
            let value = (round % 100) as u8 * 2 + 1;
            memory.fill(value);
            let exposed = all[1].expose(&memory).unwrap();
            *current.lock().unwrap() = Some((exposed.token(), value));
            // Longer and longer, until reads succeed on a machine as busy as this one.
            std::thread::sleep(Duration::from_micros(
                u64::from(round % 20) * u64::from((4 * round).max(200)),
            ));
            drop(exposed);
            memory.fill(value + 1);
            round += 1;
            let [good, refused] = [&good, &refused].map(|count| count.load(Ordering::Acquire));
            assert!(round < 3_000, "{good} reads succeeded and {refused} were refused");
        }
        drop(ends);
    });
    drop(pollers);
}

/// A forked child can neither read nor revoke, and its parent goes on.
pub(super) fn the_owner_and_the_reader_fork(rig: &Rig) {
    let [a, b] = rig.pair();
    let (bytes, log) = (paint(100_000, 3), Log::new());
    let exposed = b.expose(shared(&bytes)).unwrap();
    let (token, peer) = (exposed.token(), connect(&a, &b));
    read(&peer, &token, (0, 100_000), 0, &log).unwrap();
    until(&[&a, &b], || log.len() == 1);
    // SAFETY: the child makes two calls that only look at the process and at memory of its own, and leaves with _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = peer.read(&token, 0, Vec::new(), SOON, |_| ()).err().map(|error| error.kind());
        drop(exposed);
        // SAFETY: _exit is async-signal-safe.
        unsafe { libc::_exit(if refused == Some(ErrorKind::InvalidUsage) { 7 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `child` is ours and `status` is a live output.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 7);
    for number in 1..4 {
        read(&peer, &token, (0, 100_000), number, &log).unwrap();
    }
    until(&[&a, &b], || log.len() == 4);
    assert!(log.take().into_iter().all(|(_, outcome)| outcome.unwrap() == bytes));
}

/// The owner's process: it exposes memory, hands the token over, and waits for its end.
fn owner(rig: &Rig, rank: u32) {
    let rig = rig.with_secret(&std::env::var(SECRET).unwrap());
    let messenger = rig.messenger(rank);
    let reader: Address = std::env::var(ADDRESS).unwrap().parse().unwrap();
    let exposed = messenger.expose(shared(&paint(LENGTH, 9))).unwrap();
    let peer = messenger.connect(&reader, SOON).unwrap();
    peer.send_within(TOKEN, &exposed.token().to_bytes(), SOON).unwrap();
    while peer.lost().is_none() {
        messenger.wait(SOON).unwrap();
        messenger.poll().unwrap();
    }
}

/// A reader, and its owner, which is another process.
fn with_owner(rig: &Rig) -> (Messenger, Process, Peer, Token) {
    let messenger = rig.messenger(0);
    let tokens = messenger.queue(TOKEN).unwrap();
    let mut command: Command = ranks::command(1, &rig.test());
    command.env(SECRET, rig.secret().to_text().expose()).env(ADDRESS, messenger.address().to_string());
    let process = Process::start(&mut command);
    until(&[&messenger], || !tokens.is_empty());
    let message = tokens.try_recv().unwrap();
    let (peer, token) = (message.peer().clone(), Token::from_bytes(message.bytes()).unwrap());
    (messenger, process, peer, token)
}

/// An owner that does not run any more is read all the same, over rings; one that is killed while it is read, or between reads, harms
/// nobody: each read ends once, with all the bytes or with the loss.
pub(super) fn the_owner_is_stopped_and_killed(rig: &Rig) {
    if let Some(rank) = ranks::rank() {
        return owner(rig, rank);
    }
    let bytes = paint(LENGTH, 9);
    for in_the_middle in [false, true] {
        let (messenger, process, peer, token) = with_owner(rig);
        let log = Log::new();
        read(&peer, &token, (0, LENGTH), 0, &log).unwrap();
        until(&[&messenger], || log.len() == 1);
        if rig.backend == Backend::SharedMemory {
            process.signal(libc::SIGSTOP);
            read(&peer, &token, (1, LENGTH - 1), 1, &log).unwrap();
            until(&[&messenger], || log.len() == 2);
        }
        let before = log.len();
        assert!(log.take().into_iter().all(|(n, outcome)| outcome.unwrap() == bytes[n..]));
        let mut started = 0;
        if in_the_middle {
            for number in 0..6 {
                read(&peer, &token, (0, LENGTH), number, &log).unwrap();
                started += 1;
            }
            messenger.poll().unwrap();
        }
        process.signal(libc::SIGKILL);
        // Reads go on until the loss is noticed.
        until(&[&messenger], || {
            let gone = peer.lost().is_some();
            if !gone && read(&peer, &token, (0, 4096), started, &log).is_ok() {
                started += 1;
            }
            gone
        });
        until(&[&messenger], || log.len() == started);
        super::rig::settle(&[&messenger]);
        messenger.poll().unwrap();
        let outcomes = log.take();
        assert_eq!(outcomes.len(), started, "once each, {before} before");
        for (number, outcome) in outcomes {
            match outcome {
                Ok(read) => assert!(read == bytes[..read.len()], "read {number}"),
                Err(error) => {
                    assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}")
                }
            }
        }
        let error = read(&peer, &token, (0, 1), 0, &log).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerLost);
    }
}
