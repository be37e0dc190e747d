//! The agreement of all ranks that they run the same plan in the same way.

use super::config::ExecutorConfig;
use super::ir::Plan;
use super::turns::{self, Calls, Facts};
use crate::comm::Communicator;
use crate::deadline::Deadline;
use crate::digest;
use crate::error::{Error, ErrorKind, Result};
use crate::wire::{Reader, WireError, WireResult, Writer};

const OP: &str = "Executor::prepare";
/// Longest text of a failure that is told to the others.
const MOST_TEXT: usize = 1024;

/// The result of an agreement about one plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    /// The least scratch that a rank has left, in bytes.
    pub(super) scratch_bytes: u64,
    /// The most that other plans of a rank have taken, in bytes.
    pub(super) taken_bytes: u64,
    /// The granularity of multicast objects, if all ranks ask for them and can have them.
    pub(super) multicast: Option<u64>,
}

/// What a rank says of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    digest: [u8; 32],
    max_bytes: u64,
    /// Granularity of multicast objects; 0 without.
    multicast: u64,
    /// For messages here; not told.
    name: String,
}

/// A rank's word: how far it came, and the settings that must be equal.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Ready {
        scratch_bytes: u64,
        taken_bytes: u64,
        links: u64,
        turns: Facts,
        offers: Vec<Offer>,
    },
    /// With a later step, for the executor of this number.
    Done(u64),
    Failed(String),
}

impl Offer {
    /// For a plan that this rank prepares with `config`, with multicast objects of this granularity if it asks for them.
    pub(super) fn new(plan: &Plan, config: &ExecutorConfig, multicast: Option<u64>) -> Self {
        Self {
            digest: digest(plan, config),
            max_bytes: config.max_bytes.unwrap_or(u64::MAX),
            multicast: multicast.unwrap_or(0),
            name: plan.name.clone(),
        }
    }

    /// Of everything that kernels are made of.
    pub(super) fn digest(&self) -> [u8; 32] {
        self.digest
    }
}

/// What all ranks share.
pub(super) struct Shared {
    /// Whether all ranks have what `links` stands for, which is not 0.
    pub(super) links: bool,
    pub(super) turns: turns::Agreed,
}

/// Meets all ranks about plans. Every rank calls it, also one whose own preparations failed: then every rank gets an error.
pub(super) fn agree<T>(
    comm: &Communicator,
    offers: &[Offer],
    (links, turns): (u64, &Facts),
    mine: Result<T>,
    deadline: Deadline,
) -> Result<((T, Vec<Agreed>), Shared)> {
    let (scratch_bytes, taken_bytes) = (comm.scratch().left(), comm.scratch().taken());
    let said = match &mine {
        Ok(_) => {
            let (turns, offers) = (turns.clone(), offers.to_vec());
            Said::Ready { scratch_bytes, taken_bytes, links, turns, offers }
        }
        Err(error) => Said::failed(error),
    };
    let (mine, all) = meet(comm, OP, &said, mine, deadline)?;
    let begin = |offer: &Offer| Agreed {
        scratch_bytes,
        taken_bytes,
        multicast: Some(offer.multicast).filter(|&granularity| granularity > 0),
    };
    let mut agreed: Vec<Agreed> = offers.iter().map(begin).collect();
    let (mut same, mut facts) = (links != 0, Vec::new());
    for (rank, theirs) in (0..).zip(&all) {
        compare(OP, rank, &said, theirs)?;
        let Said::Ready { scratch_bytes, taken_bytes, links: linked, turns, offers: theirs } = theirs else {
            continue;
        };
        same &= *linked == links;
        facts.push(turns.clone());
        for ((agreed, mine), theirs) in agreed.iter_mut().zip(offers).zip(theirs) {
            agreed.scratch_bytes = agreed.scratch_bytes.min(*scratch_bytes);
            agreed.taken_bytes = agreed.taken_bytes.max(*taken_bytes);
            if theirs.multicast == 0 && agreed.multicast.is_some() {
                log::warn!("{}: switches go without multicast, which rank {rank} does not offer", mine.name);
            }
            // Granularities are powers of two: the largest is a multiple of all.
            let largest = |mine: u64| mine.max(theirs.multicast);
            agreed.multicast = agreed.multicast.map(largest).filter(|_| theirs.multicast != 0);
        }
    }
    let turns = turns.agree(&facts)?;
    Ok(((mine, agreed), Shared { links: same, turns }))
}

/// Meets all ranks after a step of `op` that may have failed on some of them: then every rank gets an error, and no rank waits
/// for one that has given up.
pub(crate) fn all_done<T>(
    comm: &Communicator,
    op: &'static str,
    mine: Result<T>,
    deadline: Deadline,
) -> Result<T> {
    all_done_for(comm, op, 0, mine, deadline)
}

/// The same for a step of one executor, whose number all ranks must give.
pub(super) fn all_done_for<T>(
    comm: &Communicator,
    op: &'static str,
    executor: u64,
    mine: Result<T>,
    deadline: Deadline,
) -> Result<T> {
    let said = mine.as_ref().map_or_else(Said::failed, |_| Said::Done(executor));
    let (mine, all) = meet(comm, op, &said, mine, deadline)?;
    (0..).zip(&all).try_for_each(|(rank, theirs)| compare(op, rank, &said, theirs).map(drop))?;
    Ok(mine)
}

/// Meets all ranks after a step that any of them may fail at without harm. Returns `None` if one has, with a line in the log, and
/// an error only where the ranks did not meet.
pub(super) fn all_can<T>(
    comm: &Communicator,
    op: &'static str,
    mine: Result<T>,
    deadline: Deadline,
) -> Result<Option<T>> {
    let said = mine.as_ref().map_or_else(Said::failed, |_| Said::Done(0));
    let (_, all) = meet(comm, op, &said, Ok(()), deadline)?;
    for (rank, theirs) in (0..).zip(&all) {
        match theirs {
            Said::Done(_) => {}
            Said::Failed(why) => {
                log::warn!("switches go without multicast, which rank {rank} cannot have: {why}");
                return Ok(None);
            }
            Said::Ready { .. } => return Err(called_something_else(op, rank)),
        }
    }
    mine.map(Some)
}

/// This rank's own error, or what all ranks say.
fn meet<T>(
    comm: &Communicator,
    op: &'static str,
    said: &Said,
    mine: Result<T>,
    deadline: Deadline,
) -> Result<(T, Vec<Said>)> {
    let all = comm.gather(op, &said.encode(), deadline);
    let mine = mine?;
    let decode = |(rank, bytes): (u32, Vec<u8>)| {
        Said::decode(&bytes).map_err(|error| called_something_else(op, rank).with_source(error))
    };
    Ok((mine, (0..).zip(all?).map(decode).collect::<Result<_>>()?))
}

fn called_something_else(op: &'static str, rank: u32) -> Error {
    let message = format!("rank {rank} called something else; make the same calls on all ranks");
    Error::new(ErrorKind::Remote, op, message).with_peer(rank)
}

/// An error unless a rank says the same as this one.
fn compare(op: &'static str, rank: u32, mine: &Said, theirs: &Said) -> Result<()> {
    let differs = |what: &str| {
        let message = format!("rank {rank} has {what} than this rank; give every rank the same");
        Err(Error::usage(op, message).with_peer(rank))
    };
    match (mine, theirs) {
        (_, Said::Failed(why)) => {
            let message = format!("rank {rank} cannot run the plan: {why}");
            Err(Error::new(ErrorKind::Remote, op, message).with_origin(rank))
        }
        (Said::Failed(_), _) => Ok(()),
        (Said::Done(mine), Said::Done(theirs)) if mine == theirs => Ok(()),
        (Said::Done(_), Said::Done(_)) => {
            let message = format!(
                "rank {rank} calls it for another executor or collective than this rank; make the same calls in the same order on all ranks"
            );
            Err(Error::usage(op, message).with_peer(rank))
        }
        (Said::Done(_), Said::Ready { .. }) | (Said::Ready { .. }, Said::Done(_)) => {
            Err(called_something_else(op, rank))
        }
        (Said::Ready { offers: mine, .. }, Said::Ready { offers: theirs, .. }) => {
            if mine.len() != theirs.len() {
                return differs("another number of plans");
            }
            for (mine, theirs) in mine.iter().zip(theirs) {
                if mine.digest != theirs.digest {
                    return differs("another plan, other variants or other settings");
                }
                if mine.max_bytes != theirs.max_bytes {
                    return differs("another largest message");
                }
            }
            Ok(())
        }
    }
}

/// A digest of everything that a kernel is made of, and of how ports reach peers. All ranks run one version of the library.
fn digest(plan: &Plan, config: &ExecutorConfig) -> [u8; 32] {
    let ExecutorConfig { variants, any_order, call_order, port_transport, staging_bytes, .. } = config;
    digest::of(&(plan, variants, (any_order, call_order), port_transport, staging_bytes))
}

impl Said {
    fn failed(error: &Error) -> Self {
        Self::Failed(error.to_string().chars().take(MOST_TEXT / 4).collect())
    }

    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        match self {
            Self::Ready { scratch_bytes, taken_bytes, links, turns, offers } => {
                w.u8(1).u64(*scratch_bytes).u64(*taken_bytes).u64(*links).u64(offers.len() as u64);
                let Facts { history, calls, taken, broken, crowded, able, numbers } = turns;
                w.u64(*history).u64(calls.bits());
                for flag in [taken, broken, crowded, able] {
                    w.u8(u8::from(*flag));
                }
                w.count(numbers.len());
                numbers.iter().for_each(|bits| {
                    w.u64(*bits);
                });
                for Offer { digest, max_bytes, multicast, .. } in offers {
                    w.raw(digest).u64(*max_bytes).u64(*multicast);
                }
            }
            Self::Done(executor) => {
                w.u8(2).u64(*executor);
            }
            Self::Failed(why) => {
                w.u8(0).str(why);
            }
        }
        w.finish()
    }

    fn decode(bytes: &[u8]) -> WireResult<Self> {
        let mut r = Reader::new(bytes);
        let said = match r.u8()? {
            0 => Self::Failed(r.text(MOST_TEXT)?),
            1 => {
                let (scratch_bytes, taken_bytes, links, count) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
                let (history, calls) = (r.u64()?, Calls::from_bits(r.u64()?));
                let [taken, broken, crowded, able] = [r.bool()?, r.bool()?, r.bool()?, r.bool()?];
                let numbers = r.count(turns::CALLERS as usize / 64, size_of::<u64>())?;
                let numbers = (0..numbers).map(|_| r.u64()).collect::<WireResult<_>>()?;
                let turns = Facts { history, calls, taken, broken, crowded, able, numbers };
                // A false count ends with the bytes that are there.
                let offer = |_| {
                    let (digest, max_bytes, multicast) = (r.array()?, r.u64()?, r.u64()?);
                    Ok(Offer { digest, max_bytes, multicast, name: String::new() })
                };
                let offers = (0..count).map(offer).collect::<WireResult<_>>()?;
                Self::Ready { scratch_bytes, taken_bytes, links, turns, offers }
            }
            2 => Self::Done(r.u64()?),
            _ => return Err(WireError::Invalid { what: "word of a rank" }),
        };
        r.finish()?;
        Ok(said)
    }
}

/// For [`crate::fuzzing`].
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use super::*;

    /// A rank's word about plans.
    pub fn plan_word(bytes: &[u8]) -> Option<Vec<u8>> {
        match Said::decode(bytes).ok()? {
            // The reader escapes control characters, which makes the text longer.
            Said::Failed(_) => Some(bytes.to_vec()),
            said => Some(said.encode()),
        }
    }

    pub(crate) fn said() -> Vec<(&'static str, Vec<u8>)> {
        let offer = Offer { digest: [7; 32], max_bytes: 3, multicast: 1 << 21, name: String::new() };
        let turns = Facts { taken: true, numbers: vec![1, 1 << 63], ..Facts::default() };
        let ready = Said::Ready { scratch_bytes: 9, taken_bytes: 7, links: 5, turns, offers: vec![offer; 2] };
        let said = [ready, Said::Done(3), Said::Failed("no memory".to_owned())];
        said.iter().map(|said| ("plan-word", said.encode())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Element, random, samples};

    /// Equal plans have one digest, wherever their operations stood in a program; every mutant that differs has another.
    #[test]
    fn digests_are_as_different_as_plans_and_settings() {
        let config = ExecutorConfig::default();
        let of = |plan: &Plan| Offer::new(plan, &config, None).digest();
        for seed in 0..30 {
            let plan = random::program(seed);
            let mut moved = plan.clone();
            let blocks = moved.ranks.iter_mut().flat_map(|rank| &mut rank.blocks);
            blocks.flat_map(|block| &mut block.ops).for_each(|operation| operation.origin += 3);
            assert_eq!(of(&moved), of(&plan), "seed {seed}");
            let mutant = random::mutant(&plan, seed);
            assert_eq!(of(&mutant) == of(&plan), mutant == plan, "seed {seed}");
        }
        let plan = samples::two_shot(2);
        let variants = config.clone().with_variants([(Element::F16, None)]);
        assert_ne!(of(&plan), Offer::new(&plan, &variants, None).digest());
        let named = Plan { name: "another".into(), ..plan.clone() };
        assert_ne!(of(&plan), of(&named));
    }

    fn offer(digest: [u8; 32], max_bytes: u64) -> Offer {
        Offer { digest, max_bytes, multicast: 1 << 21, name: String::new() }
    }

    #[test]
    fn what_is_said_arrives() {
        let calls = Calls::from_bits(4 << 32 | 5);
        let flags = |numbers| Facts { taken: true, able: true, numbers, ..Facts::default() };
        let facts = |numbers| Facts { history: 3, calls, ..flags(numbers) };
        let ready = |offers: Vec<Offer>| {
            let turns = facts(vec![1 << 63; offers.len()]);
            Said::Ready { scratch_bytes: 9, taken_bytes: 7, links: 5, turns, offers }
        };
        for said in [
            ready(vec![offer([7; 32], 3)]),
            ready(vec![offer([7; 32], 3), offer([8; 32], u64::MAX)]),
            ready(Vec::new()),
            Said::Failed("no memory".to_owned()),
            Said::Done(3),
        ] {
            let bytes = said.encode();
            assert_eq!(Said::decode(&bytes).unwrap(), said);
            assert!(Said::decode(&bytes[..bytes.len() - 1]).is_err());
        }
        // More plans than there are bytes for.
        let mut bytes = ready(vec![offer([7; 32], 3)]).encode();
        bytes[25..33].fill(0xff);
        assert!(Said::decode(&bytes).is_err());
    }

    #[test]
    fn differences_are_named() {
        let turns = Facts::default();
        let ready =
            |offers| Said::Ready { scratch_bytes: 9, taken_bytes: 7, links: 5, turns: turns.clone(), offers };
        let plans = |digest, max_bytes| ready(vec![offer([0; 32], 1), offer(digest, max_bytes)]);
        let mine = plans([1; 32], 3);
        let says = |theirs: &Said| compare(OP, 1, &mine, theirs).unwrap_err().to_string();
        compare(OP, 1, &mine, &plans([1; 32], 3)).unwrap();
        assert!(says(&plans([2; 32], 3)).contains("another plan"));
        assert!(says(&plans([1; 32], 4)).contains("largest message"));
        assert!(says(&ready(vec![offer([0; 32], 1)])).contains("another number of plans"));
        assert!(says(&Said::Done(0)).contains("called something else"));
        compare(OP, 1, &Said::Done(5), &Said::Done(5)).unwrap();
        let other = compare(OP, 1, &Said::Done(5), &Said::Done(6)).unwrap_err();
        assert!(other.message().contains("rank 1 calls it for another executor"), "{other}");
        let failed = compare(OP, 1, &mine, &Said::Failed("no memory".to_owned())).unwrap_err();
        assert!(failed.to_string().contains("no memory") && failed.origin() == Some(1), "{failed}");
    }
}
