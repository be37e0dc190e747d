//! How a rank joins its job: it says hello at the rendezvous, and learns from the answer where its first neighbours
//! listen.
//!
//! The rendezvous is where the unique id says. Ranks that share no id meet at an address or by a file instead, where
//! rank 0 serves the rendezvous.
#![forbid(unsafe_code)]

use std::path::Path;
use std::time::Duration;

use super::address;
use super::check_size;
use super::config::BootstrapConfig;
use super::file::Place;
use super::rendezvous::{HELLO, Hello, Rendezvous, read_answer};
use super::tcp::TcpBootstrap;
use super::unique_id::UniqueId;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::net::{Claims, Network, Secret, Stream, purpose};

const OP: &str = "bootstrap";

/// How long the rendezvous that a file names may take to answer before the file is read again: it may be of an
/// earlier job.
const ANSWER: Duration = Duration::from_secs(5);
/// The time between two tries.
const PAUSE: Duration = Duration::from_millis(100);

impl TcpBootstrap {
    /// Makes the id of a new job on the interface that the environment asks for (see
    /// [`choose`](crate::net::choose)).
    ///
    /// This process serves the rendezvous with a thread of its own until all ranks have met; the sockets listen from
    /// now on, so no port is ever bound twice. The id reaches the other ranks by whatever means the launcher offers.
    ///
    /// # Errors
    /// `InvalidUsage` if no network interface fits the environment; `System` if no socket can listen.
    pub fn create_unique_id() -> Result<UniqueId> {
        Ok(Rendezvous::start(None)?.detach())
    }

    /// Joins the job as `rank` of `size`. Returns when every rank has done so.
    ///
    /// Settings come from the environment ([`BootstrapConfig::from_env`]).
    ///
    /// # Errors
    /// All ranks get the same error: `InvalidUsage` if two say that they are the same rank or if they disagree about `size`;
    /// `Timeout`, naming the missing rank, if one has not come when the first of their deadlines passes. A rank with another
    /// secret gets `Authentication`.
    pub fn new(rank: u32, size: u32, id: &UniqueId, deadline: impl Into<Deadline>) -> Result<Self> {
        Self::with_config(rank, size, id, &BootstrapConfig::from_env()?, deadline)
    }

    /// [`new`](Self::new) with settings of its own.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn with_config(
        rank: u32,
        size: u32,
        id: &UniqueId,
        config: &BootstrapConfig,
        deadline: impl Into<Deadline>,
    ) -> Result<Self> {
        let deadline = deadline.into();
        let me = Newcomer::new(rank, size, id, config)?;
        let root = me.reach(&me.network, deadline).map_err(|error| {
            let text = format!(
                "rank {rank} cannot join at the rendezvous {:?}; see that the process that made the unique id still runs, \
                 that the id is of this job, and that no firewall is between",
                id.addresses()
            );
            Error::new(error.kind(), OP, text).with_code(error.code()).with_source(error)
        })?;
        me.join(root, deadline)
    }

    /// Joins the job whose ranks meet at `address`, without a unique id. Rank 0 listens there, on its own host, until
    /// all have met; the other ranks connect, and try again until `deadline` if rank 0 is not there yet. All name the
    /// same port and the same `secret`.
    ///
    /// `address` is `ip:port` (`[ip]:port` for IPv6) or `interface:ip:port`, for example `eth0:10.0.0.1:29500`. Address
    /// and port are of rank 0; `interface` is this rank's own, through which it talks to the other ranks.
    ///
    /// The secret is required, because whoever has it can join the job: anybody can find an open port. Make one with
    /// [`Secret::random`] or `openssl rand -hex 32`, and give it to the ranks by an environment variable or a private
    /// file ([`Secret::to_text`], [`FromStr`](std::str::FromStr)). Use a new one for each job.
    ///
    /// # Errors
    /// `InvalidUsage` for an address that cannot be read or is nobody's; `System` on rank 0 if it cannot listen there (the
    /// port is in use, the address is not of this host); `Timeout` on the others if nobody listens there before
    /// `deadline`; `Authentication` if rank 0 has another secret; otherwise as for [`new`](Self::new).
    pub fn at(
        rank: u32,
        size: u32,
        address: &str,
        secret: &Secret,
        config: &BootstrapConfig,
        deadline: impl Into<Deadline>,
    ) -> Result<Self> {
        let deadline = deadline.into();
        let (interface, address) = address::parse(address)?;
        let id = UniqueId::of_address(address, secret);
        let mut config = config.clone();
        config.interfaces.names = interface.map(|name| format!("={name}")).or(config.interfaces.names);
        let me = Newcomer::new(rank, size, &id, &config)?;
        // Dropped on return, so that the port is free again. By then every rank that has come has its answer.
        let _rendezvous = match rank {
            0 => Some(Rendezvous::at(&id, size, &config).map_err(|error| address::not_mine(address, error))?),
            _ => None,
        };
        let patient = me.network.clone().with_patience(Duration::MAX);
        let root =
            me.reach(&patient, deadline).map_err(|error| address::not_reached(address, rank, error))?;
        me.join(root, deadline)
    }

    /// Joins the job whose ranks meet by a file at `path`, which all of them can read and write: on one host, or on a
    /// file system that the hosts share. Rank 0 leaves the unique id there, readable by this user only, and removes
    /// it when all have met or that has failed; the others wait for it until `deadline`.
    ///
    /// `job` is a name that all ranks of the job know and no earlier job had, such as the number that a batch system
    /// gives it: a file that an earlier job left behind is passed over if it bears another name. Without one (`""`) it is
    /// passed over if the process that wrote it has ended, on the same host, or if nobody serves its id.
    ///
    /// # Errors
    /// `InvalidUsage` on rank 0 if there is something that is neither empty nor a rendezvous file, which it leaves alone. `System` on
    /// rank 0 if it cannot write there, on the others if they cannot read there; `Authentication` for a file
    /// of another user or one that others can read; `Timeout`, with what was found there, if rank 0 does not come;
    /// otherwise as for [`new`](Self::new).
    pub fn by_file(
        rank: u32,
        size: u32,
        path: &Path,
        job: &str,
        config: &BootstrapConfig,
        deadline: impl Into<Deadline>,
    ) -> Result<Self> {
        Self::by_place(rank, size, &Place::at(path, job), config, deadline.into())
    }

    /// [`by_file`](Self::by_file) at `place`.
    pub(super) fn by_place(
        rank: u32,
        size: u32,
        place: &Place,
        config: &BootstrapConfig,
        deadline: Deadline,
    ) -> Result<Self> {
        Self::by_place_answering(ANSWER, rank, size, place, config, deadline)
    }

    /// [`by_place`](Self::by_place), with the time that a rendezvous has to answer.
    fn by_place_answering(
        answer: Duration,
        rank: u32,
        size: u32,
        place: &Place,
        config: &BootstrapConfig,
        deadline: Deadline,
    ) -> Result<Self> {
        check_rank(rank, size)?;
        if rank == 0 {
            let rendezvous = Rendezvous::with_config(Some(size), config)?;
            let _published = place.publish(&rendezvous.unique_id().to_text())?;
            return Self::with_config(rank, size, &rendezvous.detach(), config, deadline);
        }
        loop {
            let id: UniqueId = place.wait(deadline)?.expose().parse()?;
            let me = Newcomer::new(rank, size, &id, config)?;
            match me.reach(&me.network, deadline.min(Deadline::after(answer))) {
                Ok(root) => return me.join(root, deadline),
                Err(error) if deadline.expired() => return Err(place.not_met(error)),
                // An earlier job may have left the file, and rank 0 is still to come and replace it.
                Err(error) => log::debug!("rank {rank} reads the rendezvous file again: {error}"),
            }
            std::thread::sleep(PAUSE.min(deadline.remaining()));
        }
    }
}

/// A rank on its way into its job.
struct Newcomer<'a> {
    rank: u32,
    size: u32,
    id: &'a UniqueId,
    config: &'a BootstrapConfig,
    network: Network,
}

impl<'a> Newcomer<'a> {
    fn new(rank: u32, size: u32, id: &'a UniqueId, config: &'a BootstrapConfig) -> Result<Self> {
        check_rank(rank, size)?;
        let network = config.network(id.secret()).with_ranks(size);
        Ok(Self { rank, size, id, config, network })
    }

    /// Connects to the rendezvous over `network`, this rank's own or one with more patience.
    fn reach(&self, network: &Network, deadline: Deadline) -> Result<Stream> {
        let scope = self.id.nonce();
        let me = Claims { purpose: purpose::RENDEZVOUS, scope, from: self.rank, to: Claims::ANY };
        network.connect_tcp(self.id.addresses(), me, deadline)
    }

    /// Says hello over `root`, a connection to the rendezvous, and meets the others.
    fn join(self, mut root: Stream, deadline: Deadline) -> Result<TcpBootstrap> {
        let Self { rank, size, id, config, network } = self;
        let ip = match (&config.interfaces.names, root.local_ip()) {
            // The interface that leads to the rendezvous leads to the other ranks too.
            (None, Some(ip)) => ip,
            _ => config.choose()?[0].ip,
        };
        let (mut joined, address) = TcpBootstrap::listen((rank, size), id, network, ip, config.peer_timeout)?;
        let hello = Hello { rank, size, patience: deadline.remaining(), address };
        root.send(HELLO, &hello.encode(), deadline)?;
        let answer = root.recv(deadline).map_err(|error| {
            let text = match error.kind() {
                ErrorKind::Timeout => format!(
                    "rank {rank} reached the rendezvous, which did not answer before the deadline; see whether all ranks were started"
                ),
                _ => format!(
                    "rank {rank} reached the rendezvous, which ended the connection without an answer; see what rank 0 says, and whether \
                     all ranks belong to one job"
                ),
            };
            Error::new(error.kind(), OP, text).with_source(error)
        })?;
        drop(root);
        joined.meet(read_answer(&answer, size)?, address, deadline)?;
        Ok(joined)
    }
}

fn check_rank(rank: u32, size: u32) -> Result<()> {
    check_size(OP, size)?;
    if rank >= size {
        let text = format!("rank {rank} of {size} ranks; ranks are 0 to size - 1");
        return Err(Error::usage(OP, text));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
