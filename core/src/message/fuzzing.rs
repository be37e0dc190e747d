//! Fuzz targets of the bytes that one messenger gets from another, see [`crate::fuzzing`].

use super::Address;
use super::credit::Amount;
use super::handing::Handed;
use super::head::{Head, Operation};
use super::hello::Hello;
use super::keys;
use super::mappings::Place;
use super::serving;
use super::tcp::{Inbound, Scratch};
use super::verbs::{self, Header, Offer};
use super::wire::{Landing, Sink};
use crate::error::Result;
use crate::net::fuzzing::Recorded;
use crate::rdma::{Gid, GidKind, QpAddress};
use crate::wire::Writer;

pub use super::ring::fuzzing::message_ring;

/// A stream of frames over TCP: the first byte says how many bytes arrive at a time. The same frames must come out as if all
/// had arrived at once, those received in place included.
pub fn message_frames(bytes: &[u8]) -> Option<Vec<u8>> {
    let (cut, stream) = bytes.split_first()?;
    let decode = |step: usize| {
        let raw = Recorded::new(stream, step);
        let (mut inbound, mut scratch, mut frames) =
            (Inbound::default(), Scratch::default(), Frames::default());
        // Every pull takes something until nothing is left.
        while !raw.is_empty() {
            inbound.pull(&raw, &mut scratch, &mut frames).ok()?;
        }
        inbound.pull(&raw, &mut scratch, &mut frames).ok()?;
        (frames.whole.len() == stream.len() && frames.left == 0).then_some(frames.whole)
    };
    let whole = decode(usize::from(*cut).max(1));
    assert_eq!(whole, decode(stream.len().max(1)), "cuts change nothing");
    Some([&[*cut], &whole?[..]].concat())
}

/// A stream of frames in the packets of a queue pair: the first byte says how many bytes of it a packet has, the second how many frames
/// are given at a time. The same frames must come out of one packet.
pub fn message_packets(bytes: &[u8]) -> Option<Vec<u8>> {
    let ([cut, most], stream) = bytes.split_first_chunk()?;
    let decode = |packet: usize, most: usize| {
        let mut inbound = verbs::Inbound::new(8 << 10);
        let mut frames = Frames::default();
        for packet in stream.chunks(packet) {
            // Every call takes something.
            while !inbound.take(packet, most, &mut frames).ok()?.1 {}
        }
        (frames.whole.len() == stream.len() && frames.left == 0).then_some(frames.whole)
    };
    let whole = decode(usize::from(*cut).max(1), usize::from(*most).max(1));
    assert_eq!(whole, decode(stream.len().max(1), usize::MAX), "packets change nothing");
    Some([&[*cut, *most], &whole?[..]].concat())
}

/// An introduction.
pub fn message_hello(bytes: &[u8]) -> Option<Vec<u8>> {
    let hello = Hello::decode(bytes.try_into().ok()?).ok()?;
    Some(hello.encode().to_vec())
}

/// The address of a messenger, as bytes; its text must be read back, too.
pub fn message_address(bytes: &[u8]) -> Option<Vec<u8>> {
    let address = Address::from_bytes(bytes).ok()?;
    assert_eq!(address.to_string().parse::<Address>().ok().as_ref(), Some(&address));
    Some(address.to_bytes())
}

/// A request to read from exposed memory.
pub fn message_read(bytes: &[u8]) -> Option<Vec<u8>> {
    let (token, offset, length, _) = serving::decode(bytes, false).ok()?;
    let within = token.check_range("read", offset, length).is_ok();
    assert_eq!(within, u128::from(offset) + u128::from(length) <= u128::from(token.len()));
    let mut w = Writer::new();
    w.raw(&token.to_bytes()).u64(offset).u64(length);
    Some(w.finish())
}

/// A request for the key of exposed memory, with the reader's end of a pair for reads or without.
pub fn message_fetch(bytes: &[u8]) -> Option<Vec<u8>> {
    let (token, offset, length, pair) = serving::decode(bytes, true).ok()?;
    let mut w = Writer::new();
    w.raw(&token.to_bytes()).u64(offset).u64(length);
    pair.iter().for_each(|pair| pair.encode(&mut w));
    Some(w.finish())
}

/// The key of exposed memory, or none.
pub fn message_key(bytes: &[u8]) -> Option<Vec<u8>> {
    Some(keys::encode(keys::decode(bytes).ok()?.as_ref()))
}

/// The place of exposed memory within its descriptor.
pub fn message_place(bytes: &[u8]) -> Option<Vec<u8>> {
    Some(Place::decode(bytes).ok()?.encode().to_vec())
}

/// The frame behind the descriptors of memory that is handed over.
pub fn message_handed(bytes: &[u8]) -> Option<Vec<u8>> {
    Some(Handed::decode(bytes).ok()?.encode())
}

/// Room in an inbox that is given back.
pub fn message_credit(bytes: &[u8]) -> Option<Vec<u8>> {
    Some(Amount::decode(bytes).ok()?.encode().to_vec())
}

/// The offer of a queue pair.
pub fn message_offer(bytes: &[u8]) -> Option<Vec<u8>> {
    Some(Offer::decode(bytes.try_into().ok()?).ok()?.encode().to_vec())
}

/// A packet of a queue pair: its header, which must fit what is behind it.
pub fn message_packet(bytes: &[u8]) -> Option<Vec<u8>> {
    let header = Header::decode(bytes).ok()?;
    assert_eq!(header.length as usize, bytes.len() - Header::BYTES);
    Some([&header.encode()[..], &bytes[Header::BYTES..]].concat())
}

/// The frames that came out, encoded again.
#[derive(Default)]
struct Frames {
    whole: Vec<u8>,
    /// The body that is landing, and how much of it is missing.
    landing: Vec<u8>,
    left: usize,
}

impl Sink for Frames {
    fn frame(&mut self, head: Head, body: &[u8]) -> Result<()> {
        assert!(self.left == 0 && head.length as usize == body.len());
        self.whole.extend(head.encode());
        if head.operation == Operation::Data && !wanted(head) {
            self.whole.extend(body.iter().map(|_| 0));
        } else {
            self.whole.extend(body);
        }
        Ok(())
    }

    fn begin(&mut self, head: Head) -> Result<()> {
        assert!(self.left == 0 && head.operation == Operation::Data);
        self.whole.extend(head.encode());
        self.left = head.length as usize;
        self.landing = vec![0; self.left];
        Ok(())
    }

    fn landing(&mut self, head: Head, done: usize) -> Result<Landing> {
        assert_eq!(head.length as usize - done, self.left);
        Ok(if wanted(head) { Landing::Memory(self.landing[done..].as_mut_ptr()) } else { Landing::Nowhere })
    }

    fn landed(&mut self, head: Head, bytes: usize) -> Result<()> {
        assert!(bytes <= self.left, "no more than there is room for");
        self.left -= bytes;
        if self.left == 0 {
            assert_eq!(self.landing.len(), head.length as usize);
            self.whole.append(&mut self.landing);
        }
        Ok(())
    }
}

/// Data of odd numbers goes nowhere; its bytes are not compared.
fn wanted(head: Head) -> bool {
    head.id.is_multiple_of(2)
}

pub(crate) fn message_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let frame = |operation, kind, id, body: &[u8]| {
        [&Head::new(operation, kind, id, body.len()).encode()[..], body].concat()
    };
    let streams = [
        [frame(Operation::Message, 7, 0, b"one"), frame(Operation::Goodbye, 0, 0, b"")].concat(),
        [frame(Operation::Data, 0, 2, &[5; 5000]), frame(Operation::Data, 0, 2, b"end")].concat(),
        [frame(Operation::Refused, 0, 3, &[2]), frame(Operation::Data, 0, 4, b"")].concat(),
    ];
    let cuts = [0, 1, 5, 16, 200];
    let mut all: Vec<_> =
        streams.iter().flat_map(|s| cuts.map(|cut| ("message-frames", [&[cut], &s[..]].concat()))).collect();
    let packets = [[1, 1], [5, 0], [16, 3], [200, 200]];
    all.extend(streams.iter().flat_map(|s| packets.map(|cut| ("message-packets", [&cut, &s[..]].concat()))));
    let token = super::Token {
        generation: 9,
        slot: 1,
        age: 2,
        length: 100,
        shared: false,
        device: false,
        secret: [7; 16],
    };
    let gid = Some((Gid([3; 16]), GidKind::ROCE_V2));
    let pair = QpAddress { qp_number: 17, psn: 5, lid: 0, gid, mtu: 1024, max_read_atomic: 16 };
    let mut end = Writer::new();
    pair.encode(&mut end);
    for (offset, length) in [(0_u64, 100_u64), (100, 0), (u64::MAX, 1)] {
        let request = [&token.to_bytes()[..], &offset.to_le_bytes(), &length.to_le_bytes()].concat();
        all.push(("message-fetch", [&request, end.as_bytes()].concat()));
        all.push(("message-read", request));
    }
    let region = [&(1_u64 << 50).to_le_bytes()[..], &100_u64.to_le_bytes(), &7_u32.to_le_bytes()].concat();
    all.push(("message-key", [&region, end.as_bytes()].concat()));
    all.push(("message-key", region));
    for length in [100, 0, u64::MAX] {
        all.push(("message-place", Place { length, word: 3, serial: 5 }.encode().to_vec()));
    }
    let place = Place { length: 0, word: 3, serial: 5 };
    for handed in
        [Handed::Bytes(Place { length: 100, ..place }), Handed::Device(place, vec![7; 9]), Handed::Half]
    {
        all.push(("message-handed", handed.encode()));
    }
    all.push(("message-credit", Amount { messages: 6, bytes: 8192 }.encode().to_vec()));
    all.push(("message-offer", Offer::of(pair).encode().to_vec()));
    for (returned, body) in [(0_u32, &b"frame"[..]), (9, b"")] {
        let header = Header { returned, length: body.len() as u32 };
        all.push(("message-packet", [&header.encode()[..], body].concat()));
    }
    let hello = Hello {
        rank: 1,
        generation: 2,
        meant: 3,
        eager: 8192,
        read_depth: 64,
        ring: 512,
        verbs: 0,
        life: 5,
        inbox: Amount { messages: 6, bytes: 8192 },
        verdict: super::hello::Verdict::Taken,
    };
    all.extend(super::ring::fuzzing::seeds());
    all.push(("message-hello", hello.encode().to_vec()));
    let over_verbs = Hello { ring: 0, verbs: Offer::BYTES as u32, ..hello };
    all.push(("message-hello", over_verbs.encode().to_vec()));
    let unix = Some("/tmp/aqueduct-socket-abcdef/s".into());
    let ips = vec!["10.1.2.3:4567".parse().expect("IPv4"), "[fd00::7]:89".parse().expect("IPv6")];
    let address = Address { rank: 3, generation: 4, host: "node/7".into(), ips, unix };
    all.push(("message-address", address.to_bytes()));
    all.push(("message-address", Address { ips: Vec::new(), unix: None, ..address }.to_bytes()));
    all
}
