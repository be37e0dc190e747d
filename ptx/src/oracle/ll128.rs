//! The lines that `put_packets` of LL128 writes.

/// `data` as LL128 lines with `flag`: units of 1024 bytes, each 8 lines of 120 bytes of data and the flag as a u64.
///
/// A unit holds 60 vectors of 16 bytes. Line `l` of the first four holds vectors `8l` to `8l + 6` and the first half
/// of vector `8l + 7`, whose second half ends line `4 + l`; before it that line holds vectors `32 + 7l` to `38 + 7l`.
pub fn lines(data: &[u8], flag: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for unit in data.chunks(960) {
        let mut padded = [0; 960];
        padded[..unit.len()].copy_from_slice(unit);
        let flag = u64::from(flag).to_le_bytes();
        for line in 0..4 {
            let split = 16 * (8 * line + 7);
            out.extend_from_slice(&padded[16 * 8 * line..split + 8]);
            out.extend_from_slice(&flag);
        }
        for line in 0..4 {
            let (first, split) = (16 * (32 + 7 * line), 16 * (8 * line + 7));
            out.extend_from_slice(&padded[first..first + 112]);
            out.extend_from_slice(&padded[split + 8..split + 16]);
            out.extend_from_slice(&flag);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_data_is_in_the_lines_once() {
        let data: Vec<u8> = (0..960u32).flat_map(|i| i.to_le_bytes()).take(960).collect();
        let wire = lines(&data, 7);
        assert_eq!(wire.len(), 1024);
        let mut words: Vec<_> = wire.chunks(128).flat_map(|line| line[..120].chunks(4)).collect();
        words.sort_by_key(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
        assert_eq!(words.concat(), data);
        assert!(wire.chunks(128).all(|line| line[120..] == 7u64.to_le_bytes()));
        assert_eq!(lines(&[], 7), []);
    }
}
