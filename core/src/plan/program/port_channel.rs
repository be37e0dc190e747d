//! Port channels: requests to a proxy, which moves the data.

use super::blocks::SyncType;
use super::chunk::{Chunk, Side};
use super::end::End;
use super::ir::{ChannelKind, Form, Op, PortPut};
use super::record::{Call, Fault, Recorder};

/// This rank's end of a channel through which a proxy moves data, over any transport.
///
/// A block only asks; the proxy reads the source later. So the source may not be written before a flush, or a signal back.
#[derive(Clone, Copy, Debug)]
pub struct PortChannel<'p> {
    end: End<'p>,
}

impl<'p> PortChannel<'p> {
    pub(super) fn new(call: Call, recorder: &'p Recorder, rank: u32, peer: u32) -> Self {
        Self { end: End::new(call, recorder, rank, peer, ChannelKind::Port) }
    }

    /// The rank at the other end.
    pub fn peer(&self) -> u32 {
        self.end.peer
    }

    /// Adds one to the peer's count after everything put before has arrived there.
    #[track_caller]
    pub fn signal(&self, tb: u32, sync: SyncType) {
        self.end.signal(Call::of("PortChannel::signal"), tb, sync, false);
    }

    /// Waits for one more signal of the peer and makes visible, from the next sync on, what it published.
    #[track_caller]
    pub fn wait(&self, tb: u32, sync: SyncType) {
        self.end.wait(Call::of("PortChannel::wait"), tb, sync);
    }

    /// The same as [`signal`](Self::signal): a proxy's signals are never relaxed.
    #[track_caller]
    pub fn relaxed_signal(&self, tb: u32, sync: SyncType) {
        self.end.signal(Call::of("PortChannel::relaxed_signal"), tb, sync, true);
    }

    /// Waits until everything put before through this channel has arrived; then its sources may be written again.
    #[track_caller]
    pub fn flush(&self, tb: u32, sync: SyncType) {
        let op = Op::Flush { channel: self.end.channel.index };
        self.end.recorder.op(Call::of("PortChannel::flush"), (self.end.rank, tb), sync, Ok(op));
    }

    /// Puts `src`, of this rank, to the peer's `dst`.
    #[track_caller]
    pub fn put(&self, dst: Chunk, src: Chunk, tb: u32) {
        self.ask(Call::of("PortChannel::put"), tb, self.request(dst, src));
    }

    /// Puts, and signals the peer when the data is there.
    #[track_caller]
    pub fn put_with_signal(&self, dst: Chunk, src: Chunk, tb: u32) {
        let put = self.request(dst, src).map(|put| PortPut { signal: true, ..put });
        self.ask(Call::of("PortChannel::put_with_signal"), tb, put);
    }

    /// Puts, signals the peer, and waits until both have arrived.
    #[track_caller]
    pub fn put_with_signal_and_flush(&self, dst: Chunk, src: Chunk, tb: u32) {
        let put = self.request(dst, src).map(|put| PortPut { signal: true, flush: true, ..put });
        self.ask(Call::of("PortChannel::put_with_signal_and_flush"), tb, put);
    }

    /// Puts packets that lie in this rank's scratch to the peer's. They must be there: a sync orders this after what made them.
    #[track_caller]
    pub fn put_packets(&self, dst: Chunk, src: Chunk, tb: u32) {
        let put = self.request(dst, src).map(|put| PortPut { form: Form::Packets, ..put });
        self.ask(Call::of("PortChannel::put_packets"), tb, put);
    }

    /// Waits for packets in this rank's scratch and puts them to the peer's.
    #[track_caller]
    pub fn read_put_packets(&self, dst: Chunk, src: Chunk, tb: u32) {
        let put = self.request(dst, src).map(|put| PortPut { form: Form::Packets, forward: true, ..put });
        self.ask(Call::of("PortChannel::read_put_packets"), tb, put);
    }

    fn request(&self, dst: Chunk, src: Chunk) -> Result<PortPut, Fault> {
        let (target, source) = (self.end.there(dst), self.end.here(src));
        let checked = |side: Side, role| side.owned(role).map(|chunk| (chunk.buffer, chunk.first));
        let (target, source) = (checked(target, "target")?, checked(source, "source")?);
        if dst.count != src.count {
            return Err(format!("the source, {src}, is not as long as the target, {dst}"));
        }
        Ok(PortPut {
            channel: self.end.channel.index,
            source,
            target,
            count: dst.count,
            form: Form::Plain,
            forward: false,
            signal: false,
            flush: false,
        })
    }

    fn ask(&self, call: Call, tb: u32, put: Result<PortPut, Fault>) {
        let op = put.map(|put| Op::Port(put.into()));
        self.end.recorder.op(call, (self.end.rank, tb), SyncType::None, op);
    }
}
