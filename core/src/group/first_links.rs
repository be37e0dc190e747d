//! Which links a communicator opens from the start.
#![forbid(unsafe_code)]

/// Up to this many ranks, every pair is linked from the start.
const ALL_LINKED: u32 = 16;

/// The ranks that `rank` opens links to when the communicator is made.
pub(crate) fn eager_peers(rank: u32, size: u32) -> Vec<u32> {
    let at = |step: u32| ((u64::from(rank) + u64::from(step)) % u64::from(size)) as u32;
    if size <= ALL_LINKED {
        // Each pair once: of two ranks that face each other across the ring, the lower one opens.
        (1..=size / 2).filter(|step| step * 2 != size || rank < at(*step)).map(at).collect()
    } else {
        (0..u32::BITS).map(|k| 1 << k).take_while(|step| *step < size).map(at).collect()
    }
}

/// The ranks that open links to `rank` then. Not by asking every rank: with a thousand of them on one machine that is a
/// million answers.
pub(crate) fn eager_openers(rank: u32, size: u32) -> Vec<u32> {
    if size <= ALL_LINKED {
        return (0..size).filter(|peer| *peer != rank && eager_peers(*peer, size).contains(&rank)).collect();
    }
    let at = |step: u32| ((u64::from(rank) + u64::from(size - step)) % u64::from(size)) as u32;
    (0..u32::BITS).map(|k| 1 << k).take_while(|step| *step < size).map(at).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn small_groups_are_fully_linked_with_one_link_a_pair() {
        for size in 1..=ALL_LINKED {
            let mut pairs = BTreeSet::new();
            for rank in 0..size {
                for peer in eager_peers(rank, size) {
                    assert_ne!(peer, rank);
                    assert!(
                        pairs.insert((rank.min(peer), rank.max(peer))),
                        "{size}: {rank} and {peer} twice"
                    );
                    assert!(eager_openers(peer, size).contains(&rank));
                }
            }
            assert_eq!(pairs.len() as u32, size * (size - 1) / 2);
            for rank in 0..size {
                let expected = (0..size).filter(|peer| eager_peers(*peer, size).contains(&rank));
                assert!(eager_openers(rank, size).into_iter().eq(expected));
            }
        }
    }

    #[test]
    fn eager_links_of_large_groups_are_few_and_survive_a_loss() {
        for size in [17_u32, 100, 1024] {
            let opened: Vec<Vec<u32>> = (0..size).map(|r| eager_peers(r, size)).collect();
            assert!(
                opened.iter().enumerate().all(|(r, peers)| !peers.contains(&(r as u32)) && peers.len() <= 10)
            );
            for (rank, peers) in (0..).zip(&opened) {
                assert!(peers.iter().all(|peer| eager_openers(*peer, size).contains(&rank)));
                assert_eq!(eager_openers(rank, size).len(), peers.len());
            }
            for dead in [0, size / 2] {
                let alive: BTreeSet<u32> = (0..size).filter(|&r| r != dead).collect();
                let Some(&start) = alive.first() else { continue };
                let mut seen = BTreeSet::from([start]);
                let mut todo = vec![start];
                while let Some(rank) = todo.pop() {
                    for &next in opened[rank as usize].iter().filter(|n| alive.contains(n)) {
                        if seen.insert(next) {
                            todo.push(next);
                        }
                    }
                }
                assert_eq!(seen, alive, "size {size} without {dead}");
            }
        }
    }
}
