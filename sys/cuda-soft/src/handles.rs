//! Handles: numbers that callers hold instead of pointers.
//!
//! A handle has the type of a pointer but is never dereferenced. Numbers are not reused, so a handle that is stale,
//! made up or of another kind is always refused and never finds another object.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_driver_sys::CUresult;
use parking_lot::RwLock;

use crate::abi::Result;

/// The live objects of one kind.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    kind: u64,
    next: AtomicU64,
    live: RwLock<HashMap<u64, Arc<T>>>,
}

impl<T> Handles<T> {
    /// Creates an empty set. `kind` is part of each handle and keeps the sets apart.
    pub(crate) fn new(kind: u64) -> Self {
        Self { kind, next: AtomicU64::new(1), live: RwLock::default() }
    }

    /// Reserves a handle without an object, for objects that store their own handle.
    pub(crate) fn fresh(&self) -> u64 {
        PREFIX | self.kind << KIND_SHIFT | self.next.fetch_add(1, Ordering::Relaxed) << LOW_BITS
    }

    /// Puts `object` under `handle`, which comes from [`fresh`](Self::fresh).
    pub(crate) fn insert(&self, handle: u64, object: Arc<T>) {
        self.live.write().insert(handle, object);
    }

    /// Puts `object` under a new handle.
    pub(crate) fn add(&self, object: Arc<T>) -> u64 {
        let handle = self.fresh();
        self.insert(handle, object);
        handle
    }

    /// The object of a handle.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE`.
    pub(crate) fn get<P>(&self, handle: *mut P) -> Result<Arc<T>> {
        self.get_number(handle as u64)
    }

    /// Like [`get`](Self::get), for handles that the C API passes as integers.
    pub(crate) fn get_number(&self, handle: u64) -> Result<Arc<T>> {
        self.live.read().get(&handle).cloned().ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Removes a handle and returns its object.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE`.
    pub(crate) fn remove<P>(&self, handle: *mut P) -> Result<Arc<T>> {
        self.remove_number(handle as u64)
    }

    /// Like [`remove`](Self::remove), for handles that the C API passes as integers.
    pub(crate) fn remove_number(&self, handle: u64) -> Result<Arc<T>> {
        self.live.write().remove(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Removes every handle whose object meets the condition.
    pub(crate) fn remove_where(&self, mut condition: impl FnMut(&T) -> bool) -> Vec<Arc<T>> {
        let mut live = self.live.write();
        let gone: Vec<u64> = live.iter().filter(|(_, o)| condition(o)).map(|(h, _)| *h).collect();
        gone.into_iter().filter_map(|h| live.remove(&h)).collect()
    }
}

/// Converts a handle to the pointer type of the C API.
pub(crate) fn pointer<P>(handle: u64) -> *mut P {
    std::ptr::without_provenance_mut::<c_void>(handle as usize).cast()
}

// Above the 47-bit user address space, so that no pointer of this process is a valid handle.
const PREFIX: u64 = 0x00c0_0000_0000_0000;
const KIND_SHIFT: u32 = 48;
const LOW_BITS: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_foreign_and_invented_handles_are_refused() {
        let (a, b) = (Handles::new(1), Handles::new(2));
        let h = a.add(Arc::new(5));
        let other = b.add(Arc::new(6));
        assert_ne!(h, other);
        assert_eq!(a.get_number(h).as_deref(), Ok(&5));
        for bad in [0, 1, h + 1, other, u64::MAX] {
            assert_eq!(a.get_number(bad), Err(CUresult::CUDA_ERROR_INVALID_HANDLE));
        }
        assert!(a.remove_number(h).is_ok());
        assert!(a.remove_number(h).is_err());
        let again = a.add(Arc::new(7));
        assert_ne!(again, h);
        assert!(a.get_number(h).is_err());
    }
}
