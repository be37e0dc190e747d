//! The parameter of a launch, built without allocating.

use aqueduct_ptx::abi::{DeviceStruct as _, PlanArgs};

use crate::error::{Error, ErrorKind, Result};

/// Words of the largest parameter that a kernel takes.
const MOST: usize = 4096 / 8;

/// [`PlanArgs`], and the words behind it.
pub(super) struct Parameter {
    words: [u64; MOST],
    len: usize,
}

impl Parameter {
    /// Begins with the fixed part.
    pub(super) fn new(args: &PlanArgs) -> Self {
        let mut words = [0; MOST];
        let bytes = args.as_bytes().chunks_exact(8);
        let len = bytes.len();
        for (word, bytes) in words.iter_mut().zip(bytes) {
            *word = bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
        }
        Self { words, len }
    }

    /// Adds a word.
    pub(super) fn push(&mut self, word: u64) -> Result<()> {
        self.extend(&[word])
    }

    /// Adds words.
    pub(super) fn extend(&mut self, more: &[u64]) -> Result<()> {
        let room = self.words.get_mut(self.len..self.len + more.len());
        let room = room.ok_or_else(|| {
            Error::new(ErrorKind::Internal, "Executor::execute", "a kernel's parameter exceeds 4096 bytes")
        })?;
        room.copy_from_slice(more);
        self.len += more.len();
        Ok(())
    }

    /// All words.
    pub(super) fn words(&self) -> &[u64] {
        &self.words[..self.len]
    }
}
