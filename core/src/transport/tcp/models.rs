//! The threads of a connection over TCP, under loom: what they count, what they tell each other, and which of them receives.

use std::sync::Arc;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::thread;

use super::counts::{Acknowledged, Counts};
use super::landings::Landings;
use super::readers::Readers;
use super::reads::Reads;
use crate::deadline::Deadline;
use crate::memory::Place;
use crate::sync::{Condvar, Mutex, lock, wait};

/// Runs `body` in every interleaving with at most `preemptions` interruptions of threads that would not have waited.
fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(body);
}

/// Memory that loom watches: an access that could race with another one fails the model.
struct Bytes(UnsafeCell<u64>);

// SAFETY: a race on the cell is what loom looks for and reports; it schedules one thread at a time.
unsafe impl Sync for Bytes {}
// SAFETY: a number belongs to no thread.
unsafe impl Send for Bytes {}

impl Bytes {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    fn write(&self, value: u64) {
        // SAFETY: loom has just checked that no other access is concurrent.
        self.0.with_mut(|at| unsafe { *at = value });
    }

    fn read(&self) -> u64 {
        // SAFETY: as above.
        self.0.with(|at| unsafe { *at })
    }
}

/// The receiving end: two threads take turns with the inbox, and tell the peer what has landed, each after its turn. The first
/// frame waits for a device until `FRAMES` have come.
#[test]
fn loom_tcp_the_peer_is_told_of_all_that_landed_and_never_of_fewer() {
    const FRAMES: u64 = 3;
    /// The frames that the socket still has, and those that have come.
    type Inbox = Mutex<(u64, Landings<u64>)>;
    /// The counts that the peer was told.
    type Outbox = Mutex<(Counts, Vec<u64>)>;

    /// Receives one frame. True once there are no more.
    fn turn(inbox: &Inbox, outbox: &Outbox) -> bool {
        let (landed, ended) = {
            let mut inbox = lock(inbox);
            let (left, landings) = &mut *inbox;
            if *left > 0 {
                let frame = FRAMES - *left;
                *left -= 1;
                if frame == 0 || !landings.land_at_once() {
                    landings.push(frame);
                }
            }
            let copied = *left == 0;
            while landings.land(|frame| Ok(*frame > 0 || copied)).unwrap().is_some() {}
            (landings.landed(), *left == 0)
        };
        let mut outbox = lock(outbox);
        if let Some(count) = outbox.0.tell(landed) {
            outbox.1.push(count);
        }
        ended
    }

    model(3, || {
        let ends: Arc<(Inbox, Outbox)> =
            Arc::new((Mutex::new((FRAMES, Landings::new())), Mutex::new((Counts::new(1), Vec::new()))));
        let other = ends.clone();
        let service = thread::spawn(move || while !turn(&other.0, &other.1) {});
        while !turn(&ends.0, &ends.1) {}
        service.join().unwrap();
        let told = &lock(&ends.1).1;
        assert!(told.is_sorted_by(|one, next| one < next), "it was told {told:?}");
        assert_eq!(told.last(), Some(&FRAMES), "it was told {told:?}");
    });
}

/// The sending end: a thread asks and waits, while two others take turns with the inbox and note acknowledgements. The waiter
/// sees what came before the acknowledgement, and all that it waited for is acknowledged in the sending half, too.
#[test]
fn loom_tcp_who_sees_an_acknowledgement_sees_what_came_before_it() {
    struct End {
        outbox: Mutex<Counts>,
        acknowledged: Acknowledged,
        /// Acknowledgements that the socket still has.
        inbox: Mutex<Vec<u64>>,
        came_before: [Bytes; 2],
    }
    impl End {
        /// Notes the next acknowledgement, before which the peer's data has come.
        fn turn(&self) {
            let mut inbox = lock(&self.inbox);
            if let Some(count) = inbox.pop() {
                self.came_before[inbox.len()].write(count);
                self.acknowledged
                    .note(&self.outbox, count, |counts, count| counts.acknowledge(count, 0))
                    .unwrap();
            }
        }
    }
    model(3, || {
        let mut counts = Counts::new(1);
        counts.add(1);
        counts.end_operation();
        counts.add(1);
        counts.ask();
        counts.send(2);
        let end = Arc::new(End {
            outbox: Mutex::new(counts),
            acknowledged: Acknowledged::default(),
            // The second overtook the first.
            inbox: Mutex::new(vec![1, 2]),
            came_before: [Bytes::new(), Bytes::new()],
        });
        let turns: Vec<_> = (0..2)
            .map(|_| {
                let end = end.clone();
                thread::spawn(move || end.turn())
            })
            .collect();
        let mark = lock(&end.outbox).asked();
        while end.acknowledged.get() < mark {
            thread::yield_now();
        }
        assert_eq!(end.came_before[1].read(), mark);
        assert!(lock(&end.outbox).is_settled(), "the sending half does not know");
        turns.into_iter().for_each(|turn| turn.join().unwrap());
        assert_eq!((end.acknowledged.get(), lock(&end.outbox).is_settled()), (mark, true), "fewer hold");
    });
}

/// A thread has asked for two parts of memory, which two others receive in turns. It sends more, or uses the bytes, once it finds no
/// part that is waited for.
#[test]
fn loom_tcp_who_finds_that_no_read_waits_sees_the_bytes_of_all() {
    struct End {
        reads: Reads,
        /// Parts that have come.
        inbox: Mutex<usize>,
        parts: [Bytes; 2],
    }
    model(3, || {
        let parts = [Bytes::new(), Bytes::new()];
        let end = Arc::new(End { reads: Reads::new(1), inbox: Mutex::new(0), parts });
        end.parts.iter().for_each(|_| end.reads.ask(Place::Elsewhere, 8));
        let turns = [(); 2].map(|()| {
            let end = end.clone();
            thread::spawn(move || {
                let mut come = lock(&end.inbox);
                end.reads.begin(8).unwrap();
                end.parts[*come].write(7);
                *come += 1;
                end.reads.landed();
            })
        });
        while end.reads.waiting() > 0 {
            thread::yield_now();
        }
        assert_eq!(end.parts.each_ref().map(Bytes::read), [7, 7]);
        turns.into_iter().for_each(|turn| turn.join().unwrap());
    });
}

/// A connection whose socket brings single messages.
struct Connection {
    readers: Readers,
    /// Messages received.
    inbox: Mutex<u64>,
    outbox: Mutex<()>,
    kernel: Mutex<Kernel>,
    changed: Condvar,
}

/// The kernel's side of the socket.
#[derive(Default)]
struct Kernel {
    /// Messages in the socket.
    readable: u64,
    /// The service thread polls the socket.
    watched: bool,
    /// The service thread is to look anyway.
    nudged: bool,
    ended: bool,
}

impl Connection {
    fn new() -> Self {
        let kernel = Kernel { watched: true, ..Kernel::default() };
        let (inbox, outbox) = (Mutex::new(0), Mutex::new(()));
        Self {
            readers: Readers::default(),
            inbox,
            outbox,
            kernel: Mutex::new(kernel),
            changed: Condvar::new(),
        }
    }

    fn kernel<T>(&self, change: impl FnOnce(&mut Kernel) -> T) -> T {
        let result = change(&mut lock(&self.kernel));
        self.changed.notify_all();
        result
    }

    fn sleep_until(&self, mut ready: impl FnMut(&Kernel) -> bool) {
        let mut kernel = lock(&self.kernel);
        while !ready(&kernel) {
            kernel = wait(&self.changed, kernel, Deadline::after(Duration::MAX));
        }
    }

    /// One turn with the inbox. Whether anything was received.
    fn turn(&self, assists: bool) -> bool {
        self.readers.turn(&self.inbox, assists, |received, reads| {
            let came = if reads { self.kernel(|kernel| std::mem::take(&mut kernel.readable)) } else { 0 };
            *received += came;
            (came > 0, came > 0)
        })
    }

    /// The service thread: looks whenever there is a reason to, until the end.
    fn serve(&self) {
        loop {
            self.sleep_until(|kernel| kernel.ended || kernel.nudged || kernel.watched && kernel.readable > 0);
            if lock(&self.kernel).ended {
                return;
            }
            lock(&self.kernel).nudged = false;
            let again = self.readers.check();
            if self.turn(false) {
                self.readers.disturb();
            }
            let outbox = lock(&self.outbox);
            let read = !self.readers.are_users();
            self.kernel(|kernel| {
                kernel.watched = read;
                // It looks again after some time.
                kernel.nudged |= again.is_some();
            });
            drop(outbox);
        }
    }

    /// A user thread: waits until `messages` have come.
    fn wait_for(&self, messages: u64) {
        while *lock(&self.inbox) < messages {
            assert!(self.begin(), "nobody else waits");
            while !(self.turn(true) | self.readers.have_missed()) {
                self.sleep_until(|kernel| kernel.readable > 0);
            }
            self.end();
        }
    }

    fn begin(&self) -> bool {
        self.readers.begin(&self.outbox, || self.kernel(|kernel| kernel.watched = false))
    }

    fn end(&self) {
        let watch = |(): &_, read| self.kernel(|kernel| kernel.watched = read);
        if self.readers.end(&self.outbox, true, |()| true, watch) {
            self.kernel(|kernel| kernel.nudged = true);
        }
    }
}

/// A user thread waits for one message, after `waits` others. One more comes, for which nobody waits: the service thread has to
/// receive it. Loom reports a message that both sleep over as a deadlock.
fn one_waits(waits: usize) {
    model(2, move || {
        let connection = Arc::new(Connection::new());
        for _ in 0..waits {
            assert!(connection.begin());
            connection.end();
        }
        let threads = [
            thread::spawn({
                let connection = connection.clone();
                move || connection.serve()
            }),
            thread::spawn({
                let connection = connection.clone();
                move || connection.wait_for(1)
            }),
        ];
        connection.kernel(|kernel| kernel.readable += 1);
        connection.kernel(|kernel| kernel.readable += 1);
        let [service, user] = threads;
        user.join().unwrap();
        connection.sleep_until(|kernel| kernel.readable == 0);
        connection.kernel(|kernel| kernel.ended = true);
        service.join().unwrap();
        assert_eq!(*lock(&connection.inbox), 2);
    });
}

#[test]
fn loom_tcp_no_message_is_slept_over_where_the_service_thread_polls_after_the_wait() {
    one_waits(0);
}

#[test]
fn loom_tcp_no_message_is_slept_over_where_user_threads_begin_to_poll() {
    one_waits(1);
}

#[test]
fn loom_tcp_no_message_is_slept_over_where_user_threads_poll_and_the_service_thread_takes_over() {
    one_waits(2);
}
