//! How copies and fills move bytes: in aligned words, each at once, because kernels, other processes and host threads may
//! access them at the same time.

use std::iter;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Words side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Offset of the first byte.
    pub(super) at: usize,
    /// Number of bytes.
    pub(super) len: usize,
    /// Bytes of each word.
    pub(super) word: usize,
}

/// The words of `len` bytes that move from one address to another: the widest to which both addresses are aligned.
pub(super) fn runs(to: usize, from: usize, len: usize) -> impl Iterator<Item = Run> {
    let widest = 1 << (to ^ from).trailing_zeros().min(size_of::<u64>().trailing_zeros());
    let mut at = 0;
    iter::from_fn(move || {
        let left = len - at;
        if left == 0 {
            return None;
        }
        let mut word = widest;
        while left < word || !(to + at).is_multiple_of(word) {
            word /= 2;
        }
        let run = Run { at, len: if word == widest { left / word * word } else { word }, word };
        at += run.len;
        Some(run)
    })
}

/// Copies like `memcpy`, but with atomic accesses.
///
/// # Safety
/// Both ranges are mapped, and `dst` is writable.
pub(super) unsafe fn copy_atomic(dst: *mut u8, src: *const u8, len: usize) {
    macro_rules! words {
        ($run:expr, $word:ty) => {
            for at in ($run.at..$run.at + $run.len).step_by($run.word) {
                // SAFETY: the word lies within both ranges, and both addresses are aligned to it.
                unsafe {
                    let value = (*src.add(at).cast::<$word>()).load(Ordering::Relaxed);
                    (*dst.add(at).cast::<$word>()).store(value, Ordering::Relaxed);
                }
            }
        };
    }
    for run in runs(dst.addr(), src.addr(), len) {
        match run.word {
            1 => words!(run, AtomicU8),
            2 => words!(run, AtomicU16),
            4 => words!(run, AtomicU32),
            _ => words!(run, AtomicU64),
        }
    }
}

/// The same, and keeps in `kept` what it moved.
///
/// # Safety
/// As for [`copy_atomic`].
pub(super) unsafe fn copy_and_keep(dst: *mut u8, src: *const u8, len: usize, kept: &mut Vec<u8>) {
    // As far from a multiple of 8 as the source, so that the words are the same.
    kept.resize(len + size_of::<u64>(), 0);
    let skip = src.addr().wrapping_sub(kept.as_ptr().addr()) % size_of::<u64>();
    // SAFETY: `kept` has room for the bytes behind those that are skipped; the caller vouches for the rest.
    unsafe {
        let between = kept.as_mut_ptr().add(skip);
        copy_atomic(between, src, len);
        copy_atomic(dst, between, len);
    }
    kept.truncate(skip + len);
    kept.drain(..skip);
}

/// Stores `len` bytes of elements of `width` bytes. No word is less than an element.
///
/// # Safety
/// `to` is valid for writing `len` bytes, which are whole elements, and aligned to an element.
pub(super) unsafe fn fill_atomic(to: *mut u8, value: u32, width: u8, len: usize) {
    let width = u32::from(width);
    let element = u64::from(value) & (u64::MAX >> (64 - 8 * width));
    let word = (0..u64::BITS / 8 / width).fold(0, |word, at| word | element << (at * 8 * width));
    macro_rules! words {
        ($run:expr, $word:ty, $value:expr) => {
            for at in ($run.at..$run.at + $run.len).step_by($run.word) {
                // SAFETY: the word lies within the range, and its address is aligned to it.
                unsafe { (*to.add(at).cast::<$word>()).store($value, Ordering::Relaxed) };
            }
        };
    }
    for run in runs(to.addr(), to.addr(), len) {
        match run.word {
            1 => words!(run, AtomicU8, word as u8),
            2 => words!(run, AtomicU16, word as u16),
            4 => words!(run, AtomicU32, word as u32),
            _ => words!(run, AtomicU64, word),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_as_wide_as_both_addresses_allow() {
        let of =
            |to, from, len| runs(to, from, len).map(|run| (run.at, run.len, run.word)).collect::<Vec<_>>();
        assert_eq!(of(64, 128, 24), [(0, 24, 8)]);
        assert_eq!(of(64, 64, 15), [(0, 8, 8), (8, 4, 4), (12, 2, 2), (14, 1, 1)]);
        assert_eq!(of(65, 1, 16), [(0, 1, 1), (1, 2, 2), (3, 4, 4), (7, 8, 8), (15, 1, 1)]);
        assert_eq!(of(64, 4, 18), [(0, 16, 4), (16, 2, 2)]);
        assert_eq!(of(64, 3, 5), [(0, 5, 1)]);
        assert_eq!(of(66, 2, 3), [(0, 2, 2), (2, 1, 1)]);
        assert_eq!(of(64, 64, 0), []);
    }

    #[test]
    fn copies_are_exact_at_any_alignment_and_size() {
        let src: Vec<u8> = (0..200u32).map(|i| (i * 7 + 3) as u8).collect();
        for to in 0..9 {
            for from in 0..9 {
                for len in [0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 100] {
                    let mut dst = vec![0xeeu8; 200];
                    let (mut second, mut kept) = (vec![0xeeu8; 200], Vec::new());
                    // SAFETY: all ranges lie in their vectors.
                    unsafe {
                        copy_atomic(dst.as_mut_ptr().add(to), src.as_ptr().add(from), len);
                        let source = src.as_ptr().add(from);
                        copy_and_keep(second.as_mut_ptr().add(to), source, len, &mut kept);
                    }
                    assert_eq!(dst[to..to + len], src[from..from + len], "{to} {from} {len}");
                    assert_eq!((&second, &kept[..]), (&dst, &dst[to..to + len]), "{to} {from} {len}");
                    assert!(
                        dst[..to].iter().chain(&dst[to + len..]).all(|b| *b == 0xee),
                        "{to} {from} {len}"
                    );
                }
            }
        }
    }

    #[test]
    fn fills_are_exact_at_any_alignment_and_size() {
        let value = 0x0403_0201_u32;
        for width in [1_u8, 2, 4] {
            let element = &value.to_le_bytes()[..usize::from(width)];
            for first in 0..12 {
                for count in [0, 1, 2, 3, 7, 8, 9, 20] {
                    let (from, len) = (first * usize::from(width), count * usize::from(width));
                    let mut words = [u64::MAX; 32];
                    // SAFETY: the range lies in the array, whose elements are aligned to words.
                    unsafe { fill_atomic(words.as_mut_ptr().cast::<u8>().add(from), value, width, len) };
                    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                    assert_eq!(bytes[from..from + len], element.repeat(count), "{width} {first} {count}");
                    let others = bytes[..from].iter().chain(&bytes[from + len..]);
                    assert!(others.into_iter().all(|byte| *byte == 0xff), "{width} {first} {count}");
                }
            }
        }
    }
}
