//! The other end of every channel.

use std::collections::HashMap;

use super::ir::{Channel, ChannelKind, Plan};

/// Numbers all channel ends of a plan and pairs them. The k-th channel from a to b pairs with the k-th from b to a.
#[derive(Debug)]
pub(in crate::plan) struct Ends {
    /// Number of the first memory and the first port channel of each rank.
    first: Vec<[u32; 2]>,
    /// Number of the other end of each end; `None` if there is none.
    other: Vec<Option<u32>>,
    owners: Vec<u32>,
}

impl Ends {
    pub(in crate::plan) fn of(plan: &Plan) -> Self {
        let mut ends = Self { first: Vec::new(), other: Vec::new(), owners: Vec::new() };
        let mut seen: HashMap<(ChannelKind, u32, u32), Vec<u32>> = HashMap::new();
        let mut keys = Vec::new();
        for (rank, rank_plan) in (0..).zip(&plan.ranks) {
            let mut first = [0; 2];
            for (kind, first) in [ChannelKind::Memory, ChannelKind::Port].into_iter().zip(&mut first) {
                *first = number(keys.len());
                for &peer in rank_plan.peers(kind) {
                    let same = seen.entry((kind, rank, peer)).or_default();
                    keys.push((kind, rank, peer, same.len()));
                    same.push(number(keys.len() - 1));
                    ends.owners.push(rank);
                }
            }
            ends.first.push(first);
        }
        let other = |&(kind, rank, peer, nth): &(ChannelKind, u32, u32, usize)| {
            seen.get(&(kind, peer, rank)).and_then(|same| same.get(nth).copied()).filter(|_| peer != rank)
        };
        ends.other = keys.iter().map(other).collect();
        ends
    }

    /// The number of a rank's end of a channel.
    pub(in crate::plan) fn end(&self, rank: u32, channel: Channel) -> usize {
        let kind = usize::from(channel.kind == ChannelKind::Port);
        (self.first[rank as usize][kind] + channel.index) as usize
    }

    pub(in crate::plan) fn other(&self, end: usize) -> Option<usize> {
        self.other[end].map(|end| end as usize)
    }

    pub(in crate::plan) fn owner(&self, end: usize) -> u32 {
        self.owners[end]
    }

    pub(in crate::plan) fn len(&self) -> usize {
        self.other.len()
    }
}

fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
