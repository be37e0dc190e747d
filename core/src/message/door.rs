//! Answers those who connect, on the service thread: a busy process keeps nobody waiting, and strangers cost it nothing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::carrier::Carrier;
use super::handshake::Handshake;
use super::hello::{CONNECTED, Heard, Hearing, Hello, NOT_CONNECTED, Verdict};
use super::ring::{RingMemory, Rings};
use super::verbs::{Draft, Nic, Offer, VerbsLink};
use crate::error::{Error, Result};
use crate::net::ready::{Epoll, READ};
use crate::net::{Claims, Interest, Next, Pollable, RawStream, Stream};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// How long a peer that has proved the secret may take to introduce itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// Takes an introduced connection: the peer's introduction, the handshake, the stream behind it, and what carries the frames.
pub(super) type Welcome = dyn Fn(Hello, Handshake, Box<dyn RawStream>, Carrier) + Send + Sync;

/// Begins the handshake with a peer that has introduced itself; `None` if there is nobody any more who would take it.
pub(super) type Answer = dyn Fn(&Hello) -> Option<Handshake> + Send + Sync;

/// Connections that have not introduced themselves yet.
pub(super) struct Door {
    me: Hello,
    /// The device for queue pairs, if there is one.
    nic: Option<Arc<Nic>>,
    epoll: Epoll,
    waiting: Mutex<Vec<Waiting>>,
    answer: Box<Answer>,
    welcome: Box<Welcome>,
    /// Nobody is answered any more. Written with the list locked.
    closed: AtomicBool,
}

struct Waiting {
    claims: Claims,
    raw: Box<dyn RawStream>,
    hearing: Hearing,
    /// It was answered with a queue pair, and has not said yet whether its own is connected.
    agreed: Option<(Hello, Box<VerbsLink>)>,
    /// Under way from the answer on.
    handshake: Option<Handshake>,
    until: Instant,
}

impl Door {
    pub(super) fn new(
        me: Hello,
        nic: Option<Arc<Nic>>,
        answer: Box<Answer>,
        welcome: Box<Welcome>,
    ) -> Result<Self> {
        let epoll = Epoll::new().map_err(|error| Error::system("listen", "cannot wait for peers", error))?;
        let closed = AtomicBool::new(false);
        Ok(Self { me, nic, epoll, waiting: Mutex::default(), answer, welcome, closed })
    }

    /// Takes a connection that has proved the secret.
    pub(super) fn admit(&self, stream: Stream) {
        let (claims, raw) = (stream.peer(), stream.into_raw());
        // With the list locked, so that the event finds the entry.
        let mut waiting = lock(&self.waiting);
        if self.closed.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.epoll.add(raw.fd(), READ, 0) {
            log::warn!("cannot talk to rank {}, which has connected: {error}", claims.from);
            return;
        }
        let until = Instant::now() + PATIENCE;
        waiting.push(Waiting { claims, raw, hearing: Hearing::new(), agreed: None, handshake: None, until });
    }

    /// Hears one connection and answers; `None` if the introduction has not come yet.
    fn hear(&self, waiting: &mut Waiting) -> Result<Option<(Hello, Carrier)>> {
        if waiting.agreed.is_some() {
            return conclude(waiting);
        }
        let heard = waiting.hearing.hear(&*waiting.raw).inspect_err(|error| {
            if error.kind() == crate::ErrorKind::Authentication {
                // The answer has the version of this side, which is all that the other one can read of it.
                self.me.send(&*waiting.raw, None, None);
            }
        })?;
        let Some(Heard { hello, ring: outbound, offer }) = heard else { return Ok(None) };
        if hello.rank != waiting.claims.from {
            let text = format!("rank {} introduced itself as rank {}", waiting.claims.from, hello.rank);
            return Err(Error::new(crate::ErrorKind::Remote, "listen", text));
        }
        let is_meant = hello.meant == self.me.generation;
        let verdict = if is_meant { Verdict::Taken } else { Verdict::OtherGeneration };
        let made = outbound.as_ref().and_then(|_| RingMemory::for_rank(hello.rank, self.me.eager as usize));
        let queue_pair = offer.filter(|_| is_meant).and_then(|offer| self.meet(hello.rank, offer));
        let Some(handshake) = (self.answer)(&hello) else {
            return Err(Error::new(crate::ErrorKind::Stopped, "listen", "the messenger was closed"));
        };
        let answer = Hello { meant: hello.generation, life: handshake.life, verdict, ..self.me };
        waiting.handshake = Some(handshake);
        if !answer.send(&*waiting.raw, made.as_ref(), queue_pair.as_ref().map(|(offer, _)| *offer)) {
            return Err(Error::peer_lost("listen", hello.rank, "it connected and left at once"));
        }
        if verdict == Verdict::Taken {
            if let Some((_, link)) = queue_pair {
                waiting.agreed = Some((hello, link));
                return Ok(None);
            }
            let rings = made.zip(outbound).map(|((inbound, _), outbound)| Rings { inbound, outbound });
            return Ok(Some((hello, rings.map_or(Carrier::Socket, Carrier::Rings))));
        }
        let text = format!("rank {} asked for another generation of this messenger", hello.rank);
        Err(Error::new(crate::ErrorKind::Remote, "listen", text))
    }
}

impl Door {
    /// Answers nobody from now on. Handshakes that are under way go on.
    pub(super) fn close(&self) {
        let mut waiting = lock(&self.waiting);
        self.closed.store(true, Ordering::Relaxed);
        waiting.retain(|waiting| waiting.handshake.is_some());
    }

    /// A queue pair that is connected to the one that rank `rank` offers; `None` if that is not possible.
    fn meet(&self, rank: u32, theirs: Offer) -> Option<(Offer, Box<VerbsLink>)> {
        let nic = self.nic.as_ref()?;
        let made = Draft::new(nic, self.me.eager as usize).and_then(|draft| {
            let offer = draft.offer();
            Ok((offer, Box::new(draft.connect(&theirs)?)))
        });
        made.inspect_err(|error| log::info!("messages with rank {rank} go over TCP: {error}")).ok()
    }
}

/// Hears whether the peer's queue pair is connected; `None` if it has not said yet.
fn conclude(waiting: &mut Waiting) -> Result<Option<(Hello, Carrier)>> {
    let (mut byte, mut fds) = ([0], Vec::new());
    let read = match waiting.raw.read(&mut byte, &mut fds) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        read => read.unwrap_or(0),
    };
    let Some((hello, link)) = waiting.agreed.take() else { return Ok(None) };
    match (read, byte) {
        (1.., [CONNECTED]) => Ok(Some((hello, Carrier::Verbs(link)))),
        (1.., [NOT_CONNECTED]) => {
            log::info!("messages with rank {} go over TCP: it could not connect its queue pair", hello.rank);
            Ok(Some((hello, Carrier::Socket)))
        }
        _ => Err(Error::peer_lost("listen", hello.rank, "it connected and left before its queue pair was")),
    }
}

impl Pollable for Door {
    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn progress(&self) -> Next {
        let (now, mut ready) = (Instant::now(), Vec::new());
        let mut waiting = lock(&self.waiting);
        let mut index = 0;
        while index < waiting.len() {
            match self.hear(&mut waiting[index]) {
                Ok(None) if waiting[index].until > now => index += 1,
                Ok(heard) => {
                    let Waiting { raw, claims, handshake, .. } = waiting.swap_remove(index);
                    // It is watched elsewhere from now on.
                    let _ = self.epoll.remove(raw.fd());
                    match heard.zip(handshake) {
                        Some(((hello, carrier), handshake)) => ready.push((hello, handshake, raw, carrier)),
                        None => log::warn!("rank {} connected and did not introduce itself", claims.from),
                    }
                }
                Err(error) => {
                    log::warn!("{error}");
                    drop(waiting.swap_remove(index));
                }
            }
        }
        let next = waiting.iter().map(|waiting| waiting.until).min();
        drop(waiting);
        ready
            .into_iter()
            .for_each(|(hello, handshake, raw, carrier)| (self.welcome)(hello, handshake, raw, carrier));
        match next {
            // Descriptors inside tell of what comes; the time limit needs another look.
            Some(until) => Next::Told(Some(until)),
            None => Next::Wait(Interest { read: true, write: false }),
        }
    }

    fn unserved(&self, why: &Error) {
        lock(&self.waiting).clear();
        log::error!("messengers that connect are not answered any more: {why}");
    }
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::deadline::Deadline;
    use crate::message::credit::Amount;
    use crate::message::hub::Hub;
    use crate::message::ring::tests::NO_MEMORY;
    use crate::message::{Address, Messenger, MessengerConfig, Secret};
    use crate::net::ready::wait_readable;
    use crate::net::{Address as Socket, Listener, Network, purpose};

    const SOON: Duration = Duration::from_secs(30);
    const ME: Hello = Hello {
        rank: 0,
        generation: 5,
        meant: 0,
        eager: 100,
        read_depth: 1,
        ring: 0,
        verbs: 0,
        life: 0,
        inbox: Amount { messages: 1, bytes: 100 },
        verdict: Verdict::Taken,
    };

    fn listen(network: &Network, rank: u32) -> Listener {
        let claims = Claims { purpose: purpose::MESSAGES, scope: 0, from: rank, to: Claims::ANY };
        network.listen_tcp("127.0.0.1".parse().unwrap(), claims).unwrap()
    }

    /// The streams of those who were welcomed.
    type Welcomed = Arc<Mutex<Vec<Box<dyn RawStream>>>>;

    /// A door, those whom it has welcomed, and rank 1, which has connected to it.
    fn door() -> (Door, Welcomed, Box<dyn RawStream>) {
        let network = Network::new(Secret::from_bytes([3; 32]));
        let claims = Claims { purpose: purpose::MESSAGES, scope: 0, from: 0, to: Claims::ANY };
        let mut listener = network.listen_unix(claims).unwrap();
        let Socket::Unix(at) = listener.address().clone() else { panic!("a unix socket") };
        let claims = Claims { purpose: purpose::MESSAGES, scope: 0, from: 1, to: 0 };
        let client = std::thread::spawn(move || network.connect_unix(&at, claims, SOON.into()).unwrap());
        let welcomed = Welcomed::default();
        let streams = welcomed.clone();
        let hub = Arc::new(Hub::new(MessengerConfig::default().limits, 5).unwrap());
        let answer = move |hello: &Hello| Some(Handshake::begin(&hub, hello.rank, hello.generation));
        let welcome = move |_, _, raw, _| lock(&streams).push(raw);
        let door = Door::new(ME, None, Box::new(answer), Box::new(welcome)).unwrap();
        door.admit(listener.accept(SOON.into()).unwrap());
        (door, welcomed, client.join().unwrap().into_raw())
    }

    /// Lets the door look until it has no one left who has not introduced himself; the number of those welcomed.
    fn settle(door: &Door, welcomed: &Welcomed) -> usize {
        let start = Instant::now();
        while !lock(&door.waiting).is_empty() {
            door.progress();
            assert!(start.elapsed() < SOON, "not in time");
        }
        lock(welcomed).len()
    }

    #[test]
    fn a_silent_peer_is_let_go_after_a_while() {
        let (door, welcomed, _raw) = door();
        let next = door.progress();
        let mut waiting = lock(&door.waiting);
        assert!(waiting[0].until <= Instant::now() + PATIENCE, "it waits no longer than {PATIENCE:?}");
        let looks = matches!(next, Next::Told(Some(until)) if until == waiting[0].until);
        assert!(looks, "no descriptor tells of a peer that stays silent: {next:?}");
        waiting[0].until = Instant::now();
        drop(waiting);
        door.progress();
        assert!(lock(&door.waiting).is_empty() && lock(&welcomed).is_empty());
    }

    #[test]
    fn a_peer_must_be_the_rank_that_it_has_proved_and_mean_this_generation() {
        let hello = Hello { rank: 1, generation: 6, meant: 5, ..ME };
        for (hello, expected) in
            [(hello, 1), (Hello { rank: 2, ..hello }, 0), (Hello { meant: 4, ..hello }, 0)]
        {
            let (door, welcomed, raw) = door();
            assert!(hello.send(&*raw, None, None));
            assert_eq!(settle(&door, &welcomed), expected, "{hello:?}");
        }
    }

    /// Its next message would wake the service thread without end: nobody reads it there.
    #[test]
    fn a_peer_that_was_welcomed_is_not_listened_to_any_more() {
        let (door, welcomed, raw) = door();
        assert!(Hello { rank: 1, generation: 6, meant: 5, ..ME }.send(&*raw, None, None));
        assert_eq!(settle(&door, &welcomed), 1);
        assert_eq!(raw.write(b"message", &[]).unwrap(), 7);
        assert!(wait_readable(lock(&welcomed)[0].fd(), SOON.into()).unwrap());
        assert!(!wait_readable(door.fd(), Deadline::after(Duration::ZERO)).unwrap());
    }

    /// The beginning of a record of another version, whose rest may have another length.
    fn of_version(version: u16) -> [u8; 6] {
        let mut record: [u8; 6] = *ME.encode().first_chunk().unwrap();
        record[4..].copy_from_slice(&version.to_le_bytes());
        record
    }

    #[test]
    fn a_peer_of_another_version_is_told_this_one() {
        let (door, welcomed, raw) = door();
        assert_eq!(raw.write(&of_version(9), &[]).unwrap(), 6);
        assert_eq!(settle(&door, &welcomed), 0);
        assert_eq!(answer(&*raw), ME);
    }

    /// The answer of the door.
    fn answer(raw: &dyn RawStream) -> Hello {
        let (mut answer, mut done) = ([0; Hello::BYTES], 0);
        while done < answer.len() {
            done += raw.read(&mut answer[done..], &mut Vec::new()).unwrap();
        }
        Hello::decode(&answer).unwrap()
    }

    #[test]
    fn without_memory_for_a_ring_frames_go_over_the_socket() {
        for has_memory in [true, false] {
            let (door, welcomed, raw) = door();
            let made = RingMemory::create(100).unwrap();
            assert!((Hello { rank: 1, generation: 6, meant: 5, ..ME }).send(&*raw, Some(&made), None));
            NO_MEMORY.set(!has_memory);
            assert_eq!(settle(&door, &welcomed), 1);
            NO_MEMORY.set(false);
            assert_eq!(answer(&*raw).ring > 0, has_memory);
        }
    }

    #[test]
    fn an_answer_of_another_version_says_which_versions_met() {
        let error = connect(|raw| assert_eq!(raw.write(&of_version(9), &[]).unwrap(), 6), SOON);
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Authentication, Some(1)));
        assert!(error.message().contains("version 9 of messages, and this side version 4"), "{error}");
    }

    /// The outcome of connecting to rank 1, which proves the secret and answers with `answer`, or says nothing.
    fn answered(answer: Option<Hello>, patience: Duration) -> ErrorKind {
        connect(|raw| assert!(answer.is_none_or(|answer| answer.send(raw, None, None))), patience).kind()
    }

    /// The error of connecting to rank 1, which proves the secret and then does what `answer` says.
    fn connect(answer: impl FnOnce(&dyn RawStream) + Send, patience: Duration) -> Error {
        let secret = Secret::from_bytes([3; 32]);
        let config = MessengerConfig::default().with_secret(secret.clone()).with_shared_memory(false);
        let messenger = Messenger::new(0, config.clone()).unwrap();
        let mut listener = listen(&config.network(&secret), 1);
        let Socket::Tcp(at) = *listener.address() else { panic!("a TCP socket") };
        let address = Address { rank: 1, generation: 6, host: "host".into(), ips: vec![at], unix: None };
        std::thread::scope(|scope| {
            let peer = scope.spawn(move || {
                let raw = listener.accept(SOON.into()).unwrap().into_raw();
                answer(&*raw);
                raw
            });
            let error = messenger.connect(&address, patience).unwrap_err();
            drop(peer.join().unwrap());
            error
        })
    }

    #[test]
    fn an_answer_must_come_in_time_and_from_the_one_that_was_meant() {
        assert_eq!(answered(None, Duration::from_millis(200)), ErrorKind::Timeout);
        let answer = Hello { rank: 1, generation: 7, ..ME };
        assert_eq!(answered(Some(answer), SOON), ErrorKind::Remote);
        assert_eq!(answered(Some(Hello { rank: 2, generation: 6, ..ME }), SOON), ErrorKind::Remote);
        let other = Hello { rank: 1, verdict: Verdict::OtherGeneration, ..ME };
        assert_eq!(answered(Some(other), SOON), ErrorKind::PeerLost);
    }
}
