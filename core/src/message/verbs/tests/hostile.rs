//! Peers that send whatever they like.

use proptest::prelude::*;

use super::super::credits::RECEIVES;
use super::super::packet::{Header, PAYLOAD};
use super::*;
use crate::error::ErrorKind;
use crate::rdma::Batch;

/// A peer that posts its own requests: sends `packets` to a link, whose pulls give frames that their heads state, or an error.
fn survive(packets: &[Vec<u8>]) -> Option<crate::Error> {
    let [(socket, link), (_other, peer)] = ends(8 << 10);
    let wire = VerbsWire::new(socket, link, None);
    let mut batch = Batch::default();
    for (slot, packet) in packets.iter().enumerate() {
        let slot = RECEIVES + slot as u32;
        peer.parts.slots.slot(slot).write(0, packet).unwrap();
        batch.send(peer.parts.slots.range(slot, packet.len()).unwrap()).unwrap();
    }
    peer.queue_pair.post(&mut batch).unwrap();
    standin::settle();
    let mut kept = Kept::default();
    for _ in 0..100 {
        let pulled = wire.pull(&mut kept).and_then(|_| wire.arm());
        assert!(kept.frames.iter().all(|(head, body)| body.len() == head.length as usize));
        if let Err(error) = pulled {
            assert!(wire.push(head(1, b""), b"").is_err(), "the link goes on after {error}");
            return Some(error);
        }
    }
    None
}

fn packet(returned: u32, stream: &[u8]) -> Vec<u8> {
    let header = Header { returned, length: stream.len() as u32 };
    [&header.encode()[..], stream].concat()
}

#[test]
fn a_peer_that_breaks_the_protocol_is_lost() {
    let kind = |packets: &[Vec<u8>]| survive(packets).map(|error| error.kind());
    let frame = [&head(1, b"ok").encode()[..], b"ok"].concat();
    assert_eq!(kind(&[packet(0, &frame), packet(0, &frame)]), None);
    assert_eq!(kind(&[packet(1, &frame)]), Some(ErrorKind::Remote), "credits that it was not given");
    assert_eq!(kind(&[packet(0, &[])]), Some(ErrorKind::Remote), "nothing at all");
    assert_eq!(kind(&[vec![1, 2, 3]]), Some(ErrorKind::Remote), "no header");
    assert_eq!(
        kind(&[Header { returned: 0, length: 99 }.encode().to_vec()]),
        Some(ErrorKind::Remote),
        "another length"
    );
    let long = Head::new(Operation::Message, 1, 0, longest_body(8 << 10) + 1).encode();
    assert_eq!(kind(&[packet(0, &long)]), Some(ErrorKind::Remote), "a frame that is too long");
    let long = Head::new(Operation::Data, 1, 0, 2 << 20).encode();
    assert_eq!(kind(&[packet(0, &long)]), Some(ErrorKind::Remote), "data that is too long");
    // The beginning of a frame, again and again: never used up, so there are no more credits.
    let part = packet(0, &[&Head::new(Operation::Message, 1, 0, 8000).encode()[..], &[0; 100]].concat());
    assert_eq!(kind(&[part]), None, "half a frame is no violation");
}

/// A peer sends one byte over the socket, on which it has nothing to say.
#[test]
fn bytes_beside_the_queue_pair_end_the_link() {
    let [(socket, link), (other, _peer)] = ends(8 << 10);
    let wire = VerbsWire::new(socket, link, None);
    assert_eq!(other.write(&[0], &[]).unwrap(), 1);
    assert_eq!(wire.arm().unwrap_err().kind(), ErrorKind::Remote);
}

proptest! {
    /// A peer has sent packets with any stream, half of it frames that could be right.
    #[test]
    fn any_bytes_end_the_link_or_are_frames(
        packets in prop::collection::vec((0..2_u32, prop::collection::vec((any::<bool>(), 0..9_u8, 0..3000_u32, any::<u8>()), 0..8)), 1..10),
    ) {
        let packets: Vec<Vec<u8>> = packets
            .into_iter()
            .map(|(returned, parts)| {
                let mut stream = Vec::new();
                for (is_head, operation, length, byte) in parts {
                    if is_head {
                        let operation = if operation % 2 == 0 { Operation::Message } else { Operation::Data };
                        stream.extend(Head::new(operation, byte.into(), 0, length as usize).encode());
                    } else {
                        stream.resize(stream.len() + length as usize % 300, byte);
                    }
                }
                stream.truncate(PAYLOAD);
                packet(returned / 2, &stream)
            })
            .collect();
        survive(&packets);
    }
}
