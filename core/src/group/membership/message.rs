//! Messages with which ranks agree on the next group, and their wire form.
#![forbid(unsafe_code)]

use std::cmp::Reverse;

use super::quorum::Ranks;
use crate::wire::{Reader, WireError, WireResult, Writer};

/// Bytes of a set of ranks on the wire: one bit per rank.
const MAX_SET: usize = 8 << 10;
/// The most ranks that one report can say have departed.
const MAX_DEPARTED: usize = 1 << 16;

/// An attempt to decide. Of two in one round that of the lower rank is the higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ballot {
    pub(super) round: u32,
    pub(super) by: Reverse<u32>,
}

impl Ballot {
    /// Below every attempt.
    pub(super) const NONE: Self = Self { round: 0, by: Reverse(u32::MAX) };
    /// Above every attempt.
    pub(super) const LAST: Self = Self { round: u32::MAX, by: Reverse(0) };

    pub(super) fn new(round: u32, by: u32) -> Self {
        Self { round, by: Reverse(by) }
    }
}

/// A group that a rank has accepted, and in which attempt.
pub(super) type Accepted = Option<(Ballot, Ranks)>;

/// Promise and acceptance that bind a rank in one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vote {
    pub(super) generation: u64,
    /// It takes part in no attempt below this one.
    pub(super) promised: Ballot,
    pub(super) accepted: Accepted,
    /// It has the communicator of this generation and goes on there: it votes here no more.
    pub(super) completed: bool,
}

impl Vote {
    pub(super) fn none(generation: u64) -> Self {
        Self { generation, promised: Ballot::NONE, accepted: None, completed: false }
    }

    /// Whether its rank was bound to this after it was bound to `other`.
    pub(super) fn is_later_than(&self, other: &Self) -> bool {
        let place = |vote: &Self| {
            let accepted = vote.accepted.as_ref().map(|(ballot, _)| *ballot);
            (vote.generation, vote.completed, vote.promised, accepted)
        };
        place(self) > place(other)
    }
}

/// How a rank went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    /// It said BYE.
    Left,
    /// A rank of its host has seen its process end.
    Died,
}

/// A rank that has gone for certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Departed {
    pub(super) rank: u32,
    pub(super) how: Departure,
    /// The rank that has seen it.
    pub(super) witness: u32,
    /// The latest vote that it told the witness.
    pub(super) vote: Vote,
}

/// The view that a shrinking rank has of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// The ranks that the sender's user leaves out; `None` once nobody calls `shrink` there any more.
    pub(super) without: Option<Ranks>,
    /// The sender will not be a member of a later group.
    pub(super) out: bool,
    /// The ranks whose reports the sender has.
    pub(super) heard: Ranks,
    /// The ranks to which the sender has no path.
    pub(super) unreachable: Ranks,
    pub(super) departed: Vec<Departed>,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Report(Report),
    /// Asks to take part in no lower attempt.
    Prepare(Ballot),
    /// Answers `Prepare`.
    Promise(Ballot, Accepted),
    /// Answers an attempt that is too low with the one that was promised.
    Refuse(Ballot),
    /// Asks to accept these members.
    Propose(Ballot, Ranks),
    /// Answers `Propose`.
    Accept(Ballot),
    /// The members of the generation in the envelope are agreed.
    Decided(Ranks),
    /// The vote that binds the sender, sent before the sender acts on it.
    Vote(Vote),
}

/// A message and the generation that its sender is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) generation: u64,
    pub(crate) message: Message,
}

impl Envelope {
    /// As payload of a frame.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u64(self.generation);
        match &self.message {
            Message::Report(report) => {
                w.u8(1);
                put_report(&mut w, report);
            }
            Message::Prepare(ballot) => put_ballot(w.u8(2), *ballot),
            Message::Promise(ballot, accepted) => {
                put_ballot(w.u8(3), *ballot);
                put_accepted(&mut w, accepted);
            }
            Message::Refuse(ballot) => put_ballot(w.u8(4), *ballot),
            Message::Propose(ballot, members) => {
                put_ballot(w.u8(5), *ballot);
                put_ranks(&mut w, members);
            }
            Message::Accept(ballot) => put_ballot(w.u8(6), *ballot),
            Message::Decided(members) => put_ranks(w.u8(7), members),
            Message::Vote(vote) => put_vote(w.u8(8), vote),
        }
        w.finish()
    }

    /// The message in `payload`, as seen in a group of `size` ranks.
    pub(crate) fn decode(payload: &[u8], size: u32) -> WireResult<Self> {
        let mut r = Reader::new(payload);
        let generation = r.u64()?;
        let message = match r.u8()? {
            1 => Message::Report(report(&mut r, size)?),
            2 => Message::Prepare(ballot(&mut r)?),
            3 => Message::Promise(ballot(&mut r)?, accepted(&mut r, size)?),
            4 => Message::Refuse(ballot(&mut r)?),
            5 => Message::Propose(ballot(&mut r)?, ranks(&mut r, size)?),
            6 => Message::Accept(ballot(&mut r)?),
            7 => Message::Decided(ranks(&mut r, size)?),
            8 => Message::Vote(vote(&mut r, size)?),
            _ => return Err(WireError::Invalid { what: "membership message" }),
        };
        r.finish()?;
        Ok(Self { generation, message })
    }
}

fn put_ranks(w: &mut Writer, ranks: &Ranks) {
    let bytes = ranks.last().map_or(0, |last| *last as usize / 8 + 1);
    let mut bits = vec![0_u8; bytes];
    ranks.iter().for_each(|rank| bits[*rank as usize / 8] |= 1 << (rank % 8));
    w.bytes(&bits);
}

fn ranks(r: &mut Reader<'_>, size: u32) -> WireResult<Ranks> {
    let bits = r.bytes(MAX_SET)?;
    let set = |rank: &u32| bits[*rank as usize / 8] >> (rank % 8) & 1 == 1;
    let ranks: Ranks = (0..bits.len() as u32 * 8).filter(set).collect();
    // One form for each set, and no rank that does not exist.
    if bits.last() == Some(&0) || ranks.last().is_some_and(|last| *last >= size) {
        return Err(WireError::Invalid { what: "set of ranks" });
    }
    Ok(ranks)
}

fn put_ballot(w: &mut Writer, ballot: Ballot) {
    w.u32(ballot.round).u32(ballot.by.0);
}

fn ballot(r: &mut Reader<'_>) -> WireResult<Ballot> {
    Ok(Ballot::new(r.u32()?, r.u32()?))
}

fn put_accepted(w: &mut Writer, accepted: &Accepted) {
    w.u8(u8::from(accepted.is_some()));
    if let Some((ballot, members)) = accepted {
        put_ballot(w, *ballot);
        put_ranks(w, members);
    }
}

fn accepted(r: &mut Reader<'_>, size: u32) -> WireResult<Accepted> {
    Ok(if r.bool()? { Some((ballot(r)?, ranks(r, size)?)) } else { None })
}

fn put_vote(w: &mut Writer, vote: &Vote) {
    w.u64(vote.generation);
    put_ballot(w, vote.promised);
    put_accepted(w, &vote.accepted);
    w.u8(u8::from(vote.completed));
}

fn vote(r: &mut Reader<'_>, size: u32) -> WireResult<Vote> {
    let (generation, promised) = (r.u64()?, ballot(r)?);
    Ok(Vote { generation, promised, accepted: accepted(r, size)?, completed: r.bool()? })
}

fn put_report(w: &mut Writer, report: &Report) {
    w.u8(u8::from(report.without.is_some()));
    if let Some(without) = &report.without {
        put_ranks(w, without);
    }
    w.u8(u8::from(report.out));
    put_ranks(w, &report.heard);
    put_ranks(w, &report.unreachable);
    w.count(report.departed.len());
    for departed in &report.departed {
        w.u32(departed.rank).u8(u8::from(departed.how == Departure::Died)).u32(departed.witness);
        put_vote(w, &departed.vote);
    }
}

fn report(r: &mut Reader<'_>, size: u32) -> WireResult<Report> {
    let without = if r.bool()? { Some(ranks(r, size)?) } else { None };
    let out = r.bool()?;
    let (heard, unreachable) = (ranks(r, size)?, ranks(r, size)?);
    let mut departed = Vec::new();
    for _ in 0..r.count(MAX_DEPARTED, 27)? {
        let rank = r.u32()?;
        let how = if r.bool()? { Departure::Died } else { Departure::Left };
        let witness = r.u32()?;
        if rank >= size || witness >= size {
            return Err(WireError::Invalid { what: "rank" });
        }
        departed.push(Departed { rank, how, witness, vote: vote(r, size)? });
    }
    Ok(Report { without, out, heard, unreachable, departed })
}

/// One message of every kind.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn examples() -> Vec<Envelope> {
    let (ballot, members) = (Ballot::new(7, 2), Ranks::from([0, 1, 3]));
    let vote = Vote { accepted: Some((ballot, members.clone())), promised: ballot, ..Vote::none(4) };
    let departed = |rank, how| Departed { rank, how, witness: 0, vote: vote.clone() };
    let report = Report {
        without: Some(Ranks::from([2])),
        out: false,
        heard: members.clone(),
        unreachable: Ranks::from([1]),
        departed: vec![departed(1, Departure::Died), departed(3, Departure::Left)],
    };
    let messages = [
        Message::Report(report),
        Message::Report(Report::default()),
        Message::Prepare(ballot),
        Message::Promise(ballot, None),
        Message::Promise(ballot, Some((ballot, members.clone()))),
        Message::Refuse(ballot),
        Message::Propose(ballot, members.clone()),
        Message::Accept(ballot),
        Message::Decided(members),
        Message::Vote(Vote { completed: true, ..vote }),
    ];
    messages.into_iter().map(|message| Envelope { generation: 4, message }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_message_round_trips_and_ranks_are_checked() {
        for envelope in examples() {
            let bytes = envelope.encode();
            assert_eq!(Envelope::decode(&bytes, 4).unwrap(), envelope);
            assert!(Envelope::decode(&bytes[..bytes.len() - 1], 4).is_err());
        }
        let far = Envelope { generation: 1, message: Message::Decided(Ranks::from([4])) };
        assert!(Envelope::decode(&far.encode(), 4).is_err());
        for (rank, witness, good) in [(3, 3, true), (4, 0, false), (0, 4, false)] {
            let departed = Departed { rank, how: Departure::Left, witness, vote: Vote::none(0) };
            let report = Report { departed: vec![departed], ..Report::default() };
            let envelope = Envelope { generation: 1, message: Message::Report(report) };
            assert_eq!(Envelope::decode(&envelope.encode(), 4).is_ok(), good, "{rank} {witness}");
        }
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_and_never_a_panic(bytes: Vec<u8>) {
            if let Ok(envelope) = Envelope::decode(&bytes, 4) {
                prop_assert_eq!(Envelope::decode(&envelope.encode(), 4).unwrap(), envelope);
            }
        }
    }
}
