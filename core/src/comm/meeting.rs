//! A meeting of all ranks in which each says some bytes and hears those of all.
#![forbid(unsafe_code)]

use crate::bootstrap::Bootstrap;
use crate::comm::communicator::Communicator;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::group::control::Needs;
use crate::group::subset::{Step, Subset};
use crate::wire::{Reader, WireError, WireResult, Writer};

impl Communicator {
    /// The bytes that every rank gives, in rank order. Collective, like [`split`](Self::split), and in one order with it.
    ///
    /// # Errors
    /// `Timeout`, naming a rank that did not call; `PeerLost`; `Remote` if a rank called something else.
    pub(crate) fn gather(&self, op: &'static str, mine: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        self.group().check(op)?;
        let links = self.group().links();
        let meeting = links.control().meet();
        let needs = Needs { op, ranks: (0..self.size()).collect(), generation: None };
        let all = Subset::new(links, needs, &meeting, Step::Gathering);
        gather(&all, op, mine, deadline)
    }
}

/// A rank said what this call does not understand.
pub(super) fn called_something_else(op: &'static str, rank: u32, error: WireError) -> Error {
    let message = format!("rank {rank} called something else; make the same calls on all ranks");
    Error::new(ErrorKind::Remote, op, message).with_peer(rank).with_source(error)
}

/// Gathers the bytes of every rank, in rank order, through rank 0, so that all ranks learn which one did not call.
pub(super) fn gather(
    all: &dyn Bootstrap,
    op: &'static str,
    mine: &[u8],
    deadline: Deadline,
) -> Result<Vec<Vec<u8>>> {
    const TAG: u64 = 0;
    if all.rank() > 0 {
        all.send(0, TAG, mine, deadline)?;
        let answer = all.recv(0, TAG, deadline)?;
        let said = decode_answer(&answer, all.size()).map_err(|error| called_something_else(op, 0, error))?;
        return said.map_err(|rank| if rank == all.rank() { late(op) } else { given_up(op, rank) });
    }
    let others = (1..all.size()).map(|rank| all.recv(rank, TAG, deadline).map_err(|error| (rank, error)));
    let said: std::result::Result<Vec<_>, _> = std::iter::once(Ok(mine.to_vec())).chain(others).collect();
    let answer = encode_answer(&said);
    // Each rank, whether or not those before it can be reached.
    let answered =
        (1..all.size()).map(|rank| all.send(rank, TAG, &answer, deadline)).fold(Ok(()), Result::and);
    match said {
        Ok(said) => answered.map(|()| said),
        Err((rank, error)) if error.kind() == ErrorKind::Timeout => Err(absent(op, rank)),
        Err((_, error)) => Err(error),
    }
}

fn absent(op: &'static str, rank: u32) -> Error {
    Error::timeout(op, format!("rank {rank} did not call {op}() before the deadline")).with_peer(rank)
}

/// The error of a rank that came to a meeting in time, perhaps in vain: another one had not come when rank 0 gave up.
fn given_up(op: &'static str, rank: u32) -> Error {
    let message = format!(
        "rank {rank} did not call {op}() before the deadline of rank 0, which then gave up the call; call it once more on all ranks that did not"
    );
    Error::timeout(op, message).with_peer(rank)
}

/// The error of a rank that comes to a meeting which rank 0 has given up.
fn late(op: &'static str) -> Error {
    let message = format!(
        "rank 0 had given up this call of {op}() before this rank made it; call it once more, as each rank must make as many calls as the \
         others, those that end in a timeout included"
    );
    Error::timeout(op, message).with_peer(0)
}

fn encode_answer(said: &std::result::Result<Vec<Vec<u8>>, (u32, Error)>) -> Vec<u8> {
    let mut w = Writer::new();
    match said {
        Ok(said) => {
            w.u8(1).count(said.len());
            for bytes in said {
                w.bytes(bytes);
            }
        }
        Err((rank, _)) => {
            w.u8(0).u32(*rank);
        }
    }
    w.finish()
}

/// The bytes of every rank, or the rank that sent none.
fn decode_answer(bytes: &[u8], ranks: u32) -> WireResult<std::result::Result<Vec<Vec<u8>>, u32>> {
    const MOST: usize = 1 << 20;
    let mut r = Reader::new(bytes);
    let answer = if r.bool()? {
        let count = r.count(MOST, 4)?;
        if count != ranks as usize {
            return Err(WireError::Invalid { what: "number of ranks" });
        }
        Ok((0..count).map(|_| r.bytes(MOST).map(<[u8]>::to_vec)).collect::<WireResult<Vec<_>>>()?)
    } else {
        Err(r.u32()?)
    };
    r.finish()?;
    Ok(answer)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sync::{Mutex, lock};

    /// What all have said, or the rank that did not come.
    type Answer = std::result::Result<Vec<Vec<u8>>, u32>;

    /// Rank 0 of four, of whom rank 2 cannot be reached, and may have come before that.
    #[derive(Debug, Default)]
    struct WithoutTwo {
        came: bool,
        sent: Mutex<Vec<(u32, Vec<u8>)>>,
    }

    impl WithoutTwo {
        /// What each of the others was told.
        fn told(&self) -> Vec<(u32, Answer)> {
            let sent = lock(&self.sent);
            sent.iter().map(|(rank, answer)| (*rank, decode_answer(answer, 4).unwrap())).collect()
        }
    }

    impl Bootstrap for WithoutTwo {
        fn rank(&self) -> u32 {
            0
        }

        fn size(&self) -> u32 {
            4
        }

        fn send(&self, peer: u32, _: u64, bytes: &[u8], _: Deadline) -> Result<()> {
            if peer == 2 {
                return Err(Error::timeout("connect", "nobody answers").with_peer(peer));
            }
            lock(&self.sent).push((peer, bytes.to_vec()));
            Ok(())
        }

        fn recv(&self, peer: u32, _: u64, _: Deadline) -> Result<Vec<u8>> {
            if peer == 2 && !self.came {
                return Err(Error::timeout("x", "nothing came").with_peer(peer));
            }
            Ok(vec![7])
        }
    }

    #[test]
    fn all_who_can_be_reached_learn_which_rank_did_not_call() {
        let all = WithoutTwo::default();
        let error = gather(&all, "split", b"", Deadline::after(Duration::from_secs(1))).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Timeout, Some(2)), "{error}");
        assert_eq!(all.told(), [(1, Err(2)), (3, Err(2))]);
    }

    /// Rank 0 would go on alone otherwise: the rank that heard no answer gives the call up.
    #[test]
    fn rank_0_does_not_succeed_if_a_rank_has_not_heard_the_answer() {
        let all = WithoutTwo { came: true, ..WithoutTwo::default() };
        let error = gather(&all, "split", b"", Deadline::after(Duration::from_secs(1))).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Timeout, Some(2)), "{error}");
        let said = Ok(vec![vec![], vec![7], vec![7], vec![7]]);
        assert_eq!(all.told(), [(1, said.clone()), (3, said)]);
    }

    /// A rank above 0 whose rank 0 did not wait for it.
    #[derive(Debug)]
    struct Late;

    impl Bootstrap for Late {
        fn rank(&self) -> u32 {
            2
        }

        fn size(&self) -> u32 {
            4
        }

        fn send(&self, _: u32, _: u64, _: &[u8], _: Deadline) -> Result<()> {
            Ok(())
        }

        fn recv(&self, _: u32, _: u64, _: Deadline) -> Result<Vec<u8>> {
            Ok(encode_answer(&Err((2, Error::timeout("x", "nothing came")))))
        }
    }

    #[test]
    fn a_rank_that_is_late_is_not_told_that_it_did_not_call() {
        let error = gather(&Late, "split", b"", Deadline::after(Duration::from_secs(1))).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Timeout, Some(0)), "{error}");
        assert!(error.message().contains("call it once more"), "{error}");
    }

    /// It is another program, or a group of another size.
    #[test]
    fn an_answer_has_the_words_of_all_ranks() {
        let answer = encode_answer(&Ok(vec![vec![1], vec![2, 3]]));
        assert_eq!(decode_answer(&answer, 2), Ok(Ok(vec![vec![1], vec![2, 3]])));
        for ranks in [0, 1, 3] {
            assert!(decode_answer(&answer, ranks).is_err(), "{ranks}");
        }
    }
}
