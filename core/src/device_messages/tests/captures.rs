//! Device memory that is exposed in the middle of a capture of the user's.

use super::*;
use crate::gpu::{CaptureMode, GraphExec, Stream};
use crate::own_process::is_own_process;

/// A capture of mode `Global` would refuse calls of other tests of this process, and be invalidated by them.
#[test]
fn the_first_exposure_leaves_a_capture_alone() {
    if !is_own_process(module_path!(), "the_first_exposure_leaves_a_capture_alone", &[]) {
        return;
    }
    for mode in [CaptureMode::Global, CaptureMode::ThreadLocal] {
        let (context, pair) = (context(0), pair(Wire::Tcp));
        let theirs = buffer(&context, &bytes(3000, 1));
        let mine = buffer(&context, &[0; 3000]);
        let stream = Stream::new(&context).unwrap();
        let mut exposed = None;
        let graph = GraphExec::capture(&stream, mode, |stream| {
            exposed = Some(pair.owner.expose(&theirs)?);
            stream.fill(&mine.slice(..)?, 7)
        });
        graph.unwrap().launch(&stream).unwrap();
        stream.synchronize(SOON).unwrap();
        assert_eq!(contents(&mine), [7; 3000]);
        assert_eq!(pair.read(&exposed.unwrap(), 0, 3000).unwrap(), bytes(3000, 1));
    }
}
