//! Whether this host has the memory that reads need: a system that lends more than it has would kill the process in the middle.

use anyhow::Result;

use crate::refusal::refuse;

/// Refuses `window` reads at a time of `size` bytes, if what they read and where to do not fit into memory that is free.
pub(super) fn check(size: u64, window: u32) -> Result<()> {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    // Without the line, the system says when there is none left.
    let Some(available) = available(&text) else { return Ok(()) };
    // The owner has the bytes once. Over TCP, what is compared has two buffers more.
    let needed = size.saturating_mul(u64::from(window) + 3);
    if needed > available {
        refuse!(
            "message-read of {size} B needs {needed} B of memory ({window} reads at a time), and this host has {available} B free; \
             use smaller sizes (-e) or fewer reads at a time (-W)"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_understood() {
        let text = "MemTotal:       24689736 kB\nMemAvailable:   23456 kB\nBuffers:  1 kB\n";
        assert_eq!(available(text), Some(23456 << 10));
        assert_eq!([available(""), available("MemAvailable: many kB\n")], [None, None]);
    }
}
