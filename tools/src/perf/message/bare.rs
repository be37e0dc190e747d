//! The loop that messages are compared with: one TCP socket, which both sides poll as the library does.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use aqueduct::Deadline;

/// As many bytes go in one write.
const BATCH: usize = 16 << 10;

/// The work of the two ends of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// The partner returns each piece of `size` bytes.
    Echo = 1,
    /// The partner takes all bytes and answers with one.
    Drain = 2,
    /// The partner sends all bytes.
    Stream = 3,
    /// The partner bounces a word of shared memory, see [`Flags`](super::limits::Flags).
    Flag = 4,
}

impl Work {
    pub(super) fn from_number(number: u8) -> Result<Self> {
        Ok(match number {
            1 => Self::Echo,
            2 => Self::Drain,
            3 => Self::Stream,
            4 => Self::Flag,
            _ => bail!("work {number} is unknown; do both processes run the same version?"),
        })
    }
}

/// One end.
pub(super) struct Bare {
    stream: TcpStream,
    deadline: Deadline,
}

impl Bare {
    pub(super) fn new(stream: TcpStream, deadline: Deadline) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, deadline })
    }

    /// The side that measures; returns the times of the parts in µs: of each round trip, otherwise of everything.
    pub(super) fn measure(&mut self, work: Work, count: u32, size: usize) -> Result<Vec<f64>> {
        let total = count as usize * size;
        let mut bytes = vec![7; size];
        if work == Work::Echo {
            let mut times = Vec::with_capacity(count as usize);
            for _ in 0..count {
                let since = Instant::now();
                self.write(&bytes)?;
                self.read(&mut bytes)?;
                times.push(since.elapsed().as_secs_f64() * 1e6);
            }
            return Ok(times);
        }
        let since = Instant::now();
        match work {
            Work::Drain => {
                self.write_all(total, BATCH)?;
                self.read(&mut [0])?;
            }
            _ => self.read_all(total, size)?,
        }
        Ok(vec![since.elapsed().as_secs_f64() * 1e6])
    }

    /// The other side.
    pub(super) fn serve(&mut self, work: Work, count: u32, size: usize) -> Result<()> {
        let total = count as usize * size;
        match work {
            Work::Echo => {
                let mut bytes = vec![0; size];
                for _ in 0..count {
                    self.read(&mut bytes)?;
                    self.write(&bytes)?;
                }
                Ok(())
            }
            Work::Drain => {
                self.read_all(total, 64 << 10)?;
                self.write(&[1])
            }
            Work::Stream => self.write_all(total, size),
            Work::Flag => bail!("no socket bounces a word"),
        }
    }

    fn write_all(&mut self, mut total: usize, piece: usize) -> Result<()> {
        let bytes = vec![7; piece];
        while total > 0 {
            let next = piece.min(total);
            self.write(&bytes[..next])?;
            total -= next;
        }
        Ok(())
    }

    fn read_all(&mut self, mut total: usize, piece: usize) -> Result<()> {
        let mut bytes = vec![0; piece];
        while total > 0 {
            let next = piece.min(total);
            self.read(&mut bytes[..next])?;
            total -= next;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            done += self.retry(|stream| stream.write(&bytes[done..]))?;
        }
        Ok(())
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            done += self.retry(|stream| stream.read(&mut bytes[done..]))?;
        }
        Ok(())
    }

    /// Polls until `call` has moved something.
    fn retry(&mut self, mut call: impl FnMut(&mut TcpStream) -> std::io::Result<usize>) -> Result<usize> {
        let mut idle = 0_u32;
        loop {
            match call(&mut self.stream) {
                Ok(0) => bail!("the other process closed the bare socket"),
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("the bare socket"),
            }
            idle = idle.wrapping_add(1);
            if idle.is_multiple_of(1024) && self.deadline.expired() {
                bail!("the other process did not answer on the bare socket in time");
            }
        }
    }
}
