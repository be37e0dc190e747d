//! Joining the job that a launcher has described in the environment.

use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use super::{Bootstrap, TcpBootstrap, UniqueId, local};
use crate::deadline::Deadline;
use crate::env::Env;
use crate::error::{Error, ErrorKind, Result};

/// Joins the job of `AQUEDUCT_RANK`, `AQUEDUCT_WORLD_SIZE` and `AQUEDUCT_UNIQUE_ID` (or `AQUEDUCT_UNIQUE_ID_FILE`),
/// as `aqueduct run` sets them; waits at most `AQUEDUCT_TIMEOUT`. `None` if there is no such job; an error that
/// names what is missing if the variables are incomplete.
pub fn from_env() -> Result<Option<Arc<dyn Bootstrap>>> {
    join(Env::get()?)
}

fn join(env: &Env) -> Result<Option<Arc<dyn Bootstrap>>> {
    let missing = |name: &str| {
        let text = format!(
            "{name} is not set, but others of AQUEDUCT_RANK, _WORLD_SIZE and _UNIQUE_ID are; set all"
        );
        Err(Error::usage("launch", text))
    };
    let has_id = env.unique_id.is_some() || env.unique_id_file.is_some();
    let (rank, size) = match (env.rank, env.world_size) {
        (None, None) if !has_id => return Ok(None),
        (None, _) => return missing("AQUEDUCT_RANK"),
        (_, None) => return missing("AQUEDUCT_WORLD_SIZE"),
        (Some(rank), Some(size)) => (rank, size),
    };
    let id: UniqueId = match (&env.unique_id, &env.unique_id_file) {
        (Some(text), _) => text.parse()?,
        (None, Some(path)) => read_private(path)?.parse()?,
        (None, None) if size == 1 => {
            return Ok(local(1).pop().map(|alone| Arc::new(alone) as Arc<dyn Bootstrap>));
        }
        (None, None) => return missing("AQUEDUCT_UNIQUE_ID"),
    };
    let joined = TcpBootstrap::new(rank, size, &id, Deadline::after(env.timeout))?;
    Ok(Some(Arc::new(joined)))
}

/// A file that only this user can read; a secret that others can read is none.
fn read_private(path: &Path) -> Result<String> {
    let failed = |error| Error::system("launch", format!("cannot read {}", path.display()), error);
    let file =
        std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    // SAFETY: no arguments, cannot fail.
    let user = unsafe { libc::geteuid() };
    if about.uid() != user || about.mode() & 0o077 != 0 || !about.is_file() {
        let text =
            format!("{} holds a secret; it must be a file of this user with mode 0600", path.display());
        return Err(Error::new(ErrorKind::Authentication, "launch", text));
    }
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(&file, 4096), &mut text).map_err(failed)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<Option<Arc<dyn Bootstrap>>> {
        let all: BTreeMap<String, String> =
            pairs.iter().map(|(n, v)| (format!("AQUEDUCT_{n}"), (*v).to_owned())).collect();
        join(&Env::parse(&all)?)
    }

    #[test]
    fn no_job_a_whole_job_and_parts_of_one() {
        assert!(with(&[]).unwrap().is_none());
        assert_eq!(with(&[("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap().unwrap().size(), 1);
        for (set, named) in [
            (&[("RANK", "0")][..], "AQUEDUCT_WORLD_SIZE is not set"),
            (&[("WORLD_SIZE", "2")][..], "AQUEDUCT_RANK is not set"),
            (&[("UNIQUE_ID", "00")][..], "AQUEDUCT_RANK is not set"),
            (&[("RANK", "0"), ("WORLD_SIZE", "2")][..], "AQUEDUCT_UNIQUE_ID is not set"),
            (&[("RANK", "0"), ("WORLD_SIZE", "2"), ("UNIQUE_ID", "00")][..], "2 characters instead of 256"),
        ] {
            let error = with(set).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn the_id_may_come_from_a_private_file_only() {
        let loopback: Vec<_> = crate::net::interfaces().unwrap().into_iter().filter(|i| i.loopback).collect();
        let meeting = crate::bootstrap::Rendezvous::start_on(&loopback, Some(1)).unwrap();
        let path = std::env::temp_dir().join(format!("aqueduct-id-test-{}", std::process::id()));
        std::fs::write(&path, meeting.unique_id().to_string()).unwrap();
        let with_file =
            || with(&[("RANK", "0"), ("WORLD_SIZE", "1"), ("UNIQUE_ID_FILE", path.to_str().unwrap())]);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let open = with_file().map(drop);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let private = with_file().map(drop);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(open.unwrap_err().kind(), ErrorKind::Authentication);
        private.unwrap();
        assert_eq!(with_file().unwrap_err().kind(), ErrorKind::System);
    }
}
