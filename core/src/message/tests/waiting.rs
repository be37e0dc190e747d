//! Threads that wait for something of their own.

use super::*;

#[test]
fn what_is_waited_for_comes_or_the_deadline_does() {
    let (a, b) = (messenger(0), messenger(1));
    let queue = b.queue(1).unwrap();
    let error = b.wait_for(Duration::from_millis(50), || queue.try_recv()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert_eq!(b.wait_for(Duration::ZERO, || Some(3)).unwrap(), 3, "a value that is there needs no time");
    // Other threads may bring it about and wake nobody, so it looks often: not once a second, as the messenger does for itself.
    let mut looks = 0;
    let looked = b.wait_for(SOON, || {
        looks += 1;
        (looks == 40).then_some(())
    });
    assert!(looked.is_ok(), "only {looks} looks");
    let peer = a.connect(b.address(), SOON).unwrap();
    for with_a_thread in [false, true] {
        if with_a_thread {
            // It may take what would wake the one that waits.
            b.start_thread().unwrap();
        }
        for n in 0..20_u8 {
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| b.wait_for(SOON, || queue.try_recv()));
                peer.send_within(1, &[n], SOON).unwrap();
                until(&[&a], || waiting.is_finished());
                assert_eq!(waiting.join().unwrap().unwrap().bytes(), [n]);
            });
        }
    }
}

/// A program may have something else to do between two callbacks.
#[test]
fn no_more_callbacks_run_than_were_asked_for() {
    let (a, b) = (messenger(0), messenger(1));
    let seen = Seen::new();
    let add = seen.adder();
    b.on(1, move |message| add(message.bytes()[0])).unwrap();
    let to_b = a.connect(b.address(), SOON).unwrap();
    (0..5).for_each(|n| assert_eq!(to_b.send(1, &[n]).unwrap(), Sent::Done));
    let start = Instant::now();
    while seen.len() < 5 {
        a.progress().unwrap();
        b.progress().unwrap();
        let before = seen.len();
        b.dispatch(2);
        assert!(seen.len() - before <= 2);
        assert!(start.elapsed() < SOON, "not in time");
    }
}
