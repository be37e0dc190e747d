//! Plain data: what may be copied between host and device byte by byte.

/// Data that is nothing but its bytes.
///
/// # Safety
/// Every bit pattern of `size_of::<Self>()` bytes must be a valid value, and there must be no padding, since values
/// are read from memory that devices and other processes write, and are copied as bytes.
pub unsafe trait Pod: Copy + Send + Sync + 'static {}

macro_rules! pod {
    ($($t:ty)*) => {
        $(
            // SAFETY: a primitive number: no padding, no invalid value.
            unsafe impl Pod for $t {}
        )*
    };
}
pod!(u8 i8 u16 i16 u32 i32 u64 i64 usize isize f32 f64);

// SAFETY: elements are Pod and arrays add no padding.
unsafe impl<T: Pod, const N: usize> Pod for [T; N] {}

/// The bytes of `values`.
pub(crate) fn bytes_of<T: Pod>(values: &[T]) -> &[u8] {
    // SAFETY: the same memory and life; Pod has no padding, so every byte is initialised.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The bytes of `values`, to be overwritten.
pub(crate) fn bytes_of_mut<T: Pod>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: the same memory and life, borrowed exclusively; any bytes are valid values of a Pod.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
