//! A build for mutation testing: a variable replaces one source, and another names those that were asked for.
//!
//! `PTX_REPLACED=PATH` names a file whose first line is a path under `kernels/` and whose rest is the text that stands
//! there. `PTX_USED=FOLDER` names a folder in which an empty file appears for each source that is asked for: so a test
//! is known to use it. Both reach the processes that a test starts, because they are variables.
//!
//! The kernels of plans are composed by calls that each add a fragment. Such a call is a source, too: its name is its place, as
//! in `plan/control.rs:92`, and its text is empty to leave the fragment out, or gives one constant another value, as in `ASKS=0`.

use std::collections::HashSet;
use std::panic::Location;
use std::sync::{Mutex, OnceLock};

/// The text of the source at `path`, of which `text` is the one compiled in.
pub(crate) fn current(path: &str, text: &'static str) -> &'static str {
    note(path);
    match replaced() {
        Some((name, other)) if name == path => other,
        _ => text,
    }
}

/// The parameters with which the call at `place` adds its fragment, or `None` if it leaves it out.
pub(crate) fn call(place: &Location<'_>, mut params: Vec<(String, String)>) -> Option<Vec<(String, String)>> {
    let file = place.file().rsplit_once("src/").map_or(place.file(), |(_, file)| file);
    let name = format!("{file}:{}", place.line());
    note(&name);
    match replaced() {
        Some((called, change)) if *called == name => {
            let (constant, value) = change.trim().split_once('=')?;
            let found = params.iter_mut().find(|(name, _)| name == constant);
            value.clone_into(&mut found.expect("PTX_REPLACED: the call has this constant").1);
            Some(params)
        }
        _ => Some(params),
    }
}

/// The source that is replaced, and the text in its place.
pub(crate) fn replaced() -> Option<&'static (String, String)> {
    static REPLACED: OnceLock<Option<(String, String)>> = OnceLock::new();
    let read = || {
        let file = std::env::var_os("PTX_REPLACED")?;
        let whole = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("PTX_REPLACED: {file:?}: {e}"));
        let (name, text) = whole.split_once('\n').expect("PTX_REPLACED: the first line names a source");
        Some((name.to_owned(), text.to_owned()))
    };
    REPLACED.get_or_init(read).as_ref()
}

/// Leaves a file for `path` in the folder of `PTX_USED`, if that is set.
fn note(path: &str) {
    static NOTED: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let Some(folder) = std::env::var_os("PTX_USED") else { return };
    let mut noted = NOTED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if noted.get_or_insert_default().insert(path.to_owned()) {
        let file = std::path::Path::new(&folder).join(path.replace('/', "+"));
        std::fs::write(&file, "").unwrap_or_else(|e| panic!("PTX_USED: {file:?}: {e}"));
    }
}
