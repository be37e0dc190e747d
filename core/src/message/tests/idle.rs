//! The cost of many peers that say nothing.

use super::*;
use crate::message::credit::Amount;
use crate::message::hello::{CONNECTED, Hearing, Hello, Verdict};
use crate::message::ring::RingMemory;
use crate::message::verbs::{Draft, Nic, VerbsLink};
use crate::net::ready::wait_readable;
use crate::net::{Claims, RawStream, purpose};
use crate::own_process::is_own_process;

const PEERS: u32 = 1024;
const MOST: usize = 64 << 10;
/// Memory that is registered for a queue pair at one side: the stand-in does not lock it as a device does, so it is not resident.
const MOST_REGISTERED: u64 = 64 << 10;

/// One that has connected and does nothing: its socket, and the rings or the queue pair that it keeps.
type Idle = (Box<dyn RawStream>, Vec<RingMemory>, Option<VerbsLink>);

/// Connects to `messenger`, over `nic` if there is one.
fn connect(messenger: &Messenger, nic: Option<&Arc<Nic>>, rank: u32) -> Idle {
    let (address, deadline) = (messenger.address(), Deadline::after(SOON));
    let network = config().network(&Secret::from_bytes([7; 32]));
    let claims = Claims { purpose: purpose::MESSAGES, scope: 0, from: rank, to: address.rank() };
    let stream = match address.unix() {
        Some(path) => network.connect_unix(path, claims, deadline),
        None => network.connect_tcp(&address.ips, claims, deadline),
    };
    let raw = stream.unwrap().into_raw();
    let made = address.unix().map(|_| RingMemory::create(8 << 10).unwrap());
    let (generation, meant, verdict) = (u64::from(rank), address.generation(), Verdict::Taken);
    let inbox = Amount { messages: 100, bytes: 100 << 10 };
    let hello = Hello {
        rank,
        generation,
        meant,
        eager: 8 << 10,
        read_depth: 64,
        ring: 0,
        verbs: 0,
        life: 0,
        inbox,
        verdict,
    };
    let draft = nic.map(|nic| Draft::new(nic, 8 << 10).unwrap());
    assert!(hello.send(&*raw, made.as_ref(), draft.as_ref().map(Draft::offer)));
    let mut hearing = Hearing::new();
    let heard = loop {
        match hearing.hear(&*raw).unwrap() {
            Some(heard) => break heard,
            None => assert!(wait_readable(raw.fd(), deadline).unwrap(), "no answer"),
        }
    };
    let link = draft.map(|draft| draft.connect(&heard.offer.unwrap()).unwrap());
    assert!(link.is_none() || raw.write(&[CONNECTED], &[]).unwrap() == 1);
    (raw, made.map(|(ring, _)| ring).into_iter().chain(heard.ring).collect(), link)
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Other tests of this process would take memory at the same time.
#[test]
fn a_thousand_idle_peers_cost_little() {
    if is_own_process(module_path!(), "a_thousand_idle_peers_cost_little", &[]) {
        measure();
    }
}

fn measure() {
    raise_limit();
    let hub = messenger(0);
    let nic = config().nic();
    let mut peers: Vec<_> = (1..=16).map(|rank| connect(&hub, nic.as_ref(), rank)).collect();
    until(&[&hub], || lock(&hub.core.engine.members).len() == 16);
    let (before, registered) = (resident(), crate::rdma::standin::registered_bytes());
    peers.extend((17..=PEERS).map(|rank| connect(&hub, nic.as_ref(), rank)));
    until(&[&hub], || lock(&hub.core.engine.members).len() == PEERS as usize);
    // Until every link is armed: nothing is polled any more.
    while hub.wait(Duration::from_millis(50)).unwrap() {
        hub.poll().unwrap();
    }
    let each = resident().saturating_sub(before) / (PEERS as usize - 16);
    println!("measured: {PEERS} idle peers: {each} bytes each, both sides together");
    assert!(each > 0 && each <= MOST, "{each} bytes for an idle peer");
    let registered = (crate::rdma::standin::registered_bytes() - registered) / 2 / (u64::from(PEERS) - 16);
    println!("measured: {PEERS} idle peers: {registered} bytes each registered with a device, on each side");
    assert_eq!(registered > 0, nic.is_some());
    assert!(registered <= MOST_REGISTERED, "{registered} bytes registered for an idle peer");
}

/// Every peer takes a descriptor on each side.
fn raise_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a live output.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is a live input.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
}
