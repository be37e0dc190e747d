//! Multicast objects, which the software device has in the processes that these tests start.

use std::os::fd::AsFd;
use std::sync::Arc;

use super::{Calls, driver};
use crate::gpu::multicast::{MulticastObject, granularity};
use crate::gpu::vmm::{HandleTypes, PhysicalAllocation};
use crate::gpu::{Context, Device};
use crate::own_process::is_own_process;

/// Starts `test` again in a process whose devices have multicast. True in that process.
fn alone(test: &str) -> bool {
    is_own_process(module_path!(), test, &[("AQUEDUCT_SOFT_MULTICAST", Some("1"))])
}

#[test]
fn sizes_are_multiples_of_the_granularity_and_devices_join_once() {
    if !alone("sizes_are_multiples_of_the_granularity_and_devices_join_once") {
        return;
    }
    let driver = driver();
    let contexts = [0, 1].map(|ordinal| Context::new(&Device::new(&driver, ordinal).unwrap()).unwrap());
    assert!(contexts[0].device().supports_multicast().unwrap());
    let unit = granularity(&contexts[0], 2).unwrap();
    assert!(unit > 1 && MulticastObject::create(&contexts[0], 2, unit + 1).is_err());
    let first = MulticastObject::create(&contexts[0], 2, 2 * unit).unwrap();
    let fd = first.export_fd().unwrap();
    let second = MulticastObject::import_fd(&contexts[1], fd.as_fd(), 2 * unit).unwrap();
    drop(fd);
    first.add_device().unwrap();
    assert!(first.add_device().is_err(), "the object has the device");
    second.add_device().unwrap();
    let memory =
        |context: &Context| Arc::new(PhysicalAllocation::create(context, 2 * unit, HandleTypes::FD).unwrap());
    let memories = contexts.each_ref().map(memory);
    assert!(first.bind(&memories[0], unit + 1).is_err() && first.bind(&memories[0], 3 * unit).is_err());
    let bound = [first.bind(&memories[0], 2 * unit).unwrap(), second.bind(&memories[1], unit).unwrap()];
    assert!(second.bind(&memories[1], unit).is_err(), "the place is taken");
    let mappings = [first.map().unwrap(), second.map().unwrap()];
    assert!(mappings[0].ptr() != mappings[1].ptr() && mappings.iter().all(|m| m.size() == 2 * unit));
    drop((mappings, bound));
    // The places are free again.
    second.bind(&memories[1], 2 * unit).unwrap();
}

/// In whatever order the object, the binding, the memory and the mapping are dropped, each is given back once.
#[test]
fn everything_is_given_back_once_in_every_order() {
    if !alone("everything_is_given_back_once_in_every_order") {
        return;
    }
    for turn in 0..4 {
        let calls = Arc::new(Calls::default());
        let driver = driver().with_hooks(calls.clone());
        let context = Context::new(&Device::new(&driver, 3).unwrap()).unwrap();
        let unit = granularity(&context, 1).unwrap();
        let object = MulticastObject::create(&context, 1, unit).unwrap();
        object.add_device().unwrap();
        let memory = Arc::new(PhysicalAllocation::create(&context, unit, HandleTypes::FD).unwrap());
        let (binding, mapping) = (object.bind(&memory, unit).unwrap(), object.map().unwrap());
        let mut all: Vec<Box<dyn std::any::Any>> =
            vec![Box::new(object), Box::new(binding), Box::new(memory), Box::new(mapping)];
        all.rotate_left(turn);
        drop(all);
        context.settle();
        for (made, ended) in [
            ("cuMulticastBindMem", "cuMulticastUnbind"),
            ("cuMemMap", "cuMemUnmap"),
            ("cuMemAddressReserve", "cuMemAddressFree"),
        ] {
            assert_eq!((calls.of(made), calls.of(ended)), (1, 1), "turn {turn}: {made}");
        }
        let made = calls.of("cuMulticastCreate") + calls.of("cuMemCreate");
        assert_eq!((made, calls.of("cuMemRelease")), (2, 2), "turn {turn}");
    }
}
