//! The heap of device code: `malloc` and `free` in kernels.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Bytes of a heap, the default of `CU_LIMIT_MALLOC_HEAP_SIZE`.
pub(crate) const SIZE: u64 = 8 << 20;

/// Alignment of all blocks, as on hardware.
const ALIGN: u64 = 16;

/// The heap of one device. It is empty until the driver gives it memory.
#[derive(Debug, Default)]
pub struct Heap(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Free blocks: address and size. Neighbours are merged.
    free: BTreeMap<u64, u64>,
    /// Allocated blocks.
    used: BTreeMap<u64, u64>,
}

impl Heap {
    /// Makes the heap consist of `size` bytes at `base`, all free.
    pub(crate) fn reset(&self, base: u64, size: u64) {
        let mut state = self.0.lock();
        *state = State::default();
        if size > 0 {
            state.free.insert(base, size);
        }
    }

    /// Allocates a block; 0 if there is none of this size. Blocks live until they are freed or the context ends.
    pub(crate) fn malloc(&self, size: u64) -> u64 {
        let Some(size) = size.max(1).checked_next_multiple_of(ALIGN) else { return 0 };
        let mut state = self.0.lock();
        let Some((address, room)) = state.free.iter().find(|(_, room)| **room >= size).map(|(a, r)| (*a, *r))
        else {
            return 0;
        };
        state.free.remove(&address);
        if room > size {
            state.free.insert(address + size, room - size);
        }
        state.used.insert(address, size);
        address
    }

    /// Frees a block. Returns false if there is no allocated block at `address`.
    pub(crate) fn free(&self, address: u64) -> bool {
        let mut state = self.0.lock();
        let Some(size) = state.used.remove(&address) else { return false };
        let (mut start, mut end) = (address, address + size);
        if let Some((before, length)) = state.free.range(..address).next_back().map(|(a, l)| (*a, *l))
            && before + length == address
        {
            state.free.remove(&before);
            start = before;
        }
        if let Some(length) = state.free.remove(&end) {
            end += length;
        }
        state.free.insert(start, end - start);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_disjoint_and_come_back_as_one() {
        let heap = Heap::default();
        assert_eq!(heap.malloc(16), 0, "no memory yet");
        heap.reset(4096, 256);
        let blocks: Vec<u64> = (0..5).map(|n| heap.malloc(n * 10 + 1)).collect();
        assert_eq!(blocks, [4096, 4112, 4128, 4160, 4192]);
        assert_eq!((heap.malloc(200), heap.malloc(u64::MAX)), (0, 0));
        for at in [1, 3, 0, 4, 2] {
            assert!(heap.free(blocks[at]) && !heap.free(blocks[at]));
        }
        assert_eq!(heap.malloc(256), 4096, "merged again");
    }
}
