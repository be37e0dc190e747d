//! Which ranks share a host.

use crate::comm::Communicator;

/// The host of each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Hosts {
    /// The number of its host, and how many ranks before it are there.
    places: Vec<(u32, u32)>,
    /// The ranks of each host.
    ranks: Vec<Vec<u32>>,
    /// All have as many. Kept, because relays are asked for by every pair of ranks.
    equal: bool,
}

impl Hosts {
    /// Those of a communicator: the same on every rank.
    pub(in super::super) fn of(comm: &Communicator) -> Self {
        let peers = comm.peers();
        Self::new(comm.size(), |one, other| peers[one as usize].same_host(&peers[other as usize]))
    }

    /// Of ranks `0..ranks`, where `share` says whether two are on one host. Hosts are numbered by their first ranks.
    pub(in super::super) fn new(ranks: u32, share: impl Fn(u32, u32) -> bool) -> Self {
        let (mut places, mut all): (Vec<(u32, u32)>, Vec<Vec<u32>>) = (Vec::new(), Vec::new());
        for rank in 0..ranks {
            let first = (0..rank).find(|&before| share(before, rank));
            let host = first.map_or(all.len(), |first| places[first as usize].0 as usize);
            if first.is_none() {
                all.push(Vec::new());
            }
            places.push((host as u32, all[host].len() as u32));
            all[host].push(rank);
        }
        let equal = all.iter().all(|ranks| ranks.len() == all[0].len());
        Self { places, ranks: all, equal }
    }

    pub(in super::super) fn share(&self, one: u32, other: u32) -> bool {
        self.place(one).0 == self.place(other).0
    }

    /// The number of a rank's host, and its own number there.
    pub(super) fn place(&self, rank: u32) -> (u32, u32) {
        self.places[rank as usize]
    }

    /// How many ranks a host has.
    pub(super) fn size(&self, host: u32) -> u32 {
        self.ranks[host as usize].len() as u32
    }

    /// The rank in a place.
    pub(super) fn rank(&self, host: u32, number: u32) -> u32 {
        self.ranks[host as usize][number as usize]
    }

    /// The rank of `host` that hands on what `from` sends to all ranks there: the one of its number where hosts have equally many ranks.
    /// Otherwise the number of its host is added, so that one rank does not hand on for all hosts of one rank.
    pub(super) fn relay(&self, from: u32, host: u32) -> u32 {
        let (ranks, (of, number)) = (&self.ranks[host as usize], self.place(from));
        let shift = if self.equal { 0 } else { of };
        ranks[(number + shift) as usize % ranks.len()]
    }

    pub(in super::super) fn ranks(&self) -> u32 {
        self.places.len() as u32
    }

    pub(in super::super) fn count(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// Whether all have as many ranks.
    pub(super) fn are_equal(&self) -> bool {
        self.equal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(of: &[u8]) -> Hosts {
        Hosts::new(of.len() as u32, |one, other| of[one as usize] == of[other as usize])
    }

    #[test]
    fn ranks_are_numbered_within_their_hosts() {
        let places = |of: &[u8]| (0..of.len() as u32).map(|rank| hosts(of).place(rank)).collect::<Vec<_>>();
        assert_eq!(places(b"aabb"), [(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert_eq!(places(b"baba"), [(0, 0), (1, 0), (0, 1), (1, 1)]);
        assert_eq!(
            [hosts(b"aabb"), hosts(b"abc"), hosts(b"aab")].map(|hosts| hosts.are_equal()),
            [true, true, false]
        );
        assert_eq!(hosts(b"aab").count(), 2);
        assert_eq!(
            [(0, 0), (1, 0), (0, 1)].map(|(host, number)| hosts(b"baba").rank(host, number)),
            [0, 1, 2]
        );
        let relays = |of, from: [u32; 4], host| from.map(|from| hosts(of).relay(from, host));
        assert_eq!(relays(b"aaaabbbb", [4, 5, 6, 7], 0), [0, 1, 2, 3]);
        assert_eq!(relays(b"aabbbbbb", [2, 3, 4, 5], 0), [1, 0, 1, 0]);
        assert_eq!(relays(b"abcdeeee", [0, 1, 2, 3], 4), [4, 5, 6, 7]);
        assert!(hosts(b"aba").share(0, 2) && !hosts(b"aba").share(0, 1));
    }
}
