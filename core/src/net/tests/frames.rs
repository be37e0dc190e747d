//! Frames at the edges of what they may have.

use super::*;
use crate::net::frame::{Decoder, encode};

#[test]
fn a_frame_may_have_as_much_as_its_limits_say_and_no_more() {
    assert!(encode(1, &[7; 10], MAX_FDS, 10).is_ok());
    for (bytes, fds) in [(11, MAX_FDS), (10, MAX_FDS + 1)] {
        let error = encode(1, &vec![7; bytes], fds, 10).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{bytes} bytes, {fds} descriptors");
    }
}

#[test]
fn a_stream_that_ends_within_a_header_or_a_payload_ends_inside_a_message() {
    let bytes = encode(1, b"payload", 0, 9).unwrap();
    for cut in 0..=bytes.len() {
        let mut decoder = Decoder::new(9);
        decoder.push(&bytes[..cut], &mut Vec::new()).unwrap();
        let inside = cut > 0 && cut < bytes.len();
        assert_eq!(decoder.inside_frame(), inside, "after {cut} bytes");
    }
}
