//! The plans that MSCCL++ itself has written.

use super::super::super::file;
use super::{Executor, ExecutorConfig, LIMIT, Rig, alone, close, everywhere, ranks};
use crate::comm::Communicator;
use crate::error::ErrorKind;

/// Files that hold a fragment of a plan, and the reason why it cannot run.
const FRAGMENTS: [(&str, &str); 2] = [
    ("unit_read_put_packet_test.json", "waits for ever for packets that no operation has written"),
    ("unit_reduce_packets_test.json", "waits for ever for packets that no operation has written"),
];

/// Runs every plan of the folder `AQUEDUCT_TEST_PLANS` with as many ranks as the file says, and compares with the simulator.
#[test]
#[ignore = "needs the folder of MSCCL++'s plans in AQUEDUCT_TEST_PLANS"]
fn plans_of_mscclpp_run_on_devices() {
    let _alone = alone();
    let folder = std::env::var("AQUEDUCT_TEST_PLANS").expect("AQUEDUCT_TEST_PLANS names the folder");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let mut ran = 0;
    for path in &paths {
        let name = path.file_name().unwrap().to_str().unwrap();
        let plan = file::read(&std::fs::read_to_string(path).unwrap()).unwrap();
        let comms = ranks(plan.ranks.len());
        if let Some((_, reason)) = FRAGMENTS.iter().find(|(fragment, _)| *fragment == name) {
            let config = ExecutorConfig::default();
            let prepare =
                |comm: &Communicator| Executor::prepare(comm, &plan, config.clone(), LIMIT).map(drop);
            for refused in everywhere(&comms, prepare) {
                let error = refused.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Plan, "{name}: {error}");
                assert!(error.to_string().contains(reason), "{name}: {error}");
            }
        } else {
            // Every file divides 96; those with input chunks of their own for each rank take no other sizes.
            let sizes: &[usize] = match plan.collective.kind.divides_freely() {
                true => &[96, 1, 7, 1000, 16_320, 33],
                false => &[96, 192, 16_320, 96],
            };
            let reduces = plan.reductions().next();
            let mut rig = Rig::new(&comms, &plan, 16_320, &[reduces]).unwrap();
            sizes.iter().for_each(|&elements| rig.as_simulated(elements, None));
            ran += 1;
        }
        close(&comms);
    }
    assert_eq!(ran + FRAGMENTS.len(), paths.len());
    assert!(ran > 20, "{ran} plans");
}
