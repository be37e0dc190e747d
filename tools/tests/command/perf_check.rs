//! The checks of `aqueduct perf`: by the host and by the device, and what they do about wrong data.

use crate::support::{PerfFile, perf, perf_command, rows, run, temporary};

/// A hundred bytes are corrupted on their way, in the middle of the first write.
#[test]
fn every_wrong_byte_is_counted() {
    for by in ["host", "device"] {
        let path = temporary("wrong.jsonl");
        let arguments =
            ["write", "-t", "Ethernet", "-b", "1M", "-e", "1M", "-n", "1", "-W", "1", "-w", "0", "-c", "3"];
        let options = ["--check-by", by, "-J", path.to_str().unwrap()];
        let mut command = perf_command("2", &[&arguments[..], &options].concat());
        // Every rank gets the variable; only rank 0 writes.
        command.env("AQUEDUCT_FAULTS", "net:from=0:on=data:after=60000:corrupt=100");
        let outcome = run(&mut command).exited(1);
        assert_eq!(rows(&outcome.stdout)[0][8], "100", "{}", outcome.stdout);
        let verdict = outcome.stdout.lines().last();
        assert_eq!(verdict, Some("# Out of bounds values : 100 FAILED"), "{outcome:#?}");
        let file = PerfFile::parse(&std::fs::read_to_string(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert_eq!((&file.rows[0]["wrong"], &file.footer.unwrap()["wrong"]), (&100.into(), &100.into()));
        let said = file.header["parameters"]["checked"].as_str().unwrap();
        assert!(said.contains(&format!("by the {by}")), "{said}");
    }
}

#[test]
fn the_device_checks_every_operation() {
    for arguments in [
        &["all-reduce", "-b", "40", "-e", "100K", "-f", "50", "-n", "1"][..],
        &["all-reduce", "-b", "2000", "-e", "2000", "-n", "1", "-d", "half", "-o", "max"],
        &["all-reduce", "-b", "2000", "-e", "2000", "-n", "1", "-d", "bfloat16"],
        &["all-reduce", "-b", "2000", "-e", "2000", "-n", "1", "-d", "int32", "-o", "min"],
        &["put", "-b", "5", "-e", "100K", "-f", "1000", "-n", "1"],
        &["get", "-b", "5", "-e", "5", "-n", "1"],
        &["ll8", "-b", "500", "-e", "500", "-n", "5"],
        &["ll128", "-b", "500", "-e", "500", "-n", "5"],
        &["write", "-t", "CudaIpc", "-b", "5", "-e", "500K", "-f", "1000", "-n", "1"],
        &["write", "-t", "CudaIpc", "-b", "500", "-e", "500", "-n", "1", "--peer-memory", "host"],
        &["port-lat", "-t", "CudaIpc", "-b", "8", "-e", "4K", "-f", "500", "-n", "2", "-r", "1"],
        &["port-put", "-t", "CudaIpc", "-b", "8", "-e", "4K", "-f", "500", "-n", "2", "-r", "1"],
    ] {
        let outcome = perf("2", &[arguments, &["-w", "0", "--check-by", "device"]].concat()).exited(0);
        let outcome = outcome.prints(&["by the device, samples by the host"]);
        assert_eq!(outcome.stdout.lines().last(), Some("# Out of bounds values : 0 OK"), "{arguments:?}");
    }
    // The software device computes slower than the host compares, so there the host does it.
    let outcome = perf("2", &["put", "-b", "8", "-e", "8", "-n", "1"]).exited(0);
    outcome.prints(&["validation: 1 (by the host)"]);
}
