//! Collectives of variable sizes on the software device.

use std::time::Duration;

use super::*;
use crate::comm::{CommunicatorConfig, together};
use crate::gpu::{Context, Device, Driver};

const LIMIT: Duration = Duration::from_secs(120);

/// The library's own memory, through which such calls go, is longer than both buffers.
#[test]
fn parts_of_a_staged_call_lie_within_the_callers_buffers() {
    const LENGTH: usize = 64;
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let devices = Device::all(&driver).unwrap();
    let contexts = [0, 1].map(|rank| Context::new(&devices[rank]).unwrap());
    let config = CommunicatorConfig::default().with_peer_timeout(None);
    let comms = Communicator::local(&contexts, config, LIMIT).unwrap();
    let told = together(&comms, |comm| {
        let (context, stream) = (comm.context(), Stream::new(comm.context())?);
        let config = CollectiveConfig::default().with_staging_bytes(4096);
        let collective = VariableCollective::prepare(comm, Kind::AllToAll, config, LIMIT)?;
        let [input, output] = [(); 2].map(|()| Arc::new(GpuBuffer::new(context, LENGTH).unwrap()));
        let array = |numbers: [u64; 2]| {
            let buffer = Arc::new(GpuBuffer::new(context, 16)?);
            buffer.upload(0, &numbers, LIMIT)?;
            buffer.slice(..)
        };
        input.upload(0, &[1 + comm.rank() as u8; LENGTH], LIMIT)?;
        // Rank 0's second part of the input, or of the output, begins at this byte.
        let call = |input_at: u64, output_at: u64| {
            let at = |place| if comm.rank() == 0 { place } else { 32 };
            let [length, from, to] = [[32, 32], [0, at(input_at)], [0, at(output_at)]].map(array);
            let (length, from, to) = (length?, from?, to?);
            let counts = VariableCounts::of_pairs(&length, &from, &length, &to);
            let all = [input.slice(..)?, output.slice(..)?];
            collective.launch_staged(&stream, &all[0], &all[1], &counts, Element::U8, None)?;
            stream.synchronize(LIMIT)
        };
        let outcomes = [call(32, 33), call(33, 32), call(32, 32)];
        let mut seen = vec![0_u8; LENGTH];
        output.download(0, &mut seen, LIMIT)?;
        assert_eq!(seen, [[1; 32], [2; 32]].concat());
        Ok(outcomes.map(|outcome| outcome.map_err(|error| error.message().to_owned())))
    });
    for [output, input, within] in told.unwrap() {
        for refused in [output, input] {
            let message = refused.unwrap_err();
            assert!(message.contains("of rank 0 leave its buffers"), "{message}");
        }
        within.unwrap();
    }
    together(&comms, |comm| comm.close(LIMIT)).unwrap();
}
