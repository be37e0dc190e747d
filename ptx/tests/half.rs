//! Packets and lines of which a part is old: nobody takes them.

mod device;

use crate::device::LaunchShape;
use aqueduct_ptx::abi::{ABORT_RECORD_COMPLETE, MemoryChannelHandle, SemaphoreHandle};
use device::{Args, Machine};

const FLAG: u32 = 9;
const PACKETS: usize = 4096;

/// Unpacks `data` from `packets` by warps that are told to leave. Returns the block that waited in vain, if one did.
fn unpack(row: &str, params: &[(&str, &str)], packets: &[u8], data: &[u8], grid: u32) -> Option<u32> {
    let machine = Machine::new(1);
    let [src, there] = [(); 2].map(|()| machine.alloc(0, PACKETS));
    let channel = MemoryChannelHandle {
        semaphore: SemaphoreHandle { abort: machine.abort_handle(0, 0), ..SemaphoreHandle::default() },
        src,
        src_bytes: PACKETS as u64,
        packets: there,
        packet_bytes: PACKETS as u64,
        ..MemoryChannelHandle::default()
    };
    machine.write(0, there, packets);
    let function = machine.function(0, row, params, 1);
    let args = Args::default().structure(&channel).u64(0).u64(0).u64(data.len() as u64).u32(FLAG);
    // One more look behind the word: what is there is taken, what is not is given up.
    machine.abort();
    machine.launch(0, function, LaunchShape { grid, block: 32 }, &args);
    machine.finish();
    let record = machine.record(0);
    if record.state == ABORT_RECORD_COMPLETE {
        assert_eq!(record.epoch, FLAG, "{row} {params:?}");
        return Some(record.block);
    }
    assert!(machine.read(0, src, data.len()) == data, "{row} {params:?}");
    None
}

/// Words of 64 bits with the flag in their upper half; that of `old` is of the last call.
fn words(count: usize, old: Option<usize>) -> Vec<u8> {
    let flag = |word| u64::from(if old == Some(word) { FLAG - 1 } else { FLAG });
    (0..count).flat_map(|word| (flag(word) << 32 | 7).to_ne_bytes()).collect()
}

#[test]
fn a_packet_with_an_old_word_is_not_taken() {
    // A warp takes four packets of each thread at once, then those that are left one by one; the last are another block's.
    for (format, words_of_packet, data) in [("ll8", 1, 4), ("ll16", 2, 8)] {
        let packets = 32 * 5 + 32;
        let count = packets * words_of_packet;
        let take = |old, grid| {
            unpack(
                "packet",
                &[("FORMAT", format)],
                &words(count, old),
                &7_u32.to_ne_bytes().repeat(data * packets / 4),
                grid,
            )
        };
        assert_eq!(take(None, 1), None, "{format}");
        for old in [0, 1, 32 * 3 * words_of_packet + 1, count - 2, count - 1] {
            assert_eq!(take(Some(old), 1), Some(0), "{format}, word {old}");
        }
        assert_eq!(take(Some(count - 1), 6), Some(5), "{format}, the last packet is that of the last block");
    }
}

#[test]
fn lines_of_which_some_are_old_are_not_taken() {
    // A warp awaits two units of eight lines; the last eight bytes of each are its flag.
    let units = 3;
    let lines = |old: Option<usize>| -> Vec<u8> {
        (0..8 * units)
            .flat_map(|line| {
                let flag = u64::from(if old == Some(line) { FLAG - 1 } else { FLAG });
                let mut bytes = vec![7; 120];
                bytes.extend(flag.to_ne_bytes());
                bytes
            })
            .collect()
    };
    let take = |old| unpack("ll128", &[], &lines(old), &vec![7; 960 * units], 1);
    assert_eq!(take(None), None);
    for old in 0..8 * units {
        assert_eq!(take(Some(old)), Some(0), "line {old}");
    }
}
