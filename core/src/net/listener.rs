//! Listening sockets whose handshakes cannot hold each other up.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use super::admission::Admission;
use super::claims::{Address, Claims};
use super::connect::{SockAddr, local_address};
use super::handshake::{Failure, Handshake, Progress};
use super::network::Network;
use super::raw::{RawStream, Socket};
use super::stream::Stream;
use super::sys::{self, Epoll};
use super::unix::{self, SocketDir};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::fork::Creator;

/// The epoll token of the listening socket; handshakes count up from the next one.
const LISTENING: u64 = 0;
/// How many refusals are worth a warning; after that they are noise, and a stranger must not fill the log.
const WARNINGS: u64 = 10;

/// Connections that a listener refused.
#[derive(Clone, Debug, Default)]
pub struct Rejections {
    /// Connections that did not prove the secret, or not in time, or of a rank that has too many or does not exist.
    pub count: u64,
    /// Why the latest of them was turned away.
    pub latest: Option<String>,
}

/// Accepts connections and yields those that have proved the secret.
///
/// Any number of handshakes run side by side, each with its own time limit; when too many are open the oldest one
/// is closed, so strangers that say nothing neither block nor slow a peer. Either one thread waits in
/// [`accept`](Self::accept), or a [`Reactor`](super::Reactor) serves it.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: Address,
    network: Network,
    local: Claims,
    admission: Arc<Admission>,
    epoll: Epoll,
    pending: VecDeque<Pending>,
    ready: VecDeque<Stream>,
    next_token: u64,
    resting: Option<Instant>,
    rejections: Rejections,
    directory: Option<SocketDir>,
    creator: Creator,
}

#[derive(Debug)]
struct Pending {
    token: u64,
    socket: Socket,
    handshake: Handshake,
    until: Instant,
    wants: u32,
}

impl Network {
    /// Listens on a free port of `ip`, as `local` (`local.from` is the rank that listens).
    pub fn listen_tcp(&self, ip: IpAddr, local: Claims) -> Result<Listener> {
        self.listen_tcp_at(SocketAddr::new(ip, 0), local)
    }

    /// Listens at `address`; port 0 stands for a free one.
    pub fn listen_tcp_at(&self, address: SocketAddr, local: Claims) -> Result<Listener> {
        let failed = |error| Error::system("listen", format!("cannot listen on {address}"), error);
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let socket = Socket::new(family).map_err(failed)?;
        if address.port() != 0 {
            // Connections of an earlier listener that are still being closed do not hold the port. One that listens does.
            socket.set_option(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).map_err(failed)?;
        }
        SockAddr::ip(address).bind(&socket).map_err(failed)?;
        let address = Address::Tcp(local_address(socket.fd()).map_err(failed)?);
        Listener::start(self.clone(), socket, address, local, None)
    }

    /// Listens on a unix socket in a new directory that only this user can enter.
    pub fn listen_unix(&self, local: Claims) -> Result<Listener> {
        let directory = SocketDir::create()?;
        let path = directory.socket().to_owned();
        let failed = |error| Error::system("listen", format!("cannot listen on {}", path.display()), error);
        let socket = Socket::new(libc::AF_UNIX).map_err(failed)?;
        SockAddr::unix(&path)?.bind(&socket).map_err(failed)?;
        Listener::start(self.clone(), socket, Address::Unix(path), local, Some(directory))
    }
}

impl Listener {
    fn start(
        network: Network,
        socket: Socket,
        address: Address,
        local: Claims,
        directory: Option<SocketDir>,
    ) -> Result<Self> {
        let failed = |error| Error::system("listen", format!("cannot listen on {address}"), error);
        // SAFETY: no pointers are passed.
        sys::check(unsafe { libc::listen(socket.raw(), 4096) }).map_err(failed)?;
        let epoll = Epoll::new().map_err(failed)?;
        epoll.add(socket.fd(), sys::READ, LISTENING).map_err(failed)?;
        Ok(Self {
            socket,
            address: address.clone(),
            admission: Admission::new(network.ranks, network.max_connections),
            network,
            local,
            epoll,
            pending: VecDeque::new(),
            ready: VecDeque::new(),
            next_token: LISTENING + 1,
            resting: None,
            rejections: Rejections::default(),
            directory,
            creator: Creator::current(),
        })
    }

    /// Where peers connect to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Connections refused so far.
    pub fn rejections(&self) -> &Rejections {
        &self.rejections
    }

    /// Removes a unix listener's path; nobody new can connect, and nothing is left behind if the process dies.
    pub fn remove_path(&mut self) {
        if let Some(directory) = &mut self.directory {
            directory.remove();
        }
    }

    /// The next connection that has proved the secret. Other handshakes go on only while somebody is in here.
    pub fn accept(&mut self, deadline: Deadline) -> Result<Stream> {
        loop {
            self.progress()?;
            if let Some(stream) = self.next_ready() {
                return Ok(stream);
            }
            let wake = self.next_expiry().map_or(deadline, |at| {
                deadline.min(Deadline::after(at.saturating_duration_since(Instant::now())))
            });
            let ready = sys::wait(self.epoll.as_fd(), sys::READ, wake)
                .map_err(|error| Error::system("accept", "cannot wait for connections", error))?;
            if !ready && deadline.expired() {
                let mut message = format!("nobody connected to {} in time", self.address);
                if let Some(latest) = &self.rejections.latest {
                    message += &format!(" ({} turned away, the latest: {latest})", self.rejections.count);
                }
                return Err(Error::timeout("accept", message));
            }
        }
    }

    /// Does all that can be done without waiting.
    pub(super) fn progress(&mut self) -> Result<()> {
        let mut events = Vec::new();
        self.epoll
            .wait(0, &mut events)
            .map_err(|error| Error::system("accept", "cannot wait for connections", error))?;
        // Drive handshakes that have begun before new connections are accepted, which may push the oldest out.
        let waiting = events.iter().any(|(token, _)| *token == LISTENING);
        events.iter().filter(|(token, _)| *token != LISTENING).for_each(|(token, _)| self.drive(*token));
        if waiting {
            self.accept_some();
        }
        self.expire(Instant::now());
        Ok(())
    }

    /// A connection that has proved the secret, if there is one.
    pub(super) fn next_ready(&mut self) -> Option<Stream> {
        self.ready.pop_front()
    }

    /// When [`progress`](Self::progress) must be called even if nothing becomes ready.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.pending.front().map(|p| p.until).into_iter().chain(self.resting).min()
    }

    /// Readable whenever [`progress`](Self::progress) has something to do.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn accept_some(&mut self) {
        for _ in 0..64 {
            match Socket::accept(&self.socket) {
                Ok(socket) => self.begin(socket),
                Err(error) if sys::exhausted(&error) => {
                    let text = format!(
                        "out of file descriptors: connections to {} wait until some are closed",
                        self.address
                    );
                    log::warn!("{}", Error::system("accept", text, error));
                    // The socket stays readable: without a rest this would be a busy loop.
                    let _ = self.epoll.remove(self.socket.fd());
                    self.resting = Some(Instant::now() + sys::REST);
                    return;
                }
                // The queue is empty, or the connection has gone again (accept(2)). If others wait, the socket stays readable.
                Err(_) => return,
            }
        }
    }

    fn begin(&mut self, socket: Socket) {
        if self.directory.is_some()
            && let Err(error) = unix::check_peer(socket.fd())
        {
            return self.reject(error.message());
        }
        if self.pending.len() >= self.network.max_pending {
            // The oldest that has said nothing, or else the oldest.
            let silent = self.pending.iter().position(|p| !p.handshake.greeted()).unwrap_or(0);
            self.pending.remove(silent);
            self.reject("too many connections without proof; the oldest was closed");
        }
        let token = self.next_token;
        self.next_token += 1;
        if let Err(error) = self.epoll.add(socket.fd(), sys::READ, token) {
            return self.reject(&error.to_string());
        }
        self.pending.push_back(Pending {
            token,
            socket,
            handshake: Handshake::server(self.network.secret.clone(), self.local, self.admission.clone()),
            until: Instant::now() + self.network.handshake_timeout,
            wants: sys::READ,
        });
        self.drive(token);
    }

    fn drive(&mut self, token: u64) {
        // Tokens grow along the queue.
        let Ok(index) = self.pending.binary_search_by_key(&token, |p| p.token) else { return };
        let pending = &mut self.pending[index];
        match pending.handshake.drive(&pending.socket) {
            Ok(Progress::Wants(events)) => {
                if events != pending.wants {
                    pending.wants = events;
                    if self.epoll.modify(pending.socket.fd(), events, token).is_err() {
                        self.pending.remove(index);
                    }
                }
            }
            Ok(Progress::Done(peer)) => {
                if let Some(Pending { mut socket, mut handshake, .. }) = self.pending.remove(index) {
                    let _ = self.epoll.remove(socket.fd());
                    socket.hold(handshake.take_permit());
                    self.ready.push_back(Stream::new(&self.network, self.local, peer, Box::new(socket)));
                }
            }
            Err(failure) => {
                self.pending.remove(index);
                match failure {
                    Failure::Closed(error) => self.reject(&format!("the peer left at once: {error}")),
                    Failure::Final(error) => self.reject(error.message()),
                }
            }
        }
    }

    fn expire(&mut self, now: Instant) {
        if self.resting.is_some_and(|until| until <= now) {
            self.resting = None;
            if let Err(error) = self.epoll.add(self.socket.fd(), sys::READ, LISTENING) {
                log::error!("cannot listen on {} again: {error}", self.address);
            }
        }
        while self.pending.front().is_some_and(|p| p.until <= now) {
            self.pending.pop_front();
            self.reject("no proof of the secret in time");
        }
    }

    fn reject(&mut self, why: &str) {
        self.rejections.count += 1;
        if self.rejections.count <= WARNINGS {
            log::warn!("turned away a connection to {}: {why}", self.address);
        }
        self.rejections.latest = Some(why.to_owned());
    }
}

/// Nobody can connect any more, and the port is free, although a child that another thread has forked holds a copy of the socket
/// until it calls exec.
impl Drop for Listener {
    fn drop(&mut self) {
        if !self.creator.forked() {
            // A listening socket can be shut down whatever has become of its peers; closing it is all that would remain to do.
            let _ = self.socket.shutdown(true);
        }
    }
}
