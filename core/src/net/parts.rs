//! Reading into several parts, for sockets of tests.

use std::io;

use super::RawStream;

/// Reads from `socket` at once, into one part behind the other.
///
/// # Safety
/// As for [`RawStream::read_parts`].
pub(crate) unsafe fn read_parts(socket: &impl RawStream, parts: &mut [libc::iovec]) -> io::Result<usize> {
    let mut bytes = vec![0; parts.iter().map(|part| part.iov_len).sum()];
    let got = socket.read(&mut bytes, &mut Vec::new())?;
    let mut rest = &bytes[..got];
    for part in parts {
        let (now, later) = rest.split_at(rest.len().min(part.iov_len));
        // SAFETY: no more than the length of the part, which the caller vouches for.
        unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), part.iov_base.cast(), now.len()) };
        rest = later;
    }
    Ok(got)
}
