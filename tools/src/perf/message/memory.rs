//! Whether this process can have the memory that reads need: a system that lends more than it has would kill the process in the middle.

use std::fs::read_to_string;
use std::path::Path;

use anyhow::Result;

use crate::refusal::refuse;

/// Refuses `window` reads at a time of `size` bytes, if what they read and where to do not fit into memory that is free.
pub(super) fn check(size: u64, window: u32) -> Result<()> {
    let text = |path: &str| read_to_string(path).unwrap_or_default();
    let of_host = available(&text("/proc/meminfo"));
    let of_groups = left_in_groups(Path::new("/sys/fs/cgroup"), &text("/proc/self/cgroup"));
    // Where neither says anything, the system does when there is none left.
    let Some(available) = of_host.into_iter().chain(of_groups).min() else { return Ok(()) };
    // The owner has the bytes once. Over TCP, what is compared has two buffers more.
    let needed = size.saturating_mul(u64::from(window) + 3);
    if needed > available {
        refuse!(
            "message-read of {size} B needs {needed} B of memory ({window} reads at a time), and {available} B are free to this process, by the \
             host's memory and the limits of its control groups; use smaller sizes (-e) or fewer reads at a time (-W)"
        );
    }
    Ok(())
}

/// Bytes that programs can get, of the text of `/proc/meminfo`.
fn available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The files of one version of control groups: where its folders are, under the folder of all of them, and their names.
struct Files {
    folders: &'static [&'static str],
    limit: &'static str,
    used: &'static str,
    /// The line of `memory.stat` for what is dropped before anything is killed.
    cache: &'static str,
}

/// Mounted alone, or beside version 1.
const SECOND: Files =
    Files { folders: &["", "unified"], limit: "memory.max", used: "memory.current", cache: "inactive_file " };
const FIRST: Files = Files {
    folders: &["memory"],
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cache: "total_inactive_file ",
};

/// Bytes that a process gets until the first of its control groups, mounted under `mounts`, has no more; of the text of its
/// `/proc/self/cgroup`. `None` if none has a limit.
fn left_in_groups(mounts: &Path, own: &str) -> Option<u64> {
    let left = own.lines().filter_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        let files = match controllers {
            "" => &SECOND,
            controllers if controllers.split(',').any(|name| name == "memory") => &FIRST,
            _ => return None,
        };
        // A limit binds all groups below. A container may see its own group as the root of all, under another name.
        let groups = || Path::new(group.trim_start_matches('/')).ancestors();
        let all = files
            .folders
            .iter()
            .flat_map(|folder| groups().map(move |group| mounts.join(folder).join(group)));
        all.filter_map(|group| left(&group, files)).min()
    });
    left.min()
}

/// Bytes that the group of this folder has left; `None` if it has no limit.
fn left(group: &Path, files: &Files) -> Option<u64> {
    let number = |name| read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, used) = (number(files.limit)?, number(files.used)?);
    let stat = read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cache = stat.lines().find_map(|line| line.strip_prefix(files.cache)?.trim().parse::<u64>().ok());
    Some(limit.saturating_sub(used.saturating_sub(cache.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn what_the_system_says_is_understood() {
        let text = "MemTotal:       24689736 kB\nMemAvailable:   23456 kB\nBuffers:  1 kB\n";
        assert_eq!(available(text), Some(23456 << 10));
        assert_eq!([available(""), available("MemAvailable: many kB\n")], [None, None]);
    }

    /// A folder of control groups, removed in the end.
    struct Mounts(PathBuf);

    impl Mounts {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("aqueduct-groups-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn add(&self, group: &str, files: &[(&str, &str)]) {
            let folder = self.0.join(group);
            std::fs::create_dir_all(&folder).unwrap();
            files
                .iter()
                .for_each(|(name, text)| std::fs::write(folder.join(name), format!("{text}\n")).unwrap());
        }
    }

    impl Drop for Mounts {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_tightest_group_above_a_process_counts() {
        let mounts = Mounts::new("second");
        let left = |own| left_in_groups(&mounts.0, own);
        mounts.add("a/b", &[("memory.max", "max"), ("memory.current", "50")]);
        assert_eq!([left("0::/a/b\n"), left("")], [None, None], "no limit");
        mounts.add("a", &[("memory.max", "1000"), ("memory.current", "600")]);
        mounts.add("other", &[("memory.max", "1"), ("memory.current", "1")]);
        assert_eq!(left("0::/a/b\n"), Some(400));
        mounts.add("a", &[("memory.stat", "anon 1\ninactive_file 100\nactive_file 9")]);
        assert_eq!(left("0::/a/b\n"), Some(500), "the cache gives way");
        mounts.add("a/b", &[("memory.max", "70")]);
        assert_eq!(left("0::/a/b\n"), Some(20));
        mounts.add("a/b", &[("memory.current", "80")]);
        assert_eq!(left("0::/a/b\n"), Some(0), "a limit that was lowered");
        mounts.add("", &[("memory.max", "30"), ("memory.current", "13")]);
        assert_eq!(left("0::/a/name/outside/of/this/container\n"), Some(17).min(left("0::/a\n")));
        assert_eq!(left("0::/unknown\n"), Some(17));
    }

    #[test]
    fn groups_of_the_first_version_count_as_well() {
        let mounts = Mounts::new("first");
        let own = "9:name=systemd:/x\n4:hugetlb,memory:/x/y\n0::/z\n";
        let files = [("memory.limit_in_bytes", "9223372036854771712"), ("memory.usage_in_bytes", "3")];
        mounts.add("memory/x/y", &files);
        mounts.add("memory/x", &[("memory.limit_in_bytes", "100"), files[1]]);
        assert_eq!(left_in_groups(&mounts.0, own), Some(97));
        mounts.add("unified/z", &[("memory.max", "60"), ("memory.current", "10")]);
        assert_eq!(left_in_groups(&mounts.0, own), Some(50), "both at a time");
        assert_eq!(left_in_groups(&mounts.0, "4:cpu:/x/y\n"), None);
    }
}
