//! Output of kernels, kept until the driver writes it at the next synchronisation.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Bytes that a console holds, the default size of the driver's buffer. More output replaces the oldest.
const CAPACITY: usize = 1 << 20;

/// The output of the kernels of one device.
#[derive(Debug, Default)]
pub struct Console {
    /// Lets the frequent calls of an empty console avoid the lock.
    pending: AtomicBool,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    pieces: VecDeque<(Target, Vec<u8>)>,
    bytes: usize,
}

/// Where a piece of output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// `printf`.
    Stdout,
    /// Failed assertions.
    Stderr,
}

impl Console {
    /// Adds the output of one call, which stays in one piece.
    pub(super) fn print(&self, target: Target, text: Vec<u8>) {
        let mut held = self.held.lock();
        held.bytes += text.len();
        held.pieces.push_back((target, text));
        while held.bytes > CAPACITY
            && let Some((_, oldest)) = held.pieces.pop_front()
        {
            held.bytes -= oldest.len();
        }
        self.pending.store(true, Ordering::Release);
    }

    /// Takes everything printed so far, in order.
    pub fn take(&self) -> Vec<(Target, Vec<u8>)> {
        let mut held = self.held.lock();
        self.pending.store(false, Ordering::Release);
        held.bytes = 0;
        std::mem::take(&mut held.pieces).into()
    }

    /// Writes everything printed so far to the process's standard output and standard error. Output that they do not
    /// accept is lost, as with the driver.
    pub(crate) fn flush(&self) {
        if !self.pending.load(Ordering::Acquire) {
            return;
        }
        let mut stdout = std::io::stdout().lock();
        for (target, text) in self.take() {
            let _ = match target {
                Target::Stdout => stdout.write_all(&text),
                Target::Stderr => std::io::stderr().write_all(&text),
            };
        }
        let _ = stdout.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_console_loses_the_oldest_pieces() {
        let console = Console::default();
        for byte in 0..5 {
            console.print(Target::Stdout, vec![byte; CAPACITY / 4]);
        }
        console.print(Target::Stderr, b"end".to_vec());
        let kept: Vec<(Target, u8)> =
            console.take().iter().map(|(target, text)| (*target, text[0])).collect();
        let out = Target::Stdout;
        assert_eq!(kept, [(out, 2), (out, 3), (out, 4), (Target::Stderr, b'e')]);
        assert!(console.take().is_empty());
    }
}
