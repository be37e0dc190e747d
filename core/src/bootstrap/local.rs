//! A bootstrap for ranks that are threads of one process.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::mailbox::Mailbox;
use super::{Bootstrap, MAX_MESSAGE};
use crate::deadline::Deadline;
use crate::error::{Error, Result};

/// One rank of a group made by [`local`].
#[derive(Debug)]
pub struct LocalBootstrap {
    rank: u32,
    boxes: Arc<[Mailbox]>,
}

/// A group of `size` ranks in this process, in rank order; give one to each thread.
pub fn local(size: u32) -> Vec<LocalBootstrap> {
    let boxes: Arc<[Mailbox]> = (0..size).map(|_| Mailbox::default()).collect();
    (0..size).map(|rank| LocalBootstrap { rank, boxes: boxes.clone() }).collect()
}

impl LocalBootstrap {
    fn mailbox(&self, op: &'static str, peer: u32) -> Result<&Mailbox> {
        self.boxes.get(peer as usize).ok_or_else(|| no_such_rank(op, peer, self.size()))
    }
}

impl Bootstrap for LocalBootstrap {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.boxes.len() as u32
    }

    fn send(&self, peer: u32, tag: u64, bytes: &[u8], _: Deadline) -> Result<()> {
        check_length(bytes)?;
        self.mailbox("send", peer)?.deliver(self.rank, tag, bytes.to_vec())
    }

    fn recv(&self, peer: u32, tag: u64, deadline: Deadline) -> Result<Vec<u8>> {
        self.mailbox("recv", peer)?;
        self.boxes[self.rank as usize].take(peer, tag, deadline)
    }
}

impl Drop for LocalBootstrap {
    fn drop(&mut self) {
        for mailbox in self.boxes.iter() {
            mailbox.lose(self.rank, Error::peer_lost("recv", self.rank, "its bootstrap was dropped"));
        }
    }
}

pub(super) fn no_such_rank(op: &'static str, peer: u32, size: u32) -> Error {
    Error::usage(op, format!("there is no rank {peer}; ranks are 0 to {}", size.saturating_sub(1)))
}

pub(super) fn check_length(bytes: &[u8]) -> Result<()> {
    if bytes.len() > MAX_MESSAGE {
        return Err(Error::usage(
            "send",
            format!(
                "a message of {} bytes is above the limit of {MAX_MESSAGE}; send it in parts",
                bytes.len()
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::ErrorKind;

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(20))
    }

    #[test]
    fn gathers_different_lengths_for_every_size() {
        for size in 1..=9 {
            std::thread::scope(|s| {
                for b in local(size) {
                    s.spawn(move || {
                        for lap in 0..3 {
                            let block = |rank: u32| vec![(rank + lap) as u8; (rank * lap) as usize];
                            let all = b.all_gather(&block(b.rank()), soon()).unwrap();
                            assert_eq!(all, (0..size).map(block).collect::<Vec<_>>());
                            b.barrier(soon()).unwrap();
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn order_tags_deadline_and_loss() {
        let mut group = local(2);
        let (b, a) = (group.pop().unwrap(), group.pop().unwrap());
        a.send(1, 7, b"one", soon()).unwrap();
        a.send(1, 8, b"other", soon()).unwrap();
        a.send(1, 7, b"two", soon()).unwrap();
        assert_eq!(b.recv(0, 8, soon()).unwrap(), b"other");
        assert_eq!(b.recv(0, 7, soon()).unwrap(), b"one");
        drop(a);
        assert_eq!(b.recv(0, 7, soon()).unwrap(), b"two");
        let lost = b.recv(0, 7, soon()).unwrap_err();
        assert_eq!((lost.kind(), lost.peer()), (ErrorKind::PeerLost, Some(0)));
        let late = b.recv(1, 7, Deadline::after(Duration::from_millis(10))).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Timeout);
        assert_eq!(b.recv(2, 7, soon()).unwrap_err().kind(), ErrorKind::InvalidUsage);
        assert!(b.send(2, 7, &[], soon()).is_err());
    }
}
