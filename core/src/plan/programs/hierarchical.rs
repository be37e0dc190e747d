//! All-reduce over several hosts: memory channels within a host, port channels between hosts.

use super::program::{CollectiveProgram, Pattern, Reduction, SyncType};

/// In place, of hosts of `local` ranks each, numbered host by host. Rank l of a host reduces part l of all its host's inputs,
/// then the ranks with this l reduce and gather that part over their hosts through ports, then each writes it to its host.
/// So each byte crosses between hosts as often as in an all-reduce of one rank per host.
pub(in super::super) fn all_reduce(n: u32, local: u32) -> CollectiveProgram {
    let hosts = n / local;
    let program = CollectiveProgram::new("allreduce_hierarchical", Pattern::all_reduce(n, 1).in_place());
    let scratch: Vec<_> = program.ranks().map(|rank| rank.scratch((hosts - 1).max(1))).collect();
    for rank in program.ranks() {
        let r = rank.index();
        let (host, l) = (r / local, r % local);
        let data = rank.input();
        let part = |index: u32| index * hosts..(index + 1) * hosts;
        let near: Vec<_> = (host * local..(host + 1) * local)
            .filter(|&peer| peer != r)
            .map(|peer| rank.memory_channel(peer))
            .collect();
        let far: Vec<_> = (0..hosts)
            .filter(|&other| other != host)
            .map(|other| rank.port_channel(other * local + l))
            .collect();
        // The scratch at a rank of host `at` for what the rank of host `from` sends.
        let slot = |at: u32, from: u32| if from < at { from } else { from - 1 };

        super::begin(&near, 0);
        for channel in &near {
            let theirs = program.rank(channel.peer()).input();
            channel.reduce(data.chunks(part(l)), theirs.chunks(part(l)), Reduction::Sum, 0);
        }
        for channel in &far {
            let other = channel.peer() / local;
            let there = scratch[channel.peer() as usize].chunk(slot(other, host));
            channel.put_with_signal(there, data.chunk(l * hosts + other), 0);
        }
        let mine = data.chunk(l * hosts + host);
        for channel in &far {
            channel.wait(0, SyncType::After);
            let come = scratch[r as usize].chunk(slot(host, channel.peer() / local));
            rank.reduce(mine, come, Reduction::Sum, 0);
        }
        // A peer's chunk has been read once what it sent has arrived, so the result may take its place.
        for channel in &far {
            let theirs = program.rank(channel.peer()).input();
            channel.put_with_signal(theirs.chunk(l * hosts + host), mine, 0);
        }
        far.iter().for_each(|channel| channel.wait(0, SyncType::After));
        for channel in &near {
            let theirs = program.rank(channel.peer()).input();
            channel.put(theirs.chunks(part(l)), data.chunks(part(l)), 0);
        }
        super::end(&near, 0);
        // The caller may write its buffer after the call, which the proxy must have read by then.
        far.iter().for_each(|channel| channel.flush(0, SyncType::None));
    }
    program
}

#[cfg(test)]
mod tests {
    use super::super::judge::right;
    use super::*;

    #[test]
    fn every_shape_of_hosts_is_right() {
        for (ranks, local) in [(2, 1), (2, 2), (4, 4), (6, 3), (6, 2), (8, 4), (8, 2), (9, 3)] {
            right(&all_reduce(ranks, local).compile().unwrap());
        }
    }
}
