//! Parsers of launchers' input, see [`crate::fuzzing`].
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::super::file::Entry;
use super::slurm::{NodeList, TaskCounts};
use super::store::Store;
use super::{Launch, pmi};
use crate::deadline::Deadline;
use crate::net::SecretText;

/// More than this does not fit a socket at once, and none of the conversations needs it.
const MAX_CONVERSATION: usize = 32 << 10;

/// A compressed list of hosts.
pub fn node_list(bytes: &[u8]) -> Option<Vec<u8>> {
    let list = NodeList::parse(str::from_utf8(bytes).ok()?)?;
    assert!(list.len() > 0 && list.name(list.len()).is_none());
    let (first, last) = (list.name(0)?, list.name(list.len() - 1).expect("below its length"));
    Some(format!("{} {first} {last}", list.len()).into_bytes())
}

/// Tasks per host.
pub fn task_counts(bytes: &[u8]) -> Option<Vec<u8>> {
    let counts = TaskCounts::parse(str::from_utf8(bytes).ok()?)?;
    assert!(counts.hosts() > 0 && counts.at(0).is_some());
    let end = u32::try_from(counts.hosts());
    assert!(end.is_err() || end.is_ok_and(|end| counts.at(end).is_none() && counts.at(end - 1).is_some()));
    Some(format!("{} {}", counts.hosts(), counts.total()).into_bytes())
}

/// `NAME=value` lines as the environment: a launcher's variables.
pub fn launch(bytes: &[u8]) -> Option<Vec<u8>> {
    let lines = str::from_utf8(bytes).ok()?.lines().filter_map(|line| line.split_once('='));
    let launch = Launch::discover(&lines.map(|(n, v)| (n.to_owned(), v.to_owned())).collect()).ok()??;
    assert!(launch.size.is_none_or(|size| launch.rank < size));
    assert!(launch.local_rank.zip(launch.local_size).is_none_or(|(rank, size)| rank < size));
    Some(format!("{launch:?}").into_bytes())
}

/// Answers of a PMI process manager to rank 0 and to another rank.
pub fn pmi(bytes: &[u8]) -> Option<Vec<u8>> {
    let ask = |mine: Option<&str>| {
        let mine = mine.map(SecretText::new);
        pmi::share(answering(bytes)?.0, mine.as_ref(), soon()).ok()
    };
    let _ = ask(Some("0123"));
    ask(None).map(|id| id.expose().as_bytes().to_vec())
}

/// Answers of torchrun's store to a rank that gets the value and deletes the key.
pub fn store(bytes: &[u8]) -> Option<Vec<u8>> {
    let (ours, _theirs) = answering(bytes)?;
    let mut store = Store::on(OwnedFd::from(ours).into(), "here".to_owned(), "key", soon()).ok()?;
    let value = store.get().ok()?;
    store.delete().ok().map(|()| value.expose().as_bytes().to_vec())
}

/// A rendezvous file.
pub fn rendezvous_file(bytes: &[u8]) -> Option<Vec<u8>> {
    Entry::parse(str::from_utf8(bytes).ok()?).map(|entry| entry.to_text().expose().as_bytes().to_vec())
}

/// A connection whose other end has said all of `bytes` and now only listens.
fn answering(bytes: &[u8]) -> Option<(UnixStream, UnixStream)> {
    let said = bytes.get(..MAX_CONVERSATION.min(bytes.len()))?;
    let (ours, mut theirs) = UnixStream::pair().expect("two descriptors are left");
    theirs.write_all(said).expect("fits the socket");
    theirs.shutdown(Shutdown::Write).expect("is connected");
    Some((ours, theirs))
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(5))
}
