//! PMI-1's text protocol: one line there, one line back, on a descriptor that the process manager has opened.
//!
//! The protocol is that of MPICH's "simple PMI" (Hydra, Intel MPI, Flux; Slurm's `--mpi=pmi2` answers it as well):
//! `cmd=NAME key=value ...`. We `put` rank 0's text, pass the barrier, `get` it, and `finalize`.
#![forbid(unsafe_code)]

use std::io::{ErrorKind as IoErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;

use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};

const KEY: &str = "aqueduct-id";
const MAX_LINE: usize = 4096;

/// Gives rank 0's `mine` to all ranks. `rank` 0 passes it, the others `None`. Collective; once per process, for the
/// process manager ends the conversation with it.
pub(super) fn share(stream: UnixStream, mine: Option<&str>, deadline: Deadline) -> Result<String> {
    let mut manager = Manager { stream, buffer: Vec::new(), deadline };
    manager.ask("init pmi_version=1 pmi_subversion=1", "response_to_init")?;
    let name = manager.ask("get_my_kvsname", "my_kvsname")?.required("kvsname")?;
    if let Some(text) = mine {
        let maxes = manager.ask("get_maxes", "maxes")?;
        let longest = maxes.required("vallen_max")?.parse::<usize>().unwrap_or(0);
        if text.len() >= longest {
            return Err(failed(format!("it takes values of {longest} bytes, {} are needed", text.len() + 1)));
        }
        manager.ask(&format!("put kvsname={name} key={KEY} value={text}"), "put_result")?;
    }
    manager.ask("barrier_in", "barrier_out")?;
    let value = manager.ask(&format!("get kvsname={name} key={KEY}"), "get_result")?.required("value")?;
    manager.ask("finalize", "finalize_ack")?;
    Ok(value)
}

/// The process manager's end.
struct Manager {
    stream: UnixStream,
    buffer: Vec<u8>,
    deadline: Deadline,
}

impl Manager {
    fn ask(&mut self, command: &str, answer: &'static str) -> Result<Answer> {
        let broken = |error| Error::system("launch", "the process manager's PMI connection broke", error);
        self.stream.set_write_timeout(Some(self.left(answer)?)).map_err(broken)?;
        self.stream.write_all(format!("cmd={command}\n").as_bytes()).map_err(broken)?;
        let line = self.line(answer)?;
        let answered = Answer::parse(&line)
            .ok_or_else(|| failed(format!("it answered {command:?} with something else than text")))?;
        if answered.get("cmd") != Some(answer) || answered.get("rc").is_some_and(|rc| rc != "0") {
            let short = command.split(' ').next().unwrap_or(command);
            let shown: String = line.chars().take(200).collect();
            return Err(failed(format!("it answered {short:?} with {shown:?}")));
        }
        Ok(answered)
    }

    fn line(&mut self, waiting_for: &'static str) -> Result<String> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
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
                    return Err(Error::system("launch", text, error));
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
            return Err(Error::timeout("launch", text));
        }
        Ok(left)
    }
}

fn retry(kind: IoErrorKind) -> bool {
    matches!(kind, IoErrorKind::WouldBlock | IoErrorKind::TimedOut | IoErrorKind::Interrupted)
}

fn failed(what: String) -> Error {
    Error::new(ErrorKind::System, "launch", format!("the process manager at PMI_FD is of no use: {what}"))
}

/// One line, taken apart.
#[derive(Debug, PartialEq, Eq)]
struct Answer(Vec<(String, String)>);

impl Answer {
    /// `None` if a word is not `key=value`; words after `msg=` belong to a sentence and are skipped.
    fn parse(line: &str) -> Option<Self> {
        let mut pairs = Vec::new();
        for word in line.split_ascii_whitespace() {
            match word.split_once('=') {
                Some((key, value)) => pairs.push((key.to_owned(), value.to_owned())),
                None if pairs.iter().any(|(key, _)| key == "msg") => {}
                None => return None,
            }
        }
        Some(Self(pairs))
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    fn required(&self, key: &str) -> Result<String> {
        self.get(key).map(str::to_owned).ok_or_else(|| failed(format!("it did not say {key}")))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(5))
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
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || manager(theirs, longest));
            share(ours, mine, soon())
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
        let start = Instant::now();
        let error = share(ours, None, Deadline::after(Duration::from_millis(100))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(start.elapsed() < Duration::from_secs(4));
        drop(theirs);
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(share(ours, None, soon()).unwrap_err().message().contains("closed"));
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
