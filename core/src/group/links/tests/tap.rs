//! A link of which a test reads the frames.

use std::sync::mpsc;

use super::*;
use crate::net::{Frame, Handler, Link};

/// Tells which kinds of frames come.
struct Listens(mpsc::Sender<u16>);

impl Handler for Listens {
    fn frame(&mut self, _: &Link, frame: Frame) -> Result<()> {
        let _ = self.0.send(frame.kind);
        Ok(())
    }

    fn closed(&mut self, _: &Link, _: &Error) {}
}

/// The link, and the thread that reads it.
pub(in crate::group) struct Tap {
    kinds: mpsc::Receiver<u16>,
    _link: Link,
    _reactor: Reactor,
}

impl Tap {
    /// A link of the rank of `from` to rank `to`.
    pub(in crate::group) fn open(from: &Links, to: u32) -> Self {
        let (tell, kinds) = mpsc::channel();
        let reactor = Reactor::start("tap", ReactorConfig::default(), Box::new(Listens(tell))).unwrap();
        let Identity { network, .. } = &from.identity;
        let unix = &from.peers[to as usize].unix;
        let stream = network.connect_unix(unix, from.identity.claims(to), soon()).unwrap();
        Self { kinds, _link: reactor.add(stream), _reactor: reactor }
    }

    /// The kind of the next frame.
    pub(in crate::group) fn next(&self) -> u16 {
        self.kinds.recv_timeout(Duration::from_secs(30)).unwrap()
    }
}
