//! Which table of choices is followed, and what ranks that NVLink does not join make of it.

use std::ffi::{c_char, c_int};

use cuda_driver_sys::{CUdevice, CUdevice_P2PAttribute, CUresult};

use super::*;

/// A table in which a message of so many bytes goes as packets, and longer ones as LL128 packets up to `line_bytes`.
fn table(device: &str, multiprocessors: u32, packet_bytes: u64, line_bytes: u64) -> Tuning {
    let mut table = Tuning::new("given", device, multiprocessors);
    let choice = Choice { packet_bytes, line_bytes, packet_blocks: 1, blocks: 1, copy_bytes: 0 };
    table.insert(&Kind::AllGather, 2, choice).unwrap();
    table
}

/// The name and the multiprocessors of rank 0's device.
fn first_device(comm: &Communicator) -> (String, u32) {
    let device = comm.peers()[0].device.clone().expect("the rank has one");
    (device.name, device.multiprocessors)
}

/// The longest packets of a collective that each rank prepares with the same settings.
fn longest_packets(comms: &[Communicator], config: &CollectiveConfig) -> usize {
    let longest = together(comms, |comm| {
        let collective = prepare(comm, config.clone())?;
        Ok((1..=4096).map(|vectors| 16 * vectors).rfind(|&bytes| way(&collective, bytes) == "packets"))
    });
    let longest = longest.unwrap();
    assert_eq!(longest[0], longest[1]);
    longest[0].expect("there are packets")
}

/// The file is for all collectives of a communicator, and the table that a caller gives for one of them.
#[test]
fn the_table_of_a_collective_goes_before_the_file_of_its_communicator() {
    let config = || CommunicatorConfig::default().with_scratch_bytes(8 << 20);
    let comms = ranks_on(cuda_soft::driver_table(), config());
    let (device, multiprocessors) = first_device(&comms[0]);
    close(&comms);
    let file = std::env::temp_dir().join(format!("aqueduct-tables-{}.tuning", std::process::id()));
    std::fs::write(&file, table(&device, multiprocessors, 1024, 0).to_string()).unwrap();
    let comms = ranks_on(cuda_soft::driver_table(), config().with_tuning(&file));
    let own = CollectiveConfig::default();
    assert_eq!(longest_packets(&comms, &own), 1024);
    let given = own.with_tuning(table(&device, multiprocessors, 2048, 0));
    assert_eq!(longest_packets(&comms, &given), 2048);
    assert_eq!(longest_packets(&comms, &given.clone().with_packet_bytes(512)), 512, "the caller's number");
    close(&comms);
    std::fs::remove_file(&file).unwrap();
}

/// As the software device's, of a machine whose second device is another product.
unsafe extern "C" fn another_name(name: *mut c_char, length: c_int, device: CUdevice) -> CUresult {
    let other = c"another device".to_bytes_with_nul();
    if device == 1 && length as usize >= other.len() {
        // SAFETY: the caller gives room for `length` bytes.
        unsafe { name.copy_from_nonoverlapping(other.as_ptr().cast(), other.len()) };
        return CUresult::CUDA_SUCCESS;
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { (cuda_soft::driver_table().cuDeviceGetName)(name, length, device) }
}

/// It was measured where all devices are of one sort.
#[test]
fn a_table_speaks_only_where_every_rank_has_its_device() {
    let mixed = DriverTable { cuDeviceGetName: another_name, ..cuda_soft::driver_table() };
    let comms = ranks_on(mixed, CommunicatorConfig::default().with_scratch_bytes(8 << 20));
    let (device, multiprocessors) = first_device(&comms[0]);
    for (name, other) in [(&device[..], 1), ("another device", 0)] {
        let given = table(name, multiprocessors, 1024, 0);
        let misfit = given.misfit(&comms[0]).expect("one rank has another device");
        assert!(misfit.contains(&format!("and rank {other} has")), "{misfit}");
        let config = CollectiveConfig::default().with_tuning(given);
        let usual = longest_packets(&comms, &CollectiveConfig::default());
        assert_eq!(longest_packets(&comms, &config), usual, "as without a table");
    }
    close(&comms);
}

/// As the software device's, of a machine whose devices are joined by PCIe.
unsafe extern "C" fn over_pcie(
    value: *mut c_int,
    attribute: CUdevice_P2PAttribute,
    from: CUdevice,
    to: CUdevice,
) -> CUresult {
    if attribute == CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED {
        // SAFETY: the caller gives a live output.
        unsafe { *value = 0 };
        return CUresult::CUDA_SUCCESS;
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { (cuda_soft::driver_table().cuDeviceGetP2PAttribute)(value, attribute, from, to) }
}

/// Other paths may tear the lines of LL128 packets, whoever asks for them.
#[test]
fn without_nvlink_there_are_no_lines() {
    let pcie = DriverTable { cuDeviceGetP2PAttribute: over_pcie, ..cuda_soft::driver_table() };
    for (drivers, lines) in [(cuda_soft::driver_table(), true), (pcie, false)] {
        let comms = ranks_on(drivers, CommunicatorConfig::default().with_scratch_bytes(64 << 20));
        let (device, multiprocessors) = first_device(&comms[0]);
        let of_table =
            CollectiveConfig::default().with_tuning(table(&device, multiprocessors, 1024, 1 << 16));
        let of_caller = CollectiveConfig::default().with_packet_bytes(1024).with_line_bytes(1 << 16);
        for config in [of_table, of_caller] {
            let ways = together(&comms, |comm| Ok(way(&prepare(comm, config.clone())?, 4096)));
            for way in ways.unwrap() {
                assert_eq!(way == "lines", lines, "{way}");
            }
        }
        close(&comms);
    }
}
