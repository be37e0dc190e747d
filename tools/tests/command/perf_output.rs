//! Files that `aqueduct perf` writes beside the table, its refusals, and the rows that an interrupted run leaves.

use std::os::fd::{FromRawFd, OwnedFd};
use std::process::Stdio;
use std::time::Instant;

use crate::support::{
    LIMIT, PerfFile, aqueduct, perf, perf_command, rows, run, start, start_with, temporary,
};

const SMALL: [&str; 9] = ["all-reduce", "-b", "8", "-e", "32", "-n", "3", "-w", "0"];

#[test]
fn json_lines_instead_of_the_table_and_beside_it() {
    let outcome = perf("2", &[&SMALL[..], &["--json", "-"]].concat()).exited(0);
    check(&PerfFile::parse(&outcome.stdout));

    let path = temporary("rows.jsonl");
    let outcome = perf("2", &[&SMALL[..], &["-J", path.to_str().unwrap()]].concat()).exited(0);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    check(&PerfFile::parse(&text));
    assert_eq!(rows(&outcome.stdout).len(), 3, "the table is printed as well");
}

/// Checks the rows of 8, 16 and 32 bytes over two ranks, each out of place and in place.
fn check(file: &PerfFile) {
    assert_eq!(file.header["operation"], "all-reduce");
    let sizes: Vec<u64> = file.rows.iter().map(|row| row["size_bytes"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [8, 8, 16, 16, 32, 32]);
    for (index, row) in file.rows.iter().enumerate() {
        assert_eq!(row["count"].as_u64(), row["size_bytes"].as_u64().map(|bytes| bytes / 4));
        assert_eq!((row["datatype"].as_str(), row["reduction"].as_str()), (Some("f32"), Some("sum")));
        assert_eq!(row["place"], ["out-of-place", "in-place"][index % 2]);
        assert_eq!((row["wrong"].as_u64(), row["samples"].as_u64()), (Some(0), Some(3)));
        let number = |name: &str| row[name].as_f64().unwrap();
        assert!(0.0 < number("time_min_us") && number("time_min_us") <= number("time_p50_us"), "{row}");
        assert!(number("time_p50_us") <= number("time_max_us"), "{row}");
    }
    let footer = file.footer.as_ref().expect("the run came to its end");
    assert_eq!((footer["rows"].as_u64(), footer["wrong"].as_u64()), (Some(6), Some(0)));
}

/// Every operation would take long here: so the refusal comes before any work.
#[test]
fn files_that_cannot_be_written_are_refused_before_any_work() {
    let long = ["-n", "1000000", "-b", "1M", "-e", "1M"];
    for operation in [
        &["all-reduce", "-n", "1000000", "-b", "1M", "-e", "1M"][..],
        &["put", "-n", "1000000", "-b", "1M", "-e", "1M"],
        &["write", "-t", "CudaIpc", "-n", "1000000", "-b", "1M", "-e", "1M"],
        &["port-lat", "-t", "CudaIpc", "-n", "1000000"],
        &["fifo", "-n", "1000000000", "-T", "1"],
        &["bootstrap", "-n", "128", "-r", "10000"],
        &["startup"],
    ] {
        for option in ["-J", "--csv"] {
            let words = ["perf"].iter().chain(operation);
            let words: Vec<&str> = words.chain(&[option, "/nonexistent/folder/file"]).copied().collect();
            let mut command = aqueduct(&words);
            if operation.contains(&"1M") || operation.contains(&"CudaIpc") {
                // The first of two ranks; it does not even look for the other.
                command.env("OMPI_COMM_WORLD_RANK", "0").env("OMPI_COMM_WORLD_SIZE", "2");
            }
            let outcome = run(&mut command).exited(1);
            assert_eq!(outcome.stdout, "", "{operation:?}");
            outcome.says(&["cannot write /nonexistent/folder/file: No such file or directory"]);
        }
    }
    // Of several ranks the one that writes refuses.
    perf("2", &[&["all-reduce"], &long[..], &["-J", "/"]].concat())
        .exited(1)
        .says(&["cannot write /: Is a directory"]);
    perf("1", &["all-reduce", "-J", "-", "--csv", "-"]).exited(2).says(&["--json and --csv both name -"]);
}

#[test]
fn a_full_disk_is_an_error_before_the_first_row() {
    let outcome = perf("2", &["all-reduce", "-n", "1000000", "-b", "1M", "-e", "1M", "-J", "/dev/full"]);
    outcome.exited(1).says(&["cannot write /dev/full: No space left on device"]);
}

/// Table, JSON and CSV alike; a reader that has gone ends a run quietly, as it does other commands.
#[test]
fn standard_output_that_cannot_be_written_is_an_error() {
    for options in [&[][..], &["-J", "-"], &["--csv", "-"], &["--dump", "-"]] {
        for operation in [&SMALL[..], &["startup"], &["bootstrap", "-n", "2"]] {
            let mut command = aqueduct(&[&["perf"], operation, options].concat());
            let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
            let outcome = start_with(command.stdin(Stdio::null()), full).finish().exited(1);
            let words = "cannot write standard output: No space left on device";
            assert_eq!(outcome.stderr.matches(words).count(), 1, "{operation:?} {options:?}: {outcome:#?}");
            let (_, closed) = std::io::pipe().unwrap();
            let outcome = start_with(&mut command, closed).finish().exited(141);
            assert_eq!(outcome.stderr, "", "{operation:?} {options:?}");
        }
    }
}

/// Interrupts a run after its first rows, while it works on a long one.
#[test]
fn an_interrupt_keeps_the_rows_so_far() {
    let (json, csv) = (temporary("cut.jsonl"), temporary("cut.csv"));
    let arguments =
        ["all-reduce", "-b", "8", "-e", "8M", "-f", "1048576", "-n", "10000", "-w", "0", "-c", "0"];
    let files = ["-J", json.to_str().unwrap(), "--csv", csv.to_str().unwrap()];
    // The first size is quick enough with plain calls, the second takes minutes.
    let job = start(&mut perf_command("1", &[&arguments[..], &files].concat()));
    let since = Instant::now();
    let lines = |path: &std::path::Path| std::fs::read_to_string(path).unwrap_or_default().lines().count();
    while lines(&csv) < 4 {
        assert!(since.elapsed() < LIMIT / 2, "no row after {:?}", since.elapsed());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    job.signal(libc::SIGINT);
    job.finish().exited(130);
    let text = std::fs::read_to_string(&json).unwrap();
    let file = PerfFile::parse(&text);
    assert_eq!((file.rows.len(), file.footer.is_none()), (2, true), "{text}");
    assert_eq!(file.rows[1]["place"], "in-place");
    let text = std::fs::read_to_string(&csv).unwrap();
    let header = text.lines().next().unwrap().strip_prefix("# ").expect("a comment");
    assert_eq!(PerfFile::parse(header).header["operation"], "all-reduce");
    for path in [json, csv] {
        std::fs::remove_file(path).unwrap();
    }
}

/// Interrupts a run between a row and the one beside it.
#[test]
fn an_interrupt_keeps_a_row_whose_pair_is_not_done() {
    for (ranks, arguments, about) in [
        ("2", &["ll16", "-b", "8", "-e", "8"][..], ("algorithm", "bare")),
        ("1", &["all-reduce", "-b", "8", "-e", "8"], ("place", "out-of-place")),
    ] {
        let (json, csv) = (temporary("half.jsonl"), temporary("half.csv"));
        let files = ["--duration", "4s", "-J", json.to_str().unwrap(), "--csv", csv.to_str().unwrap()];
        let job = start(&mut perf_command(ranks, &[arguments, &files].concat()));
        let since = Instant::now();
        let lines =
            |path: &std::path::Path| std::fs::read_to_string(path).unwrap_or_default().lines().count();
        while lines(&json) < 2 || lines(&csv) < 3 {
            assert!(since.elapsed() < LIMIT / 2, "no row after {:?}", since.elapsed());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        job.signal(libc::SIGINT);
        job.finish().exited(130);
        let file = PerfFile::parse(&std::fs::read_to_string(&json).unwrap());
        assert_eq!((file.rows.len(), file.footer), (1, None), "{arguments:?}");
        assert_eq!(file.rows[0][about.0], about.1, "{arguments:?}");
        [json, csv].iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }
}

#[test]
fn a_pipe_that_nobody_reads_is_refused() {
    let pipe = temporary("pipe");
    let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
    // SAFETY: the name is a C string that outlives the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    for option in ["-J", "--csv", "--dump"] {
        let outcome = perf("1", &[&SMALL[..], &[option, pipe.to_str().unwrap()]].concat()).exited(2);
        outcome.says(&["nobody reads this pipe; start its reader first, such as `cat "]);
    }
    std::fs::remove_file(pipe).unwrap();
}

#[test]
fn a_run_that_is_refused_leaves_files_as_they_were() {
    let (old, new) = (temporary("old.jsonl"), temporary("new.jsonl"));
    std::fs::write(&old, "yesterday").unwrap();
    for path in [&old, &new] {
        perf("1", &["put", "-J", path.to_str().unwrap()]).exited(2).says(&["perf put works on pairs"]);
    }
    assert_eq!((std::fs::read_to_string(&old).unwrap().as_str(), new.exists()), ("yesterday", false));
    std::fs::remove_file(old).unwrap();
}

#[test]
fn numbers_that_measure_nothing_are_refused() {
    for (arguments, words) in [
        (&["all-reduce", "-n", "0"][..], "'0' for '--iterations"),
        (&["put", "-n", "0"], "'0' for '--iterations"),
        (&["all-reduce", "-i", "0"], "a step of 0 bytes never reaches the largest size"),
        (&["all-reduce", "-f", "1"], "'1' for '--step-factor"),
        (&["write", "-t", "CudaIpc", "-n", "0"], "'0' for '--iterations"),
        (&["write", "-t", "CudaIpc", "-W", "0"], "'0' for '--window"),
        (&["port-put", "-t", "CudaIpc", "-W", "0"], "'0' for '--window"),
        (&["port-put", "-t", "CudaIpc", "-n", "0"], "'0' for '--iterations"),
        (&["port-lat", "-t", "CudaIpc", "-r", "0"], "'0' for '--rounds"),
        (&["fifo", "-n", "0"], "'0' for '--triggers"),
        (&["fifo", "-r", "0"], "'0' for '--rounds"),
        (&["bootstrap", "-n", "2", "--timeout", "0"], "'0' for '--timeout"),
        (&["bootstrap", "-n", "2", "-r", "0"], "'0' for '--repeat"),
    ] {
        run(&mut aqueduct(&[&["perf"], arguments].concat())).exited(2).says(&[words]);
    }
    // No warm-up is a fine warm-up.
    perf("2", &["put", "-b", "8", "-e", "8", "-n", "1", "-w", "0"]).exited(0);
}

/// The software device takes long for a large call: one is timed, and checked as well, unless the user wants more.
#[test]
fn a_slow_call_is_made_once_and_checked() {
    for (options, samples) in
        [(&[][..], 1), (&["-c", "2"], 1), (&["-n", "2"], 2), (&["-w", "1", "-c", "0"], 1)]
    {
        let large = ["all-reduce", "-b", "2M", "-e", "2M", "-J", "-"];
        let file = PerfFile::parse(&perf("2", &[&large[..], options].concat()).exited(0).stdout);
        let checked = if options.contains(&"0") { None } else { Some(0) };
        for row in &file.rows {
            assert_eq!((row["samples"].as_u64(), row["wrong"].as_u64()), (Some(samples), checked), "{row}");
        }
    }
}

#[test]
fn sizes_that_are_no_whole_elements_are_rounded_and_told() {
    let outcome =
        perf("2", &["all-reduce", "-b", "6", "-e", "50", "-f", "3", "-n", "1", "-w", "0"]).exited(0);
    let outcome =
        outcome.prints(&["# sizes are rounded down to whole elements of 4 bytes: 6 is 4, 18 is 16"]);
    let sizes: Vec<String> = rows(&outcome.stdout).iter().map(|row| row[0].to_owned()).collect();
    assert_eq!(sizes, ["4", "16"]);
    let outcome = perf("2", &["ll16", "-b", "9", "-e", "9", "-n", "5", "-w", "0"]).exited(0);
    outcome.prints(&["# sizes are rounded up to whole packets of 8 bytes: 9 is 16"]);
    let outcome = perf("2", &["all-reduce", "-b", "8", "-e", "8", "-n", "1"]).exited(0);
    assert!(!outcome.stdout.contains("rounded"), "{}", outcome.stdout);
}

#[test]
fn a_signal_has_no_bandwidth() {
    let outcome = perf("2", &["signal", "-n", "10", "-w", "0"]).exited(0);
    let rows = rows(&outcome.stdout);
    assert_eq!(rows.len(), 1, "{}", outcome.stdout);
    assert!(rows[0][5].parse::<f64>().unwrap() > 0.0, "a time in {rows:?}");
    assert_eq!(rows[0][6..9], ["-", "-", "N/A"], "{rows:?}");
    assert!(!outcome.stdout.contains("Avg bus bandwidth"), "{}", outcome.stdout);
    let outcome = perf("2", &["signal", "-n", "10", "-w", "0", "-J", "-"]).exited(0);
    assert!(!outcome.stdout.contains("bandwidth_gb_s"), "{}", outcome.stdout);
}

/// The average of a put is that of its own row, not of the copy engine's beside it.
#[test]
fn an_average_is_over_measured_rows() {
    let path = temporary("put.jsonl");
    let arguments = ["put", "-b", "64K", "-e", "64K", "-n", "3", "-w", "0", "-J", path.to_str().unwrap()];
    let outcome = perf("2", &arguments).exited(0);
    let file = PerfFile::parse(&std::fs::read_to_string(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    let [engine, ours] = &file.rows[..] else { panic!("two rows: {file:?}") };
    assert_eq!((&ours["algorithm"], &engine["algorithm"]), (&"hb".into(), &"copy-eng".into()));
    let bandwidth = |row: &serde_json::Value| row["bus_bandwidth_gb_s"].as_f64().unwrap();
    assert_eq!(file.footer.unwrap()["bus_bandwidth_mean_gb_s"].as_f64(), Some(bandwidth(ours)));
    assert!(bandwidth(ours) != bandwidth(engine), "the test would prove nothing");
    outcome.prints(&[&format!("# Avg bus bandwidth    : {:.4}\n", bandwidth(ours))]);
}

/// Runs with standard error at a terminal, which gets a line while a row takes long; without a terminal there is none.
#[test]
fn progress_is_shown_on_a_terminal_only() {
    let arguments = ["perf", "all-reduce", "-b", "8", "-e", "8", "--duration", "1500ms"];
    let (mut ours, theirs) = terminal();
    let mut command = aqueduct(&arguments);
    let (shown, outcome) = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut bytes = Vec::new();
            // Reading from a terminal whose other end is closed is an error.
            let _ = std::io::Read::read_to_end(&mut ours, &mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let outcome = command.stderr(theirs).stdout(Stdio::null()).status().unwrap();
        drop(command);
        (reader.join().unwrap(), outcome)
    });
    assert!(outcome.success());
    assert!(shown.contains("8 B: sample ") && shown.contains(" s so far"), "{shown:?}");
    assert!(shown.ends_with("\r\u{1b}[2K"), "the line is erased: {shown:?}");
    let outcome = run(&mut aqueduct(&arguments)).exited(0);
    assert_eq!(outcome.stderr, "");
}

/// Both ends of a new pseudo-terminal: what is written to the second can be read from the first.
fn terminal() -> (std::fs::File, OwnedFd) {
    let (mut ours, mut theirs) = (0, 0);
    let (name, settings, size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
    // SAFETY: both are live outputs; the rest may be null.
    let made = unsafe { libc::openpty(&raw mut ours, &raw mut theirs, name, settings, size) };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: new descriptors that nobody else owns; so is the next one.
    let ours = unsafe { std::fs::File::from_raw_fd(ours) };
    // SAFETY: as above.
    (ours, unsafe { OwnedFd::from_raw_fd(theirs) })
}
