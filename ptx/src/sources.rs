//! The PTX files, embedded.

macro_rules! embed {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../kernels/", $name)))),*]
    };
}

/// Every file by its path under `kernels/`; fragments are named without their directory.
const FILES: &[(&str, &str)] = embed![
    "channel.ptx",
    "semaphore.ptx",
    "inc/abort_record.ptxi",
    "inc/copy.ptxi",
    "inc/grid_thread.ptxi",
    "inc/group_sync.ptxi",
    "inc/last_block.ptxi",
    "inc/sem_poll.ptxi",
    "inc/sem_relaxed_signal.ptxi",
    "inc/sem_relaxed_wait.ptxi",
    "inc/sem_signal.ptxi",
    "inc/sem_wait.ptxi",
];

/// Text of a kernel file (`channel.ptx`) or fragment (`copy.ptxi`).
pub(crate) fn find(name: &str) -> Option<&'static str> {
    FILES.iter().find(|(path, _)| path.strip_prefix("inc/").unwrap_or(path) == name).map(|&(_, text)| text)
}

/// Names of all fragments, in alphabetical order.
pub(crate) fn fragments() -> impl Iterator<Item = &'static str> {
    FILES.iter().filter_map(|(path, _)| path.strip_prefix("inc/"))
}
