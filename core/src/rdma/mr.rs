//! Memory regions.

use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_core_sys::ibv_mr;

use super::access::Access;
use super::context::ProtectionDomain;
use super::region::{LocalRange, RemoteRegion, inside};
use super::status::{failed, last_errno};
use crate::error::{Error, Result};

/// An object that keeps memory alive as long as the NIC may reach it.
pub type KeepAlive = Arc<dyn Any + Send + Sync>;

/// Memory that the NIC may reach. Cheap to clone; clones are one region.
///
/// Dropping the last clone takes the NIC's rights away and then gives up the memory. Requests that still name the region,
/// here or at the peer, then fail.
#[derive(Clone)]
pub struct MemoryRegion {
    inner: Arc<Inner>,
}

struct Inner {
    domain: ProtectionDomain,
    raw: NonNull<ibv_mr>,
    /// The first byte's address in requests: the one in this process, or the one asked for.
    address: u64,
    length: u64,
    access: Access,
    /// Given up only when the NIC cannot reach the memory any more.
    keep: ManuallyDrop<KeepAlive>,
}

// SAFETY: a region is not written after its registration; libibverbs deregisters it from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl ProtectionDomain {
    /// Registers `length` bytes of this process at `address` for `access`; requests name them by these addresses.
    ///
    /// # Safety
    /// The bytes must stay mapped as long as `keep` lives. The NIC reads and, with the rights for it, writes them at any
    /// moment until the last clone of the region is dropped, also on behalf of the peer: nobody may hold references to them
    /// that forbid this.
    ///
    /// # Errors
    /// `InvalidUsage` for zero bytes, a range that wraps around, more than the NIC can register, or remote rights to write
    /// without the local one; [`ErrorKind::Verbs`](crate::ErrorKind::Verbs) with the limit to raise if too little memory may
    /// be locked.
    pub unsafe fn register(
        &self,
        address: *mut u8,
        length: usize,
        access: Access,
        keep: KeepAlive,
    ) -> Result<MemoryRegion> {
        const OP: &str = "ibv_reg_mr";
        let start = address.addr() as u64;
        self.check(OP, start, length as u64, access)?;
        // SAFETY: the domain is live; the caller vouches for the memory.
        let raw = unsafe {
            rdma_core_sys::ibv_reg_mr(
                self.verbs().table(),
                self.as_ptr(),
                address.cast(),
                length,
                access.bits(),
            )
        };
        self.own(OP, raw, start, length as u64, access, keep)
    }

    /// As [`register`](Self::register), but requests name the bytes by addresses from `named` on. Whoever does not know `named`
    /// cannot name the bytes, even if he guesses the key. The lowest bits of both addresses must be the same: a page's, and for
    /// speed those of a huge page.
    ///
    /// # Safety
    /// As for [`register`](Self::register).
    ///
    /// # Errors
    /// As for [`register`](Self::register); [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the library cannot.
    pub unsafe fn register_as(
        &self,
        address: *mut u8,
        length: usize,
        named: u64,
        access: Access,
        keep: KeepAlive,
    ) -> Result<MemoryRegion> {
        const OP: &str = "ibv_reg_mr_iova2";
        self.check(OP, address.addr() as u64, length as u64, access)?;
        self.check(OP, named, length as u64, access)?;
        let Some(register) = self.verbs().table().ibv_reg_mr_iova2 else {
            return Err(failed(OP, libc::EOPNOTSUPP, "libibverbs is older than rdma-core 28; update it"));
        };
        // SAFETY: the domain is live; the caller vouches for the memory.
        let raw = unsafe { register(self.as_ptr(), address.cast(), length, named, access.bits()) };
        self.own(OP, raw, named, length as u64, access, keep)
    }

    /// Registers `length` bytes at `offset` of a dma-buf, which is how device memory is best given to a NIC. Requests name
    /// them from `address` on, by convention the device address. No hardware has confirmed this call so far.
    ///
    /// # Safety
    /// As for [`register`](Self::register); the dma-buf itself is held by the kernel.
    ///
    /// # Errors
    /// As for [`register`](Self::register); [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the library, kernel
    /// or NIC cannot.
    pub unsafe fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        address: u64,
        access: Access,
        keep: KeepAlive,
    ) -> Result<MemoryRegion> {
        const OP: &str = "ibv_reg_dmabuf_mr";
        self.check(OP, address, length as u64, access)?;
        let Some(register) = self.verbs().table().ibv_reg_dmabuf_mr else {
            return Err(failed(OP, libc::EOPNOTSUPP, "libibverbs is older than rdma-core 34; update it"));
        };
        let access_bits = access.bits().cast_signed();
        // SAFETY: the domain and the descriptor are live; the caller vouches for the memory.
        let raw = unsafe { register(self.as_ptr(), offset, length, address, fd.as_raw_fd(), access_bits) };
        self.own(OP, raw, address, length as u64, access, keep)
    }

    fn check(&self, op: &'static str, address: u64, length: u64, access: Access) -> Result<()> {
        self.verbs().check(op)?;
        let most = self.context().attributes().max_region;
        if length == 0 || address.checked_add(length).is_none() {
            return Err(Error::usage(op, format!("{length} bytes at {address:#x} are no memory region")));
        }
        if length > most {
            let name = self.context().device().name();
            let message = format!("{length} bytes are more than device {name} registers at once ({most})");
            return Err(Error::usage(op, message));
        }
        if access.lacks_local_write() {
            return Err(Error::usage(op, format!("access {access:?} needs local write, too")));
        }
        Ok(())
    }

    fn own(
        &self,
        op: &'static str,
        raw: *mut ibv_mr,
        address: u64,
        length: u64,
        access: Access,
        keep: KeepAlive,
    ) -> Result<MemoryRegion> {
        let Some(raw) = NonNull::new(raw) else {
            return Err(refused(op, last_errno(), length, self));
        };
        self.count_region();
        let inner =
            Inner { domain: self.clone(), raw, address, length, access, keep: ManuallyDrop::new(keep) };
        Ok(MemoryRegion { inner: Arc::new(inner) })
    }
}

impl MemoryRegion {
    /// The `length` bytes at `offset`, for requests of this side.
    ///
    /// # Errors
    /// `InvalidUsage` if they are not all inside.
    #[inline]
    pub fn range(&self, offset: u64, length: u64) -> Result<LocalRange> {
        let address = inside(self.inner.address, self.inner.length, offset, length)?;
        Ok(LocalRange { address, length, key: self.local_key() })
    }

    /// The region as the peer names it. The peer can reach what the region's [`Access`] gives it, nothing else.
    pub fn remote(&self) -> RemoteRegion {
        // SAFETY: the region is live and not written.
        let key = unsafe { (*self.inner.raw.as_ptr()).rkey };
        RemoteRegion { address: self.inner.address, length: self.inner.length, key }
    }

    /// Whether both are one region.
    #[inline]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The first byte's address in requests.
    pub fn address(&self) -> u64 {
        self.inner.address
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_mr {
        self.inner.raw.as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.inner.length
    }

    /// Never: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The rights it was registered with.
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// The domain it belongs to.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.inner.domain
    }

    #[inline]
    fn local_key(&self) -> u32 {
        // SAFETY: as for `remote`.
        unsafe { (*self.inner.raw.as_ptr()).lkey }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let raw = self.raw.as_ptr();
        // SAFETY: registered by this domain, deregistered once.
        let gone =
            self.domain.verbs().destroy("a memory region", |table| unsafe { (table.ibv_dereg_mr)(raw) });
        if gone {
            // SAFETY: dropped once, here. If the region could not be deregistered the NIC may still reach the memory: it
            // then stays, for the rest of the process.
            unsafe { ManuallyDrop::drop(&mut self.keep) };
        }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("length", &self.len())
            .field("access", &self.access())
            .finish_non_exhaustive()
    }
}

fn refused(op: &'static str, errno: i32, length: u64, domain: &ProtectionDomain) -> Error {
    let name = domain.context().device().name();
    let message = match errno {
        libc::ENOMEM | libc::EAGAIN => format!(
            "{length} bytes cannot be registered with device {name}: {}",
            match locked_memory_limit() {
                Some(limit) => format!(
                    "the limit of locked memory is {} KiB; raise it (`ulimit -l unlimited`, LimitMEMLOCK of a service, \
                     --ulimit memlock=-1 of a container)",
                    limit / 1024
                ),
                None => "the NIC or the host is out of resources for regions".into(),
            }
        ),
        libc::EFAULT => format!(
            "{length} bytes cannot be registered with device {name}: the address is not memory that the kernel can pin; \
             device memory needs dma-buf, or the module nvidia_peermem"
        ),
        libc::EOPNOTSUPP => format!("device {name} or its kernel driver cannot register this kind of memory"),
        libc::EACCES | libc::EPERM => {
            format!(
                "{length} bytes cannot be registered with device {name}: the memory is mapped without the rights asked for"
            )
        }
        _ => format!("{length} bytes cannot be registered with device {name}"),
    };
    failed(op, errno, message)
}

/// The limit in bytes, or none if there is no limit.
fn locked_memory_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a live output.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}
