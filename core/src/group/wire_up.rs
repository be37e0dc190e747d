//! The two steps by which ranks become a group: everyone learns who the others are, then the control links are opened.
//!
//! [`Communicator::new`](crate::comm::Communicator::new) makes them and adds the device. Here they stand alone, so that they
//! can be measured with more ranks than there are devices.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::birth::Birth;
use crate::bootstrap::{Bootstrap, check_size};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::group::config::GroupConfig;
use crate::group::control::{Control, Member};
use crate::group::frames;
use crate::group::links::{Identity, Links, Listeners};
use crate::group::peer::{self, DeviceIdentity, PeerInfo};
use crate::group::peer_state::Waiters;

const OP: &str = "Communicator::new";

/// A rank's description of its device, process and ABI version, which the group cannot know by itself.
pub(crate) struct Description {
    /// `None` for a process that is a member without a device.
    pub(crate) device: Option<DeviceIdentity>,
    /// Random, equal for ranks of one process.
    pub(crate) process: u64,
    /// Version of the structs that kernels of several ranks share.
    pub(crate) abi: u32,
}

/// Ranks that know each other and are not linked yet.
#[derive(Debug)]
pub struct Introduction {
    links: Links,
    peers: Arc<[PeerInfo]>,
}

impl Introduction {
    /// Tells all ranks of `bootstrap` about this one, which `description` describes, and learns about them. Collective: a
    /// broadcast and an all-gather, about ceil(log2(size)) messages per rank.
    ///
    /// # Errors
    /// `InvalidUsage` where the ranks do not fit together, `PeerLost` or `Timeout` where one does not come.
    pub(crate) fn with(
        bootstrap: &dyn Bootstrap,
        description: Description,
        config: &GroupConfig,
        member: Member,
        deadline: Deadline,
    ) -> Result<Self> {
        check(bootstrap, config)?;
        let (rank, size) = (bootstrap.rank(), bootstrap.size());
        // The name first: listeners must know it before their addresses can be told.
        let seed = bootstrap.broadcast(0, &crate::net::random_bytes::<32>()?, deadline)?;
        let seed = <[u8; 32]>::try_from(&seed[..]).map_err(|_| {
            let message = "rank 0 runs something else; use one version of aqueduct everywhere";
            Error::new(ErrorKind::Remote, OP, message)
        })?;
        let identity = Identity::new(rank, size, seed, bootstrap.secret()).through(config);
        let listeners = Listeners::bind(&identity, config)?;
        let mine = PeerInfo {
            rank,
            size,
            host: config.host_id.clone().unwrap_or_else(crate::logging::host_identity),
            process: description.process,
            pid: std::process::id(),
            birth: Birth::of_this_process(),
            device: description.device,
            library: env!("CARGO_PKG_VERSION").into(),
            abi: description.abi,
            frames: frames::VERSION,
            tcp: listeners.tcp(),
            unix: listeners.unix(),
        };
        // From here on others may open links to this rank; an answer must not wait for what this rank waits for.
        let control = Control::new(rank, size, member, config.peer_timeout);
        let links = Links::serve(control, identity, listeners, config.peer_timeout)?;
        let gathered = bootstrap.all_gather(&mine.encode(), deadline).map_err(|error| links.give_up(error));
        let peers = peer::check_all(&mine, &gathered?)?.into();
        Ok(Self { links, peers })
    }

    /// Opens the links that every communicator has.
    pub(crate) fn open(self, deadline: Deadline) -> Result<Links> {
        self.links.meet(self.peers, deadline)
    }

    /// Opens the control links of a communicator whose ranks have no devices. Collective.
    ///
    /// # Errors
    /// As for [`Communicator::new`](crate::comm::Communicator::new).
    pub fn link(self, deadline: Deadline) -> Result<ControlLinks> {
        Ok(ControlLinks(self.open(deadline)?))
    }
}

/// Checks that `bootstrap` and `config` make sense by themselves.
pub(crate) fn check(bootstrap: &dyn Bootstrap, config: &GroupConfig) -> Result<()> {
    let (rank, size) = (bootstrap.rank(), bootstrap.size());
    check_size(OP, size)?;
    if rank >= size {
        return Err(Error::usage(OP, format!("rank {rank} is not below the world size of {size}")));
    }
    config.check()
}

/// A rank's control links without a device. Dropping it leaves the group.
#[derive(Debug)]
pub struct ControlLinks(Links);

impl ControlLinks {
    /// How many links this rank has, and how many bytes it has sent on them so far, handshakes left out.
    pub fn traffic(&self) -> (usize, u64) {
        self.0.control().traffic()
    }

    /// Says goodbye on every link, and waits until that is on its way.
    ///
    /// # Errors
    /// `Timeout` if a peer does not read.
    pub fn leave(&self, deadline: Deadline) -> Result<()> {
        self.0.leave(deadline)
    }
}

/// The waiters of a rank that launches no kernels.
pub(crate) struct NoKernels;

impl Waiters for NoKernels {
    fn dismiss(&self, _: u32) {}

    fn abandoned(&self) -> Option<Option<u32>> {
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;
    use crate::abort::Abort;
    use crate::bootstrap;
    use crate::group::links::tests::{config, soon, wait_for};
    use crate::group::subscriber::Subscribers;
    use crate::sync::{Mutex, lock};

    /// Claims to be a rank, and talks to nobody.
    #[derive(Debug)]
    struct Claims {
        rank: u32,
        size: u32,
    }

    impl Bootstrap for Claims {
        fn rank(&self) -> u32 {
            self.rank
        }

        fn size(&self) -> u32 {
            self.size
        }

        fn send(&self, _: u32, _: u64, _: &[u8], _: Deadline) -> Result<()> {
            unreachable!("nothing is sent before the settings are checked")
        }

        fn recv(&self, _: u32, _: u64, _: Deadline) -> Result<Vec<u8>> {
            unreachable!("nothing is received before the settings are checked")
        }
    }

    #[test]
    fn ranks_and_settings_that_cannot_be_are_refused_before_anybody_is_told() {
        let kind = |rank, size, timeout| {
            check(&Claims { rank, size }, &config(timeout)).map_err(|error| error.kind())
        };
        assert_eq!([kind(0, 1, None), kind(2, 3, None)], [Ok(()); 2]);
        let short = Some(Duration::from_nanos(1));
        for refused in [kind(0, 0, None), kind(3, 3, None), kind(4, 3, None), kind(0, 1, short)] {
            assert_eq!(refused, Err(ErrorKind::InvalidUsage));
        }
    }

    /// Hears nothing of the other rank, which was killed meanwhile.
    #[derive(Debug, Default)]
    struct Bereft(Mutex<Option<PathBuf>>);

    impl Bootstrap for Bereft {
        fn rank(&self) -> u32 {
            0
        }

        fn size(&self) -> u32 {
            2
        }

        fn send(&self, _: u32, _: u64, _: &[u8], _: Deadline) -> Result<()> {
            Ok(())
        }

        fn recv(&self, peer: u32, _: u64, _: Deadline) -> Result<Vec<u8>> {
            *lock(&self.0) = Some(crate::net::left_behind_sockets());
            Err(Error::timeout("all_gather", "nothing came").with_peer(peer))
        }
    }

    #[test]
    fn a_rank_that_misses_another_one_clears_the_sockets_of_killed_processes() {
        let bootstrap = Bereft::default();
        let (member, description) = (member(), Description { device: None, process: 1, abi: 1 });
        let met = Introduction::with(&bootstrap, description, &config(None), member, soon());
        assert_eq!(met.unwrap_err().kind(), ErrorKind::Timeout);
        let left = lock(&bootstrap.0).take().unwrap();
        assert!(!left.exists(), "{}", left.display());
    }

    fn member() -> Member {
        Member {
            abort: Abort::new(),
            waiters: Arc::new(NoKernels),
            subscribers: Subscribers::default(),
            succeeds: false,
        }
    }

    #[test]
    fn ranks_without_devices_are_linked_until_they_say_goodbye() {
        let linked: Vec<ControlLinks> = std::thread::scope(|scope| {
            let ranks = bootstrap::local(3).into_iter().map(|bootstrap| {
                scope.spawn(move || {
                    let description = Description { device: None, process: 1, abi: 1 };
                    let met = Introduction::with(&bootstrap, description, &config(None), member(), soon());
                    met.unwrap().link(soon()).unwrap()
                })
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let control = |rank: usize| linked[rank].0.control();
        for one in &linked {
            assert_eq!(one.traffic(), (2, one.0.control().traffic().1));
        }
        linked[2].leave(soon()).unwrap();
        for rank in [0, 1] {
            wait_for("the goodbye did not come", || control(rank).check_peer("x", 2).is_err());
            control(rank).check("x").expect("it left in good order");
            assert_eq!(linked[rank].traffic().0, 1);
        }
        assert_eq!(NoKernels.abandoned(), None, "no kernel waits for the one that has left");
    }
}
