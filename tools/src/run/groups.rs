//! Finds live processes in the process groups of ranks.

use std::collections::BTreeSet;
use std::fs;

/// Whether a process of one of `groups` has not exited yet. `None` where `/proc` cannot say.
///
/// kill(2) cannot be asked: it also finds the ranks themselves, which have exited and are not reaped.
pub(super) fn live(groups: &BTreeSet<u32>) -> Option<bool> {
    let mut entries = fs::read_dir("/proc").ok()?.flatten().filter(|entry| is_number(&entry.file_name()));
    // The launcher itself is there, unless this is no /proc.
    let mut any = false;
    let live = entries.by_ref().any(|entry| {
        any = true;
        // A process that has exited meanwhile has no file.
        let stat = fs::read(entry.path().join("stat")).unwrap_or_default();
        matches!(group(&stat), Some((group, state)) if groups.contains(&group) && !matches!(state, b'Z' | b'X'))
    });
    any.then_some(live)
}

fn is_number(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
}

/// Process group and state of a line of `/proc/PID/stat`: `PID (NAME) STATE PARENT GROUP ...`. The name may hold anything.
fn group(stat: &[u8]) -> Option<(u32, u8)> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = stat[name_end + 1..].split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let state = *fields.next()?.first()?;
    let group = std::str::from_utf8(fields.nth(1)?).ok()?.parse().ok()?;
    Some((group, state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_fields() {
        assert_eq!(group(b"12 (sleep) S 1 34 34 0 -1"), Some((34, b'S')));
        assert_eq!(group(b"12 (a) Z 7 8 (b c) R 1 35 0"), Some((35, b'R')));
        assert_eq!((group(b""), group(b"12 (sleep) S 1")), (None, None));
    }

    #[test]
    fn this_process_lives_and_a_zombie_does_not() {
        // SAFETY: no pointers are passed.
        let ours = u32::try_from(unsafe { libc::getpgrp() }).unwrap();
        assert_eq!(live(&BTreeSet::from([ours])), Some(true));
        let mut command = std::process::Command::new("true");
        let mut child = std::os::unix::process::CommandExt::process_group(&mut command, 0).spawn().unwrap();
        let group = BTreeSet::from([child.id()]);
        let since = std::time::Instant::now();
        while live(&group) == Some(true) {
            assert!(since.elapsed().as_secs() < 60);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(live(&group), Some(false), "exited and not reaped");
        assert!(child.wait().unwrap().success());
    }
}
