//! The race detector on a grid that fills a large device: all its blocks meet, and each reads what each has written. With a
//! cost that grows faster than the square of the number of blocks this takes hours.

#![allow(missing_docs, reason = "a test")]

#[path = "../races/device.rs"]
#[allow(dead_code, reason = "also for tests of two devices")]
mod device;

use cuda_soft::Config;
use device::{DATA_BYTES, Devices};

const SMS: u32 = 132;
const BLOCKS: u32 = SMS * 16;

/// Where the barrier's counter is.
const COUNTER: u32 = 32 << 10;

/// Each block writes its word, all meet, and the lanes of each read all words; twice. `ORDER` is the fence of those that
/// arrive.
fn meet(order: &str) -> String {
    let text = ".version 7.7
.target sm_90
.address_size 64
.visible .entry k(.param .u64 memory, .param .u32 device)
{
    .reg .u64 %data, %counter, %at;
    .reg .u32 %tid, %block, %round, %other, %seen, %all, %value;
    .reg .pred %p, %first;
    ld.param.u64 %data, [memory];
    add.u64 %counter, %data, COUNTER;
    mov.u32 %tid, %tid.x;
    mov.u32 %block, %ctaid.x;
    setp.eq.u32 %first, %tid, 0;
    mov.u32 %round, 0;
    mov.u32 %all, 0;
ROUND:
    add.u32 %round, %round, 1;
    mad.wide.u32 %at, %block, 4, %data;
    @%first st.weak.global.u32 [%at], %round;
    // Twice in each round: after all have written, and after all have read.
    bar.sync 0;
    add.u32 %all, %all, BLOCKS;
    @!%first bra MET;
    atom.ORDER.gpu.global.add.u32 %seen, [%counter], 1;
AGAIN:
    ld.acquire.gpu.global.u32 %seen, [%counter];
    setp.lt.u32 %p, %seen, %all;
    @%p bra AGAIN;
MET:
    bar.sync 0;
    mov.u32 %other, %tid;
LOOK:
    setp.ge.u32 %p, %other, BLOCKS;
    @%p bra SEEN;
    mad.wide.u32 %at, %other, 4, %data;
    ld.weak.global.u32 %value, [%at];
    setp.ne.u32 %p, %value, %round;
    @%p trap;
    add.u32 %other, %other, 128;
    bra LOOK;
SEEN:
    bar.sync 0;
    add.u32 %all, %all, BLOCKS;
    @!%first bra AFTER;
    atom.acq_rel.gpu.global.add.u32 %seen, [%counter], 1;
BACK:
    ld.acquire.gpu.global.u32 %seen, [%counter];
    setp.lt.u32 %p, %seen, %all;
    @%p bra BACK;
AFTER:
    bar.sync 0;
    setp.lt.u32 %p, %round, 2;
    @%p bra ROUND;
    ret;
}
";
    let numbers = [("BLOCKS", BLOCKS), ("COUNTER", COUNTER)];
    let text = numbers.iter().fold(text.to_owned(), |text, (name, value)| {
        text.replace(&format!(" {name};"), &format!(" {value};"))
    });
    text.replace("ORDER", order)
}

#[test]
fn thousands_of_blocks_meet_and_read_each_others_words() {
    const { assert!(4 * BLOCKS <= COUNTER && (COUNTER as usize) < DATA_BYTES) };
    let run = |order: &str| {
        let devices = Devices::of(Config { sms: SMS, watchdog: None, ..Config::default() });
        let before = cuda_soft::races().len();
        devices.launch_text(&meet(order), 0, BLOCKS, 128);
        devices.finish(before)
    };
    assert_eq!(run("acq_rel"), [""; 0]);
    let races = run("acquire");
    assert!(races.iter().all(|race| race.contains("nothing orders them")), "{races:?}");
    assert!(!races.is_empty());
}
