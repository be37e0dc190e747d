//! Shows the progress of a long row: a line that is redrawn on a terminal, whole lines on a pipe that `aqueduct run` forwards to
//! one.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A row that is done sooner shows nothing.
const DELAY: Duration = Duration::from_secs(2);
const INTERVAL: Duration = Duration::from_millis(250);
/// Time between two whole lines of a row.
const LINES: Duration = Duration::from_secs(5);
/// Begins the line again and erases it.
const ERASE: &str = "\r\x1b[2K";

/// The progress of the row that is being measured. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Progress(Option<Arc<Mutex<State>>>);

/// Set for ranks by a launcher whose standard error is a terminal.
pub(crate) const AT_A_TERMINAL: &str = "AQUEDUCT_PROGRESS";

/// Kind of standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Surface {
    Terminal,
    /// A pipe that `aqueduct run` forwards to a terminal.
    Pipe,
}

impl Surface {
    fn of_stderr() -> Option<Self> {
        let stderr = std::io::stderr();
        if stderr.is_terminal() {
            return Some(Self::Terminal);
        }
        // A rank's own redirection to a file leads elsewhere.
        let piped = || {
            Some(File::from(stderr.as_fd().try_clone_to_owned().ok()?).metadata().ok()?.file_type().is_fifo())
        };
        (std::env::var_os(AT_A_TERMINAL).is_some() && piped().unwrap_or(false)).then_some(Self::Pipe)
    }
}

struct State {
    row: Option<Row>,
    surface: Surface,
    /// Whether the terminal shows a line of ours.
    shown: bool,
    /// When the row's last whole line was written.
    line_at: Option<Instant>,
    out: Box<dyn Write + Send>,
}

struct Row {
    label: String,
    step: String,
    since: Instant,
}

impl Progress {
    /// Shows progress if `wanted` and standard error is a terminal or leads to one.
    pub(super) fn start(wanted: bool) -> Self {
        let Some(surface) = Surface::of_stderr().filter(|_| wanted) else { return Self::default() };
        let progress = Self::to(surface, Box::new(std::io::stderr()));
        if let Some(state) = &progress.0 {
            let state = Arc::downgrade(state);
            std::thread::spawn(move || draw(&state));
        }
        progress
    }

    fn to(surface: Surface, out: Box<dyn Write + Send>) -> Self {
        Self(Some(Arc::new(Mutex::new(State { row: None, surface, shown: false, line_at: None, out }))))
    }

    /// Begins a row.
    pub(super) fn row(&self, label: impl Into<String>) {
        self.with(|state| {
            state.erase();
            state.line_at = None;
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
        let line = format!("{}: {}, {} s so far", row.label, row.step, time.as_secs());
        match self.surface {
            Surface::Terminal => {
                self.shown = true;
                self.write(&format!("{ERASE}{line}"));
            }
            Surface::Pipe if self.line_at.is_some_and(|at| now.saturating_duration_since(at) < LINES) => {}
            Surface::Pipe => {
                self.line_at = Some(now);
                self.write(&format!("{line}\n"));
            }
        }
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
        let progress = Progress::to(Surface::Terminal, Box::new(screen.clone()));
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
    #[test]
    fn a_pipe_gets_whole_lines_now_and_then() {
        let pipe = Screen::default();
        let progress = Progress::to(Surface::Pipe, Box::new(pipe.clone()));
        progress.row("64 MiB");
        let since = Instant::now();
        for quarters in 0..=32 {
            progress.with(|state| state.draw(since + INTERVAL * quarters));
        }
        progress.done();
        let shown = String::from_utf8(pipe.0.lock().unwrap().clone()).unwrap();
        assert_eq!(shown, "64 MiB: preparing, 2 s so far\n64 MiB: preparing, 7 s so far\n");
    }
}
