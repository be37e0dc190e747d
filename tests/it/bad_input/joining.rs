//! Ranks that do not fit together when they join.

use super::*;

#[test]
fn two_ranks_with_the_same_number() {
    for numbers in [vec![(1, 2), (1, 2)], vec![(0, 3), (2, 3), (2, 3)]] {
        // Whoever waited for the deadline would not return in time.
        let results = join_as(&numbers, Duration::from_secs(3600));
        for result in results {
            let number = numbers[1].0;
            let words = [format!("two ranks say they are rank {number}"), "its own number".to_owned()];
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            refused(result, ErrorKind::InvalidUsage, &words);
        }
    }
}

#[test]
fn different_world_sizes() {
    for result in join_as(&[(0, 2), (1, 3)], Duration::from_secs(30)) {
        refused(result, ErrorKind::InvalidUsage, &["rank", "2", "3", "same world size"]);
    }
    refused(
        join_as(&[(2, 2)], Duration::from_secs(1)).remove(0),
        ErrorKind::InvalidUsage,
        &["0 to size - 1"],
    );
}

#[test]
fn a_rank_that_never_comes() {
    let result = join_as(&[(0, 2)], Duration::from_secs(2)).remove(0);
    refused(result, ErrorKind::Timeout, &["rank 1 of 2 did not arrive", "whether they were started"]);
}

/// A bootstrap that reports wrong numbers, as a launcher that numbers its processes wrongly would.
#[test]
fn a_bootstrap_with_wrong_numbers() {
    #[derive(Debug)]
    struct Lying(u32, u32);
    impl bootstrap::Bootstrap for Lying {
        fn rank(&self) -> u32 {
            self.0
        }
        fn size(&self) -> u32 {
            self.1
        }
        fn send(&self, _: u32, _: u64, _: &[u8], _: aqueduct::Deadline) -> Result<()> {
            unreachable!("nobody is sent anything")
        }
        fn recv(&self, _: u32, _: u64, _: aqueduct::Deadline) -> Result<Vec<u8>> {
            unreachable!("nothing is waited for")
        }
    }
    let context = device();
    let join = |liar: Lying| Communicator::new(&liar, &context, CommunicatorConfig::default(), soon());
    let usage = ErrorKind::InvalidUsage;
    refused(join(Lying(7, 1)), usage, &["Communicator::new", "rank 7 is not below the world size of 1"]);
    for size in [0, bootstrap::MAX_RANKS + 1, u32::MAX] {
        let words = ["Communicator::new", "1 to 1048576 ranks", "number of processes that join"];
        refused(join(Lying(0, size)), usage, &words);
    }
}
