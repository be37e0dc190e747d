//! Which ranks share a host.

use crate::comm::Communicator;
use crate::error::{Error, ErrorKind, Result};

/// The host of each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Hosts {
    /// The number of its host, and how many ranks before it are there.
    places: Vec<(u32, u32)>,
}

impl Hosts {
    /// Those of a communicator: the same on every rank.
    pub(in super::super) fn of(comm: &Communicator) -> Self {
        let peers = comm.peers();
        Self::new(comm.size(), |one, other| peers[one as usize].same_host(&peers[other as usize]))
    }

    /// An error of `op`: `Unsupported` unless all ranks are on one host.
    pub(in super::super) fn must_be_one(op: &'static str, comm: &Communicator) -> Result<()> {
        if Self::of(comm).count() < 2 {
            return Ok(());
        }
        let message = "the ranks are on several hosts, and this needs memory that all of them map; use a communicator of one host's ranks";
        Err(Error::new(ErrorKind::Unsupported, op, message))
    }

    /// Of ranks `0..ranks`, where `share` says whether two are on one host. Hosts are numbered by their first ranks.
    pub(in super::super) fn new(ranks: u32, share: impl Fn(u32, u32) -> bool) -> Self {
        let mut places: Vec<(u32, u32)> = Vec::new();
        for rank in 0..ranks {
            let first = (0..rank).find(|&before| share(before, rank));
            let host = match first {
                Some(first) => places[first as usize].0,
                None => places.iter().map(|(host, _)| host + 1).max().unwrap_or(0),
            };
            let before = places.iter().filter(|(other, _)| *other == host).count() as u32;
            places.push((host, before));
        }
        Self { places }
    }

    pub(super) fn share(&self, one: u32, other: u32) -> bool {
        self.place(one).0 == self.place(other).0
    }

    /// The number of a rank's host, and its own number there.
    pub(super) fn place(&self, rank: u32) -> (u32, u32) {
        self.places[rank as usize]
    }

    pub(in super::super) fn ranks(&self) -> u32 {
        self.places.len() as u32
    }

    pub(in super::super) fn count(&self) -> u32 {
        self.places.iter().map(|(host, _)| host + 1).max().unwrap_or(0)
    }

    /// Whether all have as many ranks.
    pub(super) fn are_equal(&self) -> bool {
        let size = |host| self.places.iter().filter(|(other, _)| *other == host).count() as u32;
        (0..self.count()).all(|host| size(host) * self.count() == self.ranks())
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
        assert!(hosts(b"aba").share(0, 2) && !hosts(b"aba").share(0, 1));
    }
}
