//! Messages between the ranks of a communicator, see [`crate::fuzzing`].
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;

pub use crate::comm::meeting::fuzzing::{meeting_answer, meeting_word};
pub use crate::group::control::fuzzing::mail;
pub use crate::memory::fuzzing::memory;
pub use crate::transport::fuzzing::connection;

use crate::abort::AbortCause;
use crate::error::Error;
use crate::group::frames::{decode_failure, encode_failure};
use crate::group::membership::{self, Envelope, Membership, Ranks};
use crate::group::peer::{DeviceIdentity, DriverKind, PeerInfo};
use crate::ledger::holds::{HoldId, Release};
use crate::setup::key::{Key, Kind};
use crate::setup::message::{Message, Offer, Setup};
use crate::transport::endpoint::{EndpointWire, Transport};

/// A rank's description of itself.
pub fn peer_info(bytes: &[u8]) -> Option<Vec<u8>> {
    let encoded = PeerInfo::decode(bytes).ok()?.encode();
    // The reader escapes control characters in a peer's text, which makes it longer; what it has escaped stays as it is.
    if encoded.len() > bytes.len() {
        if let Ok(again) = PeerInfo::decode(&encoded) {
            assert_eq!(again.encode(), encoded);
        }
        return Some(bytes.to_vec());
    }
    Some(encoded)
}

/// A message about a setup item. The rank of the sender is put before the reason of an error, so those are compared
/// without it.
pub fn setup(bytes: &[u8]) -> Option<Vec<u8>> {
    let setup = Setup::decode(3, bytes, Vec::<OwnedFd>::new()).ok()?;
    if let Message::End(error) = &setup.message {
        assert_eq!((error.peer(), error.op()), (Some(3), setup.kind.counterpart().op()));
        return Some(bytes.to_vec());
    }
    Some(setup.encode().0)
}

/// A receipt given back.
pub fn release(bytes: &[u8]) -> Option<Vec<u8>> {
    Release::decode(bytes).ok().map(Release::encode)
}

/// A failure passed on, in a communicator of four ranks.
pub fn failure(bytes: &[u8]) -> Option<Vec<u8>> {
    let cause = decode_failure(bytes, 4).ok()?;
    assert!(cause.rank.is_none_or(|rank| rank < 4));
    Some(encode_failure(&cause))
}

/// A message about membership, in a communicator of four ranks. Rank 1 takes it, if it comes from rank 2.
pub fn membership(bytes: &[u8]) -> Option<Vec<u8>> {
    let envelope = Envelope::decode(bytes, 4).ok()?;
    let mut membership = Membership::new(1, vec![0; 4], false);
    membership.call(Ranks::new());
    membership.receive(2, envelope.clone());
    membership.tick();
    assert!(membership.take_outbox().len() < 64);
    Some(envelope.encode())
}

/// One end of a connection.
pub fn endpoint(bytes: &[u8]) -> Option<Vec<u8>> {
    EndpointWire::decode(bytes).ok().map(|end| end.encode())
}

pub(crate) fn wire_forms() -> Vec<(&'static str, Vec<u8>)> {
    let info = PeerInfo {
        rank: 3,
        size: 4,
        host: "h/1".into(),
        process: 7,
        pid: 100,
        birth: Default::default(),
        device: Some(DeviceIdentity {
            uuid: [3; 16],
            pci_bus_id: "0000:03:00.0".into(),
            name: "device".into(),
            kind: DriverKind::Software,
            driver_version: (12, 4),
            multiprocessors: 16,
        }),
        library: "0.1.0".into(),
        abi: 1,
        frames: 1,
        tcp: vec![([127, 0, 0, 1], 80).into(), ([0, 0, 0, 0, 0, 0, 0, 1], 81).into()],
        unix: "/run/x/s".into(),
    };
    let mut all = vec![("peer-info", info.encode())];
    all.push(("peer-info", PeerInfo { device: None, ..info }.encode()));
    let messages = [
        Message::Ask,
        Message::Offer(Offer { body: vec![1, 2, 3], fds: Vec::new(), holds: vec![HoldId::Region(4)] }),
        Message::Accept(Offer::default()),
        Message::Commit,
        Message::End(Error::timeout("recv_memory", "rank 1 did not come")),
    ];
    for message in messages {
        let (payload, _) = Setup::new(Key::user(Kind::MemoryRecv, 3, 5), 2, message).encode();
        all.push(("setup", payload));
    }
    for id in [HoldId::Memory(u64::MAX), HoldId::Token(3), HoldId::Region(8)] {
        all.push(("release", Release { id, count: 9 }.encode()));
    }
    let unknown = AbortCause { rank: None, ..AbortCause::peer_lost(0, "nobody knows") };
    for cause in [AbortCause::peer_lost(3, "killed"), unknown] {
        all.push(("failure", encode_failure(&cause)));
    }
    for transport in [Transport::CudaIpc, Transport::Ethernet, Transport::Ib(23)] {
        all.push(("endpoint", EndpointWire { transport, detail: vec![1, 2] }.encode()));
    }
    all.extend(crate::memory::fuzzing::wire_forms());
    all.extend(crate::transport::fuzzing::streams());
    all.extend(crate::group::control::fuzzing::sent());
    all.extend(crate::comm::meeting::fuzzing::said());
    all.extend(membership::examples().iter().map(|envelope| ("membership", envelope.encode())));
    all
}
