//! Connections of a rank to several peers, for tests in which one of them fails.

use aqueduct::comm::{Connection, EndpointConfig, Host2HostSemaphore, RegisteredMemory};

use super::pair::{Kind, LEN, load, look, memory};
use crate::data::{assert_same, bytes};
use crate::group::{Rank, soon};

/// The connection to one peer, with the source of this rank's writes and the target of the peer's.
pub(super) struct PeerConnection {
    pub(super) source: RegisteredMemory,
    pub(super) inbox: RegisteredMemory,
    pub(super) target: RegisteredMemory,
    pub(super) connection: Connection,
    pub(super) semaphore: Host2HostSemaphore,
}

/// Connects `rank` to each of `peers`, which must do the same.
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
    /// Exchanges data both ways a few times and checks it. The peer must do the same.
    pub(super) fn works(&self, me: u32) {
        for round in 0..8 {
            load(&self.source, 0, &bytes(me, round, 5000));
            self.connection.write(&self.target, 0, &self.source, 0, 5000).unwrap();
            self.semaphore.signal().unwrap();
            self.semaphore.wait(soon()).unwrap();
            let theirs = bytes(self.connection.peer(), round, 5000);
            assert_same(&look(&self.inbox, 0, 5000), &theirs, format_args!("round {round}"));
            self.connection.flush(soon()).unwrap();
            // Neither rank writes again before both have read the data.
            self.semaphore.signal().unwrap();
            self.semaphore.wait(soon()).unwrap();
        }
    }

    /// Waits until the connection fails, checks that it stays failed, and returns the error.
    pub(super) fn fails(&self) -> aqueduct::Error {
        let until = soon();
        let error = loop {
            match self
                .connection
                .write(&self.target, 0, &self.source, 0, 64)
                .and_then(|()| self.connection.flush(soon()))
            {
                Ok(()) => assert!(!until.expired(), "the connection did not fail"),
                Err(error) => break error,
            }
        };
        let again = self.connection.flush(soon()).unwrap_err();
        assert_eq!((again.kind(), again.peer()), (error.kind(), error.peer()), "it stays failed: {again}");
        error
    }
}
