//! Waiting without polling, by messengers that do not wake once a second to look after their peers: a wake-up that is lost shows as a
//! wait that ends at its deadline.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aqueduct::ErrorKind;
use aqueduct::message::{Messenger, Sent};

use super::rig::{Log, Rig, SOON, connect, count, numbered, settle, sleepers, until};

/// Polls and sleeps in turn until `done`. Each sleep must end by an event.
fn sleep_until(messenger: &Messenger, mut done: impl FnMut() -> bool) {
    while !done() {
        if messenger.poll().unwrap() == 0 {
            assert!(messenger.wait(SOON).unwrap(), "nothing has woken the messenger");
        }
    }
}

/// Both sides sleep whenever there is nothing to do.
pub(super) fn a_message_wakes(rig: &Rig) {
    let [a, b] = rig.sleepers();
    const TRIPS: usize = 2000;
    b.on(1, |message| assert_eq!(message.reply(2, message.bytes()).unwrap(), Sent::Done)).unwrap();
    let (back, served) = (count(&a, 2), count(&b, 3));
    let peer = connect(&a, &b);
    std::thread::scope(|scope| {
        scope.spawn(|| sleep_until(&b, || served.load(Ordering::Acquire) == 1));
        for trip in 0..TRIPS {
            assert_eq!(peer.send(1, &numbered(0, trip as u32, 8)).unwrap(), Sent::Done);
            sleep_until(&a, || back.load(Ordering::Acquire) == trip + 1);
        }
        assert_eq!(peer.send(3, b"end").unwrap(), Sent::Done);
    });
}

/// A message leaves at once if one thread sends it while another one sleeps in `wait`.
pub(super) fn other_threads_wake(rig: &Rig) {
    let [a, b] = rig.sleepers().map(Arc::new);
    let (seen, end) = (count(&b, 1), count(&a, 2));
    let (to_b, to_a) = (connect(&a, &b), connect(&b, &a));
    std::thread::scope(|scope| {
        scope.spawn(|| sleep_until(&a, || end.load(Ordering::Acquire) == 1));
        // In bursts, of which only the first message is sent at once.
        for burst in 0..300 {
            for n in 0..10 {
                // The sleeper makes room where a device is late.
                while to_b.send(1, &numbered(0, n, 8)).unwrap() != Sent::Done {
                    std::thread::yield_now();
                }
            }
            sleep_until(&b, || seen.load(Ordering::Acquire) == 10 * (burst + 1));
        }
        assert_eq!(to_a.send(2, b"").unwrap(), Sent::Done);
    });
}

/// An outer event loop: arm, poll(2), poll.
pub(super) fn an_outer_loop(rig: &Rig) {
    let [a, b] = rig.sleepers();
    let seen = Log::of(&b, 1);
    let end = count(&a, 2);
    b.on(3, |message| assert_eq!(message.reply(2, b"").unwrap(), Sent::Done)).unwrap();
    let peer = connect(&a, &b);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while seen.len() < 1000 {
                if b.arm().unwrap() {
                    b.poll().unwrap();
                    continue;
                }
                let mut fd = libc::pollfd { fd: b.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: `fd` is live across the call.
                let ready = unsafe { libc::poll(&raw mut fd, 1, SOON.as_millis() as i32) };
                assert_eq!(ready, 1, "the descriptor told of nothing");
                b.poll().unwrap();
            }
            while b.poll().is_ok() && end.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
        });
        for n in 0..1000 {
            peer.send_within(1, &numbered(0, n, 8), SOON).unwrap();
            if n % 10 == 0 {
                // The other side has time to fall asleep.
                while seen.len() <= n as usize {
                    a.poll().unwrap();
                    std::thread::yield_now();
                }
            }
        }
        peer.send_within(3, b"", SOON).unwrap();
        sleep_until(&a, || end.load(Ordering::Acquire) == 1);
    });
}

/// A sender sleeps for want of room while another thread makes all the progress: what that thread finds wakes the sender.
pub(super) fn room_that_another_thread_finds_wakes(rig: &Rig) {
    sleep_for_room(rig, 20, |b| assert!(b.poll().is_ok()));
}

/// The receiver makes room in what carries the messages, and gives no credit, of which a frame would tell: it dispatches nothing.
pub(super) fn room_that_no_frame_tells_of_wakes(rig: &Rig) {
    sleep_for_room(rig, 20, |b| assert!(b.progress().is_ok()));
}

/// A sender is refused, and another thread finds the room before the sender sleeps.
pub(super) fn room_that_was_found_before_is_told(rig: &Rig) {
    let [a, b] = short_of_room(rig);
    let peer = connect(&a, &b);
    let seen = count(&b, 1);
    // A messenger does not sleep before it has looked after a new peer.
    until(&[&a, &b], || peer.send(1, b"").unwrap() == Sent::Done);
    until(&[&a, &b], || seen.load(Ordering::Acquire) == 1);
    let mut sent = 1;
    for _ in 0..5 {
        loop {
            while peer.send(1, &numbered(0, sent, 4000)).unwrap() == Sent::Done {
                sent += 1;
            }
            // This thread is told of all that was. A socket may take more meanwhile, so the send is refused once more behind that.
            if !a.wait(Duration::from_millis(1)).unwrap() {
                if peer.send(1, &numbered(0, sent, 4000)).unwrap() != Sent::Done {
                    break;
                }
                sent += 1;
            }
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                settle(&[&a, &b]);
                while a.wait(Duration::from_millis(1)).unwrap() {
                    settle(&[&a, &b]);
                }
            });
        });
        assert!(a.wait(SOON).unwrap(), "nothing told of the room");
        assert_eq!(peer.send(1, &numbered(0, sent, 4000)).unwrap(), Sent::Done);
        sent += 1;
        until(&[&b], || seen.load(Ordering::Acquire) == sent as usize);
    }
}

/// A sender is refused, and another thread hears of the peer's end before the sender sleeps: there is nobody any more who could wake it.
pub(super) fn an_end_that_was_found_before_is_told(rig: &Rig) {
    let [a, b] = short_of_room(rig);
    let gone = Arc::new(AtomicBool::new(false));
    let told = gone.clone();
    a.on_peer(move |_| told.store(true, Ordering::Release)).unwrap();
    let peer = connect(&a, &b);
    let seen = count(&b, 1);
    until(&[&a, &b], || peer.send(1, b"").unwrap() == Sent::Done);
    until(&[&a, &b], || seen.load(Ordering::Acquire) == 1);
    loop {
        while peer.send(1, &[1; 4000]).unwrap() == Sent::Done {}
        // As above.
        if !a.wait(Duration::from_millis(1)).unwrap() && peer.send(1, &[1; 4000]).unwrap() != Sent::Done {
            break;
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(b);
            until(&[&a], || gone.load(Ordering::Acquire));
        });
    });
    assert!(a.wait(SOON).unwrap(), "nothing has woken the sender");
    assert_eq!(peer.send(1, &[1; 4000]).unwrap_err().kind(), ErrorKind::PeerLost);
}

/// Two messengers between which what carries the messages is full before the receiver's inbox is, of which half may be owed: sockets
/// grow to tens of megabytes.
fn short_of_room(rig: &Rig) -> [Messenger; 2] {
    sleepers(rig.config().with_inbox(1 << 20, 1 << 30))
}

/// `turn` is what the receiver does, again and again, while the sender sleeps.
fn sleep_for_room(rig: &Rig, rounds: u32, turn: impl Fn(&Messenger) + Sync) {
    let [a, b] = short_of_room(rig);
    let peer = connect(&a, &b);
    let seen = count(&b, 1);
    a.start_thread().unwrap();
    let mut sent = 0;
    for _ in 0..rounds {
        while peer.send(1, &numbered(0, sent, 4000)).unwrap() == Sent::Done {
            sent += 1;
        }
        let found = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The sender is asleep by now, as a rule.
                std::thread::sleep(Duration::from_millis(2));
                while !found.load(Ordering::Acquire) {
                    turn(&b);
                    std::thread::yield_now();
                }
            });
            let mut told = true;
            while told && peer.send(1, &numbered(0, sent, 4000)).unwrap() != Sent::Done {
                told = a.wait(SOON).unwrap();
            }
            found.store(true, Ordering::Release);
            assert!(told, "nothing told of the room");
        });
        sent += 1;
        until(&[&b], || seen.load(Ordering::Acquire) == sent as usize);
    }
}

/// A sender whose bytes found no room sleeps; they leave when the receiver has made room.
pub(super) fn room_wakes(rig: &Rig) {
    let [a, b] = rig.sleepers();
    let peer = connect(&a, &b);
    let (seen, end) = (count(&b, 1), count(&a, 2));
    b.on(3, |message| assert_eq!(message.reply(2, b"").unwrap(), Sent::Done)).unwrap();
    let mut sent = 0;
    while peer.send(1, &numbered(0, sent, 4000)).unwrap() == Sent::Done {
        sent += 1;
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sleep_until(&b, || seen.load(Ordering::Acquire) == sent as usize);
            sleep_until(&b, || end.load(Ordering::Acquire) == 1);
        });
        // Both threads poll after an event only.
        let mut asked = false;
        sleep_until(&a, || {
            asked |= !asked && peer.send(3, b"").unwrap() == Sent::Done;
            end.load(Ordering::Acquire) == 1
        });
        // The last sleep of the other side ends by this.
        while peer.send(3, b"").unwrap() != Sent::Done {
            a.poll().unwrap();
        }
        a.poll().unwrap();
    });
}
