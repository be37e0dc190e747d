//! Bytes with a share in whatever keeps them.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::volatile::VolatileSlice;

/// Bytes that something else keeps alive and unmoved, and a share in that.
#[derive(Clone)]
pub(super) struct Lent {
    address: NonNull<u8>,
    length: usize,
    /// Whether nothing writes to them as long as the owner lives.
    stable: bool,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the address points into memory that `_owner`, which is Send and Sync, keeps alive; it is only read.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl Lent {
    /// `length` bytes at `address`.
    ///
    /// # Safety
    /// `owner` keeps them readable and at that address for as long as it lives. With `stable`, nothing writes to them
    /// meanwhile; otherwise others that share the memory may.
    pub(super) unsafe fn new(
        address: NonNull<u8>,
        length: usize,
        stable: bool,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { address, length, stable, _owner: owner }
    }

    /// These bytes themselves.
    pub(super) fn of(bytes: Vec<u8>) -> Self {
        let (length, owner) = (bytes.len(), Arc::new(bytes));
        let address = NonNull::new(owner.as_ptr().cast_mut()).unwrap_or(NonNull::dangling());
        // SAFETY: the vector is in `owner`, which nothing else can change, and its buffer does not move with it.
        unsafe { Self::new(address, length, true, owner) }
    }

    /// The same bytes with an owner that only the result and its clones share.
    pub(super) fn with_own_share(self) -> Self {
        let Self { address, length, stable, .. } = self;
        // SAFETY: the new owner is a share in the old one, which keeps the bytes as the contract of `new` says.
        unsafe { Self::new(address, length, stable, Arc::new(self)) }
    }

    /// Whether no clone has a share in the owner.
    pub(super) fn is_sole_share(&self) -> bool {
        Arc::strong_count(&self._owner) == 1
    }

    /// The part of `length` bytes at `offset`; `None` if it is not within.
    pub(super) fn slice(&self, offset: usize, length: usize) -> Option<Self> {
        let end = offset.checked_add(length)?;
        if end > self.length {
            return None;
        }
        // SAFETY: `offset` is within the memory or at its end.
        let address = unsafe { self.address.add(offset) };
        Some(Self { address, length, ..self.clone() })
    }

    pub(super) fn address(&self) -> *const u8 {
        self.address.as_ptr()
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// The bytes in place; none if others may write to them.
    pub(super) fn stable(&self) -> Option<&[u8]> {
        // SAFETY: readable as long as `_owner` lives, and then not written either (contract of `new`).
        self.stable.then(|| unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.length) })
    }

    /// The bytes as they are now, or a mixture if others write to them meanwhile.
    pub(super) fn copy(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        // SAFETY: readable as long as `_owner` lives (contract of `new`); volatile accesses tolerate writers.
        let memory = unsafe { VolatileSlice::new(self.address, self.length) };
        memory.read(0, &mut bytes).expect("as long as the memory");
        bytes
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent({} bytes)", self.length)
    }
}
