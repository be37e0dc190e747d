//! Copies what ranks print to the launcher's own outputs, line by line, and keeps why it could not.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};

use anyhow::Result;

use crate::stdout::{self, Stdout};

/// A longer line is passed on in pieces: a rank that prints no line ends must not fill the launcher's memory.
const LONGEST: usize = 1 << 20;

/// The most that a pipe holds (`/proc/sys/fs/pipe-max-size`).
const PIPE: usize = 1 << 20;

/// The threads that copy, one for each pipe.
pub(super) struct Forwarders {
    state: Arc<State>,
    /// Nothing is sent on this channel. It disconnects when the last thread has ended.
    open: mpsc::Sender<Infallible>,
    ended: mpsc::Receiver<Infallible>,
}

/// State shared by the launcher and its copying threads.
#[derive(Default)]
pub(super) struct State {
    unwritable: OnceLock<io::Error>,
    /// All ranks are dead: threads read what a pipe can still hold of theirs, and do not wait for other writers.
    last: AtomicBool,
    writing: AtomicUsize,
    chunks: AtomicU64,
}

impl Forwarders {
    pub(super) fn new() -> Self {
        let (open, ended) = mpsc::channel();
        Self { state: Arc::default(), open, ended }
    }

    /// Copies a rank's standard output. After a write has failed, the rest is read and dropped.
    pub(super) fn output(&self, from: impl Read + Send + 'static, label: String) -> Result<()> {
        self.start(from, label, |state, lines| {
            if state.unwritable.get().is_none()
                && let Err(error) = Stdout.write_all(lines)
            {
                // Only the first error counts.
                let _ = state.unwritable.set(error);
            }
        })
    }

    /// Copies a rank's standard error, unless nobody reads this job's output any more. A failure to write it cannot be
    /// reported anywhere, so the job goes on.
    pub(super) fn errors(&self, from: impl Read + Send + 'static, label: String) -> Result<()> {
        self.start(from, label, |state, lines| {
            if !state.unwritable.get().is_some_and(stdout::is_closed_pipe) {
                let _ = io::stderr().write_all(lines);
            }
        })
    }

    fn start(
        &self,
        mut from: impl Read + Send + 'static,
        label: String,
        write: impl Fn(&State, &[u8]) + Send + 'static,
    ) -> Result<()> {
        let (state, open) = (Arc::clone(&self.state), self.open.clone());
        let copy = move || {
            let _open = open;
            let pass = |lines: &[u8]| {
                state.writing.fetch_add(1, Ordering::Relaxed);
                write(&state, lines);
                state.writing.fetch_sub(1, Ordering::Relaxed);
            };
            let (mut lines, mut chunk, mut left) = (Lines::new(label), vec![0; 64 << 10], PIPE);
            while left > 0 {
                match from.read(&mut chunk) {
                    Ok(read) if read > 0 => {
                        let whole = lines.add(&chunk[..read]);
                        if !whole.is_empty() {
                            pass(&whole);
                        }
                        if state.last.load(Ordering::Relaxed) {
                            left = left.saturating_sub(read);
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    _ => break,
                }
                state.chunks.fetch_add(1, Ordering::Relaxed);
            }
            let last = lines.end();
            if !last.is_empty() {
                pass(&last);
            }
        };
        std::thread::Builder::new().name("run-output".to_owned()).spawn(copy)?;
        Ok(())
    }

    /// The state, and the channel that disconnects when all threads have ended. Call it when all are started.
    pub(super) fn watch(self) -> (Arc<State>, mpsc::Receiver<Infallible>) {
        (self.state, self.ended)
    }
}

impl State {
    /// The error of writing standard output, if it failed.
    pub(super) fn unwritable(&self) -> Option<&io::Error> {
        self.unwritable.get()
    }

    /// Tells the threads that all ranks are dead.
    pub(super) fn ranks_are_dead(&self) {
        self.last.store(true, Ordering::Relaxed);
    }

    /// Number of threads that are writing, and of chunks read so far.
    pub(super) fn progress(&self) -> (usize, u64) {
        (self.writing.load(Ordering::Relaxed), self.chunks.load(Ordering::Relaxed))
    }
}

/// Cuts a stream of bytes into lines with a label in front.
struct Lines {
    label: String,
    /// The line that has not ended yet, with its label.
    begun: Vec<u8>,
    /// Whether a part of that line has been passed on.
    cut: bool,
}

impl Lines {
    fn new(label: String) -> Self {
        Self { label, begun: Vec::new(), cut: false }
    }

    /// The lines that `bytes` complete.
    fn add(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut whole = Vec::with_capacity(bytes.len() + self.begun.len());
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            if self.begun.is_empty() && !self.cut {
                self.begun.extend_from_slice(self.label.as_bytes());
            }
            self.begun.extend_from_slice(piece);
            let ends = piece.ends_with(b"\n");
            if ends || self.begun.len() > LONGEST {
                whole.append(&mut self.begun);
                self.cut = !ends;
            }
        }
        whole
    }

    /// The last line, if it lacks its end.
    fn end(&mut self) -> Vec<u8> {
        let mut last = std::mem::take(&mut self.begun);
        if !last.is_empty() || self.cut {
            last.push(b'\n');
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_one_label_however_they_arrive() {
        let text = b"one\n\ntwo three\nfour";
        for step in 1..=text.len() {
            let mut lines = Lines::new("[7] ".to_owned());
            let mut seen: Vec<u8> = text.chunks(step).flat_map(|chunk| lines.add(chunk)).collect();
            seen.extend(lines.end());
            assert_eq!(String::from_utf8(seen).unwrap(), "[7] one\n[7] \n[7] two three\n[7] four\n");
        }
    }

    #[test]
    fn a_line_that_does_not_end_is_passed_on_in_pieces() {
        let mut lines = Lines::new("[0] ".to_owned());
        let chunk = vec![b'x'; LONGEST / 2];
        let mut seen: Vec<u8> = (0..5).flat_map(|_| lines.add(&chunk)).collect();
        assert!(seen.len() > LONGEST && lines.begun.len() <= LONGEST);
        seen.extend(lines.add(b"\nnext\n"));
        seen.extend(lines.end());
        let expected = [b"[0] ", &*vec![b'x'; 5 * (LONGEST / 2)], b"\n[0] next\n"].concat();
        assert!(seen == expected);
    }
}
