//! Tests that a device with `AQUEDUCT_SOFT_UNKIND` does what a program may not rely on never to happen, and that a device without
//! it does not. Each device has a process of its own: a test executes this binary again, to run one of the measurements.

#![allow(missing_docs, reason = "a test")]

mod device;

use std::process::Command;
use std::time::{Duration, Instant};

use device::{Device, KIB, MIB};

/// How often a measurement tries.
const TRIES: usize = 200;
/// How often at least an unkind device must be caught. It puts off every other step of an operation.
const CAUGHT: usize = TRIES / 8;

/// Runs one of the ignored tests in a process with or without the switch. Returns the numbers that it prints.
fn measure<const N: usize>(name: &str, unkind: bool) -> [usize; N] {
    measure_with(name, unkind.then_some(7))
}

/// The same, with a seed.
fn measure_with<const N: usize>(name: &str, seed: Option<u64>) -> [usize; N] {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", name, "--ignored", "--nocapture"]);
    command.env_remove("AQUEDUCT_SOFT_UNKIND");
    if let Some(seed) = seed {
        command.env("AQUEDUCT_SOFT_UNKIND", seed.to_string());
    }
    let output = command.output().expect("the child runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    let (_, list) = stdout.split_once('=').expect("the child prints its numbers");
    let numbers = list.lines().next().into_iter().flat_map(str::split_whitespace);
    let numbers: Vec<usize> = numbers.map(|number| number.parse().expect("a number")).collect();
    numbers.try_into().expect("as many numbers as asked for")
}

/// Measures an unkind device until `shows` is true of the numbers. A busy machine may look so late in most tries of one process that
/// the device's work is done by then; five processes in a row are not so unlucky.
fn shown<const N: usize>(name: &str, shows: impl Fn(&[usize; N]) -> bool) {
    let mut seen = Vec::new();
    while seen.len() < 5 {
        let numbers = measure(name, true);
        seen.push(numbers);
        if shows(&numbers) {
            return;
        }
    }
    panic!("{name}, {TRIES} tries each: {seen:?}");
}

/// Whether each of these numbers of tries is of a device that puts off a part of what it does, neither nothing nor all.
fn part(late: &[usize]) -> bool {
    late.iter().all(|late| (CAUGHT..TRIES).contains(late))
}

/// Prints what `measure` reads.
fn print<const N: usize>(numbers: [usize; N]) {
    println!("={}", numbers.map(|number| number.to_string()).join(" "));
}

/// Counts the tries in which the host finds the old word directly behind the call that writes a new one.
#[test]
#[ignore = "a measurement of another test"]
fn measure_late_work() {
    let device = Device::new();
    let source = device.pinned(4);
    device.store(source, 1);
    let target = device.pinned(4);
    let late = |submit: &dyn Fn()| {
        let tries = (0..TRIES).filter(|_| {
            device.store(target, 0);
            submit();
            let late = device.load(target) == 0;
            device.wait();
            assert_eq!(device.load(target), 1, "a wait for the stream is a wait for its work");
            late
        });
        tries.count()
    };
    print([
        late(&|| device.copy(target, source, 4)),
        late(&|| device.fill(target, 1, 1)),
        late(&|| device.write_value(target, 1)),
    ]);
}

#[test]
fn copies_fills_and_values_of_an_unkind_device_begin_late() {
    shown::<3>("measure_late_work", |late| part(late));
    // Without the switch a short operation of an idle stream is over when the call returns.
    assert_eq!(measure("measure_late_work", false), [0; 3]);
}

/// Counts the tries in which a stream and an event are not ready although the host already sees what the work wrote.
#[test]
#[ignore = "a measurement of another test"]
fn measure_late_news() {
    let device = Device::new();
    let target = device.pinned(4);
    let (mut streams, mut events) = (0, 0);
    for _ in 0..TRIES {
        device.store(target, 0);
        device.write_value(target, 1);
        // Work that began late is not looked at, because its end may be on its way just now.
        if device.load(target) == 1 {
            streams += usize::from(!device.is_ready());
        }
        device.wait();
        events += usize::from(!device.records());
        device.wait();
    }
    print([streams, events]);
}

#[test]
fn the_end_of_an_unkind_devices_work_is_told_late() {
    shown::<2>("measure_late_news", |late| part(late));
    assert_eq!(measure("measure_late_news", false), [0; 2]);
}

/// Counts the tries in which a host that asks again and again finds late work done at one of the next times, and much later.
#[test]
#[ignore = "a measurement of another test"]
fn measure_asking() {
    let device = Device::new();
    let target = device.pinned(4);
    let (mut soon, mut later) = (0, 0);
    for _ in 0..TRIES {
        device.write_value(target, 1);
        match (1..).find(|_| device.is_ready()) {
            Some(1) => {}
            Some(2..=4) => soon += 1,
            _ => later += 1,
        }
    }
    print([soon, later]);
}

/// A host that asks twice waits as one that waits by a call.
#[test]
fn late_work_of_an_unkind_device_is_hurried_by_who_asks_again() {
    shown::<2>("measure_asking", |[soon, later]| *soon >= CAUGHT && later * 4 <= *soon);
}

/// Fills a queue behind a gate, and lets go of it when it is done, without a wait for any of it: `1` if all went well.
#[test]
#[ignore = "a measurement of another test"]
fn measure_a_long_queue() {
    const LENGTH: u32 = 50_000;
    /// Much longer than the work takes, and shorter than delays of a part of the operations, one behind the other.
    const SOON: Duration = Duration::from_secs(20);
    let device = Device::new();
    let (gate, target) = (device.pinned(4), device.pinned(4));
    device.store(target, 0);
    device.store(gate, 0);
    device.wait_for_value(gate, 1);
    (1..=LENGTH).for_each(|value| device.write_value(target, value));
    device.store(gate, 1);
    // A wait would take the queue apart.
    let start = Instant::now();
    while device.load(target) != LENGTH {
        assert!(start.elapsed() < SOON, "a queue that nobody waits for falls behind");
        std::thread::yield_now();
    }
    device.write_value(target, 0);
    device.wait();
    print([usize::from(device.load(target) == 0)]);
}

/// An operation that is done keeps none of those before it, or whoever lets go of a long queue would run out of stack.
#[test]
fn a_long_queue_of_an_unkind_device_is_forgotten_as_it_is_done() {
    assert_eq!(measure("measure_a_long_queue", true), [1]);
}

/// The number of the first try, from zero, in which a program that copies what a fill wrote and forgets to wait reads something old.
/// Nothing but waits lies between the tries.
#[test]
#[ignore = "a measurement of another test"]
fn measure_a_forgotten_wait() {
    let device = Device::new();
    let (source, target) = (device.pinned(4), device.pinned(4));
    let forgets = |value: u32| {
        device.fill(source, value, 1);
        device.copy(target, source, 4);
        let caught = device.load(target) != value;
        device.wait();
        assert_eq!(device.load(target), value);
        caught
    };
    let tries = TRIES as u32;
    let caught = (1..=tries).filter(|value| forgets(*value)).map(|value| value as usize - 1);
    let caught: Vec<usize> = caught.collect();
    print([*caught.first().unwrap_or(&TRIES), caught.len()]);
}

#[test]
fn an_unkind_device_catches_a_forgotten_wait_within_a_few_operations_with_most_seeds() {
    let found = [(); 10].map({
        let mut seed = 0;
        move |()| {
            seed += 1;
            measure_with::<2>("measure_a_forgotten_wait", Some(seed))
        }
    });
    let soon = found.iter().filter(|[first, _]| *first < 3).count();
    assert!(soon >= 8, "the first try that was caught, and how many were: {found:?}");
    assert!(found.iter().all(|[_, all]| *all >= TRIES / 2), "{found:?}");
    assert_eq!(measure("measure_a_forgotten_wait", false), [TRIES, 0]);
}

/// Counts the milliseconds that waits take for a stream of many operations, and for as many one by one.
#[test]
#[ignore = "a measurement of another test"]
fn measure_waits() {
    let device = Device::new();
    let target = device.pinned(4);
    let took = |each: bool| {
        let start = Instant::now();
        for value in 0..2000 {
            device.fill(target, value, 1);
            if each {
                device.wait();
            }
        }
        device.wait();
        start.elapsed().as_millis() as usize
    };
    print([took(false), took(true)]);
}

/// A host that waits cannot see that something is late. Every other operation of 2000 would otherwise be late by 700 us on average.
#[test]
fn an_unkind_device_is_not_late_for_who_waits() {
    // A busy machine may be slow once. A device that is late for each wait is never faster.
    let took = [(); 5].map(|()| measure::<2>("measure_waits", true));
    let best = [0, 1].map(|way| took.iter().map(|took| took[way]).min().unwrap());
    assert!(best.iter().all(|milliseconds| *milliseconds < 500), "all at once, one by one, in ms: {took:?}");
}

/// Frees two of several ranges, and counts the tries in which new memory is where the last of them was, whichever it is: the
/// kernel's own choice goes by address.
#[test]
#[ignore = "a measurement of another test"]
fn measure_addresses() {
    let device = Device::new();
    let is_last = |first: usize, last: usize| {
        let mut ranges = [(); 4].map(|()| device.alloc(2 * MIB));
        ranges.sort_unstable();
        device.free(ranges[first]);
        device.free(ranges[last]);
        let new = device.alloc(2 * MIB);
        for range in [ranges[1], ranges[3], new] {
            device.free(range);
        }
        new == ranges[last]
    };
    print([(0..TRIES).filter(|_| is_last(0, 2) && is_last(2, 0)).count()]);
}

#[test]
fn memory_of_an_unkind_device_is_where_some_was_freed_last() {
    assert_eq!(measure("measure_addresses", true), [TRIES]);
    assert_eq!(measure("measure_addresses", false), [0]);
}

/// Counts the pages of new memory that have a byte other than zero, in the first 1 MiB and behind it: of the device, of the
/// host, and of a handle that is mapped.
#[test]
#[ignore = "a measurement of another test"]
fn measure_new_memory() {
    let device = Device::new();
    let spoiled = |at: u64| {
        let bytes = device.read(at, 2 * MIB);
        let (first, rest) = bytes.split_at(MIB);
        [first, rest]
            .map(|part| part.chunks(4 * KIB).filter(|page| page.iter().any(|byte| *byte != 0)).count())
    };
    let [[a, b], [c, d], [e, f]] =
        [device.alloc(2 * MIB), device.pinned(2 * MIB), device.map(2 * MIB)].map(spoiled);
    print([a, b, c, d, e, f]);
}

#[test]
fn new_memory_of_an_unkind_device_begins_with_a_mebibyte_of_garbage() {
    let pages = MIB / (4 * KIB);
    assert_eq!(measure("measure_new_memory", true), [pages, 0, pages, 0, pages, 0]);
    assert_eq!(measure("measure_new_memory", false), [0; 6]);
}

/// Counts the lanes in which a register, a word of shared memory, and one of local memory that were not written are not zero.
#[test]
#[ignore = "a measurement of another test"]
fn measure_registers() {
    let device = Device::new();
    let target = device.pinned(3 * 32 * 4);
    device.launch(
        ".version 8.6
.target sm_90
.address_size 64
.visible .entry k(.param .u64 target)
{
    .reg .u64 %at;
    .reg .u32 %lane, %never, %found, %place;
    .shared .align 4 .b32 all[32];
    .local .align 4 .b32 own[4];
    ld.param.u64 %at, [target];
    mov.u32 %lane, %tid.x;
    mad.wide.u32 %at, %lane, 4, %at;
    st.global.u32 [%at], %never;
    mov.u32 %place, all;
    mad.lo.u32 %place, %lane, 4, %place;
    ld.shared.u32 %found, [%place];
    st.global.u32 [%at+128], %found;
    ld.local.u32 %found, [own+4];
    st.global.u32 [%at+256], %found;
    ret;
}
",
        target,
    );
    device.wait();
    print(
        [0, 128, 256].map(|part| (0..32).filter(|lane| device.load(target + part + lane * 4) != 0).count()),
    );
}

#[test]
fn registers_shared_and_local_memory_of_an_unkind_device_hold_garbage_at_first() {
    assert_eq!(measure("measure_registers", true), [32; 3]);
    assert_eq!(measure("measure_registers", false), [0; 3]);
}

/// Counts the words of two discarded lines that have lost their values, and those around them.
#[test]
#[ignore = "a measurement of another test"]
fn measure_discarded_lines() {
    let device = Device::new();
    let target = device.pinned(512);
    for word in 0..128 {
        device.store(target + word * 4, 7);
    }
    device.launch(
        ".version 8.6
.target sm_90
.address_size 64
.visible .entry k(.param .u64 target)
{
    .reg .u64 %at;
    .reg .u32 %lane;
    .reg .pred %p;
    ld.param.u64 %at, [target];
    mov.u32 %lane, %tid.x;
    setp.lt.u32 %p, %lane, 2;
    mad.wide.u32 %at, %lane, 128, %at;
    @%p discard.global.L2 [%at+128], 128;
    ret;
}
",
        target,
    );
    device.wait();
    let lost = |words: std::ops::Range<u64>| words.filter(|word| device.load(target + word * 4) != 7).count();
    print([lost(32..96), lost(0..32) + lost(96..128)]);
}

#[test]
fn what_a_kernel_of_an_unkind_device_discards_is_lost() {
    assert_eq!(measure("measure_discarded_lines", true), [64, 0]);
    assert_eq!(measure("measure_discarded_lines", false), [0, 0]);
}
