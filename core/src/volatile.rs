//! Slices over memory that another process, a GPU or a NIC may write at any moment.
//!
//! Such memory is never `&[u8]`: a reference promises that nobody else writes. A [`VolatileSlice`] carries its
//! bounds and copies with relaxed atomic accesses, so a race gives some mixture of old and new bytes and never
//! undefined behaviour. Order across parties comes from the acquire/release words around it, not from here.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::error::{Error, Result};
use crate::sync::raw::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// `len` bytes at a fixed address that others may write concurrently. `Copy`, like a reference.
#[derive(Clone, Copy)]
pub struct VolatileSlice<'a> {
    ptr: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'a AtomicU8>,
}

// SAFETY: the slice is a borrowed address and a length; it owns nothing that is bound to a thread.
unsafe impl Send for VolatileSlice<'_> {}
// SAFETY: every access through a shared reference is atomic, so threads may use one slice at the same time.
unsafe impl Sync for VolatileSlice<'_> {}

impl<'a> VolatileSlice<'a> {
    /// A slice over `len` bytes at `ptr`.
    ///
    /// # Safety
    /// For all of `'a` the bytes stay mapped, readable and writable in this process, and nobody in this process
    /// accesses them except atomically. Other processes and devices may access them in any way.
    pub const unsafe fn new(ptr: NonNull<u8>, len: usize) -> Self {
        Self { ptr, len, memory: PhantomData }
    }

    /// Size in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether its size is zero.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address, for system and driver calls.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// The bytes `offset .. offset + len`; an error if they are not all inside.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Result<VolatileSlice<'a>> {
        let ptr = self.at(offset, len)?;
        // SAFETY: `at` checked that the range lies inside this slice, whose contract it inherits.
        Ok(unsafe { VolatileSlice::new(ptr, len) })
    }

    /// Copies `into.len()` bytes from `offset`. Not atomic as a whole.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let mut at = self.at(offset, into.len())?.as_ptr();
        let (head, middle) = into.split_at_mut(head_len(at, into.len()));
        for byte in head {
            // SAFETY: `at` lies inside the slice (checked above); `new`'s contract covers atomic access.
            *byte = unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Relaxed);
            at = at.wrapping_add(1);
        }
        let mut words = middle.chunks_exact_mut(8);
        for word in &mut words {
            // SAFETY: `at` is 8-byte aligned after the head and eight more bytes lie inside the slice.
            let value = unsafe { AtomicU64::from_ptr(at.cast()) }.load(Ordering::Relaxed);
            word.copy_from_slice(&value.to_ne_bytes());
            at = at.wrapping_add(8);
        }
        for byte in words.into_remainder() {
            // SAFETY: as for the head.
            *byte = unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Relaxed);
            at = at.wrapping_add(1);
        }
        Ok(())
    }

    /// Copies `from` to `offset`. Not atomic as a whole.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        let mut at = self.at(offset, from.len())?.as_ptr();
        let (head, middle) = from.split_at(head_len(at, from.len()));
        for &byte in head {
            // SAFETY: `at` lies inside the slice (checked above); `new`'s contract covers atomic access.
            unsafe { AtomicU8::from_ptr(at) }.store(byte, Ordering::Relaxed);
            at = at.wrapping_add(1);
        }
        let words = middle.chunks_exact(8);
        let tail = words.remainder();
        for word in words {
            let value = u64::from_ne_bytes(word.try_into().expect("chunks of eight"));
            // SAFETY: `at` is 8-byte aligned after the head and eight more bytes lie inside the slice.
            unsafe { AtomicU64::from_ptr(at.cast()) }.store(value, Ordering::Relaxed);
            at = at.wrapping_add(8);
        }
        for &byte in tail {
            // SAFETY: as for the head.
            unsafe { AtomicU8::from_ptr(at) }.store(byte, Ordering::Relaxed);
            at = at.wrapping_add(1);
        }
        Ok(())
    }

    /// Sets every byte to `value`.
    pub fn fill(&self, value: u8) {
        let block = [value; 256];
        let mut offset = 0;
        while offset < self.len {
            let step = block.len().min(self.len - offset);
            self.write(offset, &block[..step]).expect("inside the slice by construction");
            offset += step;
        }
    }

    /// The 32-bit word at `offset`, which must be aligned to 4 bytes in memory.
    pub fn word32(&self, offset: usize) -> Result<&'a AtomicU32> {
        let ptr = self.aligned(offset, 4)?;
        // SAFETY: inside the slice and aligned (checked above), mapped for `'a` by `new`'s contract.
        Ok(unsafe { AtomicU32::from_ptr(ptr.as_ptr().cast()) })
    }

    /// The 64-bit word at `offset`, which must be aligned to 8 bytes in memory.
    pub fn word64(&self, offset: usize) -> Result<&'a AtomicU64> {
        let ptr = self.aligned(offset, 8)?;
        // SAFETY: inside the slice and aligned (checked above), mapped for `'a` by `new`'s contract.
        Ok(unsafe { AtomicU64::from_ptr(ptr.as_ptr().cast()) })
    }

    #[inline]
    fn at(&self, offset: usize, len: usize) -> Result<NonNull<u8>> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                // SAFETY: `offset <= self.len`, so the result stays inside the mapping or one past its end.
                Ok(unsafe { self.ptr.add(offset) })
            }
            _ => Err(self.outside(offset, len)),
        }
    }

    #[cold]
    fn outside(&self, offset: usize, size: usize) -> Error {
        let len = self.len;
        Error::usage("volatile", format!("offset {offset} + size {size} is past the end of {len} bytes"))
    }

    fn aligned(&self, offset: usize, size: usize) -> Result<NonNull<u8>> {
        let ptr = self.at(offset, size)?;
        if ptr.addr().get().is_multiple_of(size) {
            Ok(ptr)
        } else {
            Err(Error::usage("volatile", format!("offset {offset} is not aligned to {size} bytes")))
        }
    }
}

/// Bytes before the first 8-byte boundary, at most `len`.
#[inline]
fn head_len(ptr: *mut u8, len: usize) -> usize {
    ptr.addr().wrapping_neg().rem_euclid(8).min(len)
}

impl fmt::Debug for VolatileSlice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolatileSlice").field("ptr", &self.ptr).field("len", &self.len).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(bytes: &mut [u8]) -> VolatileSlice<'_> {
        let len = bytes.len();
        // SAFETY: the exclusive borrow lasts as long as the slice, so nobody else accesses the bytes.
        unsafe { VolatileSlice::new(NonNull::new(bytes.as_mut_ptr()).unwrap(), len) }
    }

    #[test]
    fn every_alignment_and_length_copies_exactly_its_bytes() {
        for start in 0..9 {
            for len in 0..40 {
                let source: Vec<u8> = (0..len as u8).map(|i| i ^ 0x5a).collect();
                let mut memory = [0xee_u8; 64];
                over(&mut memory).write(start, &source).unwrap();
                let mut back = vec![0; len];
                over(&mut memory).read(start, &mut back).unwrap();
                assert_eq!(back, source);
                assert!(memory[..start].iter().chain(&memory[start + len..]).all(|&b| b == 0xee));
            }
        }
    }

    #[test]
    fn out_of_bounds_overflow_and_misalignment_are_errors() {
        let mut words = [0_u64; 4];
        let memory = words.as_mut_ptr().cast::<u8>();
        // SAFETY: `words` outlives the slice and is not touched while it lives.
        let slice = unsafe { VolatileSlice::new(NonNull::new(memory).unwrap(), 32) };
        assert!(slice.read(32, &mut []).is_ok());
        assert!(slice.read(32, &mut [0]).is_err());
        assert!(slice.write(usize::MAX, &[0, 0]).is_err());
        assert!(slice.slice(1, usize::MAX).is_err());
        assert!(slice.word64(4).is_err() && slice.word64(32).is_err() && slice.word32(2).is_err());
        slice.word64(8).unwrap().store(7, Ordering::Relaxed);
        slice.slice(8, 8).unwrap().slice(0, 1).unwrap().fill(9);
        assert_eq!(slice.word32(8).unwrap().load(Ordering::Relaxed), u32::from_ne_bytes([9, 0, 0, 0]));
    }
}
