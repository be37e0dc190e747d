//! The addresses by which peers name memory, which are made up so that nobody guesses them.
#![forbid(unsafe_code)]

/// The bits of an address that stay as they are: those within a huge page, so that the device may map by huge pages.
const KEPT_BITS: u32 = 21;
const RANDOM_BITS: u32 = 40;

/// The address by which peers name memory at `address`: `random` bits above those within a huge page.
pub(super) fn made_up(address: u64, random: u64) -> u64 {
    let kept = address & ((1 << KEPT_BITS) - 1);
    kept | (random & ((1 << RANDOM_BITS) - 1)) << KEPT_BITS
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_made_up_above_the_bits_of_a_huge_page() {
        assert_eq!(made_up(0x7f12_3456_789a, 0), 0x0016_789a);
        assert_eq!(made_up(0x7f12_3456_789a, u64::MAX), (1 << 61) - (1 << 21) + 0x0016_789a);
        // The longest memory does not wrap around.
        assert!(made_up(u64::MAX, u64::MAX).checked_add(1 << 62).is_some());
    }
}
