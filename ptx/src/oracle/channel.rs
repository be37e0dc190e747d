//! Oracles of the memory channel's operations.

/// `put` and `get`: exactly these bytes and no others.
pub fn copy(dst: &mut [u8], dst_offset: usize, src: &[u8], src_offset: usize, bytes: usize) {
    dst[dst_offset..dst_offset + bytes].copy_from_slice(&src[src_offset..src_offset + bytes]);
}

/// `put_packets`: the wire image of `data`, whose length is a multiple of `4 * words` (1 word: LL8, 2: LL16).
///
/// Both formats are the same bytes: 32 bits of data, 32 bits of flag, little-endian. They differ in how many words
/// one access moves.
pub fn put_packets(data: &[u8], words: usize, flag: u32) -> Vec<u8> {
    assert_eq!(data.len() % (4 * words), 0);
    data.chunks_exact(4).flat_map(|word| [word, &flag.to_le_bytes()[..]].concat()).collect()
}

/// `unpack_packets`: the data, or `None` if a word does not carry the flag (the kernel waits for it).
pub fn unpack_packets(packets: &[u8], flag: u32) -> Option<Vec<u8>> {
    let mut data = Vec::with_capacity(packets.len() / 2);
    for word in packets.chunks_exact(8) {
        if word[4..] != flag.to_le_bytes() {
            return None;
        }
        data.extend_from_slice(&word[..4]);
    }
    Some(data)
}

/// One end of a semaphore: `signal`, `wait` and `poll` as plain arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Semaphore {
    /// Signals that the peer has published to me.
    pub inbound: u64,
    /// Signals I have taken.
    pub expected: u64,
    /// Signals I have sent.
    pub outbound: u64,
}

impl Semaphore {
    /// `signal`: the value the peer's inbound counter takes.
    pub fn signal(&mut self) -> u64 {
        self.outbound += 1;
        self.outbound
    }

    /// `poll`: whether a signal was taken. `wait` is this, until it is true.
    pub fn poll(&mut self) -> bool {
        let taken = self.inbound > self.expected;
        self.expected += u64::from(taken);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::paint;

    #[test]
    fn packets_carry_their_data_and_refuse_another_flag() {
        let data = paint(3, 64);
        let packets = put_packets(&data, 2, 0xdead_beef);
        assert_eq!(packets.len(), 128);
        assert_eq!(unpack_packets(&packets, 0xdead_beef), Some(data));
        assert_eq!(unpack_packets(&packets, 0xdead_beee), None);
    }

    #[test]
    fn a_signal_is_taken_once() {
        let (mut mine, mut peer) = (Semaphore::default(), Semaphore::default());
        assert!(!peer.poll());
        peer.inbound = mine.signal();
        assert!(peer.poll() && !peer.poll());
    }
}
