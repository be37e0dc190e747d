//! Groups of sends and receives on the software device.

use std::time::Duration;

use super::*;
use crate::comm::{CommunicatorConfig, together};
use crate::gpu::{CaptureMode, Context, Device, Driver, GraphExec};
use crate::sync::Ordering;

const LIMIT: Duration = Duration::from_secs(120);

fn ranks(count: usize) -> Vec<Communicator> {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let devices = Device::all(&driver).unwrap();
    let contexts: Vec<_> = devices[..count].iter().map(|device| Context::new(device).unwrap()).collect();
    let config = CommunicatorConfig::default().with_peer_timeout(None);
    Communicator::local(&contexts, config, LIMIT).unwrap()
}

fn close(comms: &[Communicator]) {
    together(comms, |comm| comm.close(LIMIT)).unwrap();
}

/// Whichever two they are: messages have no order, so one would replace a part of the other.
#[test]
fn no_two_receives_of_a_group_overlap() {
    let comms = ranks(4);
    together(&comms, |comm| {
        let group = PointToPoint::prepare(comm, LIMIT)?;
        let buffer = Arc::new(GpuBuffer::new(comm.context(), 64)?);
        let shown = group.buffer(&buffer, LIMIT)?;
        let stream = Stream::new(comm.context())?;
        let apart = [0..16, 16..32, 32..48, 48..64];
        for (one, other) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
            let mut places = apart.clone();
            places[other] = places[one].start + 8..places[one].start + 9;
            let receives: Vec<_> = (0..).zip(places).collect();
            let error = group.launch(&stream, &shown, &[], &receives).unwrap_err();
            let words = format!("the receives of ranks {one} and {other} overlap");
            assert!(error.message().contains(&words), "{error} does not say {words}");
        }
        let receives: Vec<_> = (0..).zip(apart).collect();
        group.launch(&stream, &shown, &[], &receives)?;
        stream.synchronize(LIMIT)
    })
    .unwrap();
    close(&comms);
}

/// Many are enqueued before the first one runs, more than there are tables at first.
#[test]
fn groups_that_are_enqueued_together_keep_their_own_numbers() {
    const GROUPS: usize = 2 * TABLES + 1;
    let comms = ranks(2);
    together(&comms, |comm| {
        let group = PointToPoint::prepare(comm, LIMIT)?;
        let [from, to] = [(); 2].map(|()| Arc::new(GpuBuffer::new(comm.context(), GROUPS).unwrap()));
        let data: Vec<u8> = (1..).take(GROUPS).collect();
        from.upload(0, &data, LIMIT)?;
        let (shown, stream) = (group.buffer(&to, LIMIT)?, Stream::new(comm.context())?);
        let gate = Arc::new(PinnedBuffer::new(comm.context(), 8)?);
        stream.wait_value64(&gate.slice(..)?, 1)?;
        let peer = 1 - comm.rank();
        let launched: Result<()> = (0..GROUPS).try_for_each(|place| {
            let part = place..place + 1;
            group.launch(&stream, &shown, &[(peer, from.slice(part.clone())?)], &[(peer, part)])
        });
        let held = Arc::downgrade(&from);
        drop(from);
        let lives = held.strong_count() > 0;
        // Also if it has failed: nobody may wait for the gate.
        gate.memory().word64(0)?.store(1, Ordering::Release);
        launched?;
        assert!(lives, "what is sent lives until it has gone");
        stream.synchronize(LIMIT)?;
        let mut seen = vec![0; GROUPS];
        to.download(0, &mut seen, LIMIT)?;
        assert_eq!(seen, data);
        Ok(())
    })
    .unwrap();
    close(&comms);
}

/// A graph keeps the table of each of its calls, so a capture makes more.
#[test]
fn a_graph_captures_more_groups_than_there_are_tables() {
    let comms = ranks(2);
    together(&comms, |comm| {
        let group = PointToPoint::prepare(comm, LIMIT)?;
        let buffer = Arc::new(GpuBuffer::new(comm.context(), 64)?);
        let (shown, stream) = (group.buffer(&buffer, LIMIT)?, Stream::new(comm.context())?);
        let graph = GraphExec::capture(&stream, CaptureMode::ThreadLocal, |on| {
            (0..=TABLES).try_for_each(|_| group.launch(on, &shown, &[], &[]))
        })?;
        graph.launch(&stream)?;
        stream.synchronize(LIMIT)
    })
    .unwrap();
    close(&comms);
}
