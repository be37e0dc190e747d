//! Whether another process of this host still runs, beyond confusion with a later one of the same number.
#![forbid(unsafe_code)]

use std::os::unix::fs::MetadataExt;

/// What tells a process from all others that have or had its number; zeros where /proc does not say.
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

/// Whether process `pid` of this namespace, started then, runs. False also while it exits: the kernel marks a process
/// as exiting before it closes its sockets.
pub(crate) fn is_running(pid: u32, started: u64) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => Stat::parse(&stat).is_none_or(|stat| {
            stat.started == started && !stat.exiting && !matches!(stat.state, 'Z' | 'X' | 'x')
        }),
        Err(error) => {
            error.kind() != std::io::ErrorKind::NotFound && error.raw_os_error() != Some(libc::ESRCH)
        }
    }
}

/// What `/proc/PID/stat` says (proc_pid_stat(5)).
struct Stat {
    state: char,
    exiting: bool,
    started: u64,
}

impl Stat {
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

    #[test]
    fn names_with_parentheses_are_skipped() {
        let text = "7 (a) b) (c) S 1 7 7 0 -1 4194308 1 2 3 4 5 6 7 8 20 0 1 0 4711 8 9";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.state, stat.exiting, stat.started), ('S', true, 4711));
        let me = Birth::of_this_process();
        assert!(me.started > 0 && is_running(std::process::id(), me.started));
    }
}
