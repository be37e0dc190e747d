//! The programs by the names that users give them.

use super::program::CollectiveProgram;
use super::{all_gather, all_reduce, all_to_all, hierarchical, rooted};
use crate::error::{Error, Result};

/// The most ranks of a program here: some have operations for each pair of ranks.
const MAX_RANKS: u32 = 1024;

/// A way to do a collective, as a program of any number of ranks.
#[derive(Clone, Copy, Debug)]
pub struct Algorithm {
    /// The collective, such as `all-reduce`.
    pub collective: &'static str,
    /// The algorithm's name among those of its collective, such as `ring`.
    pub name: &'static str,
    /// Its idea in a sentence.
    pub about: &'static str,
    /// Whether the number of ranks has to be a power of two.
    pub power_of_two: bool,
    make: Make,
}

/// Choices of a program besides its number of ranks; each algorithm takes some.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choices {
    /// Chunks into which each rank's part of a message is cut; one unless given.
    pub chunk_factor: Option<u32>,
    /// Ranks of each host, which are numbered host by host. Unless given, the ranks are those of two hosts, or each rank has a
    /// host of its own if their number is odd.
    pub ranks_per_host: Option<u32>,
}

/// A generator, from the number of ranks and what the algorithm takes besides.
#[derive(Clone, Copy, Debug)]
enum Make {
    Plain(fn(u32) -> CollectiveProgram),
    Chunked(fn(u32, u32) -> CollectiveProgram),
    OfHosts(fn(u32, u32) -> CollectiveProgram),
}

use Make::{Chunked, OfHosts, Plain};

/// All algorithms, by collective; the first of each collective serves every size of message.
pub const ALGORITHMS: &[Algorithm] = &[
    entry(
        "all-reduce",
        "two-shot",
        "each rank reads and reduces its part of all inputs and writes the result to all, in place; a block for each chunk",
        Chunked(all_reduce::two_shot),
    ),
    entry(
        "all-reduce",
        "one-shot",
        "each rank sends its input to all as packets and reduces what comes, in one step",
        Plain(all_reduce::one_shot_packets),
    ),
    entry(
        "all-reduce",
        "two-shot-packets",
        "two-shot with packets through scratch, in place",
        Plain(all_reduce::two_shot_packets),
    ),
    entry(
        "all-reduce",
        "ring",
        "chunks go around a ring and are reduced on the way, then go around once more, in place",
        Plain(all_reduce::ring),
    ),
    Algorithm {
        power_of_two: true,
        ..entry(
            "all-reduce",
            "recursive-halving",
            "partners halve what they reduce in each step, then double it in the opposite order, in place",
            Plain(all_reduce::recursive_halving),
        )
    },
    entry(
        "all-reduce",
        "hierarchical",
        "over memory within a host and ports between hosts: each host's sum of a part goes to the others, in place",
        OfHosts(hierarchical::all_reduce),
    ),
    entry(
        "all-reduce",
        "switch",
        "a switch reduces each rank's part and broadcasts the result, in place",
        Plain(all_reduce::switch),
    ),
    entry(
        "all-gather",
        "all-pairs",
        "each rank writes its part to all, in place; four blocks share each put",
        Plain(|ranks| all_gather::grouped(ranks, 4)),
    ),
    entry(
        "all-gather",
        "ring",
        "each rank gives the next one what it got last, once for each other rank",
        Plain(all_gather::ring),
    ),
    entry(
        "all-gather",
        "packets",
        "each rank sends its part to all as packets, in place; two blocks for each peer",
        Plain(all_gather::packets),
    ),
    entry(
        "reduce-scatter",
        "direct",
        "each rank reads and reduces its part of all inputs",
        Plain(rooted::reduce_scatter),
    ),
    entry(
        "all-to-all",
        "direct",
        "a block for each chunk and peer puts through the peer's scratch, in place",
        Chunked(all_to_all::direct),
    ),
    entry(
        "all-to-all",
        "pipelined",
        "as direct, slice after slice: one block puts, another one copies out",
        Chunked(all_to_all::pipelined),
    ),
    entry(
        "broadcast",
        "line",
        "from rank 0 along a line of port channels, chunk after chunk",
        Plain(|ranks| rooted::broadcast_line(ranks, 0)),
    ),
    entry("reduce", "direct", "rank 0 reads and reduces all inputs", Plain(|ranks| rooted::reduce(ranks, 0))),
    entry(
        "gather",
        "direct",
        "the others put their inputs to rank 0",
        Plain(|ranks| rooted::gather(ranks, 0)),
    ),
    entry(
        "scatter",
        "direct",
        "the others get their parts of the input of rank 0",
        Plain(|ranks| rooted::scatter(ranks, 0)),
    ),
    entry(
        "send-receive",
        "ring",
        "each rank puts its input to the next one over a port channel",
        Chunked(rooted::send_recv),
    ),
];

const fn entry(collective: &'static str, name: &'static str, about: &'static str, make: Make) -> Algorithm {
    Algorithm { collective, name, about, power_of_two: false, make }
}

/// The algorithm of this name for a collective, or its first one.
///
/// # Errors
/// `InvalidUsage`, with the names that there are.
pub fn find(collective: &str, name: Option<&str>) -> Result<&'static Algorithm> {
    let of_collective = || ALGORITHMS.iter().filter(move |known| known.collective == collective);
    if let Some(found) = of_collective().find(|known| name.is_none_or(|name| known.name == name)) {
        return Ok(found);
    }
    let message = match of_collective().next() {
        None => {
            let mut names: Vec<&str> = ALGORITHMS.iter().map(|known| known.collective).collect();
            names.dedup();
            format!("there is no collective `{collective}`; use one of {}", names.join(", "))
        }
        Some(_) => {
            let names: Vec<&str> = of_collective().map(|known| known.name).collect();
            let name = name.unwrap_or_default();
            format!("{collective} has no algorithm `{name}`; use one of {}", names.join(", "))
        }
    };
    Err(Error::usage("programs::find", message))
}

impl Algorithm {
    /// The program of `ranks` ranks.
    ///
    /// # Errors
    /// `InvalidUsage` for a number of ranks that the algorithm cannot have, and for a choice that it does not take.
    pub fn program(&self, ranks: u32, choices: &Choices) -> Result<CollectiveProgram> {
        let refused = |message: String| Err(Error::usage("Algorithm::program", message));
        let Self { collective, name, .. } = self;
        if !(2..=MAX_RANKS).contains(&ranks) {
            return refused(format!("{ranks} ranks; a program here has 2 to {MAX_RANKS}"));
        }
        if self.power_of_two && !ranks.is_power_of_two() {
            return refused(format!("{ranks} ranks; {name} takes a power of two"));
        }
        if choices.chunk_factor.is_some() && !matches!(self.make, Chunked(_)) {
            return refused(format!("{collective} by {name} takes no chunk factor; use more instances"));
        }
        if choices.ranks_per_host.is_some() && !matches!(self.make, OfHosts(_)) {
            return refused(format!(
                "{collective} by {name} takes no ranks per host; the hierarchical ones do"
            ));
        }
        match self.make {
            Plain(make) => Ok(make(ranks)),
            Chunked(make) => match choices.chunk_factor.unwrap_or(1) {
                factor @ 1..=MAX_CHUNK_FACTOR => Ok(make(ranks, factor)),
                factor => refused(format!("a chunk factor of {factor}; use 1 to {MAX_CHUNK_FACTOR}")),
            },
            OfHosts(make) => {
                let two_hosts = if ranks.is_multiple_of(2) { ranks / 2 } else { 1 };
                match choices.ranks_per_host.unwrap_or(two_hosts) {
                    local if local > 0 && ranks.is_multiple_of(local) => Ok(make(ranks, local)),
                    local => refused(format!(
                        "{local} ranks per host; {ranks} ranks are no whole number of such hosts"
                    )),
                }
            }
        }
    }
}

/// A rank has at least one block for each chunk of a part, and cannot have more.
const MAX_CHUNK_FACTOR: u32 = super::super::check::MAX_BLOCKS as u32;

#[cfg(test)]
mod tests {
    use super::super::super::{file, pass};
    use super::super::judge::right;
    use super::*;

    /// Every algorithm, as `aqueduct plan new` makes it: right, and the same after it was written and read.
    #[test]
    fn every_algorithm_becomes_a_file_of_a_right_plan() {
        let mut options = pass::Options { fusion: Some(pass::Shapes::Named), ..pass::Options::default() };
        for algorithm in ALGORITHMS {
            for (ranks, instances) in [(2, 1), (3, 2), (4, 1)] {
                if algorithm.power_of_two && ranks == 3 {
                    assert!(
                        algorithm
                            .program(ranks, &Choices::default())
                            .unwrap_err()
                            .message()
                            .contains("power of two")
                    );
                    continue;
                }
                options.instances = instances;
                let chunk_factor = matches!(algorithm.make, Chunked(_)).then_some(2);
                let choices = Choices { chunk_factor, ..Choices::default() };
                let plan = algorithm.program(ranks, &choices).unwrap().build().unwrap();
                let plan = pass::run(&plan, &options, None).unwrap();
                right(&plan);
                assert_eq!(file::read(&file::write(&plan).unwrap()).unwrap(), plan, "{algorithm:?}");
            }
        }
    }

    #[test]
    fn the_catalog_has_each_name_once_and_collectives_in_a_row() {
        let mut names: Vec<_> = ALGORITHMS.iter().map(|known| (known.collective, known.name)).collect();
        let mut collectives: Vec<_> = names.iter().map(|(collective, _)| *collective).collect();
        collectives.dedup();
        let (all, rows) = (names.len(), collectives.len());
        names.sort_unstable();
        names.dedup();
        collectives.sort_unstable();
        collectives.dedup();
        assert_eq!((names.len(), collectives.len()), (all, rows));
    }

    #[test]
    fn what_there_is_not_is_refused_with_what_there_is() {
        let wrong = |collective, name| find(collective, name).unwrap_err().to_string();
        assert!(wrong("allreduce", None).contains("use one of all-reduce, all-gather, reduce-scatter"));
        assert!(wrong("all-gather", Some("tree")).contains("`tree`; use one of all-pairs, ring, packets"));
        let program = |name, ranks, chunk_factor, ranks_per_host| {
            let choices = Choices { chunk_factor, ranks_per_host };
            find("all-reduce", Some(name))
                .unwrap()
                .program(ranks, &choices)
                .map(drop)
                .unwrap_err()
                .to_string()
        };
        for ranks in [0, 1, MAX_RANKS + 1] {
            assert!(program("ring", ranks, None, None).contains("2 to 1024"));
        }
        assert!(program("ring", 4, Some(2), None).contains("more instances"));
        assert!(program("hierarchical", 4, Some(2), None).contains("more instances"));
        assert!(program("two-shot", 4, None, Some(2)).contains("the hierarchical ones do"));
        for factor in [0, MAX_CHUNK_FACTOR + 1] {
            assert!(program("two-shot", 4, Some(factor), None).contains("use 1 to 296"));
        }
        for local in [0, 3, 8] {
            assert!(program("hierarchical", 4, None, Some(local)).contains("no whole number of such hosts"));
        }
    }
}
