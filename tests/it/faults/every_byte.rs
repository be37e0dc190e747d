//! Streams that split, merge or stall at each byte of a small exchange, one byte after the other, on every kind of stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aqueduct::bootstrap::{Bootstrap, BootstrapConfig, Rendezvous, Selection, TcpBootstrap};
use aqueduct::comm::{Communicator, CommunicatorConfig, HostBuffer, Transport};
use aqueduct::gpu::{Context, Device, Driver};
use aqueduct::internals::fault::{LinkKind, NetAction, NetFault, NetFaults};
use aqueduct::message::{Messenger, MessengerConfig, Secret, Sent};
use aqueduct::{Deadline, Error, ErrorKind, Result};
use aqueduct_tests::{paint, ranks};

use crate::group::{Machine, config};

/// No exchange that goes on takes so long, even on a busy machine; one that hangs ends the test.
const SOON: Duration = Duration::from_secs(90);
/// How long each rank waits for a peer of which nothing more comes.
const SHORT: Duration = Duration::from_millis(500);
/// No exchange is as long as this, in bytes.
const MOST: u64 = 1 << 16;
/// Bytes of each of several messages that leave together.
const LENGTHS: [usize; 4] = [1, 23, 0, 40];

/// An exchange between two ranks of this process, over streams with these faults.
type Exchange = fn(&Driver, &Arc<NetFaults>, Duration) -> Vec<Result<()>>;

fn loopback() -> Selection {
    Selection { names: Some("=lo".into()), ..Selection::default() }
}

/// Runs `rank` as two threads.
fn both(rank: impl Fn(u32) -> Result<()> + Sync) -> Vec<Result<()>> {
    std::thread::scope(|scope| {
        let ranks = [0, 1].map(|me| {
            let rank = &rank;
            scope.spawn(move || rank(me))
        });
        ranks.into_iter().map(|rank| rank.join().expect("no fault makes a rank panic")).collect()
    })
}

/// Two ranks meet, and send each other several messages at once.
fn meet(_: &Driver, faults: &Arc<NetFaults>, patience: Duration) -> Vec<Result<()>> {
    let settings = BootstrapConfig::default().with_interfaces(loopback()).with_layer(faults.clone());
    let rendezvous = Rendezvous::with_config(Some(2), &settings).expect("it can listen");
    both(|me| {
        let deadline = Deadline::after(patience);
        let bootstrap = TcpBootstrap::with_config(me, 2, rendezvous.unique_id(), &settings, deadline)?;
        for (tag, length) in LENGTHS.into_iter().enumerate() {
            bootstrap.send(1 - me, tag as u64, &paint(length, tag), deadline)?;
        }
        for (tag, length) in LENGTHS.into_iter().enumerate().rev() {
            assert_eq!(bootstrap.recv(1 - me, tag as u64, deadline)?, paint(length, tag));
        }
        bootstrap.barrier(deadline)
    })
}

/// Two ranks make a communicator and a connection over TCP, and write into each other's memory.
fn connect(driver: &Driver, faults: &Arc<NetFaults>, patience: Duration) -> Vec<Result<()>> {
    let bootstraps = aqueduct::bootstrap::local(2);
    both(|me| {
        let context = Context::new(&Device::new(driver, me)?)?;
        write(&bootstraps[me as usize], &context, config().with_layer(faults.clone()), patience)
    })
}

fn write(
    bootstrap: &dyn Bootstrap,
    context: &Context,
    config: CommunicatorConfig,
    patience: Duration,
) -> Result<()> {
    let deadline = Deadline::after(patience);
    let comm = Communicator::new(bootstrap, context, config, deadline)?;
    let peer = 1 - comm.rank();
    let buffer = || Ok::<_, Error>(Arc::new(HostBuffer::new(context, 64)?));
    let [source, inbox] =
        [buffer()?, buffer()?].map(|buffer| comm.register_host(&buffer, Transport::Ethernet));
    let (source, inbox) = (source?, inbox?);
    comm.send_memory(&inbox, peer, 0)?;
    let target = comm.recv_memory(peer, 0)?;
    let connection = comm.connect(peer, 0, Transport::Ethernet)?;
    let semaphore = comm.build_host2host_semaphore(&connection, 0)?;
    comm.setup(deadline)?;
    let (target, connection, semaphore) = (target.get()?, connection.get()?, semaphore.get()?);
    source.host().expect("host memory").write(0, &paint(64, peer as usize))?;
    let batch = connection.batch();
    for (at, length) in [(0, 1), (1, 23), (24, 40)] {
        connection.write(&target, at, &source, at, length)?;
    }
    semaphore.signal()?;
    drop(batch);
    semaphore.wait(deadline)?;
    connection.flush(deadline)?;
    let mut came = [0; 64];
    inbox.host().expect("host memory").read(0, &mut came)?;
    assert_eq!(came[..], paint(64, comm.rank() as usize));
    bootstrap.barrier(deadline)?;
    drop((connection, semaphore, target));
    comm.close(deadline)
}

/// Two messengers send each other several messages at once, and read from each other.
fn talk(_: &Driver, faults: &Arc<NetFaults>, patience: Duration) -> Vec<Result<()>> {
    let config = MessengerConfig::default()
        .with_interfaces(loopback())
        .with_shared_memory(false)
        .with_linger(patience.min(Duration::from_secs(1)))
        .with_secret(Secret::random().expect("there is randomness"))
        .with_layer(faults.clone());
    let messengers = [0, 1].map(|me| Messenger::new(me, config.clone()).expect("it can listen"));
    let memory =
        messengers.each_ref().map(|messenger| messenger.expose(paint(50, 7)).expect("there is room"));
    let (done, deadline) = (AtomicU64::new(0), Deadline::after(patience));
    both(|me| {
        let (mine, theirs) = (&messengers[me as usize], &messengers[1 - me as usize]);
        let queue = mine.queue(1)?;
        let (tell, told) = std::sync::mpsc::channel();
        let peer = mine.connect(theirs.address(), deadline)?;
        for (number, length) in LENGTHS.into_iter().enumerate() {
            assert_eq!(peer.send(1, &paint(length, number))?, Sent::Done);
        }
        let token = memory[1 - me as usize].token();
        peer.read(&token, 0, vec![0; 50], deadline, move |bytes| drop(tell.send(bytes)))?.posted()?;
        for (number, length) in LENGTHS.into_iter().enumerate() {
            let message = mine.wait_for(deadline, || queue.try_recv())?;
            assert_eq!(message.bytes(), paint(length, number));
        }
        assert_eq!(mine.wait_for(deadline, || told.try_recv().ok())??, paint(50, 7));
        done.fetch_add(1, Ordering::AcqRel);
        // The other one may still have to be answered.
        mine.wait_for(deadline, || (done.load(Ordering::Acquire) == 2).then_some(()))
    })
}

/// Behind how many bytes of a stream of `kind` a rule still takes effect: no stream of the exchange is longer.
fn length(exchange: impl Fn(&Arc<NetFaults>) -> Vec<Result<()>>, kind: LinkKind) -> u64 {
    let (mut least, mut most) = (0, MOST);
    while least < most {
        let place = least.midpoint(most);
        let rule = NetFault::new(NetAction::Delay(Duration::ZERO)).on(kind).after_bytes(place);
        let faults = Arc::new(NetFaults::new([rule], 0));
        let ends = exchange(&faults);
        assert!(ends.iter().all(Result::is_ok), "{ends:?}");
        if faults.fired() > 0 { least = place + 1 } else { most = place }
    }
    least
}

/// Sweeps in a process of its own, as [`sweep`] describes, with one action after the other.
fn sweeps(test: &str, exchange: Exchange, kind: LinkKind, actions: &[NetAction], step: u64) {
    if ranks::start(1, test).is_some() {
        actions.iter().for_each(|action| sweep(exchange, kind, *action, step));
    }
}

/// Runs `exchange` with `action` behind each byte of the streams of `kind`, or behind every `step`th.
fn sweep(exchange: Exchange, kind: LinkKind, action: NetAction, step: u64) {
    let driver = Machine::Software.driver();
    let _kept: Vec<Context> =
        (0..2).map(|rank| Context::new(&Device::new(&driver, rank).unwrap()).unwrap()).collect();
    let stalls = action == NetAction::Stall;
    let length = length(|faults| exchange(&driver, faults, SOON), kind);
    assert!((40..MOST).contains(&length), "streams of {length} bytes");
    let (next, reached) = (AtomicU64::new(0), AtomicU64::new(0));
    let run = || {
        loop {
            let place = next.fetch_add(step, Ordering::Relaxed);
            if place >= length {
                return;
            }
            let mut patience = if stalls { SHORT } else { SOON };
            let fired = loop {
                let rule = NetFault::new(action).on(kind).after_bytes(place);
                let (faults, since) = (Arc::new(NetFaults::new([rule], place)), Instant::now());
                let ends = exchange(&driver, &faults, patience);
                let case = format!("{action:?} behind byte {place} of {kind:?}: {ends:?}");
                assert!(since.elapsed() < patience + SOON, "{case}");
                let in_time = ends.iter().all(Result::is_ok);
                for error in ends.into_iter().filter_map(Result::err) {
                    // The last: a rank that has given up cannot be reached.
                    let timely =
                        [ErrorKind::Timeout, ErrorKind::PeerLost, ErrorKind::Remote, ErrorKind::System];
                    assert!(stalls && timely.contains(&error.kind()), "{case}");
                }
                if in_time || faults.fired() > 0 || patience > SOON {
                    break faults.fired();
                }
                // A busy machine needs more time to come so far.
                patience *= 4;
            };
            reached.fetch_add(u64::from(fired > 0), Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        // Those that stall only wait.
        (0..if stalls { 16 } else { 8 }).for_each(|_| drop(scope.spawn(run)));
    });
    let (reached, places) = (reached.into_inner(), length.div_ceil(step));
    println!("{action:?}: {reached} of {places} places in the {length} bytes of {kind:?}");
    // An exchange that stalls may end before its last bytes, and its own length differs a little: numbers are written out in it.
    assert!(reached >= places / 2 && reached > 0, "{reached} of {places} places were reached");
}

/// A sender that pauses, so that the receiver reads what comes before and behind the byte at different times.
const SPLIT: NetAction = NetAction::Delay(Duration::from_millis(1));

/// Tests of one kind of stream: at every byte, or, where an exchange takes long, at some, and at every one in `ci/deep.sh faults`.
macro_rules! streams {
    ($($kind:ident: $exchange:ident, $link:ident, every $step:literal, stalls every $stall:literal;)*) => {
        $(mod $kind {
            use super::*;

            fn run(case: &str, actions: &[NetAction], step: u64) {
                let test = format!("faults::every_byte::{}::{case}", stringify!($kind));
                sweeps(&test, $exchange, LinkKind::$link, actions, step);
            }

            #[test]
            fn splits() {
                run("splits", &[SPLIT], $step);
            }

            #[test]
            fn merges() {
                run("merges", &[NetAction::Coalesce], $step);
            }

            #[test]
            fn stalls() {
                run("stalls", &[NetAction::Stall], $stall);
            }

            #[test]
            #[ignore = "minutes long; ci/deep.sh faults"]
            fn all() {
                run("all", &[SPLIT, NetAction::Coalesce, NetAction::Stall], 1);
            }
        })*
    };
}

streams! {
    rendezvous: meet, Rendezvous, every 1, stalls every 7;
    bootstrap: meet, Bootstrap, every 1, stalls every 13;
    control: connect, Control, every 23, stalls every 89;
    data: connect, Data, every 7, stalls every 23;
    messages: talk, Messages, every 1, stalls every 13;
}
