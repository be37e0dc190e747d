//! Receives belong to one peer: whatever it does with them, others have theirs.

use super::super::credits::{CREDITS, RECEIVES};
use super::super::packet::Header;
use super::*;
use crate::error::ErrorKind;
use crate::rdma::Batch;

/// Receives that are left to packets which only give back others, once a peer has used up its credits.
const BEYOND: usize = (RECEIVES - CREDITS) as usize;

/// A peer's end of a link.
type Peer = (Box<dyn RawStream>, VerbsLink);

/// Ends of links to `count` peers over one device, and those of the peers.
fn star(count: usize) -> (Vec<VerbsWire>, Vec<Peer>) {
    let hub = nic("null0");
    let link = |_| {
        let (here, there) = UnixStream::pair().unwrap();
        let drafts = [Draft::new(&hub, 8 << 10).unwrap(), Draft::new(&nic("null0"), 8 << 10).unwrap()];
        let [ours, theirs] = [drafts[0].offer(), drafts[1].offer()];
        let [mine, other] = drafts;
        let [here, there] = [here, there].map(|socket| {
            socket.set_nonblocking(true).unwrap();
            Box::new(Socket(socket)) as Box<dyn RawStream>
        });
        (VerbsWire::new(here, mine.connect(&theirs).unwrap(), None), (there, other.connect(&ours).unwrap()))
    };
    (0..count).map(link).unzip()
}

/// Several peers whom nobody reads hold all the receives that they may have, and send on; another one is not held up.
#[test]
fn slow_readers_of_some_peers_leave_others_their_receives() {
    const SLOW: usize = 8;
    let (hub, peers) = star(SLOW + 1);
    let peers: Vec<_> = peers.into_iter().map(|(socket, link)| VerbsWire::new(socket, link, None)).collect();
    let (long, deadline) = (body(2000), Deadline::after(SOON));
    let mut kept = Kept::default();
    let (mut pushed, frames) = (0, 1000);
    while kept.frames.len() < frames {
        for peer in &peers[..SLOW] {
            while push(peer, head(1, &long), &long) {}
            peer.pull(&mut Kept::default()).unwrap();
        }
        while pushed < frames && push(&peers[SLOW], head(1, &long), &long) {
            pushed += 1;
        }
        hub[SLOW].pull(&mut kept).unwrap();
        peers[SLOW].pull(&mut Kept::default()).unwrap();
        assert!(!deadline.expired(), "{} frames", kept.frames.len());
    }
    standin::settle();
    for slow in &hub[..SLOW] {
        // They have used up what they were given, and nothing was lost.
        assert_eq!(standin::receives(number(slow)), BEYOND);
        let mut kept = Kept::default();
        pull(slow, &mut kept, CREDITS as usize);
        assert!(kept.frames.iter().all(|(_, bytes)| *bytes == long));
    }
}

/// A peer that sends more than it has credits for loses its link. The others have lost no receive.
#[test]
fn a_flood_beyond_credits_ends_its_sender_alone() {
    let (hub, mut peers) = star(3);
    let (_socket, flooder) = peers.remove(1);
    let peers: Vec<_> = peers.into_iter().map(|(socket, link)| VerbsWire::new(socket, link, None)).collect();
    let before = [0, 2].map(|link| standin::receives(number(&hub[link])));
    let slots = &flooder.parts.slots;
    let stream = [&head(1, b"flood").encode()[..], b"flood"].concat();
    let header = Header { returned: 0, length: stream.len() as u32 };
    let packet = [&header.encode()[..], &stream[..]].concat();
    // The first slot behind the receives.
    let slot = RECEIVES;
    slots.slot(slot).write(0, &packet).unwrap();
    let mut batch = Batch::default();
    for _ in 0..2 * RECEIVES {
        batch.send(slots.range(slot, packet.len()).unwrap()).unwrap();
    }
    flooder.queue_pair.post(&mut batch).unwrap();
    standin::settle();
    let error = end_of(&hub[1], &mut Kept::default());
    assert!(
        error.kind() == ErrorKind::Remote && error.message().contains("more packets than it may"),
        "{error}"
    );
    assert_eq!([0, 2].map(|link| standin::receives(number(&hub[link]))), before);
    for (hub, peer) in [(&hub[0], &peers[0]), (&hub[2], &peers[1])] {
        let mut kept = Kept::default();
        assert!(push(peer, head(1, b"on"), b"on") && push(hub, head(1, b"and on"), b"and on"));
        pull(hub, &mut kept, 1);
        pull(peer, &mut kept, 2);
    }
}

/// Whichever way a link ends, with receives posted and with packets that nobody has taken.
#[test]
fn the_receives_of_a_link_go_with_it() {
    for ending in 0..3 {
        let [one, two] = pair();
        let domain = two.nic().domain.address();
        let long = body(2000);
        assert_eq!((standin::receives(number(&two)), standin::regions(domain)), (RECEIVES as usize, 1));
        for _ in 0..2 {
            while push(&one, head(1, &long), &long) {}
            standin::settle();
            // Takes completions, and no frames.
            two.has_arrived();
        }
        assert_eq!(standin::receives(number(&two)), BEYOND);
        match ending {
            0 => drop(one),
            1 => {
                standin::fail_next(number(&two), rdma_core_sys::ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
                push(&two, head(1, b"x"), b"x");
            }
            _ => two.close(true),
        }
        if ending < 2 {
            end_of(&two, &mut Kept::default());
        }
        drop(two);
        assert_eq!(standin::regions(domain), 0, "after ending {ending}");
    }
}
