//! Numbers of the marks of a traced kernel: which operation begins.

/// The block ends.
pub(in crate::plan) const END: u64 = u64::MAX;

/// Operation `op` of a block, or operation `inner` of the loop there.
pub(super) fn number(op: usize, inner: Option<usize>) -> u64 {
    (op as u64) << 32 | inner.map_or(0, |inner| inner as u64 + 1)
}

/// The operation of a number.
pub(in crate::plan) fn operation(number: u64) -> (u32, Option<u32>) {
    let (op, inner) = ((number >> 32) as u32, number as u32);
    (op, inner.checked_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_were_made() {
        for place in [(0, None), (0, Some(0)), (65_535, None), (7, Some(65_535))] {
            let (op, inner) = place;
            assert_eq!(operation(number(op as usize, inner.map(|inner: u32| inner as usize))), place);
            assert_ne!(number(op as usize, None), END);
        }
    }
}
