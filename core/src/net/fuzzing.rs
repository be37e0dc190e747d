//! Frames and handshakes, see [`crate::fuzzing`].
#![forbid(unsafe_code)]

mod handshake;

use super::frame::{Decoder, encode};

pub(crate) use super::recorded::Recorded;
pub use handshake::{handshake, stranger};

/// The largest payload that the decoder is told to take.
const MAX: u32 = 1 << 20;

/// A stream of frames: the first byte says how many bytes arrive at a time. The same frames must come out as if all
/// had arrived at once.
pub fn frames(bytes: &[u8]) -> Option<Vec<u8>> {
    let (cut, stream) = bytes.split_first()?;
    let decode = |step: usize| {
        let mut decoder = Decoder::new(MAX);
        let mut whole = Vec::new();
        for part in stream.chunks(step) {
            let pushed = decoder.push(part, &mut Vec::new());
            while let Some(frame) = decoder.pop() {
                assert!(frame.fds.is_empty(), "descriptors out of nothing");
                whole.extend(encode(frame.kind, &frame.payload, 0, MAX).expect("was within the limit"));
            }
            pushed.ok()?;
        }
        (!decoder.inside_frame()).then_some(whole)
    };
    let whole = decode(usize::from(*cut).max(1));
    assert_eq!(whole, decode(stream.len().max(1)), "cuts change nothing");
    Some([&[*cut], &whole?[..]].concat())
}

pub(crate) fn streams() -> Vec<(&'static str, Vec<u8>)> {
    let frame = |kind, payload: &[u8]| encode(kind, payload, 0, MAX).expect("short");
    let two = [frame(1, b"one"), frame(16, &[7; 40])].concat();
    let mut all = [0, 1, 5, 16].map(|cut| ("frames", [&[cut], &two[..]].concat())).to_vec();
    all.extend(handshake::inputs());
    all
}
