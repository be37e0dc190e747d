//! The receiving side: frames out of the stream that packets carry.

use crate::error::Result;
use crate::message::head::{Head, Operation};
use crate::message::wire::{Landing, Sink};
use crate::wire::WireError;

/// Longer bodies are no data that this version sends.
const MAX_DATA: u32 = 1 << 20;
/// The memory that is kept for the next frame in several packets.
const KEPT: usize = 16 << 10;

/// Where the reader stands in the stream.
#[derive(Debug)]
pub(in crate::message) struct Inbound {
    /// Bytes of the packet in front that were used.
    at: usize,
    /// The longest body of a frame that is not data.
    longest: usize,
    /// The beginning of a frame whose end comes in a later packet.
    partial: Vec<u8>,
    /// A data frame whose body is received in place, and how much of it has come.
    landing: Option<(Head, usize)>,
}

impl Inbound {
    /// A reader that takes bodies of up to `longest` bytes.
    pub(in crate::message) fn new(longest: usize) -> Self {
        Self { at: 0, longest, partial: Vec::new(), landing: None }
    }

    /// Gives the frames in `stream`, the stream's bytes in the packet in front, to `sink`: at most `most`, parts included. Returns how many,
    /// and whether the packet is used up. If it is not, give the same packet again.
    pub(in crate::message) fn take(
        &mut self,
        stream: &[u8],
        most: usize,
        sink: &mut dyn Sink,
    ) -> Result<(usize, bool)> {
        let mut given = 0;
        while given < most {
            let rest = &stream[self.at..];
            if rest.is_empty() {
                self.at = 0;
                return Ok((given, true));
            }
            if let Some((head, done)) = self.landing {
                self.land(head, done, rest, sink)?;
            } else if self.partial.is_empty() {
                self.next(rest, sink)?;
            } else {
                self.gather(rest, sink)?;
            }
            given += 1;
        }
        Ok((given, false))
    }

    /// The frame that begins here.
    #[inline]
    fn next(&mut self, rest: &[u8], sink: &mut dyn Sink) -> Result<()> {
        if let Some(head) = rest.first_chunk() {
            let head = self.decode(head)?;
            if let Some(body) = rest[Head::BYTES..].get(..head.length as usize) {
                sink.frame(head, body)?;
                self.at += Head::BYTES + body.len();
                return Ok(());
            }
        }
        self.gather(rest, sink)
    }

    /// Keeps what there is of a frame that is not whole yet, and gives it once it is.
    fn gather(&mut self, rest: &[u8], sink: &mut dyn Sink) -> Result<()> {
        let mut used = 0;
        if self.partial.len() < Head::BYTES {
            used = rest.len().min(Head::BYTES - self.partial.len());
            self.partial.extend_from_slice(&rest[..used]);
            self.at += used;
        }
        if self.partial.len() < Head::BYTES {
            return Ok(());
        }
        let head = self.head()?;
        if head.operation == Operation::Data && head.length > 0 && self.partial.len() == Head::BYTES {
            sink.begin(head)?;
            self.partial.clear();
            self.landing = Some((head, 0));
            return Ok(());
        }
        let more = self.wanted()?.min(rest.len() - used);
        self.partial.extend_from_slice(&rest[used..used + more]);
        self.at += more;
        if self.wanted()? > 0 { Ok(()) } else { self.whole(sink) }
    }

    /// Gives the frame that was gathered.
    fn whole(&mut self, sink: &mut dyn Sink) -> Result<()> {
        let head = self.head()?;
        sink.frame(head, &self.partial[Head::BYTES..])?;
        self.partial.clear();
        self.partial.shrink_to(KEPT);
        Ok(())
    }

    /// Lands the next bytes of a data frame.
    fn land(&mut self, head: Head, done: usize, rest: &[u8], sink: &mut dyn Sink) -> Result<()> {
        let now = rest.len().min(head.length as usize - done);
        if let Landing::Memory(place) = sink.landing(head, done)? {
            // SAFETY: the sink vouches for the rest of the frame there until the next call to it, and `now` is at most that.
            unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), place, now) };
        }
        sink.landed(head, now)?;
        self.at += now;
        let done = done + now;
        self.landing = (done < head.length as usize).then_some((head, done));
        Ok(())
    }

    fn decode(&self, bytes: &[u8; Head::BYTES]) -> Result<Head> {
        let head = Head::decode(bytes, MAX_DATA)?;
        let (length, limit) = (u64::from(head.length), self.longest as u64);
        if head.operation != Operation::Data && length > limit {
            return Err(WireError::TooLong { length, limit }.into());
        }
        Ok(head)
    }

    /// The head of the frame that is being gathered.
    fn head(&self) -> Result<Head> {
        self.decode(self.partial.first_chunk().expect("the caller has all of the head"))
    }

    /// Bytes that the gathered frame still lacks.
    fn wanted(&self) -> Result<usize> {
        Ok(Head::BYTES + self.head()?.length as usize - self.partial.len())
    }
}
