//! PMI-1's text protocol: one line there, one line back, on a descriptor that the process manager has opened.
//!
//! The protocol is that of MPICH's "simple PMI" (Hydra, Intel MPI, Flux; Slurm's `--mpi=pmi2` answers it as well):
//! `cmd=NAME key=value ...`. We `put` rank 0's text, pass the barrier, `get` it, and `finalize`.
//!
//! The text is a secret, and a line in either direction may hold it. So lines are kept as [`SecretText`], and an error
//! names the command and what [`Answer::reason`] lets through, never a line.
#![forbid(unsafe_code)]

use std::io::{ErrorKind as IoErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;

use super::launcher::OP;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::net::SecretText;

const KEY: &str = "aqueduct-id";
const MAX_LINE: usize = 4096;
/// How much of a manager's sentence an error shows: so many words, none longer than this.
const MAX_WORDS: usize = 12;
const MAX_WORD: usize = 24;

/// Gives rank 0's `mine` to all ranks. `rank` 0 passes it, the others `None`. Collective; once per process, for the
/// process manager ends the conversation with it.
pub(super) fn share(stream: UnixStream, mine: Option<&SecretText>, deadline: Deadline) -> Result<SecretText> {
    let mut manager = Manager { stream, buffer: Vec::new(), deadline };
    manager.ask("init", " pmi_version=1 pmi_subversion=1", "response_to_init")?;
    let name = manager.ask("get_my_kvsname", "", "my_kvsname")?.required("kvsname")?;
    let (name, key) = (name.expose(), KEY);
    if let Some(text) = mine.map(SecretText::expose) {
        let maxes = manager.ask("get_maxes", "", "maxes")?;
        let longest = maxes.required("vallen_max")?.expose().parse::<usize>().unwrap_or(0);
        if text.len() >= longest {
            return Err(failed(format!("it takes values of {longest} bytes, {} are needed", text.len() + 1)));
        }
        manager.ask("put", &format!(" kvsname={name} key={key} value={text}"), "put_result")?;
    }
    manager.ask("barrier_in", "", "barrier_out")?;
    let value = manager.ask("get", &format!(" kvsname={name} key={key}"), "get_result")?.required("value")?;
    manager.ask("finalize", "", "finalize_ack")?;
    Ok(value)
}

/// The process manager's end.
struct Manager {
    stream: UnixStream,
    buffer: Vec<u8>,
    deadline: Deadline,
}

impl Manager {
    /// Sends a command with its arguments, each behind a space, and returns the answer, which must bear the name `answer`.
    fn ask(&mut self, command: &'static str, arguments: &str, answer: &'static str) -> Result<Answer> {
        let broken = |error| Error::system(OP, "the process manager's PMI connection broke", error);
        self.stream.set_write_timeout(Some(self.left(answer)?)).map_err(broken)?;
        self.stream.write_all(format!("cmd={command}{arguments}\n").as_bytes()).map_err(broken)?;
        let line = self.line(answer)?;
        let answered = Answer::parse(line.expose()).ok_or_else(|| {
            failed(format!("it answered {command:?} with a line that is not made of key=value"))
        })?;
        if answered.get("cmd") != Some(answer) {
            return Err(failed(format!("it answered {command:?} with something else than {answer:?}")));
        }
        if answered.get("rc").is_some_and(|rc| rc != "0") {
            return Err(failed(format!("it refused {command:?}: {}", answered.reason())));
        }
        Ok(answered)
    }

    fn line(&mut self, waiting_for: &'static str) -> Result<SecretText> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(SecretText::new(String::from_utf8_lossy(&line[..end])));
            }
            if self.buffer.len() >= MAX_LINE {
                return Err(failed(format!("it sent a line of more than {MAX_LINE} bytes")));
            }
            let left = self.left(waiting_for)?;
            let mut bytes = [0; 1024];
            let read = self.stream.set_read_timeout(Some(left)).and_then(|()| self.stream.read(&mut bytes));
            match read {
                Ok(0) => {
                    let text = "it closed the connection; it serves one conversation per process, so join once, and not \
                                in a program that has called MPI_Init (broadcast a unique id by MPI there)";
                    return Err(failed(text.to_owned()));
                }
                Ok(n) => self.buffer.extend_from_slice(&bytes[..n]),
                Err(error) if retry(error.kind()) => {}
                Err(error) => {
                    let text = "cannot read from the process manager at PMI_FD";
                    return Err(Error::system(OP, text, error));
                }
            }
        }
    }

    fn left(&self, waiting_for: &str) -> Result<std::time::Duration> {
        let left = self.deadline.remaining();
        if left.is_zero() {
            let text = format!(
                "the process manager did not send {waiting_for} in time; every rank it started must join (PMI_FD)"
            );
            return Err(Error::timeout(OP, text));
        }
        Ok(left)
    }
}

fn retry(kind: IoErrorKind) -> bool {
    matches!(kind, IoErrorKind::WouldBlock | IoErrorKind::TimedOut | IoErrorKind::Interrupted)
}

fn failed(what: String) -> Error {
    Error::new(ErrorKind::System, OP, format!("the process manager at PMI_FD is of no use: {what}"))
}

/// One line, taken apart. A value may be the job's id.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    pairs: Vec<(SecretText, SecretText)>,
    /// The words of the sentence that `msg=` begins.
    message: Vec<SecretText>,
}

impl Answer {
    /// `None` if a word is not `key=value`. Words without `=` that follow `msg=` belong to its sentence.
    fn parse(line: &str) -> Option<Self> {
        let mut answer = Self { pairs: Vec::new(), message: Vec::new() };
        for word in line.split_ascii_whitespace() {
            match word.split_once('=') {
                Some(("msg", first)) => answer.message.push(SecretText::new(first)),
                Some((key, value)) => answer.pairs.push((SecretText::new(key), SecretText::new(value))),
                None if answer.message.is_empty() => return None,
                None => answer.message.push(SecretText::new(word)),
            }
        }
        Some(answer)
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(name, _)| name.expose() == key).map(|(_, value)| value.expose())
    }

    fn required(&self, key: &str) -> Result<SecretText> {
        self.get(key).map(SecretText::new).ok_or_else(|| failed(format!("it did not say {key}")))
    }

    /// Why the manager refused, as far as it can be shown. A secret of 64 digits or more fits into no word that passes.
    fn reason(&self) -> String {
        let mut reason = match self.get("rc").and_then(|rc| rc.parse::<i32>().ok()) {
            Some(code) => format!("code {code}"),
            None => "a code that is not a number".to_owned(),
        };
        for (index, word) in self.message.iter().take(MAX_WORDS).enumerate() {
            let word = word.expose();
            reason += if index == 0 { ", " } else { " " };
            reason += if word.len() <= MAX_WORD { word } else { "..." };
        }
        reason
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(3600))
    }

    /// Serves one process like a process manager of one rank, with the given longest value.
    fn manager(stream: UnixStream, longest: usize) {
        let (mut writer, mut value) = (stream.try_clone().unwrap(), String::new());
        for line in BufReader::new(stream).lines() {
            let line = line.unwrap();
            let command = line.strip_prefix("cmd=").unwrap().split(' ').next().unwrap();
            let answer = match command {
                "init" => "response_to_init pmi_version=1 pmi_subversion=1 rc=0".to_owned(),
                "get_maxes" => format!("maxes kvsname_max=256 keylen_max=64 vallen_max={longest}"),
                "get_my_kvsname" => "my_kvsname kvsname=kvs_7".to_owned(),
                "put" => {
                    assert!(line.contains("kvsname=kvs_7 "), "{line}");
                    line.split_once("value=").unwrap().1.clone_into(&mut value);
                    "put_result rc=0 msg=success".to_owned()
                }
                "barrier_in" => "barrier_out".to_owned(),
                "get" if value.is_empty() => "get_result rc=-1 msg=key not found".to_owned(),
                "get" => format!("get_result rc=0 msg=success value={value}"),
                "finalize" => "finalize_ack".to_owned(),
                other => panic!("{other}"),
            };
            writeln!(writer, "cmd={answer}").unwrap();
        }
    }

    fn with_manager(longest: usize, mine: Option<&str>) -> Result<String> {
        let mine = mine.map(SecretText::new);
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || manager(theirs, longest));
            share(ours, mine.as_ref(), soon()).map(|id| id.expose().to_owned())
        })
    }

    #[test]
    fn what_is_put_is_got() {
        assert_eq!(with_manager(1024, Some("0123abcd")).unwrap(), "0123abcd");
        let short = with_manager(8, Some("0123abcd")).unwrap_err();
        assert!(short.message().contains("values of 8 bytes"), "{short}");
        let nothing = with_manager(1024, None).unwrap_err();
        assert!(nothing.message().contains("key not found"), "{nothing}");
    }

    #[test]
    fn silence_ends_in_time_and_an_end_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        // The other end stays open, so nothing but the deadline ends this.
        let error = share(ours, None, Deadline::after(Duration::from_millis(100))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        drop(theirs);
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(share(ours, None, soon()).unwrap_err().message().contains("closed"));
    }

    /// Serves one process, and answers `put` with `answer`, in which `ID` stands for what was put.
    fn bad_manager(stream: UnixStream, answer: &str) {
        let mut writer = stream.try_clone().unwrap();
        for line in BufReader::new(stream).lines() {
            let line = line.unwrap();
            let answer = match line.strip_prefix("cmd=").unwrap().split(' ').next().unwrap() {
                "init" => "cmd=response_to_init rc=0".to_owned(),
                "get_maxes" => "cmd=maxes vallen_max=1024".to_owned(),
                "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_7".to_owned(),
                _ => answer.replace("ID", line.split_once("value=").unwrap().1),
            };
            writeln!(writer, "{answer}").unwrap();
        }
    }

    #[test]
    fn no_error_shows_the_id_whatever_the_manager_answers() {
        let id = "0123456789abcdef".repeat(16);
        let id = id.as_str();
        for answer in [
            "nonsense",
            "cmd=put_result nonsense",
            "cmd=put_result rc=-1 msg=no room for value=ID",
            "cmd=put_result rc=-1 value=ID msg=no room",
            "ID",
            "cmd=ID rc=0",
            "cmd=put_result rc=ID",
        ] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let error = std::thread::scope(|scope| {
                scope.spawn(move || bad_manager(theirs, answer));
                share(ours, Some(&SecretText::new(id)), soon()).unwrap_err()
            });
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains(&id[..20]), "{answer:?} made: {shown}");
            assert!(shown.contains("put"), "{answer:?} made: {shown}");
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&[b'a'; MAX_LINE + 1024]).unwrap();
        assert!(share(ours, None, soon()).unwrap_err().message().contains("more than 4096"));
    }

    proptest! {
        #[test]
        fn any_answer_is_read_or_refused(line in ".{0,200}") {
            if let Some(answer) = Answer::parse(&line) {
                let _ = answer.required("cmd");
            }
        }
    }
}
