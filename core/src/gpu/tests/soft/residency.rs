//! Launches of kernels that do not fit the device together.

use std::sync::Arc;

use super::{Calls, Gate, SOON, driver};
use crate::gpu::{Context, Device, Stream};

/// Streams of the library's own and of somebody else's, alive and dropped, while their work goes on.
#[test]
fn a_crowded_launch_stands_behind_those_of_streams_whose_handles_are_gone() {
    for (own, dropped) in [(true, false), (true, true), (false, false), (false, true)] {
        let calls = Arc::new(Calls::default());
        let context = Context::new(&Device::new(&driver().with_hooks(calls.clone()), 6).unwrap()).unwrap();
        let rooms = [6, 6].map(|blocks| context.reserve("test", (blocks, 10), false, None).unwrap());
        let owner = Stream::new(&context).unwrap();
        // SAFETY: the owner's stream is alive until the end.
        let wrapped = || unsafe { Stream::from_raw(&context, owner.handle()) };
        let first = if own { Stream::new(&context).unwrap() } else { wrapped() };
        rooms[0].take_turn(&first).unwrap();
        // Stands for a launch that has not ended.
        let gate = Gate::close(&first);
        let first = (!dropped).then_some(first);
        let second = Stream::new(&context).unwrap();
        rooms[1].take_turn(&second).unwrap();
        let case = format!("own {own}, dropped {dropped}");
        assert_eq!(calls.of("cuStreamWaitEvent"), 1, "{case}");
        assert!(!second.is_idle().unwrap(), "{case}");
        gate.open();
        second.synchronize(SOON).unwrap();
        drop((first, owner));
        context.settle();
    }
}
