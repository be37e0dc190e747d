//! `aqueduct info`, and messages about the environment.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::support::{aqueduct, run, script};

#[test]
fn on_a_machine_with_nothing() {
    run(&mut aqueduct(&["info"])).exited(0).prints(&[
        concat!("aqueduct ", env!("CARGO_PKG_VERSION")),
        "NVIDIA driver: none: Driver::load: unsupported: no CUDA driver library could be opened",
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
fn what_devices_lack_is_not_listed() {
    for (lacks, words) in [
        ("posix_fd", ["handles legacy-ipc dma-buf\n", " self   NV"]),
        ("vmm", ["handles legacy-ipc dma-buf\n", " self   NV"]),
        ("ipc,dma_buf", ["handles posix-fd\n", " self   NV"]),
        ("posix_fd,ipc,dma_buf", ["handles none\n", " self   NV"]),
        ("native_atomics", ["handles posix-fd legacy-ipc dma-buf\n", " self  P2P"]),
        ("p2p", ["handles posix-fd legacy-ipc dma-buf\n", " self    -"]),
    ] {
        let outcome = run(aqueduct(&["info"]).env("AQUEDUCT_SOFT_LACKS", lacks)).exited(0).prints(&words);
        assert!(!outcome.stdout.contains("refused"), "{lacks}: {}", outcome.stdout);
    }
}

#[test]
fn with_an_invalid_software_device() {
    run(aqueduct(&["info"]).env("AQUEDUCT_SOFT_DEVICES", "many")).exited(1).prints(&[
        "NVIDIA driver: none",
        "software device: unusable",
        "jobs use: nothing: ",
    ]);
}

#[test]
fn a_bad_environment_is_told_by_one_sentence() {
    let outcome = run(aqueduct(&["info"]).env("AQUEDUCT_TIMEOUT", "soon")).exited(1).prints(&[
        "jobs use: nothing, because of the environment\n",
        "environment: AQUEDUCT_TIMEOUT=soon is not valid; it takes a positive number of seconds, or a time such as 500ms, 5s or 2m\n",
    ]);
    assert_eq!(outcome.stderr, "");
    run(aqueduct(&["info", "--env"]).env("AQUEDUCT_TIMEOUT", "soon")).exited(0);
}

/// Also where only a part of a job reads it: the report is complete, and names each.
#[test]
fn every_bad_variable_is_named_behind_all_else() {
    for (name, value, words) in [
        ("AQUEDUCT_SOFT_SMS", "0", "environment: AQUEDUCT_SOFT_SMS=0 is not valid; it takes "),
        (
            "AQUEDUCT_TUNING",
            "/nonexistent",
            "environment: AQUEDUCT_TUNING=/nonexistent is not valid; it takes ",
        ),
        ("AQUEDUCT_RANK", "1", "AQUEDUCT_WORLD_SIZE is not set"),
        ("AQUEDUCT_RANK", "first", "AQUEDUCT_RANK=first is not valid"),
        ("AQUEDUCT_SOCKET_IFNAME", "nonesuch0", "no network interface fits the names nonesuch0"),
        ("AQUEDUCT_UNIQUE_ID", "zz", "AQUEDUCT_UNIQUE_ID is not valid: "),
    ] {
        let outcome = run(aqueduct(&["info"]).env(name, value)).exited(1);
        let last = outcome.stdout.lines().last().unwrap_or_default().to_owned();
        assert!(last.starts_with("environment: ") && last.contains(words), "{name}: {last}");
        assert_eq!(outcome.stdout.matches("environment: ").count(), 1, "{name}: {}", outcome.stdout);
        outcome.prints(&["NVIDIA driver: none", "software device: ", "jobs use: nothing"]);
    }
    let mut several = aqueduct(&["info"]);
    several.env("AQUEDUCT_TIMEOUT", "soon").env("AQUEDUCT_SOFT_SMS", "0");
    run(&mut several)
        .exited(1)
        .prints(&["environment: AQUEDUCT_TIMEOUT=soon", "environment: AQUEDUCT_SOFT_SMS=0"]);
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

/// All names in the sources that look like variables of ours, but for those that only tests use.
fn names_in_sources() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = BTreeSet::new();
    let mut folders: Vec<PathBuf> =
        ["core/src", "sys/cuda-driver-sys/src", "sys/rdma-core-sys/src", "sys/cuda-soft/src", "tools/src"]
            .map(|folder| root.join(folder))
            .into();
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && !path.ends_with("env/variables.rs")
            {
                names(&std::fs::read_to_string(&path).unwrap(), &mut found);
            }
        }
    }
    found.retain(|name| !name.starts_with("AQUEDUCT_TEST_"));
    found
}

/// Adds the whole names in `text`: not `AQUEDUCT_IB_*`, which stands for several. The library's own parser leaves out the
/// prefix, as in `text("LOG")`.
fn names(text: &str, found: &mut BTreeSet<String>) {
    let of_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    for (at, prefix) in text.match_indices("AQUEDUCT_") {
        let rest = &text[at + prefix.len()..];
        let end = rest.find(|c| !of_name(c)).unwrap_or(rest.len());
        if end > 0 && !rest[..end].ends_with('_') {
            found.insert(format!("{prefix}{}", &rest[..end]));
        }
    }
    if text.contains("pub const PREFIX: &str = \"AQUEDUCT_\";") {
        for call in ["text(\"", "number(\"", "choice(\n                \""] {
            for (at, _) in text.match_indices(call) {
                let rest = &text[at + call.len()..];
                found.insert(format!("AQUEDUCT_{}", &rest[..rest.find('"').unwrap()]));
            }
        }
    }
}

#[test]
fn every_variable_that_the_code_reads_is_listed_and_no_other() {
    let listed: BTreeSet<String> = run(&mut aqueduct(&["info", "--env"]))
        .exited(0)
        .stdout
        .lines()
        .filter_map(|line| line.split(' ').next())
        .filter(|word| word.starts_with("AQUEDUCT_"))
        .map(str::to_owned)
        .collect();
    let read = names_in_sources();
    assert!(read.len() > 30, "{read:?}");
    assert_eq!(read, listed);
}

#[test]
fn a_job_warns_of_an_unknown_variable_once() {
    let mut job = aqueduct(&[&["run", "-n", "3", "--", "aqueduct"][..], &ONE_CALL].concat());
    let outcome = run(job.env("AQUEDUCT_SOFT_DEVICE", "3")).exited(0);
    let words = "AQUEDUCT_SOFT_DEVICE is not known; did you mean AQUEDUCT_SOFT_DEVICES?";
    assert_eq!(outcome.stderr.matches(words).count(), 1, "{outcome:#?}");
}

/// Also where the parts that are selected do not exist, and so write nothing.
#[test]
fn a_job_warns_of_an_unknown_part_of_the_log_once() {
    let mut job = aqueduct(&[&["run", "-n", "3", "--", "aqueduct"][..], &ONE_CALL].concat());
    let outcome = run(job.env("AQUEDUCT_LOG", "info,nett")).exited(0);
    let words = "AQUEDUCT_LOG names parts that aqueduct does not have (nett); its parts are abort, bootstrap";
    assert_eq!(outcome.stderr.matches(words).count(), 1, "{outcome:#?}");
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
            "no network interface fits the names =nonesuch0 and the family Any (of AQUEDUCT_SOCKET_IFNAME",
        ),
        ("AQUEDUCT_RANK", "1", "AQUEDUCT_WORLD_SIZE is not set"),
        (
            "AQUEDUCT_UNIQUE_ID",
            "zz",
            "AQUEDUCT_UNIQUE_ID is not valid: this is not a unique id of aqueduct: it has 2 characters instead of 256",
        ),
        ("AQUEDUCT_PEER_TIMEOUT", "0.1", "at least 1.25 seconds, or 0 for never"),
        (
            "AQUEDUCT_SCRATCH_BYTES",
            "0",
            "AQUEDUCT_SCRATCH_BYTES=0 is not valid; it takes a number of bytes, at least 1",
        ),
        ("AQUEDUCT_SCRATCH_BYTES", "100", "set AQUEDUCT_SCRATCH_BYTES to"),
    ] {
        let mut command = match name {
            "AQUEDUCT_SOCKET_IFNAME" => aqueduct(&["run", "-n", "1", "--", "true"]),
            // One rank alone needs no scratch.
            "AQUEDUCT_SCRATCH_BYTES" => {
                aqueduct(&[&["run", "-n", "2", "--", "aqueduct"][..], &ONE_CALL].concat())
            }
            _ => aqueduct(&ONE_CALL),
        };
        // A value that is too small for one operation fails the job.
        let code = if (name, value) == ("AQUEDUCT_SCRATCH_BYTES", "100") { 1 } else { 2 };
        run(command.env(name, value)).exited(code).says(&[words]);
    }
    // Plans are checked without sockets, for hosts that may have other interfaces. This one is not there.
    let mut plans = aqueduct(&["plan", "check", "/nonexistent"]);
    run(plans.env("AQUEDUCT_SOCKET_IFNAME", "=nonesuch0")).exited(2).says(&["/nonexistent: No such file"]);
    // A plan that runs does.
    let mut ranks = aqueduct(&["plan", "run", "/nonexistent"]);
    run(ranks.env("AQUEDUCT_SOCKET_IFNAME", "=nonesuch0")).exited(2).says(&["no network interface fits"]);
}

/// The launcher refuses for all ranks.
#[test]
fn a_bad_value_is_refused_once() {
    for (name, value) in [
        ("AQUEDUCT_LOG", "loud"),
        ("AQUEDUCT_DRIVER", "gpu"),
        ("AQUEDUCT_TIMEOUT", "soon"),
        ("AQUEDUCT_PEER_TIMEOUT", "100ms"),
        ("AQUEDUCT_SCRATCH_BYTES", "0"),
        // Of the software device.
        ("AQUEDUCT_SOFT_SMS", "0"),
        // A file that is not there, and one that is no table.
        ("AQUEDUCT_TUNING", "/nonexistent"),
        ("AQUEDUCT_TUNING", "/dev/null"),
    ] {
        for arguments in
            [&["run", "-n", "3", "--", "aqueduct"][..], &[], &["selftest"], &["perf", "all-reduce"]]
        {
            let outcome = run(aqueduct(arguments).env(name, value)).exited(2);
            assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:#?}");
            outcome.says(&[&format!("aqueduct: {name}={value} is not valid; it takes ")]);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe").to_str().unwrap().to_owned();
    run(&mut script(&format!("mkfifo {pipe}"))).exited(0);
    for (name, value, words) in [
        ("AQUEDUCT_LOG_FILE", "/nonexistent/x", "cannot open AQUEDUCT_LOG_FILE=/nonexistent/x"),
        // Nobody reads it, and nobody writes to it.
        ("AQUEDUCT_LOG_FILE", &*pipe, "cannot open AQUEDUCT_LOG_FILE="),
        ("AQUEDUCT_TUNING", &*pipe, "is a pipe; every rank reads the table, so it must be a file"),
    ] {
        for arguments in [&["run", "-n", "3", "--", "aqueduct"][..], &[], &["perf", "all-reduce"]] {
            let outcome = run(aqueduct(arguments).env(name, value)).exited(2);
            assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:#?}");
            outcome.says(&[words]);
        }
    }
    // Help and version need no settings.
    run(aqueduct(&["--version"]).env("AQUEDUCT_LOG", "loud")).exited(0);
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

/// As text, the path would name another file.
#[test]
fn the_drivers_path_may_have_any_bytes() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().find(|line| line.ends_with("/libc.so.6")).expect("this test uses libc");
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join(OsStr::from_bytes(b"caf\xe9.so"));
    std::os::unix::fs::symlink(&libc[libc.find('/').unwrap()..], &library).unwrap();
    let mut command = aqueduct(&["info"]);
    let outcome = run(command.env("AQUEDUCT_CUDA_LIBRARY", &library).env("AQUEDUCT_DRIVER", "cuda"));
    assert_eq!(
        outcome.stdout.matches("lacks required functions").count(),
        2,
        "shown and selected: {outcome:#?}"
    );
}
