//! Reads from and into the memory of devices, whose owners are stopped, die, leave and revoke.

use std::process::Command;
use std::sync::Arc;

use aqueduct::gpu::{Context, GpuBuffer};
use aqueduct::message::{Address, Begun, Exposed, Memory, Messenger, Peer, SharedMemory, Token};
use aqueduct::{ErrorKind, Result};
use aqueduct_tests::process::Process;
use aqueduct_tests::{paint, ranks};

use super::rig::{Backend, Log, Rig, SOON, connect, until};
use crate::group::{Machine, context};

/// Variables that tell a started process the secret and whom to connect to.
const SECRET: &str = "AQUEDUCT_TEST_MESSAGES_SECRET";
const ADDRESS: &str = "AQUEDUCT_TEST_MESSAGES_ADDRESS";

/// The message with which an owner's process hands its tokens over.
const TOKENS: u16 = 1;
const LENGTH: usize = 20 << 20;

type Outcomes = Log<(usize, Result<()>)>;

fn buffer(context: &Context, bytes: &[u8]) -> Arc<GpuBuffer> {
    let buffer = Arc::new(GpuBuffer::new(context, bytes.len()).unwrap());
    buffer.upload(0, bytes, SOON).unwrap();
    buffer
}

fn contents(buffer: &GpuBuffer, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    buffer.download(0, &mut bytes, SOON).unwrap();
    bytes
}

/// Starts a read into the first bytes of `into` that logs its number and what became of it.
fn read_into(
    peer: &Peer,
    token: &Token,
    (offset, length): (u64, usize),
    into: &Arc<GpuBuffer>,
    (number, log): (usize, &Outcomes),
) -> Result<()> {
    let (log, into) = (log.clone(), into.slice(..length).unwrap());
    peer.read_into(token, offset, into, SOON, move |outcome| log.add((number, outcome)))
        .and_then(Begun::posted)
        .map(drop)
}

/// The same bytes in memory of a device, in shared memory, and in a vector.
fn everywhere(messenger: &Messenger, context: &Context, bytes: &[u8]) -> [Exposed; 3] {
    let shared = SharedMemory::allocate(bytes.len()).unwrap();
    shared.write(0, bytes).unwrap();
    let all: [Memory; 3] = [buffer(context, bytes).into(), shared.into(), bytes.to_vec().into()];
    all.map(|memory| messenger.expose(memory).unwrap())
}

/// All kinds of memory into all others, with the sizes at which the way changes, in order.
pub(super) fn all_kinds_in_order(rig: &Rig) {
    all_kinds_in_order_on(rig, Machine::Software);
}

pub(super) fn all_kinds_in_order_on(rig: &Rig, machine: Machine) {
    let [a, b] = rig.pair();
    let (driver, bytes) = (machine.driver(), paint(9 << 20, 5));
    let contexts = [0, 1].map(|rank| context(&driver, rank));
    let exposed = everywhere(&b, &contexts[0], &bytes);
    let (peer, log) = (connect(&a, &b), Outcomes::new());
    let sizes = [0, 1, 4095, 512 << 10, (512 << 10) + 1, (2 << 20) + 3, (8 << 20) + 1];
    let ranges: Vec<_> = (0..84).map(|n: usize| (n as u64 * 2621, sizes[n % 7])).collect();
    let into: Vec<_> = ranges
        .iter()
        .enumerate()
        .map(|(n, (_, length))| Arc::new(GpuBuffer::new(&contexts[n % 2], (*length).max(1)).unwrap()))
        .collect();
    let hosts = Log::new();
    for (number, (range, into)) in ranges.iter().zip(&into).enumerate() {
        let token = exposed[number % 3].token();
        if number % 4 == 3 {
            let (log, kept) = (log.clone(), hosts.clone());
            let done = move |outcome: Result<Vec<u8>>| {
                log.add((number, outcome.as_ref().map(|_| ()).map_err(Clone::clone)));
                kept.add((number, outcome.unwrap()));
            };
            peer.read(&token, range.0, vec![0; range.1], SOON, done).unwrap().posted().unwrap();
        } else {
            read_into(&peer, &token, *range, into, (number, &log)).unwrap();
        }
    }
    until(&[&a, &b], || log.len() == ranges.len());
    for (at, (number, outcome)) in log.take().into_iter().enumerate() {
        assert_eq!(number, at, "completions come in the order of the calls");
        outcome.unwrap();
    }
    let hosts: std::collections::HashMap<usize, Vec<u8>> = hosts.take().into_iter().collect();
    for (number, ((offset, length), into)) in ranges.into_iter().zip(into).enumerate() {
        let came = hosts.get(&number).cloned().unwrap_or_else(|| contents(&into, length));
        assert!(came == bytes[offset as usize..][..length], "{number}: {length} bytes at {offset}");
    }
}

/// The owner's process: it exposes memory of its device and others, hands the tokens over, and waits for its end.
fn owner(rig: &Rig, machine: Machine, rank: u32) {
    let rig = rig.with_secret(&std::env::var(SECRET).unwrap());
    let messenger = rig.messenger(rank);
    let reader: Address = std::env::var(ADDRESS).unwrap().parse().unwrap();
    let context = context(&machine.driver(), rank);
    let exposed = everywhere(&messenger, &context, &paint(LENGTH, 9));
    let peer = messenger.connect(&reader, SOON).unwrap();
    let tokens: Vec<u8> = exposed.iter().flat_map(|exposed| exposed.token().to_bytes()).collect();
    peer.send_within(TOKENS, &tokens, SOON).unwrap();
    while peer.lost().is_none() {
        messenger.wait(SOON).unwrap();
        messenger.poll().unwrap();
    }
}

/// A device reads memory of another process's device; over rings also of one that does not run any more. When the owner is killed, each read ends
/// once, with all the bytes or with the loss.
pub(super) fn the_owner_of_device_memory_is_killed(rig: &Rig) {
    the_owner_of_device_memory_is_killed_on(rig, Machine::Software);
}

pub(super) fn the_owner_of_device_memory_is_killed_on(rig: &Rig, machine: Machine) {
    if let Some(rank) = ranks::rank() {
        return owner(rig, machine, rank);
    }
    let (context, bytes) = (context(&machine.driver(), 0), paint(LENGTH, 9));
    let messenger = rig.messenger(0);
    let queue = messenger.queue(TOKENS).unwrap();
    let mut command: Command = ranks::command(1, &rig.test());
    command.env(SECRET, rig.secret().to_text().expose()).env(ADDRESS, messenger.address().to_string());
    let process = Process::start(&mut command);
    until(&[&messenger], || !queue.is_empty());
    let message = queue.try_recv().unwrap();
    let peer = message.peer().clone();
    let tokens: Vec<Token> =
        message.bytes().chunks(Token::BYTES).map(|bytes| Token::from_bytes(bytes).unwrap()).collect();
    let log = Outcomes::new();
    let into: Vec<_> = (0..12).map(|_| Arc::new(GpuBuffer::new(&context, LENGTH).unwrap())).collect();
    for (number, token) in tokens.iter().enumerate() {
        read_into(&peer, token, (0, LENGTH), &into[number], (number, &log)).unwrap();
    }
    until(&[&messenger], || log.len() == tokens.len());
    for (number, outcome) in log.take() {
        outcome.unwrap();
        assert!(contents(&into[number], LENGTH) == bytes, "of memory {number}");
    }
    if rig.backend == Backend::SharedMemory {
        // Mapped by now.
        process.signal(libc::SIGSTOP);
        into[0].fill(0, SOON).unwrap();
        read_into(&peer, &tokens[0], (1, LENGTH - 1), &into[0], (0, &log)).unwrap();
        until(&[&messenger], || log.len() == 1);
        log.take().pop().unwrap().1.unwrap();
        assert!(contents(&into[0], LENGTH - 1) == bytes[1..], "without the owner");
    }
    for (number, into) in into.iter().enumerate() {
        into.fill(0, SOON).unwrap();
        read_into(&peer, &tokens[number % 3], (0, LENGTH), into, (number, &log)).unwrap();
    }
    messenger.poll().unwrap();
    process.signal(libc::SIGKILL);
    until(&[&messenger], || log.len() == into.len());
    super::rig::settle(&[&messenger]);
    messenger.poll().unwrap();
    let mut outcomes = log.take();
    outcomes.sort_by_key(|(number, _)| *number);
    assert!(outcomes.iter().map(|(number, _)| *number).eq(0..into.len()), "once each");
    for (number, outcome) in outcomes {
        match outcome {
            Ok(()) => assert!(contents(&into[number], LENGTH) == bytes, "read {number}"),
            Err(error) => assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}"),
        }
    }
}
