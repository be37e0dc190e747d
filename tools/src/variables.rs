//! Finds the environment variables that a job would refuse.

use aqueduct::bootstrap::{Launch, Selection, UniqueId};
use aqueduct::collective::Tuning;
use aqueduct::internals::env::Env;
use aqueduct::internals::net;

/// All that is wrong, in a sentence each, which names the variable.
pub(crate) fn wrong() -> Vec<String> {
    let env = Env::get();
    let wrong = [
        env.as_ref().err().map(|error| error.message().to_owned()),
        cuda_soft::Config::from_env().err(),
        env.as_ref().ok().and_then(|env| check_tuning(env).err()),
        env.as_ref().ok().and_then(|env| check_unique_id(env).err()),
        env.as_ref().ok().and_then(|env| check_interfaces(env).err()),
        // It reads some of the same variables.
        env.as_ref().ok().and_then(|_| Launch::from_env().err()).map(|error| error.message().to_owned()),
    ];
    wrong.into_iter().flatten().collect()
}

/// An error, in one sentence, unless the table of tuning can be read or there is none.
pub(crate) fn check_tuning(env: &Env) -> Result<(), String> {
    let Some(path) = &env.tuning else { return Ok(()) };
    let refused = |error: aqueduct::Error| {
        let (path, cause) = (path.display(), cause(&error));
        let wanted = "a table that `aqueduct tune` wrote, and nothing while it writes one";
        format!("AQUEDUCT_TUNING={path} is not valid; it takes {wanted} ({cause})")
    };
    Tuning::read(path).map_err(refused).map(drop)
}

/// An error, in one sentence, unless the job's id can be read or there is none. The sentence has nothing of the id, which is secret.
pub(crate) fn check_unique_id(env: &Env) -> Result<(), String> {
    let Some(text) = &env.unique_id else { return Ok(()) };
    let refused = |error: aqueduct::Error| format!("AQUEDUCT_UNIQUE_ID is not valid: {}", cause(&error));
    text.parse::<UniqueId>().map_err(refused).map(drop)
}

/// An error, in one sentence, if no interface of this host is among those that the variables name.
pub(crate) fn check_interfaces(env: &Env) -> Result<(), String> {
    if env.selection() == Selection::default() {
        return Ok(());
    }
    net::choose(&env.selection()).map_err(|error| cause(&error)).map(drop)
}

/// An error without its operation and kind.
fn cause(error: &aqueduct::Error) -> String {
    match error.cause() {
        Some(cause) => format!("{}: {cause}", error.message()),
        None => error.message().to_owned(),
    }
}
