//! What happens to a kernel that waits for what never comes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use aqueduct::{Deadline, ErrorKind};
use aqueduct_ptx::abi::Operation;

use super::check::{Check, Ran};
use super::copies;
use super::group::Group;

/// How long a kernel may take to leave, and the news to spread.
const PATIENCE: Duration = Duration::from_secs(5);

/// The round of a group of its own in which every rank but one at most has a partner.
const ROUND: u32 = 1;

/// Kernels of a second group wait for signals that nobody sends, and that group is aborted: they leave, the record names
/// what they waited for, and the first group works on.
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
        check.expect(!pair.stream.is_idle()?, "a wait ended although nobody had signalled");
    }
    check.agree(true)?;

    let since = Instant::now();
    if check.rank.is_root() {
        doomed.comm.abort("selftest: on purpose");
    }
    let mut what = "no partner".to_owned();
    for pair in &doomed.pairs {
        let left = pair.stream.synchronize(Deadline::after(PATIENCE));
        left.with_context(|| format!("a kernel has not left {PATIENCE:?} after the abort"))?;
        match doomed.comm.abort_record() {
            Some(record) => {
                let right = record.operation == Operation::WAIT && record.peer == Some(pair.peer);
                check.expect(
                    right,
                    format_args!("the record says `{record}`, not a wait on rank {}", pair.peer),
                );
                what = format!("left {:.1} ms after it: {record}", since.elapsed().as_secs_f64() * 1e3);
            }
            None => check.complain("the kernel left no record of what it waited for".to_owned()),
        }
    }
    while doomed.comm.check().is_ok() && since.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    match doomed.comm.check() {
        Err(error) if error.kind() == ErrorKind::Aborted && error.message().contains("on purpose") => {}
        Err(error) => check.complain(format!("the group ended with another error: {error}")),
        Ok(()) => check.complain(format!("{PATIENCE:?} after the abort this rank has not heard of it")),
    }
    check.agree(true)?;
    drop(doomed);

    check.group.comm.check()?;
    for pair in &check.group.pairs {
        copies::put(check, pair, 0, (8193, 3, 5))?;
    }
    Ok(Ran::all(what))
}
