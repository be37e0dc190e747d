//! A meeting of all ranks in which each says some bytes and hears those of all.
#![forbid(unsafe_code)]

use std::time::Duration;

use crate::bootstrap::Bootstrap;
use crate::comm::communicator::Communicator;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::group::control::{Needs, ahead};
use crate::group::subset::{Step, Subset};
use crate::wire::{Reader, WireError, WireResult, Writer};

/// The most ranks of an answer, and the most bytes that a rank says.
const MOST: usize = 1 << 20;
/// The longest name of a call, in bytes.
const MOST_OP: usize = 256;
/// How long the answer of a rank 0 whose deadline has passed may be on its way.
const LATE: Duration = Duration::from_millis(100);

impl Communicator {
    /// The bytes that every rank gives, in rank order. Collective, like [`split`](Self::split), and in one order with it. `op` is told the others
    /// unless it is within another call.
    ///
    /// # Errors
    /// `InvalidUsage` if a rank has called something else; `Timeout`, naming a rank that did not call; `PeerLost`.
    pub(crate) fn gather(&self, op: &'static str, mine: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        self.group().check(op)?;
        let links = self.group().links();
        let meeting = links.control().meet();
        let needs = Needs { op, ranks: (0..self.size()).collect(), generation: None };
        let all = Subset::new(links, needs, &meeting, Step::Gathering);
        gather(&all, self.called().unwrap_or(op), mine, deadline).map_err(|error| error.of(op))
    }
}

/// A rank said what this call does not understand.
pub(super) fn called_something_else(op: &'static str, rank: u32, error: WireError) -> Error {
    let message = format!("rank {rank} called something else; make the same calls on all ranks");
    Error::new(ErrorKind::Remote, op, message).with_peer(rank).with_source(error)
}

/// The words of the other ranks as rank 0 has heard them.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Heard {
    /// The bytes of every rank.
    All(Vec<Vec<u8>>),
    /// This rank has called something else.
    Other { rank: u32, op: String },
    /// Nothing of this rank.
    Nothing { rank: u32 },
    /// This rank has gone on to a later call.
    Ahead { rank: u32 },
    /// This rank has left, or was lost.
    Gone { rank: u32 },
}

/// Gathers the bytes of every rank, in rank order, through rank 0, so that all ranks learn which one did not call `op`.
pub(super) fn gather(
    all: &dyn Bootstrap,
    op: &'static str,
    mine: &[u8],
    deadline: Deadline,
) -> Result<Vec<Vec<u8>>> {
    const TAG: u64 = 0;
    if all.rank() > 0 {
        all.send(0, TAG, &encode(op, mine), deadline)?;
        let answer = match all.recv(0, TAG, deadline) {
            // Rank 0 may have the same deadline, and knows which rank is missing.
            Err(error) if error.kind() == ErrorKind::Timeout => {
                all.recv(0, TAG, Deadline::after(LATE)).map_err(|_| error)
            }
            answer => answer,
        }?;
        let (first, heard) =
            decode_answer(&answer, all.size()).map_err(|error| called_something_else(op, 0, error))?;
        return match heard {
            Heard::All(said) => Ok(said),
            Heard::Other { rank, op: other } if rank == all.rank() => {
                Err(differs(op, (0, &first), (rank, &other)))
            }
            Heard::Other { rank, op: other } => Err(differs(op, (rank, &other), (0, &first))),
            Heard::Nothing { rank } if rank == all.rank() || first != op => Err(late(op, &first)),
            Heard::Nothing { rank } => Err(given_up(op, rank)),
            Heard::Ahead { rank } => Err(ahead(op, rank)),
            Heard::Gone { rank } => {
                Err(Error::peer_lost(op, rank, "rank 0 found it gone before it had come to this call"))
            }
        };
    }
    let others = (1..all.size()).map(|rank| {
        let bytes = all.recv(rank, TAG, deadline).map_err(|error| (rank, error))?;
        decode(&bytes).map_err(|error| (rank, called_something_else(op, rank, error)))
    });
    let said: std::result::Result<Vec<_>, _> =
        std::iter::once(Ok((op.to_owned(), mine.to_vec()))).chain(others).collect();
    let heard = match &said {
        Ok(said) => match (0..).zip(said).find(|(_, (other, _))| other != op) {
            Some((rank, (op, _))) => Heard::Other { rank, op: op.clone() },
            None => Heard::All(said.iter().map(|(_, bytes)| bytes.clone()).collect()),
        },
        Err((rank, error)) if error.kind() == ErrorKind::InvalidUsage => Heard::Ahead { rank: *rank },
        Err((rank, error)) if error.kind() == ErrorKind::PeerLost => {
            Heard::Gone { rank: error.peer().unwrap_or(*rank) }
        }
        Err((rank, _)) => Heard::Nothing { rank: *rank },
    };
    let answer = encode_answer(op, &heard);
    // Each rank, whether or not those before it can be reached.
    let answered =
        (1..all.size()).map(|rank| all.send(rank, TAG, &answer, deadline)).fold(Ok(()), Result::and);
    match (heard, said) {
        (Heard::All(said), _) => answered.map(|()| said),
        (Heard::Other { rank, op: other }, _) => Err(differs(op, (rank, &other), (0, op))),
        (_, Err((_, error))) if error.kind() != ErrorKind::Timeout => Err(error),
        (Heard::Nothing { rank } | Heard::Ahead { rank } | Heard::Gone { rank }, _) => Err(absent(op, rank)),
    }
}

/// The error of ranks of which the first one named here has called something else than the second.
fn differs(op: &'static str, (rank, theirs): (u32, &str), (other, its): (u32, &str)) -> Error {
    let message = format!(
        "rank {rank} has called {theirs}(), and rank {other} {its}() in its place; make the same calls in the same order on all ranks, those that \
         end in a timeout included"
    );
    Error::usage(op, message).with_peer(rank)
}

fn absent(op: &'static str, rank: u32) -> Error {
    let message = format!("rank {rank} did not call {op}() before the deadline, or gave it up");
    Error::timeout(op, message).with_peer(rank)
}

/// The error of a rank that came to a meeting in time, perhaps in vain: another one had not come when rank 0 gave up.
fn given_up(op: &'static str, rank: u32) -> Error {
    let message = format!(
        "rank {rank} did not call {op}() before the deadline of rank 0, which then gave up the call; call it once more on all ranks that did not"
    );
    Error::timeout(op, message).with_peer(rank)
}

/// The error of a rank that comes to a meeting which rank 0, which had called `first`, has given up.
fn late(op: &'static str, first: &str) -> Error {
    let what = match first == op {
        true => format!("rank 0 had given up this call of {op}() before this rank made it"),
        false => format!(
            "rank 0 had given up a call of {first}() that this rank has left out, and in whose place this call came"
        ),
    };
    let message = format!(
        "{what}; call {op}() once more, as each rank must make as many calls as the others, those that end in a timeout included"
    );
    Error::timeout(op, message).with_peer(0)
}

/// A rank's word in a meeting: the call that it makes, and its bytes.
fn encode(op: &str, bytes: &[u8]) -> Vec<u8> {
    let mut w = Writer::new();
    w.str(op).bytes(bytes);
    w.finish()
}

fn decode(bytes: &[u8]) -> WireResult<(String, Vec<u8>)> {
    let mut r = Reader::new(bytes);
    let said = (r.text(MOST_OP)?, r.bytes(MOST)?.to_vec());
    r.finish()?;
    Ok(said)
}

fn encode_answer(op: &str, heard: &Heard) -> Vec<u8> {
    let mut w = Writer::new();
    w.str(op);
    match heard {
        Heard::All(said) => {
            w.u8(0).count(said.len());
            said.iter().for_each(|bytes| _ = w.bytes(bytes));
        }
        Heard::Other { rank, op } => _ = w.u8(1).u32(*rank).str(op),
        Heard::Nothing { rank } => _ = w.u8(2).u32(*rank),
        Heard::Ahead { rank } => _ = w.u8(3).u32(*rank),
        Heard::Gone { rank } => _ = w.u8(4).u32(*rank),
    }
    w.finish()
}

/// The call that rank 0 has made, and the words that it has heard.
fn decode_answer(bytes: &[u8], ranks: u32) -> WireResult<(String, Heard)> {
    let mut r = Reader::new(bytes);
    let op = r.text(MOST_OP)?;
    let heard = match r.u8()? {
        0 => {
            let count = r.count(MOST, 4)?;
            if count != ranks as usize {
                return Err(WireError::Invalid { what: "number of ranks" });
            }
            Heard::All((0..count).map(|_| r.bytes(MOST).map(<[u8]>::to_vec)).collect::<WireResult<_>>()?)
        }
        1 => Heard::Other { rank: r.u32()?, op: r.text(MOST_OP)? },
        2 => Heard::Nothing { rank: r.u32()? },
        3 => Heard::Ahead { rank: r.u32()? },
        4 => Heard::Gone { rank: r.u32()? },
        _ => return Err(WireError::Invalid { what: "answer" }),
    };
    r.finish()?;
    Ok((op, heard))
}

/// For [`crate::fuzzing`].
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use super::*;

    /// A rank's word in a meeting of all.
    pub fn meeting_word(bytes: &[u8]) -> Option<Vec<u8>> {
        decode(bytes).ok().filter(|(op, _)| fits(op)).map(|(op, said)| encode(&op, &said))
    }

    /// The answer of rank 0 in a meeting of three ranks.
    pub fn meeting_answer(bytes: &[u8]) -> Option<Vec<u8>> {
        let (op, heard) = decode_answer(bytes, 3).ok()?;
        let other = if let Heard::Other { op, .. } = &heard { op } else { &op };
        (fits(&op) && fits(other)).then(|| encode_answer(&op, &heard))
    }

    /// Whether a name can be said again: escaping its control characters has made it longer.
    fn fits(op: &str) -> bool {
        op.len() <= MOST_OP
    }

    pub(crate) fn said() -> Vec<(&'static str, Vec<u8>)> {
        let all = Heard::All(vec![vec![], vec![1, 2], vec![3]]);
        let other = Heard::Other { rank: 2, op: "Executor::prepare".to_owned() };
        let answers =
            [all, other, Heard::Nothing { rank: 1 }, Heard::Ahead { rank: 2 }, Heard::Gone { rank: 1 }];
        let mut said: Vec<_> =
            answers.iter().map(|heard| ("meeting-answer", encode_answer("split", heard))).collect();
        said.extend([("meeting-word", encode("split", &[1, 2, 3])), ("meeting-word", encode("", &[]))]);
        said
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::group::links::tests::{recorded, soon, wait_for};
    use crate::sync::{Mutex, lock};

    /// Rank 0 of four, of whom rank 2 cannot be reached, and may have come before that. Another rank may have called something else.
    #[derive(Debug, Default)]
    struct WithoutTwo {
        came: bool,
        lost: bool,
        other: Option<u32>,
        sent: Mutex<Vec<(u32, Vec<u8>)>>,
    }

    impl WithoutTwo {
        /// What each of the others was told.
        fn told(&self) -> Vec<(u32, Heard)> {
            let sent = lock(&self.sent);
            let told = |(rank, answer): &(u32, Vec<u8>)| {
                let (op, heard) = decode_answer(answer, 4).unwrap();
                assert_eq!(op, "split");
                (*rank, heard)
            };
            sent.iter().map(told).collect()
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
            if peer == 2 && self.lost {
                return Err(Error::new(ErrorKind::PeerLost, "x", "it is gone").with_peer(peer));
            }
            if peer == 2 && !self.came {
                return Err(Error::timeout("x", "nothing came").with_peer(peer));
            }
            Ok(encode(if self.other == Some(peer) { "prepare" } else { "split" }, &[7]))
        }
    }

    #[test]
    fn all_who_can_be_reached_learn_which_rank_did_not_call() {
        let all = WithoutTwo::default();
        let error = gather(&all, "split", b"", Deadline::after(Duration::from_secs(1))).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Timeout, Some(2)), "{error}");
        assert_eq!(all.told(), [1, 3].map(|rank| (rank, Heard::Nothing { rank: 2 })));
    }

    #[test]
    fn a_rank_that_is_lost_has_not_gone_on() {
        let all = WithoutTwo { lost: true, ..WithoutTwo::default() };
        let error = gather(&all, "split", b"", Deadline::after(Duration::from_secs(1))).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(2)), "{error}");
        assert_eq!(all.told(), [1, 3].map(|rank| (rank, Heard::Gone { rank: 2 })));
        says("split", Heard::Gone { rank: 3 }, ErrorKind::PeerLost, 3, "rank 0 found it gone");
    }

    /// The last call of a program: some ranks have their answers, and leave, while that of another one is on its way. Here it has yet to be given.
    #[test]
    fn a_rank_that_has_said_its_word_may_leave_while_others_wait() {
        let (links, _recorders) = recorded(3);
        let meet = |rank: usize, deadline: Deadline| {
            let (links, meeting) = (&links[rank], links[rank].control().meet());
            let needs = Needs { op: "split", ranks: vec![0, 1, 2], generation: None };
            let all = Subset::new(links, needs, &meeting, Step::Gathering);
            gather(&all, "split", &[rank as u8], deadline)
        };
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| meet(1, soon()));
            let error = meet(2, Deadline::after(Duration::from_millis(1))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            links[2].leave(soon()).unwrap();
            [0, 1].into_iter().for_each(|rank| {
                wait_for("it has left", || links[rank].control().check_peer("x", 2).is_err());
            });
            let error = meet(0, soon()).unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(2)), "{error}");
            assert_eq!(waits.join().unwrap().unwrap(), [vec![0], vec![1], vec![2]]);
        });
    }

    /// It has not said its word: rank 0 tells those who wait.
    #[test]
    fn a_rank_that_leaves_in_place_of_a_call_is_named_to_all() {
        let (links, _recorders) = recorded(3);
        let meet = |rank: usize| {
            let (links, meeting) = (&links[rank], links[rank].control().meet());
            let needs = Needs { op: "split", ranks: vec![0, 1, 2], generation: None };
            let all = Subset::new(links, needs, &meeting, Step::Gathering);
            gather(&all, "split", &[rank as u8], soon())
        };
        std::thread::scope(|scope| {
            let both = [0, 1].map(|rank| scope.spawn(move || meet(rank)));
            links[2].leave(soon()).unwrap();
            for waits in both {
                let error = waits.join().unwrap().unwrap_err();
                assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(2)), "{error}");
            }
        });
    }

    #[test]
    fn all_learn_which_rank_has_called_something_else() {
        let all = WithoutTwo { came: true, other: Some(3), ..WithoutTwo::default() };
        let error = gather(&all, "split", b"", Deadline::after(Duration::from_secs(1))).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::InvalidUsage, Some(3)), "{error}");
        assert!(error.message().contains("rank 3 has called prepare(), and rank 0 split()"), "{error}");
        let other = Heard::Other { rank: 3, op: "prepare".to_owned() };
        assert_eq!(all.told(), [1, 3].map(|rank| (rank, other.clone())));
    }

    /// Rank 0 would go on alone otherwise: the rank that heard no answer gives the call up.
    #[test]
    fn rank_0_does_not_succeed_if_a_rank_has_not_heard_the_answer() {
        let all = WithoutTwo { came: true, ..WithoutTwo::default() };
        let error = gather(&all, "split", b"", Deadline::after(Duration::from_secs(1))).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Timeout, Some(2)), "{error}");
        let said = Heard::All(vec![vec![], vec![7], vec![7], vec![7]]);
        assert_eq!(all.told(), [1, 3].map(|rank| (rank, said.clone())));
    }

    /// Rank 2 of four, with the answer of rank 0.
    #[derive(Debug)]
    struct Answered(&'static str, Heard);

    impl Bootstrap for Answered {
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
            Ok(encode_answer(self.0, &self.1))
        }
    }

    /// Checks the error of a rank that calls `split` while rank 0 has called `first` and heard this.
    fn says(first: &'static str, heard: Heard, kind: ErrorKind, peer: u32, words: &str) {
        let answered = Answered(first, heard);
        let error = gather(&answered, "split", b"", Deadline::after(Duration::from_secs(1))).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (kind, Some(peer)), "{error}");
        assert!(error.message().contains(words), "{error} does not say {words}");
    }

    #[test]
    fn a_rank_that_is_late_is_not_told_that_it_did_not_call() {
        let (nothing, other) =
            (|rank| Heard::Nothing { rank }, |rank| Heard::Other { rank, op: "x".to_owned() });
        says(
            "split",
            nothing(2),
            ErrorKind::Timeout,
            0,
            "had given up this call of split() before this rank made it; call",
        );
        says("split", nothing(3), ErrorKind::Timeout, 3, "rank 3 did not call split()");
        for late in [2, 3] {
            says(
                "merge",
                nothing(late),
                ErrorKind::Timeout,
                0,
                "given up a call of merge() that this rank has left out",
            );
        }
        let usage = ErrorKind::InvalidUsage;
        says("split", Heard::Ahead { rank: 3 }, usage, 3, "rank 3 has gone on to a later call");
        says("split", other(1), usage, 1, "rank 1 has called x(), and rank 0 split() in its place");
        says("merge", other(2), usage, 0, "rank 0 has called merge(), and rank 2 x() in its place");
    }

    /// Rank 2 of four, whose rank 0 answers when the deadline that both have has passed.
    #[derive(Debug, Default)]
    struct AtTheSameDeadline(Mutex<u32>);

    impl Bootstrap for AtTheSameDeadline {
        fn rank(&self) -> u32 {
            2
        }

        fn size(&self) -> u32 {
            4
        }

        fn send(&self, _: u32, _: u64, _: &[u8], _: Deadline) -> Result<()> {
            Ok(())
        }

        fn recv(&self, peer: u32, _: u64, _: Deadline) -> Result<Vec<u8>> {
            let mut asked = lock(&self.0);
            *asked += 1;
            match *asked {
                1 => Err(Error::timeout("x", "nothing came").with_peer(peer)),
                _ => Ok(encode_answer("split", &Heard::Nothing { rank: 3 })),
            }
        }
    }

    #[test]
    fn an_answer_behind_an_equal_deadline_names_who_is_missing() {
        let error =
            gather(&AtTheSameDeadline::default(), "split", b"", Deadline::after(Duration::ZERO)).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Timeout, Some(3)), "{error}");
    }

    /// It is another program, or a group of another size.
    #[test]
    fn an_answer_has_the_words_of_all_ranks() {
        let all = Heard::All(vec![vec![1], vec![2, 3]]);
        let answer = encode_answer("x", &all);
        assert_eq!(decode_answer(&answer, 2), Ok(("x".to_owned(), all)));
        for ranks in [0, 1, 3] {
            assert!(decode_answer(&answer, ranks).is_err(), "{ranks}");
        }
    }
}
