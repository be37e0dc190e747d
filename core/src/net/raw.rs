//! Bytes and file descriptors over one non-blocking socket, and the seam where faults can be injected.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::admission::Permit;
use super::claims::Claims;
use super::frame::MAX_FDS;
use super::sys;

/// A connected, non-blocking byte stream that can carry file descriptors if it is local.
///
/// The real one is a socket. A [`Layer`] can put another in between that drops, delays, repeats or cuts.
pub trait RawStream: Debug + Send + Sync {
    /// Reads some bytes; 0 at the end of the stream, `WouldBlock` if there are none now. Descriptors that came
    /// with them are appended to `fds`.
    fn read(&self, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize>;

    /// Writes some bytes, `WouldBlock` if none fit now. All of `fds` go with the first byte written.
    fn write(&self, from: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize>;

    /// Reads some bytes into the first of `parts`, then the next; otherwise as [`read`](Self::read). Bytes that come with
    /// descriptors are an error.
    ///
    /// # Safety
    /// Each part must be writable memory of this process, which nobody holds a Rust reference into.
    unsafe fn read_parts(&self, parts: &mut [libc::iovec]) -> io::Result<usize> {
        let Some(first) = parts.iter().find(|part| part.iov_len > 0) else { return Ok(0) };
        let mut buffer = [0; PART_BYTES];
        let room = first.iov_len.min(buffer.len());
        let mut fds = Vec::new();
        let got = self.read(&mut buffer[..room], &mut fds)?;
        if !fds.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "unexpected file descriptors"));
        }
        // SAFETY: `got` is at most the length of the part, which the caller vouches for.
        unsafe { std::ptr::copy_nonoverlapping(buffer.as_ptr(), first.iov_base.cast(), got) };
        Ok(got)
    }

    /// Writes some bytes of the first of `parts`, then of the next; otherwise as [`write`](Self::write).
    ///
    /// # Safety
    /// Each part must be readable memory of this process.
    unsafe fn write_parts(&self, parts: &[libc::iovec]) -> io::Result<usize> {
        let Some(first) = parts.iter().find(|part| part.iov_len > 0) else { return Ok(0) };
        let mut buffer = [0; PART_BYTES];
        let len = first.iov_len.min(buffer.len());
        // SAFETY: at most the length of the part, which the caller vouches for.
        unsafe { std::ptr::copy_nonoverlapping(first.iov_base.cast(), buffer.as_mut_ptr(), len) };
        self.write(&buffer[..len], &[])
    }

    /// Ends the sending side, or both. The peer reads an end of stream after what was sent before.
    fn shutdown(&self, both: bool) -> io::Result<()>;

    /// The descriptor to wait on.
    fn fd(&self) -> BorrowedFd<'_>;
}

/// How much goes through a layer that only knows whole slices at once.
const PART_BYTES: usize = 16 << 10;

/// Puts something between an authenticated stream and its socket.
pub trait Layer: Debug + Send + Sync {
    /// Wraps the stream that connects `local` with `peer`.
    fn wrap(&self, local: Claims, peer: Claims, raw: Box<dyn RawStream>) -> Box<dyn RawStream>;
}

/// A TCP or unix stream socket.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    /// A unix socket, which can bring descriptors.
    local: bool,
    /// Place in the listener's count of connections. Declared after the descriptor, so that the place is given back
    /// once the descriptor is closed.
    _permit: Option<Permit>,
}

/// Room for one control message with [`MAX_FDS`] descriptors, aligned as `cmsghdr` wants it.
#[repr(align(8))]
struct Control([u8; CONTROL_BYTES]);

const CONTROL_BYTES: usize =
    // SAFETY: CMSG_SPACE only computes.
    unsafe { libc::CMSG_SPACE((MAX_FDS * size_of::<RawFd>()) as u32) } as usize;

impl Socket {
    /// A new non-blocking, close-on-exec stream socket of an address family.
    pub(super) fn new(family: libc::c_int) -> io::Result<Self> {
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers are passed.
        let fd = sys::owned(unsafe { libc::socket(family, kind, 0) })?;
        Self::set_up(fd, family == libc::AF_UNIX)
    }

    /// A connection taken from the listening socket `listener`.
    pub(super) fn accept(listener: &Self) -> io::Result<Self> {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: null address pointers are allowed: the address is not wanted.
        let fd = unsafe { libc::accept4(listener.raw(), std::ptr::null_mut(), std::ptr::null_mut(), flags) };
        Self::set_up(sys::owned(fd)?, listener.local)
    }

    fn set_up(fd: OwnedFd, local: bool) -> io::Result<Self> {
        let socket = Self { fd, local, _permit: None };
        if !local {
            socket.no_delay()?;
        }
        Ok(socket)
    }

    /// Keeps `permit` as long as the socket is open.
    pub(super) fn hold(&mut self, permit: Option<Permit>) {
        self._permit = permit;
    }

    /// Sends every frame at once: control messages are small and somebody waits for each.
    fn no_delay(&self) -> io::Result<()> {
        self.set_option(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)
    }

    pub(super) fn set_option(
        &self,
        level: libc::c_int,
        name: libc::c_int,
        value: libc::c_int,
    ) -> io::Result<()> {
        let size = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: `value` lives across the call and its size is passed with it.
        sys::check(unsafe { libc::setsockopt(self.raw(), level, name, (&raw const value).cast(), size) })
            .map(drop)
    }

    /// The pending error of the socket (`SO_ERROR`), if there is one.
    pub(super) fn take_error(&self) -> io::Result<()> {
        let mut code: libc::c_int = 0;
        let mut size = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: `code` and `size` live across the call and describe each other.
        sys::check(unsafe {
            libc::getsockopt(self.raw(), libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut code).cast(), &mut size)
        })?;
        if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
    }

    pub(super) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Reads bytes and the descriptors that come with them, and leaves both in the socket.
    ///
    /// Where the process has too few descriptors left, the kernel installs some, says that the list is cut, and would drop
    /// the others for good together with the bytes. So they are looked at first and taken only if all were installed;
    /// otherwise this fails with `EMFILE`, and everything can still be read later.
    fn peek(&self, into: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        let mut control = Control([0; CONTROL_BYTES]);
        let mut part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // SAFETY: all-zero is a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL_BYTES;
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: `message` describes `into` and `control`, which live across the call.
        let got = retry(|| unsafe { libc::recvmsg(self.raw(), &mut message, flags) })?;
        let mut came = Vec::new();
        take_fds(&message, &mut came);
        if message.msg_flags & libc::MSG_CTRUNC == 0 {
            return Ok((got, came));
        }
        Err(if came.len() < MAX_FDS {
            io::Error::from_raw_os_error(libc::EMFILE)
        } else {
            io::Error::new(io::ErrorKind::InvalidData, "too many file descriptors in one message")
        })
    }
}

impl Socket {
    /// Reads bytes, drops the descriptors that came with them, and says whether there were any. The kernel shows a peek that fills its
    /// buffer the descriptors of the bytes behind, too; those come again, with their bytes.
    fn take(&self, into: &mut [u8]) -> io::Result<(usize, bool)> {
        let mut part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // SAFETY: all-zero is a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        // SAFETY: `message` describes `into`, which lives across the call. There is no room for descriptors, which the kernel notes.
        let got = retry(|| unsafe { libc::recvmsg(self.raw(), &mut message, libc::MSG_DONTWAIT) })?;
        Ok((got, message.msg_flags & libc::MSG_CTRUNC != 0))
    }
}

impl RawStream for Socket {
    fn read(&self, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let (count, came) = if self.local { self.peek(into)? } else { (into.len(), Vec::new()) };
        if count == 0 {
            return Ok(0);
        }
        let into = &mut into[..count];
        if came.is_empty() {
            // SAFETY: the pointer and length describe `into`, which lives across the call.
            return retry(|| unsafe {
                libc::recv(self.raw(), into.as_mut_ptr().cast(), into.len(), libc::MSG_DONTWAIT)
            });
        }
        let (got, had_fds) = self.take(into)?;
        if had_fds {
            fds.extend(came);
        }
        Ok(got)
    }

    fn write(&self, from: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        if fds.len() > MAX_FDS {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "too many file descriptors in one message",
            ));
        }
        let mut control = Control([0; CONTROL_BYTES]);
        let mut part = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        // SAFETY: all-zero is a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            let bytes = size_of_val(fds) as u32;
            message.msg_control = control.0.as_mut_ptr().cast();
            // SAFETY: CMSG_SPACE and CMSG_LEN only compute. CMSG_FIRSTHDR points to the start of `control`, which
            // is aligned and has room for MAX_FDS descriptors; `BorrowedFd` has the layout of `RawFd`.
            unsafe {
                message.msg_controllen = libc::CMSG_SPACE(bytes) as _;
                let header = libc::CMSG_FIRSTHDR(&message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(bytes) as _;
                let data = libc::CMSG_DATA(header).cast::<BorrowedFd<'_>>();
                std::ptr::copy_nonoverlapping(fds.as_ptr(), data, fds.len());
            }
        }
        // SAFETY: `message` describes `from` and `control`, which live across the call.
        retry(|| unsafe { libc::sendmsg(self.raw(), &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) })
    }

    unsafe fn read_parts(&self, parts: &mut [libc::iovec]) -> io::Result<usize> {
        if let [part] = parts {
            // SAFETY: the caller vouches for the part. Descriptors that come along are not taken.
            return retry(|| unsafe {
                libc::recv(self.raw(), part.iov_base, part.iov_len, libc::MSG_DONTWAIT)
            });
        }
        // SAFETY: all-zero is a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len();
        // SAFETY: the caller vouches for the parts. There is no room for control messages: none are taken.
        retry(|| unsafe { libc::recvmsg(self.raw(), &mut message, libc::MSG_DONTWAIT) })
    }

    unsafe fn write_parts(&self, parts: &[libc::iovec]) -> io::Result<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        if let [part] = parts {
            // SAFETY: the caller vouches for the part, which is only read.
            return retry(|| unsafe { libc::send(self.raw(), part.iov_base, part.iov_len, flags) });
        }
        // SAFETY: all-zero is a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_ptr().cast_mut();
        message.msg_iovlen = parts.len();
        // SAFETY: the caller vouches for the parts, which are only read.
        retry(|| unsafe { libc::sendmsg(self.raw(), &message, flags) })
    }

    fn shutdown(&self, both: bool) -> io::Result<()> {
        let how = if both { libc::SHUT_RDWR } else { libc::SHUT_WR };
        // SAFETY: no pointers are passed.
        sys::check(unsafe { libc::shutdown(self.raw(), how) }).map(drop)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Takes ownership of every descriptor in the control messages, so that none can leak.
fn take_fds(message: &libc::msghdr, fds: &mut Vec<OwnedFd>) {
    // SAFETY: recvmsg has filled `message` and its control buffer, which the caller keeps alive; the CMSG macros
    // walk it within msg_controllen. Each descriptor in an SCM_RIGHTS message is new and ours.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                for i in 0..bytes / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(i).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

fn retry(mut call: impl FnMut() -> libc::ssize_t) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(count) => return Ok(count),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}
