//! Numbers and counts of links, and how much may wait in one.

use super::reactor::reactor;
use super::trouble::{serve, troubled};
use super::*;
use crate::wire::FrameHeader;

#[test]
fn links_have_numbers_of_their_own_and_count_what_they_have_accepted() {
    let (reactor, _seen) = reactor();
    let [(_one, first), (_other, second)] = [(); 2].map(|()| pair(&network()));
    let (first, second) = (reactor.add(first), reactor.add(second));
    assert_ne!(first.id(), second.id());
    assert_eq!(first.sent(), 0);
    first.post(1, b"12345").unwrap();
    first.post(1, b"").unwrap();
    assert_eq!(first.sent(), 2 * FrameHeader::BYTES as u64 + 5);
    assert_eq!(second.sent(), 0);
}

#[test]
fn as_much_may_wait_as_the_limit_says_and_no_more() {
    const MOST: usize = 64 << 20;
    let (_reactor, _seen, link, _server, trouble) = serve(troubled());
    // From here on the kernel takes nothing.
    *lock(&trouble.write) = (libc::ETOOMANYREFS, u32::MAX);
    let frame = MOST / 4 - FrameHeader::BYTES;
    let payload = vec![0; frame];
    (0..3).for_each(|_| link.post(1, &payload).unwrap());
    let over = link.post(1, &[&payload[..], b"x"].concat()).unwrap_err();
    assert_eq!((over.kind(), over.peer()), (ErrorKind::Remote, Some(0)));
    link.post(1, &payload).unwrap();
    assert!(link.post(1, b"").unwrap_err().message().contains(&format!("{MOST} bytes wait")));
}
