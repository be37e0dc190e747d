//! SHA-256 of values, field by field.
#![forbid(unsafe_code)]

use std::hash::{Hash, Hasher};

use sha2::{Digest as _, Sha256};

/// Bytes that are hashed together: fields are a few bytes each, and a call for each of them would take longer than its hash.
const TOGETHER: usize = 4096;

/// The digest of a value: equal for equal values, of all processes that run the same build of this library.
pub(crate) fn of(value: &impl Hash) -> [u8; 32] {
    let mut hasher = Fields { sha: Sha256::new(), waiting: Vec::with_capacity(TOGETHER) };
    value.hash(&mut hasher);
    hasher.sha.update(&hasher.waiting);
    hasher.sha.finalize().into()
}

/// Takes what [`Hash`] says of a value: its fields in order, and lengths before elements.
struct Fields {
    sha: Sha256,
    waiting: Vec<u8>,
}

impl Hasher for Fields {
    fn write(&mut self, bytes: &[u8]) {
        if self.waiting.len() + bytes.len() > TOGETHER {
            self.sha.update(&self.waiting);
            self.waiting.clear();
            if bytes.len() > TOGETHER {
                self.sha.update(bytes);
                return;
            }
        }
        self.waiting.extend_from_slice(bytes);
    }

    /// Part of the contract of [`Hasher`] and of no use here: [`of`] takes the whole digest.
    fn finish(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_sha_256_of_the_bytes_that_a_value_says() {
        struct Said(Vec<Vec<u8>>);
        impl Hash for Said {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.0.iter().for_each(|bytes| state.write(bytes));
            }
        }
        let parts = |sizes: &[usize]| {
            let part = |(nth, &size): (usize, &usize)| vec![u8::try_from(nth + 1).unwrap(); size];
            Said(sizes.iter().enumerate().map(part).collect())
        };
        for sizes in [
            &[][..],
            &[0],
            &[3, 5],
            &[TOGETHER],
            &[TOGETHER - 1, 1],
            &[TOGETHER - 1, 2],
            &[1, TOGETHER + 1, 1],
            &[TOGETHER, TOGETHER, 7],
        ] {
            let said = parts(sizes);
            let expected: [u8; 32] = Sha256::digest(said.0.concat()).into();
            assert_eq!(of(&said), expected, "{sizes:?}");
        }
    }

    #[test]
    fn values_are_told_apart() {
        assert_eq!(of(&("a", 1_u8)), of(&("a", 1_u8)));
        let texts = [("ab", "c"), ("a", "bc"), ("abc", "")].map(|value| of(&value));
        assert!(texts[0] != texts[1] && texts[1] != texts[2] && texts[0] != texts[2]);
        assert_ne!(of(&[vec![1_u32], vec![]]), of(&[vec![], vec![1_u32]]));
    }
}
