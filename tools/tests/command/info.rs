//! `aqueduct info`, and messages about the environment.

use crate::support::{aqueduct, run};

#[test]
fn on_a_machine_with_nothing() {
    run(&mut aqueduct(&["info"])).exited(0).prints(&[
        concat!("aqueduct ", env!("CARGO_PKG_VERSION")),
        "NVIDIA driver: none: load driver: unsupported: no CUDA driver library could be opened",
        "tried /nonexistent/libcuda.so.1",
        "install the NVIDIA driver",
        "software device: loaded from software, CUDA ",
        "device 0: aqueduct software device",
        "handles posix-fd legacy-ipc",
        "links:",
        "jobs use: software (no usable NVIDIA driver",
        "aqueduct info --env",
    ]);
}

#[test]
fn with_an_invalid_software_device() {
    run(aqueduct(&["info"]).env("AQUEDUCT_SOFT_DEVICES", "many")).exited(0).prints(&[
        "NVIDIA driver: none",
        "software device: unusable",
        "jobs use: nothing",
    ]);
}

#[test]
fn every_variable_with_its_value_and_no_secret() {
    let mut command = aqueduct(&["info", "--env"]);
    command.env("AQUEDUCT_UNIQUE_ID", "c0ffee").env("AQUEDUCT_TIMEOUT", "7.5").env("AQUEDUCT_TIMOUT", "8");
    let outcome = run(&mut command).exited(0).prints(&[
        "AQUEDUCT_TIMEOUT = 7.5",
        "AQUEDUCT_UNIQUE_ID = (hidden)",
        "AQUEDUCT_HANDLE (unset)",
        "default: ",
        "warning: environment variable AQUEDUCT_TIMOUT is not known; did you mean AQUEDUCT_TIMEOUT?",
    ]);
    for variable in aqueduct::internals::env::VARIABLES {
        assert!(outcome.stdout.contains(variable.name), "{} is missing", variable.name);
        assert!(outcome.stdout.contains(variable.meaning), "the meaning of {} is missing", variable.name);
    }
    assert!(!outcome.stdout.contains("c0ffee"), "{}", outcome.stdout);
}

const ONE_CALL: [&str; 10] = ["perf", "all-reduce", "-b", "8", "-e", "8", "-n", "1", "-w", "0"];

#[test]
fn an_unknown_variable_is_warned_of() {
    let outcome = run(aqueduct(&ONE_CALL).env("AQUEDUCT_TIMOUT", "3"))
        .exited(0)
        .says(&["environment variable AQUEDUCT_TIMOUT is not known; did you mean AQUEDUCT_TIMEOUT?"]);
    assert_eq!(outcome.stderr.matches("AQUEDUCT_TIMOUT is not known").count(), 1, "{}", outcome.stderr);
}

#[test]
fn a_bad_value_is_refused() {
    for (name, value, words) in [
        (
            "AQUEDUCT_TIMEOUT",
            "soon",
            "AQUEDUCT_TIMEOUT=soon is not valid; it takes a positive number of seconds",
        ),
        ("AQUEDUCT_DRIVER", "gpu", "AQUEDUCT_DRIVER=gpu is not valid; it takes auto or cuda or soft"),
        (
            "AQUEDUCT_SOCKET_IFNAME",
            "=nonesuch0",
            "no network interface fits AQUEDUCT_SOCKET_IFNAME==nonesuch0",
        ),
        ("AQUEDUCT_RANK", "1", "AQUEDUCT_WORLD_SIZE is not set"),
        ("AQUEDUCT_SCRATCH_BYTES", "100", "set AQUEDUCT_SCRATCH_BYTES to"),
    ] {
        let mut command = match name {
            "AQUEDUCT_SOCKET_IFNAME" => aqueduct(&["run", "-n", "1", "--", "true"]),
            _ => aqueduct(&ONE_CALL),
        };
        run(command.env(name, value)).exited(1).says(&[words]);
    }
}

#[test]
fn no_driver_where_one_is_asked_for() {
    let words = ["tried /nonexistent/libcuda.so.1", "install the NVIDIA driver"];
    run(aqueduct(&ONE_CALL).env("AQUEDUCT_DRIVER", "cuda")).exited(1).says(&words);
    let words = ["libc.so.6 lacks required functions: cuInit (CUDA 2.0)", "update the NVIDIA driver"];
    let mut command = aqueduct(&ONE_CALL);
    run(command.env("AQUEDUCT_DRIVER", "cuda").env("AQUEDUCT_CUDA_LIBRARY", "libc.so.6"))
        .exited(1)
        .says(&words);
}

#[test]
fn wrong_arguments_show_the_usage() {
    for wrong in
        [&["nonesuch"][..], &["perf", "nonesuch"], &["run", "-n", "0", "--", "true"], &["run", "-n", "2"]]
    {
        run(&mut aqueduct(wrong)).exited(2).says(&["error: ", "--help"]);
    }
}
