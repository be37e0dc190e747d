//! Processes that a test starts: each in a process group of its own, so that nothing that it starts outlives the test or keeps
//! it waiting.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the last output of killed processes may take to arrive. A process that still holds a pipe then has left the group.
const LAST_OUTPUT: Duration = Duration::from_secs(5);

/// A running process. Dropping it kills its group.
#[derive(Debug)]
pub struct Process {
    /// `None` once [`wait`](Self::wait) has it.
    child: Option<Child>,
    pipes: [Pipe; 2],
    since: Instant,
}

/// The end of a process.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output, if that was a pipe.
    pub stdout: String,
    /// Its standard error, if that was a pipe.
    pub stderr: String,
    /// Time until it exited.
    pub time: Duration,
    /// Whether it, or a process that holds its output, had to be killed because of the deadline.
    pub late: bool,
}

impl Process {
    /// Starts `command`. Panics if that is not possible.
    pub fn start(command: &mut Command) -> Self {
        Self::start_leader(command.process_group(0))
    }

    /// Starts a command that makes itself the leader of a process group, as setsid(2) does.
    pub fn start_leader(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let pipes = [Pipe::read(child.stdout.take()), Pipe::read(child.stderr.take())];
        Self { child: Some(child), pipes, since: Instant::now() }
    }

    /// Its number, which is also that of its group.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("only wait() and drop() take it").id()
    }

    /// Sends it `signal`.
    pub fn signal(&self, signal: i32) {
        // SAFETY: touches no memory; the child is ours and has not been reaped, so the number is its own.
        assert_eq!(unsafe { libc::kill(number(self.pid()), signal) }, 0);
    }

    /// Waits until it has exited and its output is closed. At `deadline` kills its group.
    pub fn wait(mut self, deadline: Instant) -> Ended {
        let (pid, mut time) = (self.pid(), None);
        let late = loop {
            if time.is_none() && has_exited(pid) {
                time = Some(self.since.elapsed());
            }
            if time.is_some() && self.pipes.iter().all(Pipe::is_closed) {
                break false;
            }
            if Instant::now() >= deadline {
                kill_group(pid);
                break true;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut child = self.child.take().expect("only wait() and drop() take it");
        let status = child.wait().expect("a child can be reaped");
        let time = time.unwrap_or_else(|| self.since.elapsed());
        let until = Instant::now() + LAST_OUTPUT;
        while !self.pipes.iter().all(Pipe::is_closed) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let [stdout, stderr] = [0, 1].map(|pipe: usize| self.pipes[pipe].text());
        Ended { status, stdout, stderr, time, late }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            kill_group(child.id());
            // A failure has no one to be reported to.
            let _ = child.wait();
        }
    }
}

/// Kills the process group of the child `pid`, which has not been reaped yet.
pub fn kill_group(pid: u32) {
    // SAFETY: touches no memory; the child is not reaped, so the number of its group is not reused.
    unsafe { libc::kill(-number(pid), libc::SIGKILL) };
}

/// Whether the child `pid` has exited. Does not reap it.
pub fn has_exited(pid: u32) -> bool {
    // SAFETY: siginfo_t is plain data, for which zeros are valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
    // SAFETY: `info` is a live output.
    let status = unsafe { libc::waitid(libc::P_PID, pid, &raw mut info, options) };
    assert_eq!(status, 0, "a child can be waited for: {}", std::io::Error::last_os_error());
    // SAFETY: waitid(2) has filled in the fields for a child, or left zeros.
    unsafe { info.si_pid() != 0 }
}

fn number(pid: u32) -> i32 {
    i32::try_from(pid).expect("process ids are positive numbers of 31 bits")
}

/// A thread that reads a pipe, and the bytes so far.
#[derive(Debug)]
struct Pipe {
    thread: JoinHandle<()>,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Pipe {
    fn read(pipe: Option<impl Read + Send + 'static>) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&bytes);
        let thread = std::thread::spawn(move || {
            let Some(mut pipe) = pipe else { return };
            let mut chunk = [0; 4096];
            // Keeps what was read, even if the pipe breaks.
            while let Ok(read @ 1..) = pipe.read(&mut chunk) {
                kept.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&chunk[..read]);
            }
        });
        Self { thread, bytes }
    }

    fn is_closed(&self) -> bool {
        self.thread.is_finished()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    fn shell(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Process::start(&mut command)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(500)
    }

    fn in_time() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Whether the process `pid` is there and has not exited.
    fn lives(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|fields| !fields.is_empty() && !fields.starts_with('Z'))
    }

    #[test]
    fn output_and_status_are_kept() {
        let ended = shell("echo out; echo err >&2; exit 3").wait(in_time());
        assert_eq!((ended.status.code(), &*ended.stdout, &*ended.stderr), (Some(3), "out\n", "err\n"));
        assert!(!ended.late, "{ended:?}");
    }

    #[test]
    fn whoever_holds_the_output_is_ended_at_the_deadline() {
        for script in ["sleep 1000 & echo $!; exec sleep 1001", "sleep 1000 & echo $!"] {
            let ended = shell(script).wait(soon());
            assert!(ended.late, "{ended:?}");
            let since = Instant::now();
            while lives(&ended.stdout) {
                assert!(since.elapsed() < Duration::from_secs(60), "{ended:?} left a process behind");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn a_process_that_left_the_group_does_not_hold_the_test() {
        let ended = shell("setsid sleep 30 & echo $!").wait(soon());
        assert!(ended.late && ended.time < Duration::from_secs(30) && !ended.stdout.is_empty(), "{ended:?}");
        // SAFETY: no pointers are passed; the process sleeps for longer than this test takes.
        unsafe { libc::kill(ended.stdout.trim().parse().unwrap(), libc::SIGKILL) };
    }

    #[test]
    fn a_process_that_nobody_waits_for_is_ended() {
        let process = shell("echo begun; exec sleep 1000");
        let pid = process.pid().to_string();
        drop(process);
        assert!(!lives(&pid));
    }
}
