//! Finds what a job left behind: processes, sockets, shared memory, device memory.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use aqueduct::Deadline;
use aqueduct::gpu::Context;

use crate::group::{Machine, context};

/// State of the machine before the first job.
pub(super) struct Baseline {
    shared_memory: BTreeSet<String>,
    /// A context on every NVIDIA GPU, with its free memory.
    devices: Vec<(Context, usize)>,
    /// Folder for the ranks' sockets.
    pub(super) folder: tempfile::TempDir,
}

impl Baseline {
    pub(super) fn look(machine: Machine) -> Self {
        let driver = machine.driver();
        let count = match machine {
            // Every process has its own software device, and its memory is freed with the last process that maps it.
            Machine::Software => 0,
            Machine::Hardware => aqueduct::gpu::Device::count(&driver).expect("devices can be counted"),
        };
        let devices = (0..count).map(|ordinal| {
            let context = context(&driver, ordinal);
            let free = context.memory_info().expect("the device reports its memory").0;
            (context, free)
        });
        let folder = tempfile::tempdir().expect("a folder can be made");
        Self { shared_memory: shared_memory(), devices: devices.collect(), folder }
    }

    /// Everything that was not there before a job of the processes `pids`, all of which have been reaped. Checks
    /// sockets only if `sockets` is set.
    pub(super) fn leftovers(&self, pids: &[u32], sockets: bool) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        for pid in pids {
            // Each was the leader of its own process group, which must be empty by now.
            // SAFETY: signal 0 only checks that the group exists.
            if unsafe { libc::kill(-pid.cast_signed(), 0) } == 0 {
                found.push(format!("a process of the group of {pid}"));
            }
        }
        if sockets {
            found.extend(
                entries(self.folder.path()).into_iter().map(|name| format!("{name} among the sockets")),
            );
        }
        found.extend(shared_memory().difference(&self.shared_memory).map(|name| format!("/dev/shm/{name}")));
        for (context, before) in &self.devices {
            let patience = Deadline::after(Duration::from_secs(3));
            let free = || context.memory_info().expect("the device reports its memory").0;
            while free() < *before && !patience.expired() {
                std::thread::sleep(Duration::from_millis(20));
            }
            if free() < *before {
                found.push(format!("{} bytes of device memory", *before - free()));
            }
        }
        found
    }
}

/// Names in /dev/shm that are ours; other programs use the folder too.
fn shared_memory() -> BTreeSet<String> {
    entries(Path::new("/dev/shm")).into_iter().filter(|name| name.contains("aqueduct")).collect()
}

fn entries(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
