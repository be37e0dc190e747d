//! A logger for programs without one: `logging::init()` writes this library's messages to stderr or a file.
//!
//! The library writes to the `log` facade only, so a program with a logger of its own does not call [`init`].
//! Messages are lower-case and give the exact cause; the code that first detects a failure logs it.
//! A line is `seconds [host:process:thread] PART LEVEL message`.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{SystemTime, UNIX_EPOCH};

use log::{Log, Metadata, Record};

use crate::env::{Env, LogSpec};
use crate::error::{Error, Result};
use crate::sync::{Mutex, lock};

/// Installs the logger that `AQUEDUCT_LOG` and `AQUEDUCT_LOG_FILE` describe. An error if a value is not valid, if
/// the file cannot be opened, or if the program has a logger already.
pub fn init() -> Result<()> {
    let env = Env::get()?;
    let host = host_name();
    let file = match &env.log_file {
        None => None,
        Some(pattern) => Some(Mutex::new(open(&expand(pattern, &host))?)),
    };
    let logger = Logger { spec: env.log.clone(), host, file };
    let level = logger.spec.level;
    // A logger lives as long as the process.
    log::set_logger(Box::leak(Box::new(logger))).map_err(|_| {
        Error::usage("logging", "a logger is installed already; call init once, before any other")
    })?;
    log::set_max_level(level);
    // The warnings of the first read of the environment were lost, because no logger was installed then.
    crate::env::warn(Some(env));
    Ok(())
}

/// This host's name, as the log shows it.
#[doc(hidden)]
pub fn host_name() -> String {
    let mut name = [0_u8; 256];
    // SAFETY: the buffer lives across the call and its length is passed; the last byte stays zero.
    let failed = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) } != 0;
    let end = name.iter().position(|b| *b == 0).unwrap_or(0);
    if failed || end == 0 { "localhost".into() } else { String::from_utf8_lossy(&name[..end]).into_owned() }
}

/// Identity of this host: its name and the id of its current boot, so that two hosts with one name differ.
pub(crate) fn host_identity() -> String {
    // Where /proc is not mounted, the name alone has to do.
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("{}/{}", host_name(), boot.trim())
}

struct Logger {
    spec: LogSpec,
    host: String,
    file: Option<Mutex<File>>,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= self.spec.level && self.spec.shows(part(metadata.target()))
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // As a system call, because glibc has the function since 2.30 only.
        // SAFETY: no arguments, cannot fail.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) };
        let line = format!(
            "{}.{:06} [{}:{}:{thread}] {} {} {}\n",
            now.as_secs(),
            now.subsec_micros(),
            self.host,
            std::process::id(),
            part(record.target()),
            record.level(),
            record.args()
        );
        // One write per line keeps lines of several processes whole. A log that cannot be written is no reason to
        // stop the job.
        let _ = match &self.file {
            Some(file) => lock(file).write_all(line.as_bytes()),
            None => std::io::stderr().write_all(line.as_bytes()),
        };
    }

    fn flush(&self) {}
}

/// The part of the library that a log target names: `net` for `aqueduct::internals::net::listener`.
fn part(target: &str) -> &str {
    let mut names = target.split("::");
    let first = names.next().unwrap_or(target);
    let mut rooms = names.filter(|name| *name != "internals");
    if first == "aqueduct" { rooms.next().unwrap_or(first) } else { first }
}

fn expand(pattern: &str, host: &str) -> String {
    pattern.replace("%h", host).replace("%p", &std::process::id().to_string())
}

fn open(path: &str) -> Result<File> {
    // Not blocking: a pipe that nobody reads must not hold us up. Lines wait for a reader that is slow.
    let file = OpenOptions::new().create(true).append(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.and_then(|file| {
        // SAFETY: it sets the flags of a file of our own: of those that can be changed, O_APPEND alone is left.
        let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_APPEND) };
        if result == 0 { Ok(file) } else { Err(std::io::Error::last_os_error()) }
    });
    file.map_err(|error| Error::system("logging", format!("cannot open AQUEDUCT_LOG_FILE={path}"), error))
}

#[cfg(test)]
mod tests {
    use log::LevelFilter;

    use super::*;

    #[test]
    fn a_host_is_known_by_its_name_and_its_boot() {
        let identity = host_identity();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        assert_eq!(identity.split_once('/').unwrap(), (&*host_name(), boot.trim()));
    }

    #[test]
    fn a_part_is_the_room_of_a_target() {
        assert_eq!(part("aqueduct::internals::net::listener"), "net");
        assert_eq!((part("aqueduct"), part("cuda_soft::engine")), ("aqueduct", "cuda_soft"));
    }

    #[test]
    fn lines_reach_the_file_whole_and_filtered() {
        let path = std::env::temp_dir().join(format!("aqueduct-log-test-{}", std::process::id()));
        let spec = LogSpec { level: LevelFilter::Info, parts: vec!["net".into()], exclude: false };
        let file = Some(Mutex::new(open(path.to_str().unwrap()).unwrap()));
        let logger = Logger { spec, host: "h".into(), file };
        let say = |target: &str, level, text: &str| {
            logger.log(&Record::builder().target(target).level(level).args(format_args!("{text}")).build());
        };
        say("aqueduct::internals::net::raw", log::Level::Warn, "kept");
        say("aqueduct::internals::net::raw", log::Level::Debug, "too detailed");
        say("aqueduct::gpu", log::Level::Warn, "other part");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text.lines().count(), 1);
        assert!(text.contains("[h:") && text.ends_with("net WARN kept\n"), "{text}");
        assert!(open("/nonexistent/x").unwrap_err().to_string().contains("AQUEDUCT_LOG_FILE=/nonexistent/x"));
        assert_eq!(expand("a.%h.%p", "n1"), format!("a.n1.{}", std::process::id()));
    }
}
