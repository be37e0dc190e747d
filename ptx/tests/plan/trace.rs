//! Times that blocks note.

use aqueduct_ptx::abi::TraceRecord;
use aqueduct_ptx::plan::{Base, Block, Element, Kernel, Number, Operand, Shape, Step, Trace};

use crate::rig::{ADDRESSES, kernel, moved};
use crate::solo::{Solo, at, sizes};

const SIZE: usize = size_of::<TraceRecord>();
/// Around the records and in those that are not used.
const CANARY: u8 = 0xc3;

/// Two blocks, of two shapes, with room for so many records each.
fn traced(records: u32) -> Kernel {
    let copy = |from, to| moved(vec![at(Base::Input, from)], vec![at(Base::Output, to)], 1, None);
    let mark = |number: u64| Step::Mark { number };
    let body = vec![
        mark(1 << 40),
        moved(
            vec![Operand { first: Number::Row(0), ..at(Base::Input, 0) }],
            vec![Operand { first: Number::Row(0), ..at(Base::Output, 0) }],
            1,
            None,
        ),
    ];
    let first = vec![mark(7), copy(0, 0), mark(u64::MAX), Step::Sync, copy(0, 1), mark(3)];
    let second = vec![mark(8), Step::Repeat { turns: 2, stride: 1, body }, mark(4)];
    Kernel {
        addresses: ADDRESSES + 1,
        trace: Some(Trace { address: ADDRESSES, records }),
        shapes: vec![Shape { steps: first }, Shape { steps: second }],
        blocks: vec![Block { shape: 0, row: Vec::new() }, Block { shape: 1, row: vec![2, 3] }],
        ..kernel(1, Element::U8, Vec::new())
    }
}

/// The numbers that the blocks of [`traced`] note.
const NUMBERS: [&[u64]; 2] = [&[7, u64::MAX, 3], &[8, 1 << 40, 1 << 40, 4]];

/// The records of two blocks, and nothing around them.
#[test]
fn blocks_note_times_as_long_as_there_is_room() {
    let mut solo = Solo::new(4096, 1, 128);
    let bytes = 2 * SIZE * 8;
    let memory = solo.world.machine.alloc(0, bytes + 2 * SIZE);
    solo.world.more = vec![memory + SIZE as u64];
    let mut last = 0;
    for records in [8, 4, 3, 2, 1, 0] {
        solo.world.machine.write(0, memory, &vec![CANARY; bytes + 2 * SIZE]);
        solo.run(&traced(records), sizes(800, 3200), [0, 0]);
        let found = solo.world.machine.read(0, memory, bytes + 2 * SIZE);
        let word = |at: usize| u64::from_ne_bytes(found[at..at + 8].try_into().expect("eight bytes"));
        let mut used = vec![false; found.len() / SIZE];
        let mut latest = last;
        for (block, numbers) in NUMBERS.iter().enumerate() {
            let mut before = last;
            for (nth, &number) in numbers.iter().take(records as usize).enumerate() {
                let place = 1 + block * records as usize + nth;
                used[place] = true;
                assert_eq!(word(place * SIZE + 8), number, "{records} records, block {block}, mark {nth}");
                let time = word(place * SIZE);
                assert!(time >= before && time > 0 && time < 1 << 62, "{time} behind {before}");
                before = time;
            }
            latest = latest.max(before);
        }
        last = latest;
        for (place, used) in used.into_iter().enumerate() {
            let record = &found[place * SIZE..][..SIZE];
            assert!(used || record.iter().all(|&byte| byte == CANARY), "{records} records, at {place}");
        }
    }
}

/// Which kernels with records are refused.
#[test]
fn records_need_an_address() {
    let solo = Solo::new(64, 1, 128);
    let refused = |kernel: Kernel| solo.world.render(&kernel).unwrap_err().to_string();
    let trace = |address, records| Some(Trace { address, records });
    assert!(refused(Kernel { trace: trace(ADDRESSES + 1, 1), ..traced(1) }).contains("no address"));
    assert!(refused(Kernel { trace: trace(ADDRESSES, 1 << 27), ..traced(1) }).contains("too many"));
    assert!(refused(Kernel { trace: None, ..traced(1) }).contains("no records"));
}
