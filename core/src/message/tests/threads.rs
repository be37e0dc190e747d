//! Several threads that make progress for one messenger.

use super::*;
use crate::sync::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Nothing but a wake-up that was lost lets a test wait for so long.
const LATE: Duration = Duration::from_secs(5);
const ROUNDS: u32 = 200;

const WARM: u16 = 1;
const BLOCK: u16 = 2;
const DONE: u16 = 3;
/// Nothing is registered for it.
const UNKNOWN: u16 = 4;

/// Waits until `done`, within [`LATE`].
fn comes(done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > LATE {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Runs `f` while another thread polls `messenger`, asleep when there is nothing to do.
fn beside_a_sleeper(messenger: &Messenger, f: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                if messenger.poll().unwrap() == 0 {
                    messenger.wait(SOON).unwrap();
                }
            }
        });
        // Also if `f` panics: the scope waits for the thread.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        stop.store(true, Ordering::Release);
        messenger.core.engine.hub.alarm.wake();
        outcome.unwrap_or_else(|payload| std::panic::resume_unwind(payload));
    });
}

/// A peer of `messenger` that sends from any thread, and its handle of `messenger`.
fn sender(rank: u32, messenger: &Messenger) -> (Messenger, Peer) {
    let sender = self::messenger(rank);
    // So that what callbacks send leaves at once.
    sender.start_thread().unwrap();
    let peer = sender.connect(messenger.address(), SOON).unwrap();
    (sender, peer)
}

fn send(peer: &Peer, kind: u16) {
    assert_eq!(peer.send(kind, b"").unwrap(), Sent::Done);
}

/// The callback of one peer waits for a message of another one, whose doorbell the same thread had disarmed before.
#[test]
fn a_thread_asleep_is_told_of_other_peers_while_a_callback_waits() {
    let hub = Messenger::new(0, config().with_checks_every(HOUR)).unwrap();
    let ((_a, first), (_b, second)) = (sender(1, &hub), sender(2, &hub));
    let [warm, done, ended] = [(); 3].map(|()| Arc::new(AtomicU32::new(0)));
    let late = Arc::new(AtomicBool::new(false));
    let count = |of: &Arc<AtomicU32>| {
        let of = of.clone();
        move |_| {
            of.fetch_add(1, Ordering::AcqRel);
        }
    };
    hub.on(WARM, count(&warm)).unwrap();
    hub.on(DONE, count(&done)).unwrap();
    let (second_, done_, ended_, late_) = (second.clone(), done.clone(), ended.clone(), late.clone());
    hub.on(BLOCK, move |_| {
        let before = done_.load(Ordering::Acquire);
        send(&second_, DONE);
        if !comes(|| done_.load(Ordering::Acquire) > before) {
            late_.store(true, Ordering::Release);
        }
        ended_.fetch_add(1, Ordering::AcqRel);
    })
    .unwrap();
    beside_a_sleeper(&hub, || {
        for round in 1..=ROUNDS {
            assert!(comes(|| hub.core.engine.hub.alarm.is_asleep()), "round {round}: nobody sleeps");
            send(&first, WARM);
            send(&second, WARM);
            until(&[&hub], || warm.load(Ordering::Acquire) == 2 * round);
            send(&first, BLOCK);
            until(&[&hub], || ended.load(Ordering::Acquire) == round);
            assert!(!late.load(Ordering::Acquire), "round {round}: the other thread slept on");
        }
    });
}

/// A thread reads a link in `progress`, and makes none any more.
#[test]
fn a_thread_asleep_is_told_of_peers_that_another_one_has_looked_at() {
    let hub = Messenger::new(0, config().with_checks_every(HOUR)).unwrap();
    let (_a, peer) = sender(1, &hub);
    let done = Arc::new(AtomicU32::new(0));
    let count = done.clone();
    hub.on(DONE, move |_| {
        count.fetch_add(1, Ordering::AcqRel);
    })
    .unwrap();
    beside_a_sleeper(&hub, || {
        for round in 1..=ROUNDS {
            assert!(comes(|| hub.core.engine.hub.alarm.is_asleep()), "round {round}: nobody sleeps");
            // Fails once after the messenger has said that it knows no such kind.
            let _ = peer.send(UNKNOWN, b"");
            // Either thread may get it.
            let start = Instant::now();
            while hub.progress().unwrap() == 0 && start.elapsed() < Duration::from_millis(1) {}
            send(&peer, DONE);
            assert!(
                comes(|| done.load(Ordering::Acquire) == round),
                "round {round}: the other thread slept on"
            );
        }
    });
}

/// One of two threads is in a slow callback. The other one serves the other peer, in order, and later what the slow one has sent.
#[test]
fn a_slow_callback_holds_up_its_own_peer_only() {
    let hub = Messenger::new(0, config().with_checks_every(HOUR)).unwrap();
    let ((_a, slow), (_b, quick)) = (sender(1, &hub), sender(2, &hub));
    let seen = Seen::new();
    let (add, others) = (seen.adder(), seen.0.clone());
    let late = Arc::new(AtomicBool::new(false));
    let (late_, once) = (late.clone(), AtomicBool::new(false));
    hub.on(1, move |message| {
        let rank = message.peer().rank();
        if rank == 1 && !once.swap(true, Ordering::AcqRel) {
            late_.store(!comes(|| lock(&others).iter().any(|(_, n)| *n == 99)), Ordering::Release);
        }
        add((rank, message.bytes()[0]));
    })
    .unwrap();
    let threads = 2;
    (0..threads).for_each(|_| hub.start_thread().unwrap());
    for n in 0..50 {
        slow.send_within(1, &[n], SOON).unwrap();
    }
    // One by one, so that most find the other thread asleep.
    for n in 0..100 {
        quick.send_within(1, &[n], SOON).unwrap();
        std::thread::sleep(Duration::from_micros(100));
    }
    assert!(comes(|| seen.len() == 150), "{} messages", seen.len());
    assert!(!late.load(Ordering::Acquire), "the slow callback held up another peer");
    let all = seen.take();
    for (rank, count) in [(1, 50), (2, 100)] {
        let own: Vec<u8> = all.iter().filter(|(from, _)| *from == rank).map(|(_, n)| *n).collect();
        assert_eq!(own, (0..count).collect::<Vec<_>>(), "rank {rank}");
    }
}

/// Each of two threads is in a callback when the messenger ends, which waits for both.
#[test]
fn all_threads_end_with_their_messenger() {
    let hub = messenger(0);
    let ((_a, first), (_b, second)) = (sender(1, &hub), sender(2, &hub));
    let [entered, left] = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
    let (entered_, left_) = (entered.clone(), left.clone());
    hub.on(1, move |_| {
        entered_.fetch_add(1, Ordering::AcqRel);
        std::thread::sleep(Duration::from_millis(200));
        left_.fetch_add(1, Ordering::AcqRel);
    })
    .unwrap();
    (0..2).for_each(|_| hub.start_thread().unwrap());
    send(&first, 1);
    send(&second, 1);
    assert!(comes(|| entered.load(Ordering::Acquire) == 2), "one waits for the other");
    drop(hub);
    assert_eq!(left.load(Ordering::Acquire), 2, "a thread goes on");
}

/// Handshakes of both sides cross, in each of which another life may be told.
#[test]
fn both_sides_may_connect_and_close_at_once() {
    let all = [messenger(0), messenger(1)];
    let exposed = all.each_ref().map(|owner| owner.expose(vec![1; 1000]).unwrap());
    all.iter().for_each(|messenger| messenger.start_thread().unwrap());
    let (begun, ended) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let until_then = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (all, exposed, begun, ended) = (&all, &exposed, &begun, &ended);
            scope.spawn(move || {
                let mut state = thread as u64;
                while Instant::now() < until_then {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let step = (state >> 33) as usize;
                    let side = step % 2;
                    let Ok(peer) = all[side].connect(all[1 - side].address(), SOON) else { continue };
                    for _ in 0..(step >> 5) % 4 {
                        let ended = ended.clone();
                        let done = move |_| {
                            ended.fetch_add(1, Ordering::Relaxed);
                        };
                        let token = exposed[1 - side].token();
                        let posted = peer.read(&token, 0, vec![0; 1000], HOUR, done);
                        begun.fetch_add(
                            usize::from(posted.is_ok_and(|read| read.is_posted())),
                            Ordering::Relaxed,
                        );
                    }
                    if (step >> 9).is_multiple_of(2) {
                        // It may be late, if the other side closes, too.
                        let _ = peer.close(Duration::from_millis(500));
                    }
                }
            });
        }
    });
    let start = Instant::now();
    while ended.load(Ordering::Relaxed) < begun.load(Ordering::Relaxed) {
        assert!(start.elapsed() < SOON, "{ended:?} of {begun:?} reads have ended");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(begun.into_inner() > 0);
}
