//! Moves at multicast addresses, on a team of software devices. They never run on hardware, where multicast is not confirmed.

use std::ffi::c_ulonglong;
use std::io::Write;

use aqueduct_ptx::Target;
use aqueduct_ptx::oracle::half::{bf16_from_f32, f16_from_f32};
use aqueduct_ptx::plan::{
    Base, Element, Kernel, Number, Operand, Reduction, Step, reduces_by_multicast, render,
};
use cuda_driver_sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmulticastObjectProp, CUresult, DriverTable,
};

use crate::elements::reduce;
use crate::rig::{ADDRESSES, CALLS, CANARY, World, fixed, kernel, moved, noise, operand, with_packets};
use crate::solo::sizes;

/// Ranks of a team.
const RANKS: usize = 3;
/// Bytes of a multicast object: one granule of the software device.
const BYTES: usize = 2 << 20;
/// Bytes of a chunk: more than a turn of 64 threads, and a vector in which the last turn ends early.
const CHUNK: u64 = 64 * 16 * 8 + 16 * 70;
const REDUCTIONS: [Reduction; 5] =
    [Reduction::Sum, Reduction::Prod, Reduction::Min, Reduction::Max, Reduction::Avg];

fn ok(result: CUresult) {
    assert_eq!(result, CUresult::CUDA_SUCCESS);
}

/// A world of ranks that are a team.
struct Team {
    world: World,
    /// The memory that each rank has bound, where it sees it.
    own: Vec<CUdeviceptr>,
}

fn map(table: &DriverTable, handle: c_ulonglong, device: i32) -> CUdeviceptr {
    let mut address = 0;
    let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device };
    let access = CUmemAccessDesc { location, flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    // SAFETY: live outputs and inputs; the range is as long as the memory, and nothing is mapped there yet.
    unsafe {
        ok((table.cuMemAddressReserve.unwrap())(&raw mut address, BYTES, 0, 0, 0));
        ok((table.cuMemMap.unwrap())(address, BYTES, 0, handle, 0));
        ok((table.cuMemSetAccess.unwrap())(address, BYTES, &raw const access, 1));
    }
    address
}

impl Team {
    /// Nothing of it is freed before the process ends. Behind the addresses of the ranks stand those of the team's memory at each
    /// rank, and those of each rank's own part of it.
    fn new() -> Option<Self> {
        if std::env::var("AQUEDUCT_DRIVER").as_deref() == Ok("cuda") {
            let line = "NOT RUN: plan::multicast: multicast never runs on hardware\n";
            std::io::stderr().write_all(line.as_bytes()).expect("standard error");
            return None;
        }
        let mut world = World::new(RANKS, 4096, 1, CHUNK.next_multiple_of(128));
        let table = cuda_soft::driver_table();
        let types = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let (mut team, mut own) = (0, Vec::new());
        let object = CUmulticastObjectProp {
            numDevices: RANKS as u32,
            size: BYTES,
            handleTypes: types.0.into(),
            flags: 0,
        };
        let devices = 0..i32::try_from(RANKS).unwrap();
        // SAFETY: live outputs and inputs, and handles that were made here.
        unsafe {
            ok((table.cuMulticastCreate.unwrap())(&raw mut team, &raw const object));
            for device in devices.clone() {
                ok((table.cuMulticastAddDevice.unwrap())(team, device));
            }
            for device in devices.clone() {
                let prop = CUmemAllocationProp {
                    type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
                    requestedHandleTypes: types,
                    location: CUmemLocation {
                        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                        id: device,
                    },
                    ..CUmemAllocationProp::default()
                };
                let mut memory = 0;
                ok((table.cuMemCreate.unwrap())(&raw mut memory, BYTES, &raw const prop, 0));
                ok((table.cuMulticastBindMem.unwrap())(team, 0, memory, 0, BYTES, 0));
                own.push(map(&table, memory, device));
            }
        }
        let all: Vec<_> = devices.map(|device| map(&table, team, device)).collect();
        world.more = [all, own.clone()].concat();
        Some(Self { world, own })
    }
}

/// Chunks of the team's memory as rank 1 sees it.
fn team(base: Base, first: u32) -> Operand {
    Operand { address: fixed(RANKS as u32 * ADDRESSES + 1), multicast: true, ..part(1, base, first) }
}

/// Chunks of what a rank has bound.
fn part(rank: u32, base: Base, first: u32) -> Operand {
    let address = fixed(RANKS as u32 * (ADDRESSES + 1) + rank);
    Operand { base, address, first: fixed(first), rank: fixed(1), multicast: false }
}

/// One block that does these steps one after the other.
fn of_steps(element: Element, steps: Vec<Step>) -> Kernel {
    let steps = steps.into_iter().flat_map(|step| [step, Step::Sync]).collect();
    Kernel { addresses: RANKS as u32 * (ADDRESSES + 2), ..kernel(RANKS as u32, element, steps) }
}

/// Small whole numbers, whose sums are the same in every order.
fn whole(element: Element, seed: u64, bytes: usize) -> Vec<u8> {
    let bytes_of = |value: u8| -> Vec<u8> {
        let float = f32::from(value);
        match element {
            Element::F64 => f64::from(value).to_le_bytes().to_vec(),
            Element::F32 => float.to_le_bytes().to_vec(),
            Element::F16 => f16_from_f32(float).to_le_bytes().to_vec(),
            Element::Bf16 => bf16_from_f32(float).to_le_bytes().to_vec(),
            // Odd numbers are negative, so that signs matter.
            _ if value % 2 == 1 => [vec![!value], vec![0xff; element.bytes() - 1]].concat(),
            _ => [vec![value], vec![0; element.bytes() - 1]].concat(),
        }
    };
    noise(seed, bytes / element.bytes()).into_iter().flat_map(|byte| bytes_of(byte % 8)).collect()
}

/// Every type and reduction that there is, from and to the memory of all ranks, within one chunk and across two.
#[test]
fn all_ranks_get_the_reduction_of_all() {
    let Some(all) = Team::new() else { return };
    for element in Element::ALL {
        for reduction in REDUCTIONS.into_iter().filter(|&op| reduces_by_multicast(element, op)) {
            for (count, base) in [(1, Base::Scratch), (2, Base::Scratch), (1, Base::Input), (2, Base::Output)]
            {
                let users = base != Base::Scratch;
                let distance = if users { CHUNK } else { all.world.scratch_chunk } as usize;
                let bytes = 2 * distance;
                let held: Vec<_> = (1..).map(|seed| whole(element, seed, bytes)).take(RANKS).collect();
                for (rank, held) in held.iter().enumerate() {
                    all.world.machine.write(rank, all.own[rank], held);
                }
                let step = moved(vec![team(base, 0)], vec![team(base, 2)], count, Some(reduction));
                let kernels = [vec![], vec![step], vec![]].map(|steps| of_steps(element, steps));
                all.world.run(&kernels, sizes(CHUNK, 4 * CHUNK), [0, 0]);
                let size = element.bytes();
                let expected = |chunk: usize| -> Vec<u8> {
                    let elements = (chunk * distance..chunk * distance + CHUNK as usize).step_by(size);
                    let sources =
                        |at: usize| held.iter().map(|held| &held[at..at + size]).collect::<Vec<_>>();
                    elements.flat_map(|at| reduce(element, reduction, RANKS as u32, &sources(at))).collect()
                };
                for (rank, held) in held.iter().enumerate() {
                    let what = format!("{element:?} {reduction:?} of {count} in {base:?}, rank {rank}");
                    let found = all.world.machine.read(rank, all.own[rank], 2 * bytes);
                    assert!(found[..bytes] == *held, "{what}: sources stay");
                    for chunk in 0..count as usize {
                        let found = &found[bytes + chunk * distance..][..CHUNK as usize];
                        assert!(found == expected(chunk), "{what}, chunk {chunk}");
                    }
                }
            }
        }
    }
}

/// Rank 1 sends its own data to all as packets, which each reads from its own memory; or with `sums` its own and that of all, added.
fn packets_reach_all(all: &Team, count: u32, sums: bool) {
    let distance = all.world.scratch_chunk;
    // Packets of the chunks from 2 on lie from twice as far on; data lies behind them.
    let (data, first, received) = (9, 2, 12);
    let held: Vec<_> = (7..).map(|seed| whole(Element::I32, seed, CHUNK as usize)).take(RANKS).collect();
    for (rank, held) in held.iter().enumerate() {
        all.world.machine.write(rank, all.own[rank] + u64::from(data) * CHUNK, &held.repeat(2));
    }
    let mut sources = vec![part(1, Base::Output, data)];
    sources.extend(sums.then(|| team(Base::Output, data)));
    let send = moved(sources, vec![team(Base::Packets, first)], count, sums.then_some(Reduction::Sum));
    let receive = |rank| {
        let (from, to) = (part(rank, Base::Packets, first), part(rank, Base::Scratch, received));
        moved(vec![from], vec![to], count, None)
    };
    let kernels = [0, 1, 2].map(|rank| {
        let steps = if rank == 1 { vec![send.clone(), receive(rank)] } else { vec![receive(rank)] };
        let mut kernel = with_packets(of_steps(Element::I32, steps), rank, first + count);
        let Number::Fixed(own) = part(rank, Base::Packets, 0).address else { unreachable!() };
        kernel.laps.iter_mut().for_each(|laps| laps.packets = own);
        kernel
    });
    all.world.run(&kernels, sizes(CHUNK, 12 * CHUNK), [0, 0]);
    for rank in 0..RANKS {
        for chunk in 0..u64::from(count) {
            let at = all.own[rank] + (u64::from(received) + chunk) * distance;
            let found = all.world.machine.read(rank, at, CHUNK as usize);
            let sent = (0..CHUNK as usize).step_by(4).flat_map(|at| {
                let word = |rank: usize| &held[rank][at..at + 4];
                let words = [word(1), word(0), word(1), word(2)];
                reduce(Element::I32, Reduction::Sum, 3, if sums { &words } else { &words[..1] })
            });
            assert!(found == sent.collect::<Vec<_>>(), "rank {rank}, chunk {chunk} of {count}");
        }
    }
}

#[test]
fn packets_reach_all_ranks() {
    let Some(all) = Team::new() else { return };
    for count in [1, 2] {
        packets_reach_all(&all, count, true);
        packets_reach_all(&all, count, false);
    }
}

/// The last call of a lap, and the first of the next, in which each rank first zeroes its packets by its own address.
#[test]
fn packets_reach_all_ranks_in_a_new_lap() {
    let Some(all) = Team::new() else { return };
    for (rank, memory) in all.world.memory.iter().enumerate() {
        let last = (7_u64 << 32) + u64::from(u32::MAX) - 1;
        all.world.machine.write(rank, memory.control + u64::from(CALLS), &last.to_ne_bytes());
        let words = 2 * 3 * all.world.scratch_chunk / 8;
        let stale: Vec<u8> =
            (0..words).flat_map(|word| (2 << 32 | 0xdead_0000 | word).to_le_bytes()).collect();
        all.world.machine.write(rank, all.own[rank], &stale);
    }
    packets_reach_all(&all, 1, false);
    packets_reach_all(&all, 1, false);
    for (rank, memory) in all.world.memory.iter().enumerate() {
        let calls = all.world.machine.read(rank, memory.control + u64::from(CALLS), 8);
        assert_eq!(calls, ((8_u64 << 32) + 2).to_ne_bytes(), "rank {rank}");
    }
}

/// Units that do not exist are not accessed: here they would lie behind the team's memory.
#[test]
fn nothing_behind_the_end_is_accessed() {
    let Some(all) = Team::new() else { return };
    let (chunk, last) = (1024, BYTES as u32 / 1024 - 1);
    for element in [Element::F32, Element::F16, Element::I32, Element::I64] {
        let held = whole(element, 3, chunk);
        for (rank, own) in all.own.iter().enumerate() {
            all.world.machine.write(rank, *own, &held);
        }
        let step = |from, to| {
            moved(vec![team(Base::Input, from)], vec![team(Base::Input, to)], 1, Some(Reduction::Sum))
        };
        let kernels =
            [vec![], vec![step(0, last), step(last, 1)], vec![]].map(|steps| of_steps(element, steps));
        all.world.run(&kernels, sizes(chunk as u64, BYTES as u64), [0, 0]);
        let sums = |held: &[u8]| -> Vec<u8> {
            held.chunks(element.bytes())
                .flat_map(|one| reduce(element, Reduction::Sum, 3, &[one; RANKS]))
                .collect()
        };
        let found = all.world.machine.read(2, all.own[2] + chunk as u64, chunk);
        assert!(found == sums(&sums(&held)), "{element:?}");
    }
}

/// A buffer that is not aligned is read element by element, and the team's memory still written by vectors.
#[test]
fn other_operands_may_be_misaligned() {
    let Some(all) = Team::new() else { return };
    let data = noise(9, 2048);
    all.world.machine.write(1, all.world.memory[1].input + CANARY as u64 + 4, &data);
    for count in [1, 2] {
        all.own.iter().enumerate().for_each(|(rank, own)| all.world.machine.write(rank, *own, &[0; 2048]));
        let copy = moved(vec![operand(1, Base::Input, 0)], vec![team(Base::Output, 0)], count, None);
        let kernels = [vec![], vec![copy], vec![]].map(|steps| of_steps(Element::I32, steps));
        all.world.run(&kernels, sizes(1024, 2048), [4, 0]);
        for (rank, own) in all.own.iter().enumerate() {
            let len = 1024 * count as usize;
            assert!(all.world.machine.read(rank, *own, len) == data[..len], "rank {rank}, {count} chunks");
        }
    }
}

/// A rank stores at its own address what all sum by the multicast address, and reads at its own address what came by that: aliases,
/// between which moves have fences.
#[test]
fn the_own_address_and_that_of_all_lead_to_one_memory() {
    let Some(all) = Team::new() else { return };
    let chunk = 1024;
    let held: Vec<_> = (20..).map(|seed| whole(Element::I32, seed, chunk)).take(RANKS).collect();
    for (rank, held) in held.iter().enumerate() {
        let stands = if rank == 1 { vec![0; chunk] } else { held.clone() };
        all.world.machine.write(rank, all.own[rank], &stands);
    }
    all.world.machine.write(1, all.world.memory[1].input + CANARY as u64, &held[1]);
    let copy = |from, to| moved(vec![from], vec![to], 1, None);
    let sum = moved(vec![team(Base::Output, 0)], vec![team(Base::Output, 1)], 1, Some(Reduction::Sum));
    let steps = vec![
        copy(operand(1, Base::Input, 0), part(1, Base::Output, 0)),
        sum,
        copy(part(1, Base::Output, 1), operand(1, Base::Output, 0)),
    ];
    let kernels = [vec![], steps, vec![]].map(|steps| of_steps(Element::I32, steps));
    all.world.run(&kernels, sizes(chunk as u64, 2 * chunk as u64), [0, 0]);
    let found = all.world.machine.read(1, all.world.memory[1].output + CANARY as u64, chunk);
    let sums = (0..chunk).step_by(4).flat_map(|at| {
        let words: Vec<_> = held.iter().map(|held| &held[at..at + 4]).collect();
        reduce(Element::I32, Reduction::Sum, 3, &words)
    });
    assert!(found == sums.collect::<Vec<_>>());
}

#[test]
fn accesses_that_there_are_not_are_refused() {
    let refused = |kernel: &Kernel, sm: u32| render(kernel, Target::new(sm)).unwrap_err().to_string();
    let good = |element, op| {
        of_steps(element, vec![moved(vec![team(Base::Scratch, 0)], vec![part(1, Base::Scratch, 1)], 1, op)])
    };
    assert!(render(&good(Element::F32, Some(Reduction::Sum)), Target::new(90)).is_ok());
    assert!(refused(&good(Element::F32, Some(Reduction::Sum)), 80).contains("sm_90"));
    for (element, op) in [
        (Element::F32, None),
        (Element::F32, Some(Reduction::Max)),
        (Element::F16, Some(Reduction::Avg)),
        (Element::I32, Some(Reduction::Prod)),
        (Element::I8, Some(Reduction::Sum)),
    ] {
        let error = refused(&good(element, op), 90);
        assert!(error.contains("needs a reduction that the instruction has"), "{element:?} {op:?}: {error}");
    }
    let packets =
        moved(vec![team(Base::Packets, 0)], vec![part(1, Base::Scratch, 1)], 1, Some(Reduction::Sum));
    assert!(
        refused(&with_packets(of_steps(Element::F32, vec![packets]), 1, 1), 90).contains("cannot be read")
    );
    let Step::Move(by_rows) = moved(vec![part(1, Base::Input, 0)], vec![team(Base::Output, 0)], 1, None)
    else {
        unreachable!()
    };
    let by_rows = Step::Move(aqueduct_ptx::plan::Move { by_rows: true, ..by_rows });
    assert!(refused(&of_steps(Element::F32, vec![by_rows]), 90).contains("by rows has no multicast"));
}
