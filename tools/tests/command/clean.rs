//! A job that ends well writes nothing to standard error: a peer that is done and leaves is no error.

use crate::support::{aqueduct, run};

#[test]
fn a_job_that_ends_well_says_nothing() {
    let jobs = [
        "port-put -t CudaIpc -b 8 -e 64 -n 2",
        "port-put -t Ethernet -b 8 -e 64 -n 2",
        "port-lat -t CudaIpc -b 8 -e 64 -n 2",
        "port-lat -t Ethernet -b 8 -e 64 -n 2",
        "write -t CudaIpc -b 8 -e 64 -n 2",
        "write -t Ethernet -b 8 -e 64 -n 2",
        "write-lat -t Ethernet -b 8 -e 64 -n 2",
        "all-reduce -b 8 -e 64 -n 2",
    ];
    // The lane `quiet` of ci/deep.sh has more turns of more jobs.
    for turn in 0..4 {
        for job in jobs {
            let ranks = if turn % 2 == 0 { "2" } else { "4" };
            let command: Vec<&str> =
                ["run", "-n", ranks, "--", "aqueduct", "perf"].into_iter().chain(job.split(' ')).collect();
            let outcome = run(&mut aqueduct(&command)).exited(0);
            assert_eq!(outcome.stderr, "", "{job} by {ranks} ranks, turn {turn}");
        }
    }
}
