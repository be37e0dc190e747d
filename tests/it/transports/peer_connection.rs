//! A rank's ways to several peers, for tests in which one of them fails.

use aqueduct::comm::{Connection, EndpointConfig, Host2HostSemaphore, RegisteredMemory};

use super::pair::{Kind, LEN, load, look, memory};
use crate::data::{assert_same, bytes};
use crate::group::{Rank, soon};

/// What the rank writes from, what the peer writes to, and the way between.
pub(super) struct PeerConnection {
    pub(super) source: RegisteredMemory,
    pub(super) inbox: RegisteredMemory,
    pub(super) target: RegisteredMemory,
    pub(super) connection: Connection,
    pub(super) semaphore: Host2HostSemaphore,
}

/// A way from `rank` to each of `peers`, who do the same.
pub(super) fn peer_connections(
    rank: &Rank,
    peers: &[u32],
    endpoint: impl Into<EndpointConfig>,
) -> Vec<PeerConnection> {
    let (comm, endpoint) = (&rank.comm, endpoint.into());
    let pending: Vec<_> = peers
        .iter()
        .map(|&peer| {
            let [source, inbox] = [(); 2].map(|()| memory(rank, endpoint.transport, Kind::Host, LEN));
            comm.send_memory(&inbox, peer, 0).unwrap();
            let connection = comm.connect(peer, 0, endpoint.clone()).unwrap();
            let semaphore = comm.build_host2host_semaphore(&connection, 0).unwrap();
            (source, inbox, comm.recv_memory(peer, 0).unwrap(), connection, semaphore)
        })
        .collect();
    comm.setup(soon()).unwrap();
    pending
        .into_iter()
        .map(|(source, inbox, target, connection, semaphore)| PeerConnection {
            source,
            inbox,
            target: target.get().unwrap(),
            connection: connection.get().unwrap(),
            semaphore: semaphore.get().unwrap(),
        })
        .collect()
}

impl PeerConnection {
    /// Data both ways, a few times.
    pub(super) fn works(&self, me: u32) {
        for round in 0..8 {
            load(&self.source, 0, &bytes(me, round, 5000));
            self.connection.write(&self.target, 0, &self.source, 0, 5000).unwrap();
            self.semaphore.signal().unwrap();
            self.semaphore.wait(soon()).unwrap();
            let theirs = bytes(self.connection.peer(), round, 5000);
            assert_same(&look(&self.inbox, 0, 5000), &theirs, format_args!("round {round}"));
            self.connection.flush(soon()).unwrap();
            // Neither end writes again before both have looked.
            self.semaphore.signal().unwrap();
            self.semaphore.wait(soon()).unwrap();
        }
    }

    /// It has failed, or will soon: with this error, for ever.
    pub(super) fn fails(&self) -> aqueduct::Error {
        let until = soon();
        let error = loop {
            match self
                .connection
                .write(&self.target, 0, &self.source, 0, 64)
                .and_then(|()| self.connection.flush(soon()))
            {
                Ok(()) => assert!(!until.expired(), "it goes on"),
                Err(error) => break error,
            }
        };
        let again = self.connection.flush(soon()).unwrap_err();
        assert_eq!((again.kind(), again.peer()), (error.kind(), error.peer()), "it stays failed: {again}");
        error
    }
}
