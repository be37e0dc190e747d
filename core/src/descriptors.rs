//! Whether this process has file descriptors left.
//!
//! A driver answers that it is out of memory, or with an unknown error, when it cannot open a file; a wait ends at its
//! deadline because no connection could be accepted. The remedy is then a limit that neither error names.

/// Remedy where this process has none left.
pub(crate) const RAISE: &str = "raise the limit with ulimit -n, or LimitNOFILE= of the service";

/// The same where the host has none left.
pub(crate) const RAISE_HOST: &str = "raise the sysctl fs.file-max";

/// Says why no file can be opened, and what to do; `None` if files can be opened. Opens one and closes it, so it is for
/// places that have failed already.
#[cold]
pub(crate) fn exhausted() -> Option<String> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd >= 0 {
        // SAFETY: the call above has opened it for this function, and nobody else knows it.
        unsafe { libc::close(fd) };
        return None;
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EMFILE) => Some(format!(
            "this process has no file descriptors left, of {} that it may open: {RAISE}",
            limit()
        )),
        Some(libc::ENFILE) => Some(format!("the host has no file descriptors left: {RAISE_HOST}")),
        _ => None,
    }
}

/// The most that this process may open.
pub(crate) fn limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a live output. Fails only for a resource that does not exist.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur
}
