//! What collectives take of their ranks' scratch and devices.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cuda_driver_sys::DriverTable;

use super::call::Call;
use super::{Choice, Collective, CollectiveConfig, Tuning};
use crate::comm::{Communicator, CommunicatorConfig, together};
use crate::error::Result;
use crate::gpu::{Context, Device, Driver, GpuBuffer};
use crate::plan::program::{CollectiveProgram, Pattern, SyncType};
use crate::plan::{Element, Kind, Plan, Reduction};

mod memory;
mod tables;

const LIMIT: Duration = Duration::from_secs(120);

/// Two ranks with so much scratch each.
fn ranks(scratch: usize) -> Vec<Communicator> {
    ranks_on(cuda_soft::driver_table(), CommunicatorConfig::default().with_scratch_bytes(scratch))
}

fn ranks_on(table: DriverTable, config: CommunicatorConfig) -> Vec<Communicator> {
    let driver = Driver::software(table).unwrap();
    let devices = Device::all(&driver).unwrap();
    let contexts = [0, 1].map(|rank| Context::new(&devices[rank]).unwrap());
    Communicator::local(&contexts, config.with_peer_timeout(None), LIMIT).unwrap()
}

fn close(comms: &[Communicator]) {
    together(comms, |comm| comm.close(LIMIT)).unwrap();
}

fn prepare(comm: &Communicator, config: CollectiveConfig) -> Result<Collective> {
    Collective::prepare(comm, Kind::AllGather, config, LIMIT)
}

/// The way of messages of so many bytes of output.
fn way(collective: &Collective, bytes: usize) -> String {
    collective.algorithm(false, bytes / 2, Element::U8, None).unwrap().to_owned()
}

/// Ranks that have different amounts left choose the same ways and sizes all the same.
#[test]
fn the_rank_with_the_least_scratch_left_decides() {
    let comms = ranks(8 << 20);
    let ways = |comm: &Communicator| {
        let collective = prepare(comm, CollectiveConfig::default())?;
        Ok([256, 2048, 2050, 4096, 16_384].map(|bytes| way(&collective, bytes)))
    };
    assert!(together(&comms, ways).unwrap().iter().all(|ways| ways[3] == "packets"));
    let held = comms[1].scratch().take(comms[1].scratch().left() - (256 << 10));
    // Half of 256 KiB, of which messages get a part in 64.
    for ways in together(&comms, ways).unwrap() {
        assert_eq!(ways, ["packets", "packets", "staged", "staged", "staged"]);
    }
    drop(held);
    close(&comms);
}

/// A table that comes with the library speaks for its own devices only: for none of these.
#[test]
fn no_shipped_table_is_for_other_devices() {
    let comms = ranks(8 << 20);
    let found = together(&comms, |comm| Ok(Tuning::shipped(comm).map(|table| table.to_string())));
    assert_eq!(found.unwrap(), [None, None]);
    close(&comms);
}

/// A table of another job may name sizes for which this one has no scratch: both sorts of packets become shorter.
#[test]
fn packets_of_a_table_are_as_long_as_there_is_scratch_for() {
    let comms = ranks(1 << 20);
    let ways = |comm: &Communicator| {
        let device = comm.peers()[0].device.clone().expect("the rank has one");
        let mut table = Tuning::new("large", device.name, device.multiprocessors);
        let choice =
            Choice { packet_bytes: 4096, line_bytes: 1 << 20, packet_blocks: 2, blocks: 2, copy_bytes: 0 };
        table.insert(&Kind::AllGather, 2, choice)?;
        let collective = prepare(comm, CollectiveConfig::default().with_tuning(table))?;
        let why = collective.explain(false, false, 4096, Element::U8, None)?;
        assert!(why.contains("up to 8192 bytes for want of scratch"), "{why}");
        Ok([4096, 4098, 8192, 8194].map(|bytes| way(&collective, bytes)))
    };
    for ways in together(&comms, ways).unwrap() {
        assert_eq!(ways, ["packets", "lines", "lines", "staged"]);
    }
    close(&comms);
}

/// One collective has room for its kernels beside those of others, or is refused.
#[test]
fn collectives_in_any_order_have_room_beside_each_other() {
    let comms = ranks(64 << 20);
    let result = together(&comms, |comm| {
        let in_any_order =
            || CollectiveConfig::default().with_plan(of_blocks(64), 0..=u64::MAX).in_any_order();
        let mut all = vec![prepare(comm, in_any_order())?];
        let error = loop {
            match prepare(comm, in_any_order()) {
                Ok(another) => all.push(another),
                Err(error) => break error,
            }
            assert!(all.len() < 1000, "the device has an end");
        };
        assert!(error.to_string().contains("they cannot run in any order"), "{error}");
        // Nor may one without an order of its own take the room that was promised.
        let other = CollectiveConfig::default().with_plan(of_blocks(64), 0..=u64::MAX);
        let error = prepare(comm, other.clone()).map(drop).unwrap_err();
        assert!(error.to_string().contains("they cannot run in any order"), "{error}");
        drop(all);
        prepare(comm, other).map(drop)
    });
    result.unwrap();
    close(&comms);
}

/// An input and an output for slices are the peers' to reach, so they count like scratch, until the collective is dropped.
#[test]
fn memory_for_slices_counts_as_scratch() {
    let comms = ranks(64 << 20);
    let taken = together(&comms, |comm| {
        let taken = |slice: usize| -> Result<u64> {
            let collective = prepare(comm, CollectiveConfig::default().with_staging_bytes(slice))?;
            let taken = comm.scratch().taken();
            drop(collective);
            assert_eq!(comm.scratch().taken(), 0);
            Ok(taken)
        };
        // What is left, and with it the sizes of packets, is the same before both.
        Ok(taken(1 << 20)? - taken(1 << 16)?)
    });
    assert_eq!(taken.unwrap(), [2 * ((1 << 20) - (1 << 16)); 2]);
    close(&comms);
}

/// An all-gather of so many blocks that copy.
fn of_blocks(blocks: u32) -> Plan {
    let program =
        CollectiveProgram::new("mine", Pattern::all_gather(2, 1)).threads_per_block(64).instances(blocks);
    for end in program.ranks() {
        let (me, channel) = (end.index(), end.memory_channel(1 - end.index()));
        channel.relaxed_signal(0, SyncType::None);
        channel.wait(0, SyncType::After);
        end.copy(end.output().chunk(me), end.input().chunk(0), 0);
        channel.put(program.rank(1 - me).output().chunk(me), end.input().chunk(0), 0);
        channel.signal(0, SyncType::Before);
        channel.wait(0, SyncType::After);
    }
    program.compile().unwrap()
}

/// One call of a collective is on the device at a time, whichever plan it takes: all of them take the room of the largest.
#[test]
fn plans_of_one_collective_take_the_room_of_the_largest() {
    let comms = ranks(64 << 20);
    let said = together(&comms, |comm| {
        let collective =
            prepare(comm, CollectiveConfig::default().with_plan(of_blocks(7), 1 << 20..=1 << 21))?;
        let refused = comm.company().reserve("test", (1000, u32::MAX), true, None).unwrap_err();
        drop(collective);
        Ok(refused.to_string())
    });
    for said in said.unwrap() {
        assert!(said.contains("would have 1007 blocks"), "{said}");
    }
    close(&comms);
}

#[test]
fn buffers_that_touch_each_other_do_not_overlap() {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::all(&driver).unwrap()[0]).unwrap();
    let memory = Arc::new(GpuBuffer::new(&context, 64).unwrap());
    let call = Call::new("test", &Kind::AllReduce, 2, 6, Element::F16).unwrap();
    let place = |input: Range<usize>, output: Range<usize>| {
        let [input, output] = [input, output].map(|range| memory.slice(range).unwrap());
        call.place("test", &context, 0, [&input, &output])
    };
    assert!(!place(0..12, 12..24).unwrap() && !place(12..24, 0..12).unwrap());
    assert!(place(0..12, 10..22).is_err() && place(10..22, 0..12).is_err());
}

/// Only one of the two follows its table: they would go different ways.
#[test]
fn tables_of_one_choice_for_different_devices_differ() {
    let comms = ranks(8 << 20);
    let results = together(&comms, |comm| {
        let device = comm.peers()[0].device.clone().expect("the rank has one");
        let name = if comm.rank() == 0 { device.name } else { "another device".into() };
        let mut table = Tuning::new("mine", name, device.multiprocessors);
        let choice = Choice { packet_bytes: 512, line_bytes: 0, packet_blocks: 1, blocks: 1, copy_bytes: 0 };
        table.insert(&Kind::AllGather, 2, choice)?;
        Ok(prepare(comm, CollectiveConfig::default().with_tuning(table)).map(drop))
    });
    for result in results.unwrap() {
        let error = result.unwrap_err();
        assert!(error.message().contains("another table of choices"), "{error}");
    }
    close(&comms);
}

/// A user who follows the error has to follow it once.
#[test]
fn the_scratch_that_an_error_names_is_enough() {
    let prepared = |scratch| {
        let comms = ranks(scratch);
        let results = together(&comms, |comm| {
            let config = CollectiveConfig::default().with_variants([(Element::F32, Reduction::Sum)]);
            Ok(Collective::prepare(comm, Kind::AllReduce, config, LIMIT).map(drop))
        });
        close(&comms);
        results.unwrap()
    };
    let mut named = Vec::<usize>::new();
    for result in prepared(1) {
        let error = result.unwrap_err().to_string();
        let number = error.split("AQUEDUCT_SCRATCH_BYTES to ").nth(1).and_then(|rest| rest.split(' ').next());
        named.push(number.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{error}")));
    }
    assert_eq!(named[0], named[1]);
    for result in prepared(named[0]) {
        result.unwrap_or_else(|error| panic!("with {} bytes: {error}", named[0]));
    }
}
