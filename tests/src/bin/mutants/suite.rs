//! Test binaries, and how one of their tests is run under one of the checks.

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aqueduct_tests::process;

/// A test binary and the beginnings of the names of its tests that are used; none means all.
#[derive(Clone, Debug)]
pub(crate) struct Suite {
    pub(crate) name: String,
    binary: PathBuf,
    only: Vec<String>,
}

impl Suite {
    /// From `NAME=BINARY` or `NAME=BINARY=PREFIX,PREFIX`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split('=');
        let (name, binary) = (fields.next()?.to_owned(), PathBuf::from(fields.next()?));
        let only = fields.next().map_or(Vec::new(), |list| list.split(',').map(str::to_owned).collect());
        Some(Self { name, binary, only })
    }

    /// The names of its tests, without those that are ignored.
    pub(crate) fn tests(&self) -> Vec<String> {
        let list = |more: &[&str]| {
            let output = Command::new(&self.binary).args(["--list", "--format", "terse"]).args(more).output();
            let output = output.unwrap_or_else(|e| panic!("{}: {e}", self.binary.display()));
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.lines().filter_map(|line| line.strip_suffix(": test").map(str::to_owned)).collect::<Vec<_>>()
        };
        let ignored = list(&["--ignored"]);
        let wanted =
            |test: &String| self.only.is_empty() || self.only.iter().any(|prefix| test.starts_with(prefix));
        list(&[]).into_iter().filter(|test| !ignored.contains(test) && wanted(test)).collect()
    }
}

/// Checks of the software device while a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Check {
    /// Results only; ranks are processes.
    Plain,
    /// Every access against the memory model; ranks are threads.
    Races,
    /// The same, and aligned barriers against diverged warps.
    Aligned,
    /// As [`Races`](Self::Races) with weak loads, whose choices the seed determines.
    Weak(u64),
}

impl Check {
    /// Checks under which a test is tried without a mutant; weak loads are the last.
    pub(crate) const ALL: [Self; 3] = [Self::Plain, Self::Races, Self::Weak(1)];

    pub(crate) fn name(self) -> String {
        match self {
            Self::Plain => "plain".to_owned(),
            Self::Races => "races".to_owned(),
            Self::Aligned => "aligned".to_owned(),
            Self::Weak(seed) => format!("weak {seed}"),
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix("weak ") {
            Some(seed) => seed.parse().ok().map(Self::Weak),
            None => [Self::Plain, Self::Races, Self::Aligned].into_iter().find(|check| check.name() == text),
        }
    }

    fn apply(self, command: &mut Command) {
        // A kernel that hangs is ended by the device or by its test, not by the runner.
        command.env("AQUEDUCT_SOFT_WATCHDOG", WATCHDOG.as_secs().to_string());
        command.env("AQUEDUCT_TEST_PATIENCE", PATIENCE.as_secs().to_string());
        let mut check = |what: &str| {
            command
                .env("AQUEDUCT_SOFT_CHECK", what)
                .env("AQUEDUCT_TEST_RANKS", "threads")
                .env("AQUEDUCT_SOFT_SMS", "2");
        };
        match self {
            Self::Plain => {}
            Self::Races => check("races"),
            Self::Aligned => check("races,aligned"),
            Self::Weak(seed) => {
                check("weak");
                command.env("AQUEDUCT_SOFT_SEED", seed.to_string());
            }
        }
    }
}

/// How long the software device lets a kernel hang.
const WATCHDOG: Duration = Duration::from_secs(2);
/// How long the tests of `ptx` wait for kernels.
const PATIENCE: Duration = Duration::from_secs(5);

/// How a run ended.
#[derive(Debug)]
pub(crate) enum End {
    Passed,
    /// The first test that failed, and what was printed while it ran.
    Failed(String, String),
    /// The runner ended it.
    TimedOut,
}

/// Runs `tests` of one suite one after the other; `output` receives what they print.
pub(crate) fn run(
    suite: &Suite,
    check: Check,
    tests: &[&str],
    variables: &[(&str, &Path)],
    output: &Path,
    limit: Duration,
) -> End {
    let file = File::create(output).unwrap_or_else(|e| panic!("{}: {e}", output.display()));
    let mut command = Command::new(&suite.binary);
    command.args(["--exact", "--nocapture", "--test-threads=1"]).args(tests).stdin(Stdio::null());
    command.stdout(file.try_clone().expect("a file has another descriptor")).stderr(file);
    // A group of its own, and a mark that ranks inherit, which have groups of their own: all of them end with it.
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let mark = format!("{}.{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
    command.process_group(0).env("RUST_BACKTRACE", "0").env(MARK, &mark);
    check.apply(&mut command);
    variables.iter().for_each(|(name, value)| {
        command.env(name, value);
    });
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{}: {e}", suite.binary.display()));
    let deadline = Instant::now() + limit;
    let text = || String::from_utf8_lossy(&std::fs::read(output).unwrap_or_default()).into_owned();
    // The first failure is enough: the tests after it may hang.
    while !process::has_exited(child.id()) && Instant::now() < deadline && !text().lines().any(is_failure) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = process::has_exited(child.id());
    // Before the child is reaped: then the number of its group may be another's.
    process::kill_group(child.id());
    kill_marked(&mark);
    let status = child.wait().expect("a child can be reaped");
    let text = text();
    if ended && status.success() {
        return End::Passed;
    }
    if !ended && !text.lines().any(is_failure) {
        return End::TimedOut;
    }
    let signal = status.signal().filter(|_| ended);
    match failed(&text, tests) {
        Some((test, printed)) => End::Failed(test.to_owned(), printed.to_owned()),
        None => End::Failed(format!("{} (signal {signal:?})", tests[0]), text),
    }
}

/// The variable by which processes of one run are found.
const MARK: &str = "MUTANTS_RUN";

/// Kills every process whose environment has `mark`, until there is none.
fn kill_marked(mark: &str) {
    let wanted = format!("{MARK}={mark}");
    let is_marked = |process: &Path| {
        let environment = std::fs::read(process.join("environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    loop {
        let processes = std::fs::read_dir("/proc").expect("/proc can be read").flatten();
        let marked: Vec<i32> = processes
            .filter(|entry| is_marked(&entry.path()))
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        if marked.is_empty() {
            return;
        }
        for pid in marked {
            // SAFETY: touches no memory; the process was one of this run a moment ago.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a line of the output ends a test that failed.
fn is_failure(line: &str) -> bool {
    line.ends_with("FAILED") && !line.starts_with("test result")
}

/// The first of `tests` that the output calls failed, with its own part of the output. That may contain the output of a test that it
/// has started.
fn failed<'a>(output: &'a str, tests: &[&str]) -> Option<(&'a str, &'a str)> {
    let (mut running, mut at) = (None, 0);
    for line in output.split_inclusive('\n') {
        // The test's own output may stand between its name and its end.
        if let Some((test, _)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "))
            && tests.contains(&test)
        {
            running = Some((test, at));
        }
        at += line.len();
        if is_failure(line.trim_end()) {
            break;
        }
    }
    running.map(|(test, start)| (test, &output[start..at]))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_first_failed_test_is_found() {
        let output = "test a ... ok\ntest b::c ... noise\nFAILED\ntest a::d ... FAILED\n\nfailures:\n    a::d\n    b::c\n";
        let tests = ["a", "b::c", "a::d"];
        let name = |output| failed(output, &tests).map(|(test, _)| test);
        assert_eq!(name(output), Some("b::c"));
        assert_eq!(name("test a ... ok\ntest b::c ... killed"), Some("b::c"));
        assert_eq!(name("killed"), None);
    }

    /// Run again by its name, the inner one would pass: it is ignored.
    #[test]
    fn a_failed_test_that_another_one_has_started_is_not_taken_for_that() {
        let output = "test a ... ok\ntest outer ... panicked: it said\ntest inner ... FAILED\nFAILED\n";
        assert_eq!(failed(output, &["a", "outer"]).map(|(test, _)| test), Some("outer"));
    }

    /// The tests of a run share one output: words of those before and behind the failed one are not its words.
    #[test]
    fn a_failed_test_comes_with_what_was_printed_while_it_ran() {
        let tests = ["a", "b", "c"];
        let failed = |output| failed(output, &tests);
        let output = "test a ... a race\nok\ntest b ... 1 is not 2\nFAILED\ntest c ... a race\nFAILED\n";
        assert_eq!(failed(output), Some(("b", "test b ... 1 is not 2\nFAILED\n")));
        assert_eq!(failed("test a ... a race\nok\ntest b ... killed"), Some(("b", "test b ... killed")));
        assert_eq!(
            failed("test a ... ok\ntest b ... a race\nFAILED"),
            Some(("b", "test b ... a race\nFAILED"))
        );
    }

    /// Writes a script that can be run at once. Another process holds the file while it is open for writing: a descriptor of this
    /// one would be copied into whatever another test starts meanwhile, and a file that anyone has open for writing cannot be run.
    pub(crate) fn write_script(path: &Path, text: &str) {
        let mut command = Command::new("sh");
        command.args(["-c", "cat >\"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
        let mut writer = command.spawn().expect("there is a shell");
        writer.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("cat reads");
        assert!(writer.wait().expect("the shell ends").success());
    }

    /// The run is ended by time while a process with a group of its own is there, and that ends, too.
    #[test]
    fn a_run_leaves_no_process_behind() {
        let folder = tempfile::tempdir().unwrap();
        let [script, pid, output] = ["suite", "pid", "output"].map(|name| folder.path().join(name));
        let text = "#!/bin/bash\nset -m\nsleep 1000 &\necho $! >\"$PID_FILE.new\"\nmv \"$PID_FILE.new\" \"$PID_FILE\"\nwait\n";
        write_script(&script, text);
        let suite = Suite::parse(&format!("x={}", script.display())).unwrap();
        let limit = Duration::from_secs(2);
        let end = run(&suite, Check::Plain, &["t"], &[("PID_FILE", &pid)], &output, limit);
        assert!(matches!(end, End::TimedOut), "{end:?}");
        let pid = std::fs::read_to_string(pid).unwrap();
        let environment = std::fs::read(Path::new("/proc").join(pid.trim()).join("environ"));
        assert!(environment.unwrap_or_default().is_empty(), "{pid} still runs");
    }

    #[test]
    fn suites_are_read() {
        let suite = Suite::parse("it=/x/y=a::,b::").unwrap();
        assert_eq!((suite.name.as_str(), suite.only.len()), ("it", 2));
        assert!(Suite::parse("it").is_none());
    }
}
