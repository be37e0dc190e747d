//! Answers to the peer's reads: bytes on their way to it, and the acknowledgements that must not overtake them.

use std::collections::VecDeque;

use super::frame::Frame;
use super::made::{Made, Obstacle};
use super::piece::Payload;
use super::reads::WINDOW;
use super::staging::Staging;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Place;

/// Answers to send, in order.
#[derive(Default)]
pub(super) struct Answers {
    queue: VecDeque<Answer>,
    /// Parts of reads of which the socket has not taken all bytes.
    unsent: usize,
}

enum Answer {
    Bytes { from: Place, len: usize },
    Ack { count: u64 },
}

impl Answers {
    /// Whether `peer` may ask for one part more.
    ///
    /// # Errors
    /// `Remote` if it has asked for as many as the two have agreed on.
    pub(super) fn check(&self, peer: u32) -> Result<()> {
        if self.unsent >= WINDOW {
            let message = format!("rank {peer} asked for more than {WINDOW} parts of reads at one time");
            return Err(Error::new(ErrorKind::Remote, "recv", message).with_peer(peer));
        }
        Ok(())
    }

    /// The peer asks for the `len` bytes at `from`, as it [may](Self::check).
    pub(super) fn add(&mut self, from: Place, len: usize) {
        self.unsent += 1;
        self.queue.push_back(Answer::Bytes { from, len });
    }

    /// Takes the acknowledgement of `count` frames, to be sent behind the bytes that are on their way; false if none are.
    pub(super) fn acknowledge(&mut self, count: u64) -> bool {
        match self.queue.back_mut() {
            Some(Answer::Ack { count: last }) => *last = count,
            _ if self.unsent == 0 => return false,
            _ => self.queue.push_back(Answer::Ack { count }),
        }
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The next frame, if it can be made. Device memory needs room in `staging`; bytes that were `spilled` from there, and are
    /// not sent yet, come first.
    pub(super) fn next(&mut self, staging: &mut Staging, spilled: usize) -> Result<Made> {
        let payload = match self.queue.front() {
            None => return Ok(Made::Nothing),
            Some(Answer::Ack { .. }) => Payload::None,
            Some(Answer::Bytes { from: Place::Device(_), .. }) if spilled > 0 => {
                return Ok(Made::Waits(Obstacle::Socket));
            }
            Some(Answer::Bytes { from, len }) => match Payload::of(from, 0, *len, staging)? {
                Some(payload) => payload,
                None => return Ok(Made::Waits(Obstacle::of(staging))),
            },
        };
        Ok(match self.queue.pop_front() {
            Some(Answer::Bytes { from, len }) => {
                Made::Frame(Frame::Data { len: len as u32 }, payload, Some(from))
            }
            Some(Answer::Ack { count }) => Made::Frame(Frame::Ack { count }, Payload::None, None),
            None => Made::Nothing,
        })
    }

    /// The socket has taken all bytes of one part.
    pub(super) fn sent(&mut self) {
        self.unsent -= 1;
    }

    /// Nothing more is sent: gives the memory out, to be dropped where blocking is allowed.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Place> {
        self.unsent = 0;
        self.queue.drain(..).filter_map(|answer| match answer {
            Answer::Bytes { from, .. } => Some(from),
            Answer::Ack { .. } => None,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::gpu::{Context, Device, Driver};
    use crate::memory::{HostBuffer, register_host};
    use crate::transport::endpoint::Transport;

    /// As those of a write do: so much of this connection lies in ordinary memory, and no more.
    #[test]
    fn bytes_of_a_device_wait_for_those_that_were_moved_before() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let (mut staging, mut answers) = (Staging::alone(&context, 4), Answers::default());
        let buffer = Arc::new(crate::gpu::GpuBuffer::new(&context, 64).unwrap());
        answers.add(Place::Device(buffer.slice(..).unwrap()), 64);
        assert!(matches!(answers.next(&mut staging, 1).unwrap(), Made::Waits(Obstacle::Socket)));
        assert!(matches!(answers.next(&mut staging, 0).unwrap(), Made::Frame(Frame::Data { len: 64 }, ..)));
    }

    #[test]
    fn acknowledgements_stay_behind_bytes_and_a_peer_cannot_ask_without_end() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let (mut staging, mut answers) = (Staging::alone(&context, 4), Answers::default());
        let buffer = Arc::new(HostBuffer::new(&context, 64).unwrap());
        let memory = register_host(&buffer, 0, 64, Transport::Ethernet.into()).unwrap();
        assert!(!answers.acknowledge(1), "nothing is on its way");
        answers.add(memory.place().clone(), 64);
        assert!(!answers.is_empty());
        assert!(answers.acknowledge(2) && answers.acknowledge(3));
        let Made::Frame(Frame::Data { len: 64 }, ..) = answers.next(&mut staging, 1).unwrap() else {
            panic!("host memory needs no staging")
        };
        let Made::Frame(Frame::Ack { count: 3 }, ..) = answers.next(&mut staging, 0).unwrap() else {
            panic!("the latest count, once")
        };
        assert!(answers.is_empty() && answers.acknowledge(4), "the bytes are not with the socket yet");
        for _ in 1..WINDOW {
            answers.check(1).unwrap();
            answers.add(Place::Elsewhere, 8);
        }
        assert_eq!(answers.check(1).unwrap_err().peer(), Some(1));
        answers.sent();
        answers.check(1).unwrap();
        answers.add(Place::Elsewhere, 8);
        assert_eq!(answers.clear().count(), WINDOW);
        assert!(!answers.acknowledge(5));
    }
}
