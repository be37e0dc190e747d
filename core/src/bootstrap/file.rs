//! A rendezvous by a file: rank 0 leaves the unique id at a path that all ranks know, and takes it away afterwards.
//!
//! The file holds a secret: it has mode 0600, appears complete or not at all (written under another name, then
//! renamed), and nobody follows a link to it. A file that an earlier job left behind is recognised by the job's
//! name and, on the writer's host, by the writer's being gone; it is passed over, and rank 0 replaces it. Anything else at the path
//! is the user's, and stays.
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::net::{SecretText, random_bytes};

const TITLE: &str = "aqueduct rendezvous 1";
/// The beginning of the title, whatever the version.
const FAMILY: &str = "aqueduct rendezvous ";
const MAX_BYTES: u64 = 4096;
const OP: &str = "bootstrap";
const PAUSE: Duration = Duration::from_millis(20);

/// A path at which the ranks of a job meet.
#[derive(Clone, Debug)]
pub(super) struct Place {
    path: PathBuf,
    job: String,
    /// Advice appended to errors of writing there.
    remedy: &'static str,
}

/// The file of rank 0; dropping it removes the file, unless somebody has replaced it.
#[derive(Debug)]
pub(super) struct Published {
    path: PathBuf,
    file: File,
}

impl Drop for Published {
    fn drop(&mut self) {
        let same = |there: &std::fs::Metadata, mine: &std::fs::Metadata| {
            (there.dev(), there.ino()) == (mine.dev(), mine.ino())
        };
        let theirs = std::fs::symlink_metadata(&self.path);
        if let (Ok(there), Ok(mine)) = (theirs, self.file.metadata())
            && same(&there, &mine)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            log::warn!("cannot remove {}, which holds the job's secret: {error}", self.path.display());
        }
    }
}

impl Place {
    /// The path that the user names; `job` tells jobs apart that use it one after the other.
    pub(super) fn at(path: &Path, job: &str) -> Self {
        let remedy = "choose another path (AQUEDUCT_RENDEZVOUS_FILE under a launcher)";
        Self { path: path.to_owned(), job: digest(job), remedy }
    }

    /// A path for `job` on this host. Others may write to the directory as well: they can be in the way, but a file of
    /// theirs is refused, and they cannot replace ours, the directory being sticky.
    pub(super) fn on_this_host(job: &str) -> Self {
        let job = digest(job);
        let remedy =
            "set TMPDIR to another directory, or AQUEDUCT_RENDEZVOUS_FILE to a path that all ranks see";
        Self { path: std::env::temp_dir().join(format!("aqueduct-{}-{job}", user())), job, remedy }
    }

    /// Leaves `id` there; the file goes away with what is returned.
    pub(super) fn publish(&self, id: &SecretText) -> Result<Published> {
        self.check_replaceable()?;
        let suffix = u64::from_le_bytes(random_bytes()?);
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{suffix:016x}"));
        let draft = self.path.with_file_name(name);
        let failed = |error| {
            let text = format!(
                "cannot write {}; see that its folder exists, and its permissions and space, or {}",
                self.path.display(),
                self.remedy
            );
            Error::system(OP, text, error)
        };
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&draft)
            .map_err(failed)?;
        let entry = Entry { job: self.job.clone(), writer: Writer::myself(), id: id.clone() };
        let written = (&file)
            .write_all(entry.to_text().expose().as_bytes())
            .and_then(|()| std::fs::rename(&draft, &self.path));
        if let Err(error) = written {
            let _ = std::fs::remove_file(&draft);
            return Err(failed(error));
        }
        Ok(Published { path: self.path.clone(), file })
    }

    /// Refuses to replace what no rank has left there. An empty file is replaced: `mktemp` makes such.
    fn check_replaceable(&self) -> Result<()> {
        let Ok(about) = std::fs::symlink_metadata(&self.path) else { return Ok(()) };
        let mut begin = Vec::new();
        if about.is_file() {
            let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
            let opened = OpenOptions::new().read(true).custom_flags(flags).open(&self.path);
            let read = opened.and_then(|file| file.take(FAMILY.len() as u64).read_to_end(&mut begin));
            if read.is_ok() && (begin.is_empty() || begin == FAMILY.as_bytes()) {
                return Ok(());
            }
        }
        let text = format!(
            "{} is there already and is no rendezvous file, so it is left alone; remove it, or {}",
            self.path.display(),
            self.remedy
        );
        Err(Error::usage(OP, text))
    }

    /// Waits until rank 0 of this job has left its id, and returns it.
    pub(super) fn wait(&self, deadline: Deadline) -> Result<SecretText> {
        loop {
            let mut seen = "there is none";
            if let Some(text) = read_private(&self.path)? {
                match Entry::parse(text.expose()) {
                    None => seen = "the one there is not aqueduct's or of another version",
                    Some(entry) if entry.job != self.job => seen = "the one there is of another job",
                    Some(entry) if entry.writer.is_gone() => {
                        seen = "the one there was left by a job that has ended"
                    }
                    Some(entry) => return Ok(entry.id),
                }
            } else if !self
                .path
                .parent()
                .is_none_or(|folder| folder.as_os_str().is_empty() || folder.exists())
            {
                seen = "its folder does not exist here";
            }
            if deadline.expired() {
                let text = format!(
                    "rank 0 did not leave its id at {} in time ({seen}); see whether rank 0 runs, sees the same file \
                     system, and belongs to this job",
                    self.path.display()
                );
                return Err(Error::timeout(OP, text));
            }
            std::thread::sleep(PAUSE.min(deadline.remaining()));
        }
    }

    /// Explains why nobody answered at the id in the file.
    pub(super) fn not_met(&self, error: Error) -> Error {
        let text = format!(
            "nobody serves the id in {}; see whether rank 0 still runs, and remove the file if an earlier job left it",
            self.path.display()
        );
        Error::timeout(OP, text).with_source(error)
    }

    /// The path.
    #[cfg(test)]
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// The text of a file that only this user can read and write; `None` if there is none. A secret that others can
/// read is none.
pub(super) fn read_private(path: &Path) -> Result<Option<SecretText>> {
    let failed = |error| {
        let text = format!("cannot read {}; see the permissions of it and its folders", path.display());
        Error::system(OP, text, error)
    };
    // Not blocking: a FIFO in its place must not hold us up.
    let file =
        match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
    let about = file.metadata().map_err(failed)?;
    if about.uid() != user() || about.mode() & 0o077 != 0 || !about.is_file() {
        return Err(denied(path, "a file of this user with mode 0600"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(SecretText::new(String::from_utf8_lossy(&bytes))))
}

fn denied(path: &Path, wanted: &str) -> Error {
    let text = format!("{} holds a secret; it must be {wanted}", path.display());
    Error::new(ErrorKind::Authentication, OP, text)
}

fn user() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() }
}

/// A name of fixed length without characters that mean something.
fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes())[..12].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Content of a rendezvous file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    job: String,
    writer: Writer,
    id: SecretText,
}

impl Entry {
    pub(super) fn to_text(&self) -> SecretText {
        let (Writer { host, pid, started }, id) = (&self.writer, self.id.expose());
        SecretText::new(format!("{TITLE}\njob {}\nwriter {host} {pid} {started}\nid {id}\n", self.job))
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        // Not `lines`, which takes a carriage return for a part of the line's end only where a line feed follows.
        let mut lines = text.split('\n').filter(|line| !line.is_empty());
        let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        field("aqueduct").filter(|rest| TITLE.ends_with(rest) && rest.len() + 9 == TITLE.len())?;
        let job = field("job")?.to_owned();
        let mut words = field("writer")?.split(' ');
        let writer = Writer {
            host: words.next()?.to_owned(),
            pid: words.next()?.parse().ok()?,
            started: words.next()?.parse().ok()?,
        };
        Some(Self { job, writer, id: SecretText::new(field("id")?) })
    }
}

/// A process, so that another one can tell whether it still exists.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Writer {
    /// This boot of the host and the namespace in which `pid` means something; `-` if not known.
    host: String,
    pid: u32,
    /// When the process started, in clock ticks since boot: a number may be used again, a start not.
    started: u64,
}

impl Writer {
    fn myself() -> Self {
        let pid = std::process::id();
        Self { host: this_host().unwrap_or_else(|| "-".to_owned()), pid, started: start_of(pid).unwrap_or(0) }
    }

    /// Whether the process is known to have ended; on another host nobody knows.
    fn is_gone(&self) -> bool {
        this_host().is_some_and(|host| host == self.host) && start_of(self.pid) != Some(self.started)
    }
}

fn this_host() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = std::fs::metadata("/proc/self/ns/pid").ok()?;
    Some(format!("{}/{}", boot.trim(), namespace.ino()))
}

/// proc(5): the 22nd field of stat; the second one may contain spaces, but ends at the last parenthesis. A zombie
/// has ended.
fn start_of(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use proptest::prelude::*;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("aqueduct-file-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn soon() -> Deadline {
        Deadline::after(Duration::from_millis(60))
    }

    #[test]
    fn an_id_is_found_and_taken_away() {
        let folder = Folder::new("found");
        let place = Place::at(&folder.0.join("meet"), "job 1");
        let waiting = {
            let place = place.clone();
            std::thread::spawn(move || place.wait(Deadline::after(Duration::from_secs(10))))
        };
        let published = place.publish(&SecretText::new("abc")).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap().expose(), "abc");
        assert_eq!(std::fs::metadata(place.path()).unwrap().mode() & 0o777, 0o600);
        drop(published);
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0, "nothing stays");
    }

    #[test]
    fn leftovers_are_passed_over_and_replaced() {
        let folder = Folder::new("stale");
        let place = Place::at(&folder.0.join("meet"), "job");
        let leave = |writer: Writer, job: &str| {
            let entry = Entry { job: digest(job), writer, id: SecretText::new("old") };
            std::fs::write(place.path(), entry.to_text().expose()).unwrap();
            std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
        };
        let me = Writer::myself();
        leave(Writer { started: me.started + 1, ..me.clone() }, "job");
        assert!(place.wait(soon()).unwrap_err().message().contains("a job that has ended"));
        leave(me.clone(), "another");
        assert!(place.wait(soon()).unwrap_err().message().contains("another job"));
        leave(Writer { host: "elsewhere".to_owned(), ..me }, "job");
        assert_eq!(
            place.wait(soon()).unwrap().expose(),
            "old",
            "nobody here knows whether it is still there"
        );
        std::fs::write(place.path(), "something else").unwrap();
        assert!(place.wait(soon()).unwrap_err().message().contains("not aqueduct's"));
        let error = place.publish(&SecretText::new("new")).unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidUsage && error.message().contains("left alone"), "{error}");
        assert_eq!(std::fs::read_to_string(place.path()).unwrap(), "something else");
        std::fs::write(place.path(), "aqueduct rendezvous 99\nof the future").unwrap();
        let first = place.publish(&SecretText::new("new")).unwrap();
        assert_eq!(place.wait(soon()).unwrap().expose(), "new");
        let newer = SecretText::new("newer");
        let second = place.publish(&newer).unwrap();
        drop(first);
        assert_eq!(place.wait(soon()).unwrap(), newer, "only one's own file is removed");
        drop(second);
        assert_eq!(place.wait(soon()).unwrap_err().kind(), ErrorKind::Timeout);
    }

    #[test]
    fn what_others_could_read_or_have_planted_is_refused() {
        let folder = Folder::new("planted");
        let place = Place::at(&folder.0.join("meet"), "job");
        let _published = place.publish(&SecretText::new("abc")).unwrap();
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(place.wait(soon()).unwrap_err().kind(), ErrorKind::Authentication);
        let link = Place::at(&folder.0.join("link"), "job");
        std::os::unix::fs::symlink(place.path(), link.path()).unwrap();
        assert_eq!(link.wait(soon()).unwrap_err().kind(), ErrorKind::System);
        let error = Place::at(&folder.0.join("no/such"), "job").publish(&SecretText::new("abc")).unwrap_err();
        assert!(error.message().contains("permissions"), "{error}");
    }

    /// Whoever mistypes a path loses nothing.
    #[test]
    fn what_is_no_rendezvous_file_stays() {
        let folder = Folder::new("stays");
        let at = |name: &str| Place::at(&folder.0.join(name), "job");
        std::fs::create_dir(at("folder").path()).unwrap();
        std::os::unix::fs::symlink("/dev/null", at("link").path()).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(at("socket").path()).unwrap();
        for name in ["folder", "link", "socket"] {
            let before = std::fs::symlink_metadata(at(name).path()).unwrap();
            let error = at(name).publish(&SecretText::new("abc")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
            assert_eq!(std::fs::symlink_metadata(at(name).path()).unwrap().ino(), before.ino(), "{name}");
        }
        std::fs::write(at("empty").path(), "").unwrap();
        drop(at("empty").publish(&SecretText::new("abc")).unwrap());
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 3, "no draft is left");
    }

    mod other_users {
        use super::*;

        /// The user `nobody`.
        const NOBODY: u32 = 65534;

        #[test]
        #[ignore = "needs root, to make a file of another user: the lane two-users runs it"]
        fn a_file_of_another_user_is_refused() {
            let folder = Folder::new("foreign");
            let place = Place::at(&folder.0.join("meet"), "job");
            let published = place.publish(&SecretText::new("abc")).unwrap();
            assert_eq!(place.wait(soon()).unwrap().expose(), "abc");
            std::os::unix::fs::fchown(&published.file, Some(NOBODY), None).unwrap();
            let error = place.wait(soon()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
            assert!(error.message().contains("it must be a file of this user with mode 0600"), "{error}");
        }
    }

    #[test]
    fn a_process_that_has_ended_is_gone() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let writer = Writer { pid: child.id(), started: start_of(child.id()).unwrap(), ..Writer::myself() };
        assert!(!writer.is_gone() && !Writer::myself().is_gone());
        child.kill().unwrap();
        while !writer.is_gone() {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert!(writer.is_gone());
    }

    #[test]
    fn a_carriage_return_is_a_character_of_its_line() {
        for end in ["", "\n", "\r\n"] {
            let text = format!("{TITLE}\njob j\nwriter h 1 2\nid x\r{end}");
            let entry = Entry::parse(&text).unwrap();
            assert!(entry.id.expose().starts_with("x\r"), "{entry:?}");
            assert_eq!(Entry::parse(entry.to_text().expose()), Some(entry));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,200}|aqueduct rendezvous 1\n(job|writer|id|[ 0-9\r\n]){0,40}") {
            if let Some(entry) = Entry::parse(&text) {
                prop_assert_eq!(Entry::parse(entry.to_text().expose()), Some(entry));
            }
        }
    }
}
