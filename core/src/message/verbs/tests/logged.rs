//! The lines that a thread writes to the log, for tests.

use std::cell::RefCell;

use log::{Level, LevelFilter, Log, Metadata, Record};

thread_local! {
    static LINES: RefCell<Option<Vec<(Level, String)>>> = const { RefCell::new(None) };
}

/// Keeps the lines of threads that ask for that.
struct Keeper;

impl Log for Keeper {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        LINES.with_borrow_mut(|lines| {
            if let Some(lines) = lines {
                lines.push((record.level(), record.args().to_string()));
            }
        });
    }

    fn flush(&self) {}
}

/// Runs `act`; returns what this thread has logged meanwhile.
pub(in crate::message) fn logged(act: impl FnOnce()) -> Vec<(Level, String)> {
    // Fails for all but the first.
    let _ = log::set_logger(&Keeper);
    log::set_max_level(LevelFilter::Trace);
    LINES.set(Some(Vec::new()));
    act();
    LINES.take().unwrap_or_default()
}
