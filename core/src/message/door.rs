//! Answers those who connect, on the service thread: a busy process keeps nobody waiting, and strangers cost it nothing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::carrier::Carrier;
use super::hello::{CONNECTED, Heard, Hearing, Hello, NOT_CONNECTED, Verdict};
use super::ring::{RingMemory, Rings};
use super::verbs::{Draft, Nic, Offer, VerbsLink};
use crate::error::{Error, Result};
use crate::net::ready::{Epoll, READ};
use crate::net::{Claims, Interest, Next, Pollable, RawStream, Stream};
use crate::sync::{Mutex, lock};

/// How long a peer that has proved the secret may take to introduce itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// Takes an introduced connection: the peer's introduction, the stream behind it, and what carries the frames.
pub(super) type Welcome = dyn Fn(Hello, Box<dyn RawStream>, Carrier) + Send + Sync;

/// Connections that have not introduced themselves yet.
pub(super) struct Door {
    me: Hello,
    /// The device for queue pairs, if there is one.
    nic: Option<Arc<Nic>>,
    epoll: Epoll,
    waiting: Mutex<Vec<Waiting>>,
    welcome: Box<Welcome>,
}

struct Waiting {
    claims: Claims,
    raw: Box<dyn RawStream>,
    hearing: Hearing,
    /// It was answered with a queue pair, and has not said yet whether its own is connected.
    agreed: Option<(Hello, Box<VerbsLink>)>,
    until: Instant,
}

impl Door {
    pub(super) fn new(me: Hello, nic: Option<Arc<Nic>>, welcome: Box<Welcome>) -> Result<Self> {
        let epoll = Epoll::new().map_err(|error| Error::system("listen", "cannot wait for peers", error))?;
        Ok(Self { me, nic, epoll, waiting: Mutex::default(), welcome })
    }

    /// Takes a connection that has proved the secret.
    pub(super) fn admit(&self, stream: Stream) {
        let (claims, raw) = (stream.peer(), stream.into_raw());
        // With the list locked, so that the event finds the entry.
        let mut waiting = lock(&self.waiting);
        if let Err(error) = self.epoll.add(raw.fd(), READ, 0) {
            log::warn!("cannot talk to rank {}, which has connected: {error}", claims.from);
            return;
        }
        let until = Instant::now() + PATIENCE;
        waiting.push(Waiting { claims, raw, hearing: Hearing::new(), agreed: None, until });
    }

    /// Hears one connection and answers; `None` if the introduction has not come yet.
    fn hear(&self, waiting: &mut Waiting) -> Result<Option<(Hello, Carrier)>> {
        if waiting.agreed.is_some() {
            return conclude(waiting);
        }
        let Some(Heard { hello, ring: outbound, offer }) = waiting.hearing.hear(&*waiting.raw)? else {
            return Ok(None);
        };
        if hello.rank != waiting.claims.from {
            let text = format!("rank {} introduced itself as rank {}", waiting.claims.from, hello.rank);
            return Err(Error::new(crate::ErrorKind::Remote, "listen", text));
        }
        let is_meant = hello.meant == self.me.generation;
        let verdict = if is_meant { Verdict::Taken } else { Verdict::OtherGeneration };
        let made = match outbound {
            Some(_) => Some(RingMemory::create(self.me.eager as usize)?),
            None => None,
        };
        let queue_pair = offer.filter(|_| is_meant).and_then(|offer| self.meet(hello.rank, offer));
        let answer = Hello { meant: hello.generation, verdict, ..self.me };
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
                    let Waiting { raw, claims, .. } = waiting.swap_remove(index);
                    // It is watched elsewhere from now on.
                    let _ = self.epoll.remove(raw.fd());
                    match heard {
                        Some((hello, carrier)) => ready.push((hello, raw, carrier)),
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
        ready.into_iter().for_each(|(hello, raw, carrier)| (self.welcome)(hello, raw, carrier));
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
