//! Packets between ranks of several hosts.

use super::{Bench, config, programs};
use crate::group::{Machine, Rank, threads_on_hosts};

fn run(rank: &Rank, hosts: &[&str]) {
    let plan = programs::gathered_packets(hosts.len() as u32, |a, b| hosts[a as usize] == hosts[b as usize]);
    let mut bench = Bench::new(rank, &plan, config());
    bench.sizes();
    bench.replays();
}

mod soft {
    use super::*;

    fn hosts(names: &[&str], test: &str) {
        threads_on_hosts(Machine::Software, names, &format!("plans::over_hosts::soft::{test}"), |rank| {
            run(&rank, names)
        });
    }

    #[test]
    fn packets_of_two_hosts() {
        hosts(&["a", "b"], "packets_of_two_hosts");
    }

    #[test]
    fn packets_of_three_hosts() {
        hosts(&["a", "b", "a", "c"], "packets_of_three_hosts");
    }
}
