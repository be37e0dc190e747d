//! Exchanging a set of memories with all ranks in one call.

use std::sync::Arc;

use super::communicator::Communicator;
use crate::error::{Error, Result};
use crate::gpu::GpuBuffer;
use crate::memory::{RegisteredMemory, Registration};
use crate::setup::key::{Key, Kind, Namespace};
use crate::setup::pending::Pending;

const OP: &str = "exchange_memory";

/// The result of [`exchange_memory`](Communicator::exchange_memory), complete after the next
/// [`setup()`](Communicator::setup). Cheap to clone.
#[derive(Clone, Debug)]
pub struct MemoryExchange {
    rank: u32,
    mine: Arc<[RegisteredMemory]>,
    sent: Arc<[Pending<()>]>,
    /// By rank, then by buffer; empty for this rank.
    received: Arc<[Vec<Pending<RegisteredMemory>>]>,
}

impl Communicator {
    /// Registers all of each of `buffers` for `registration`, sends them to all other ranks and receives theirs:
    /// registering and all-gathering memories in one call. All ranks call it with the same `tag` and the same number
    /// of buffers, which may differ in size, and then [`setup`](Self::setup). The tag meets only tags of other calls
    /// of this function.
    ///
    /// # Errors
    /// As for [`register_memory`](Self::register_memory) and [`send_memory`](Self::send_memory); after an error nothing
    /// stays queued for `setup()`. `InvalidUsage` for no buffers. Where ranks give different numbers of buffers, `setup()`
    /// returns `Timeout` at all of them.
    pub fn exchange_memory(
        &self,
        buffers: &[Arc<GpuBuffer>],
        registration: impl Into<Registration>,
        tag: u64,
    ) -> Result<MemoryExchange> {
        let registration = registration.into();
        if buffers.is_empty() {
            return Err(Error::usage(
                OP,
                "there are no buffers to exchange; every rank gives the same number of them",
            ));
        }
        let register = |buffer| self.register_memory(buffer, registration);
        let mine = buffers.iter().map(register).collect::<Result<Vec<_>>>()?;
        let mut asked = Vec::new();
        self.ask_all(&mine, tag, &mut asked).inspect_err(|_| self.withdraw_where(|key| asked.contains(key)))
    }

    fn ask_all(&self, mine: &[RegisteredMemory], tag: u64, asked: &mut Vec<Key>) -> Result<MemoryExchange> {
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        let count = u32::try_from(mine.len()).unwrap_or(u32::MAX);
        for peer in 0..self.size() {
            let mut theirs = Vec::new();
            for (number, memory) in (0..).zip(mine).filter(|_| peer != self.rank()) {
                let space = Namespace::Exchange { buffer: number, count };
                let key = |kind| self.check_key(Key { kind, peer, space, tag });
                let (send, recv) = (key(Kind::MemorySend)?, key(Kind::MemoryRecv)?);
                sent.push(self.enqueue_send(memory, send)?);
                asked.push(send);
                theirs.push(self.enqueue_recv(recv)?);
                asked.push(recv);
            }
            received.push(theirs);
        }
        Ok(MemoryExchange {
            rank: self.rank(),
            mine: mine.into(),
            sent: sent.into(),
            received: received.into(),
        })
    }
}

impl MemoryExchange {
    /// This rank's memories, in the order of its buffers. They exist at once.
    pub fn mine(&self) -> &[RegisteredMemory] {
        &self.mine
    }

    /// Buffer `number` of `rank`; of this rank, its own registration.
    ///
    /// # Errors
    /// `InvalidUsage` before `setup()`, and for a rank or a buffer that does not exist; afterwards why it was not
    /// received.
    pub fn memory(&self, rank: u32, number: usize) -> Result<RegisteredMemory> {
        let missing = || {
            let message = format!(
                "there is no buffer {number} of rank {rank}; ranks are 0 to {}, buffers 0 to {}",
                self.received.len() - 1,
                self.mine.len() - 1
            );
            Error::usage(OP, message)
        };
        if rank == self.rank {
            return self.mine.get(number).cloned().ok_or_else(missing);
        }
        let theirs = self.received.get(rank as usize).ok_or_else(missing)?;
        theirs.get(number).ok_or_else(missing)?.get()
    }

    /// All memories, by rank, then by buffer.
    ///
    /// # Errors
    /// `InvalidUsage` before `setup()`; afterwards the reason why one was not sent or not received.
    pub fn get(&self) -> Result<Vec<Vec<RegisteredMemory>>> {
        self.sent.iter().try_for_each(Pending::get)?;
        let of = |rank| (0..self.mine.len()).map(|number| self.memory(rank, number)).collect();
        (0..).zip(self.received.iter()).map(|(rank, _)| of(rank)).collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    /// The peer waits for it, so this rank must not go on as if all were well.
    #[test]
    fn a_memory_that_was_not_sent_is_an_error_also_if_all_were_received() {
        let key = |peer| Key {
            kind: Kind::MemorySend,
            peer,
            space: Namespace::Exchange { buffer: 0, count: 1 },
            tag: 0,
        };
        let sent = [1, 2].map(|peer| Pending::new(key(peer)));
        let exchange = MemoryExchange {
            rank: 0,
            mine: [].into(),
            sent: sent.to_vec().into(),
            received: vec![Vec::new(); 3].into(),
        };
        assert_eq!(exchange.get().unwrap_err().kind(), ErrorKind::InvalidUsage, "before setup()");
        sent[0].complete(Ok(()));
        sent[1].complete(Err(Error::timeout("send_memory", "rank 2 did not take it")));
        assert_eq!(exchange.get().unwrap_err().message(), "rank 2 did not take it");
    }
}
