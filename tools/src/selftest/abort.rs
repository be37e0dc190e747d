//! Abort of a kernel that waits for a signal that never comes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use aqueduct::{Deadline, Error, ErrorKind};
use aqueduct_ptx::abi::Operation;

use super::check::{Check, Ran};
use super::copies;
use super::group::Group;

/// Longest time for a kernel to leave and for all ranks to learn of the abort.
const PATIENCE: Duration = Duration::from_secs(5);

/// The round of the second group, in which all ranks, or all but one, have a partner.
const ROUND: u32 = 1;

/// Whether an error gives the reason of the abort.
fn told(error: &Error) -> bool {
    error.kind() == ErrorKind::Aborted && error.message().contains("on purpose")
}

/// Lets kernels of a second group wait for signals that no rank sends and aborts that group. The kernels must leave,
/// waits for their streams must say why, the abort record must name what they waited for, and the first group must still
/// work.
pub(super) fn of_a_second_group(check: &Check<'_>) -> Result<Ran> {
    if check.size() < 2 {
        return Ok(Ran::not("needs a second rank"));
    }
    if !check.group.comm.topology().all_reachable() {
        return Ok(Ran::not("needs peer access between the devices of all ranks"));
    }
    let doomed = Group::new(check.rank, &[ROUND])?;
    for pair in &doomed.pairs {
        pair.data.wait(&pair.stream)?;
    }
    check.agree(true)?;
    std::thread::sleep(Duration::from_millis(50));
    for pair in &doomed.pairs {
        check.expect(!pair.stream.is_idle()?, "a wait ended although no rank had signalled");
    }
    check.agree(true)?;

    let since = Instant::now();
    if check.rank.is_root() {
        doomed.comm.abort("selftest: on purpose");
    }
    let mut what = "no partner".to_owned();
    for pair in &doomed.pairs {
        match pair.stream.synchronize(Deadline::after(PATIENCE)) {
            Err(error) if told(&error) => {}
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("waiting {PATIENCE:?} for a kernel that was aborted"));
            }
            Ok(()) => check.complain("a stream's wait succeeded although its kernel gave up".to_owned()),
        }
        match doomed.comm.abort_record() {
            Some(record) => {
                let right = record.operation == Operation::WAIT && record.peer == Some(pair.peer);
                check.expect(
                    right,
                    format_args!("the record says `{record}`, not a wait on rank {}", pair.peer),
                );
                what = format!(
                    "kernel left {:.1} ms after the abort: {record}",
                    since.elapsed().as_secs_f64() * 1e3
                );
            }
            None => check.complain("the kernel did not record what it waited for".to_owned()),
        }
    }
    while doomed.comm.check().is_ok() && since.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    match doomed.comm.check() {
        Err(error) if told(&error) => {}
        Err(error) => check.complain(format!("the group ended with another error: {error}")),
        Ok(()) => check.complain(format!("this rank did not learn of the abort within {PATIENCE:?}")),
    }
    check.agree(true)?;
    drop(doomed);

    check.group.comm.check()?;
    for pair in &check.group.pairs {
        copies::put(check, pair, 0, (8193, 3, 5))?;
    }
    Ok(Ran::all(what))
}
