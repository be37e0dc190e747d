//! Whether another process of this host still runs, beyond confusion with a later one of the same number.
#![cfg_attr(not(test), forbid(unsafe_code))]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Distinguishes a process from all others that have or had its process id; zeros if /proc cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Birth {
    /// The namespace in which its number counts.
    pub(crate) namespace: u64,
    /// When it was started, in clock ticks since the host was.
    pub(crate) started: u64,
}

impl Birth {
    /// Of this process.
    pub(crate) fn of_this_process() -> Self {
        let namespace = std::fs::metadata("/proc/self/ns/pid").map(|file| file.ino());
        let started = std::fs::read_to_string("/proc/self/stat").ok().and_then(|stat| Stat::parse(&stat));
        match (namespace, started) {
            (Ok(namespace), Some(stat)) => Self { namespace, started: stat.started },
            _ => Self::default(),
        }
    }
}

/// Whether process `pid` of this namespace, started then, runs. False also once all its threads exit: the kernel marks a
/// thread as exiting before it closes the sockets of its process.
pub(crate) fn is_running(pid: u32, started: u64) -> bool {
    match Stat::read(Path::new(&format!("/proc/{pid}/stat"))) {
        Ok(Some(stat)) if stat.started != started => false,
        // It describes the main thread, and the process goes on while any other thread does.
        Ok(Some(stat)) => {
            !stat.has_ended() || has_running_thread(|| look(Path::new(&format!("/proc/{pid}/task"))))
        }
        Ok(None) => true,
        Err(error) => !is_gone(&error),
    }
}

/// Whether a thread runs, or may run, of the process at whose threads each `look` looks.
fn has_running_thread(mut look: impl FnMut() -> Look) -> bool {
    /// Looks at the threads of a process that may be ending just now.
    const LOOKS: u32 = 1000;
    let mut before = None;
    for _ in 0..LOOKS {
        match look() {
            // A thread that starts another one and ends between two reads hides the new one from one look, but not from two.
            Look::Ended(threads) if before.as_ref() == Some(&threads) => return false,
            Look::Ended(threads) => before = Some(threads),
            Look::Changed => before = None,
            Look::Running => return true,
            Look::Gone => return false,
        }
    }
    true
}

/// Result of one look at all threads of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Look {
    /// A thread runs, or the kernel does not say.
    Running,
    /// All threads, each of which has ended and is still listed.
    Ended(BTreeSet<OsString>),
    /// A thread was removed meanwhile, which can cut the list short.
    Changed,
    /// There is no such process any more.
    Gone,
}

/// Looks at the threads in `tasks`, which is `/proc/PID/task`.
fn look(tasks: &Path) -> Look {
    let entries = match std::fs::read_dir(tasks) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Look::Gone,
        Err(_) => return Look::Running,
    };
    // All names before any state: a thread that starts after this is found by the next look.
    let Ok(threads) =
        entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<BTreeSet<_>, _>>()
    else {
        return Look::Changed;
    };
    for thread in &threads {
        match Stat::read(&tasks.join(thread).join("stat")) {
            Ok(Some(stat)) if stat.has_ended() => {}
            Err(error) if is_gone(&error) => return Look::Changed,
            _ => return Look::Running,
        }
    }
    if threads.is_empty() { Look::Changed } else { Look::Ended(threads) }
}

fn is_gone(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Fields of `/proc/PID/stat` (proc_pid_stat(5)).
struct Stat {
    state: char,
    exiting: bool,
    started: u64,
}

impl Stat {
    /// `None` if the file does not have the form that this version knows.
    fn read(path: &Path) -> std::io::Result<Option<Self>> {
        std::fs::read_to_string(path).map(|text| Self::parse(&text))
    }

    /// The thread runs no more code of its program.
    fn has_ended(&self) -> bool {
        self.exiting || matches!(self.state, 'Z' | 'X' | 'x')
    }

    fn parse(text: &str) -> Option<Self> {
        // PF_EXITING of the kernel's `include/linux/sched.h`.
        const EXITING: u64 = 4;
        // The name of the program, in parentheses, may contain anything.
        let mut fields = text[text.rfind(')')? + 1..].split_whitespace();
        let state = fields.next()?.chars().next()?;
        let flags: u64 = fields.nth(5)?.parse().ok()?;
        let started = fields.nth(12)?.parse().ok()?;
        Some(Self { state, exiting: flags & EXITING != 0, started })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_runs_until_it_is_killed_also_while_nobody_has_reaped_it() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let stat = Stat::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap()).unwrap();
        assert!(is_running(pid, stat.started));
        assert!(!is_running(pid, stat.started + 1), "another process of this number");
        child.kill().unwrap();
        // Its end is noticed before it is waited for.
        while is_running(pid, stat.started) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!is_running(pid, stat.started));
    }

    /// Its main thread ends while another one goes on until the standard input ends.
    #[test]
    #[ignore = "runs only as the child of a_process_runs_while_any_of_its_threads_does"]
    fn child_whose_main_thread_ends() {
        std::thread::spawn(|| {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            std::process::exit(0);
        });
        extern "C" fn end_this_thread(_: libc::c_int) {
            // SAFETY: takes no pointer, and nobody joins the main thread of this process.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        let handler: extern "C" fn(libc::c_int) = end_this_thread;
        let pid = std::process::id();
        // SAFETY: the handler lives as long as the process, makes one system call and touches no memory.
        unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
        // SAFETY: takes no pointer. The main thread has the number of the process, and is there.
        unsafe { libc::syscall(libc::SYS_tgkill, pid, pid, libc::SIGUSR1) };
        loop {
            std::thread::park();
        }
    }

    #[test]
    fn a_process_runs_while_any_of_its_threads_does() {
        let name = "group::birth::tests::child_whose_main_thread_ends";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--ignored", "--test-threads=1"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        let main = || Stat::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap()).unwrap();
        let deadline = crate::deadline::Deadline::after(std::time::Duration::from_secs(30));
        while main().state != 'Z' {
            assert!(!deadline.expired(), "the main thread does not end");
            std::thread::yield_now();
        }
        assert!(child.try_wait().unwrap().is_none(), "the other thread has ended");
        assert!(is_running(pid, main().started), "its main thread has ended, another one has not");
        drop(child.stdin.take());
        while is_running(pid, main().started) {
            assert!(!deadline.expired(), "its end is not noticed");
            std::thread::yield_now();
        }
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn names_with_parentheses_are_skipped() {
        let text = "7 (a) b) (c) S 1 7 7 0 -1 4194308 1 2 3 4 5 6 7 8 20 0 1 0 4711 8 9";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.state, stat.exiting, stat.started), ('S', true, 4711));
        let me = Birth::of_this_process();
        assert!(me.started > 0 && is_running(std::process::id(), me.started));
    }

    #[test]
    fn a_thread_that_hides_from_one_look_is_found_by_the_next() {
        let ended = |name: &str| Look::Ended([OsString::from(name)].into());
        let (one, two) = (ended("1"), ended("2"));
        for (looks, runs) in [
            (vec![Look::Running], true),
            (vec![Look::Gone], false),
            (vec![one.clone(), one.clone()], false),
            (vec![one.clone(), two.clone(), two.clone()], false),
            (vec![one.clone(), two, one.clone(), Look::Running], true),
            (vec![one.clone(), Look::Changed, one, Look::Running], true),
        ] {
            let mut left = looks.iter().cloned();
            assert_eq!(has_running_thread(|| left.next().unwrap()), runs, "{looks:?}");
            assert_eq!(left.next(), None, "{looks:?}");
        }
        assert!(has_running_thread(|| Look::Changed), "nobody knows");
    }

    #[test]
    fn threads_are_judged_by_what_the_kernel_says_and_run_where_it_does_not() {
        let tasks = std::env::temp_dir().join(format!("aqueduct-test-tasks-{}", std::process::id()));
        let says = |thread: &str, text: &str| {
            std::fs::create_dir_all(tasks.join(thread)).unwrap();
            std::fs::write(tasks.join(thread).join("stat"), text).unwrap();
        };
        let stat = |state: char, flags: u32| {
            format!("7 (x) {state} 1 7 7 0 -1 {flags} 1 2 3 4 5 6 7 8 20 0 1 0 4711 8")
        };
        assert_eq!(look(&tasks), Look::Gone);
        std::fs::create_dir_all(&tasks).unwrap();
        assert_eq!(look(&tasks), Look::Changed, "the last one has just gone");
        for (thread, state, flags) in [("1", 'Z', 0), ("2", 'S', 4), ("3", 'X', 0), ("4", 'x', 4)] {
            says(thread, &stat(state, flags));
        }
        assert_eq!(look(&tasks), Look::Ended(["1", "2", "3", "4"].map(OsString::from).into()));
        says("5", &stat('S', 0));
        assert_eq!(look(&tasks), Look::Running);
        says("5", "another form");
        assert_eq!(look(&tasks), Look::Running);
        std::fs::remove_file(tasks.join("5/stat")).unwrap();
        assert_eq!(look(&tasks), Look::Changed, "it went after it was listed");
        std::fs::create_dir(tasks.join("5/stat")).unwrap();
        assert_eq!(look(&tasks), Look::Running, "this process may not read it");
        assert_eq!(look(&tasks.join("1/stat")), Look::Running);
        std::fs::remove_dir_all(&tasks).unwrap();
        assert!(is_gone(&std::io::Error::from_raw_os_error(libc::ESRCH)));
    }
}
