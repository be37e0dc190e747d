//! A line on the terminal for rows that take long. Nothing is shown where standard error is no terminal.

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A row that is done sooner shows nothing.
const DELAY: Duration = Duration::from_secs(2);
const INTERVAL: Duration = Duration::from_millis(250);
/// Begins the line again and erases it.
const ERASE: &str = "\r\x1b[2K";

/// The progress of the row that is being measured. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Progress(Option<Arc<Mutex<State>>>);

struct State {
    row: Option<Row>,
    /// Whether the terminal shows a line of ours.
    shown: bool,
    out: Box<dyn Write + Send>,
}

struct Row {
    label: String,
    step: String,
    since: Instant,
}

impl Progress {
    /// Shows progress if `wanted` and standard error is a terminal.
    pub(super) fn start(wanted: bool) -> Self {
        if !wanted || !std::io::stderr().is_terminal() {
            return Self::default();
        }
        let progress = Self::to(Box::new(std::io::stderr()));
        if let Some(state) = &progress.0 {
            let state = Arc::downgrade(state);
            std::thread::spawn(move || draw(&state));
        }
        progress
    }

    fn to(out: Box<dyn Write + Send>) -> Self {
        Self(Some(Arc::new(Mutex::new(State { row: None, shown: false, out }))))
    }

    /// Begins a row.
    pub(super) fn row(&self, label: impl Into<String>) {
        self.with(|state| {
            state.erase();
            state.row =
                Some(Row { label: label.into(), step: "preparing".to_owned(), since: Instant::now() });
        });
    }

    /// Says what is being done for the row.
    pub(super) fn step(&self, step: impl FnOnce() -> String) {
        self.with(|state| {
            if let Some(row) = &mut state.row {
                row.step = step();
            }
        });
    }

    /// Ends the row: the line disappears.
    pub(super) fn done(&self) {
        self.with(|state| {
            state.row = None;
            state.erase();
        });
    }

    fn with(&self, change: impl FnOnce(&mut State)) {
        if let Some(state) = &self.0 {
            change(&mut state.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// Draws now and then, until the last [`Progress`] is gone.
fn draw(state: &Weak<Mutex<State>>) {
    while let Some(state) = state.upgrade() {
        state.lock().unwrap_or_else(PoisonError::into_inner).draw(Instant::now());
        drop(state);
        std::thread::sleep(INTERVAL);
    }
}

impl State {
    fn draw(&mut self, now: Instant) {
        let Some(row) = &self.row else { return };
        let time = now.saturating_duration_since(row.since);
        if time <= DELAY {
            return;
        }
        let line = format!("{ERASE}{}: {}, {} s so far", row.label, row.step, time.as_secs());
        self.shown = true;
        self.write(&line);
    }

    fn erase(&mut self) {
        if std::mem::take(&mut self.shown) {
            self.write(ERASE);
        }
    }

    /// A terminal that is gone must not end the measurement.
    fn write(&mut self, text: &str) {
        let _ = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.erase();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Screen(Arc<Mutex<Vec<u8>>>);

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_long_row_is_shown_and_its_line_disappears() {
        let screen = Screen::default();
        let progress = Progress::to(Box::new(screen.clone()));
        let shown = || String::from_utf8(screen.0.lock().unwrap().clone()).unwrap();
        let draw = |later: Duration| progress.with(|state| state.draw(Instant::now() + later));
        draw(DELAY * 2);
        assert_eq!(shown(), "", "no row");
        progress.row("64 MiB");
        progress.step(|| "sample 3 of 10".to_owned());
        draw(Duration::ZERO);
        assert_eq!(shown(), "", "not yet");
        draw(DELAY * 2);
        assert_eq!(shown(), format!("{ERASE}64 MiB: sample 3 of 10, 4 s so far"));
        progress.done();
        assert!(shown().ends_with(&format!("so far{ERASE}")));
        let before = shown();
        progress.row("128 MiB");
        drop(progress);
        assert_eq!(shown(), before, "a short row leaves nothing");
    }
}
