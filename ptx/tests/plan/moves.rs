//! Moves of every kind.

use aqueduct_ptx::plan::{Base, Element, Kernel, Number, Operand, Port, PortPut, Reduction, Rows, Step};

use crate::elements::REDUCTIONS;
use crate::rig::{fixed, kernel, moved, with_packets};
use crate::solo::{Solo, at, sizes};

const BASES: [Base; 4] = [Base::Input, Base::Output, Base::Scratch, Base::Packets];
/// Chunks of scratch of these tests.
const CHUNKS: u32 = 24;

/// A kernel of one rank with packets; steps stand between syncs.
fn sequence(element: Element, ranks: u32, steps: Vec<Step>) -> Kernel {
    let steps = steps.into_iter().flat_map(|step| [step, Step::Sync]).collect();
    let kernel = kernel(1, element, steps);
    let kernel = with_packets(Kernel { double_scratch: true, ..kernel }, 0, CHUNKS);
    Kernel { ranks, ..kernel }
}

/// Sizes of a call whose buffers end after `bytes`.
/// Packets that a move reads are sent before, from other chunks of the input.
fn filled(sources: &[Operand], count: u32) -> Vec<Step> {
    let first = |operand: &Operand| match operand.first {
        Number::Fixed(first) => first,
        Number::Row(_) => unreachable!("not in these tests"),
    };
    let packets = sources.iter().filter(|source| source.base == Base::Packets);
    packets
        .map(|packet| moved(vec![at(Base::Input, first(packet) % 3)], vec![*packet], count, None))
        .collect()
}

#[test]
fn copies_between_all_kinds_of_memory() {
    let mut solo = Solo::new(9000, u64::from(CHUNKS), 1152);
    for (nth, (from, to)) in BASES.into_iter().flat_map(|from| BASES.map(|to| (from, to))).enumerate() {
        for count in [1, 3] {
            let source = at(from, 1);
            let mut steps = filled(&[source], count);
            steps.push(moved(vec![source], vec![at(to, 9)], count, None));
            let kernel = sequence(Element::U8, 1, steps);
            for (turn, chunk) in [1, 15, 16, 17, 20, 24, 160, 1019].into_iter().enumerate() {
                // The last chunks of the buffers exist in part, or not at all.
                let bytes = [20 * chunk, 10 * chunk - 1, 2 * chunk + chunk / 2][(turn + nth) % 3].min(8900);
                let skew = [[0, 0], [3, 3], [16, 1]][(turn + nth / 3) % 3];
                solo.run(&kernel, sizes(chunk, bytes), skew);
            }
        }
    }
}

#[test]
fn many_sources_and_targets() {
    let mut solo = Solo::new(13_000, u64::from(CHUNKS), 512);
    for (turn, (k, m)) in
        [(1, 8), (2, 1), (2, 3), (3, 2), (4, 1), (5, 8), (7, 4), (8, 1), (8, 8)].into_iter().enumerate()
    {
        for count in [1, 2] {
            for packets in [false, true] {
                let kinds = if packets { &BASES[..] } else { &BASES[..3] };
                let base = |i: usize| kinds[(i + turn) % kinds.len()];
                let sources: Vec<_> = (0..k).map(|i| at(base(i), 2 * i as u32)).collect();
                let targets =
                    (0..m).map(|i| at(kinds[1 + i % (kinds.len() - 1)], 8 + 2 * i as u32)).collect();
                let mut steps = filled(&sources, count);
                let reduction = (k > 1).then_some(REDUCTIONS[turn % 5]);
                steps.push(moved(sources, targets, count, reduction));
                let kernel = sequence(Element::I32, 3, steps);
                for chunk in [4, 260, 512] {
                    solo.run(
                        &kernel,
                        sizes(chunk, 24 * chunk - 4 * (turn as u64 % 2)),
                        [4 * (turn as u64 % 2), 0],
                    );
                }
            }
        }
    }
}

/// LL16 packets beside plain memory, to both.
#[test]
fn packets_of_every_element_and_reduction() {
    let mut solo = Solo::new(1000, u64::from(CHUNKS), 256);
    for element in Element::ALL {
        let size = element.bytes() as u64;
        for (turn, reduction) in REDUCTIONS.into_iter().enumerate() {
            let sources =
                [at(Base::Packets, 0), at(Base::Input, 1), at(Base::Packets, 5), at(Base::Scratch, 3)];
            let mut steps = filled(&sources, 1);
            steps.push(moved(vec![at(Base::Input, 0)], vec![at(Base::Scratch, 3)], 1, None));
            let targets = vec![at(Base::Output, 2), at(Base::Packets, 8)];
            steps.push(moved(sources.to_vec(), targets, 1, Some(reduction)));
            let kernel = sequence(element, 4, steps);
            // Within a vector, around its end, and some vectors.
            for chunk in [size, 16 - size, 16 + size, 256 - size] {
                let skew = [[0, 0], [size, size]][turn % 2];
                solo.run(&kernel, sizes(chunk, 3 * chunk - size * (turn as u64 % 2)), skew);
            }
        }
    }
}

fn every_element_and_reduction(sm: u32, chunks: &[u64], counts: &[u32]) {
    let mut solo = Solo::new(7000, 1, 128).for_sm(sm);
    for element in Element::ALL {
        for reduction in REDUCTIONS {
            for &count in counts {
                let kernel = kernel(
                    1,
                    element,
                    vec![moved(
                        vec![at(Base::Input, 0), at(Base::Input, count), at(Base::Input, 2 * count)],
                        vec![at(Base::Output, 0)],
                        count,
                        Some(reduction),
                    )],
                );
                let kernel = Kernel { ranks: 3, ..kernel };
                let size = element.bytes() as u64;
                for &chunk in chunks {
                    let chunk = chunk.next_multiple_of(size);
                    let bytes = 3 * u64::from(count) * chunk;
                    solo.run(&kernel, sizes(chunk, bytes), [0, 0]);
                    solo.run(&kernel, sizes(chunk, bytes.saturating_sub(size)), [size, size]);
                }
            }
        }
    }
}

#[test]
fn every_element_and_reduction_at_the_ends_of_vectors() {
    every_element_and_reduction(90, &[0, 1, 15, 16, 17, 1032], &[1, 2]);
}

#[test]
fn every_element_and_reduction_with_the_instructions_of_sm_70() {
    every_element_and_reduction(70, &[72, 1032], &[1]);
}

/// Calls alternate between the halves of scratch, also if nothing goes as packets.
#[test]
fn two_halves_of_scratch_without_packets() {
    let mut solo = Solo::new(2000, 4, 1024);
    let copy = |from, to| moved(vec![at(from, 1)], vec![at(to, 0)], 1, None);
    let steps = vec![copy(Base::Input, Base::Scratch), Step::Sync];
    let kernel = Kernel { double_scratch: true, ..kernel(1, Element::U8, steps) };
    for chunk in [16, 500, 1000] {
        solo.run(&kernel, sizes(chunk, 2 * chunk), [0, 0]);
    }
    solo.set_calls(u64::from(u32::MAX) - 1);
    (0..3).for_each(|_| solo.run(&kernel, sizes(500, 1000), [0, 0]));
}

#[test]
fn hundreds_of_kilobytes() {
    let mut solo = Solo::new(400_000, 2, 131_072);
    for (element, chunk) in [(Element::F32, 131_072), (Element::Bf16, 130_002), (Element::U8, 99_991)] {
        for count in [1, 2] {
            let kernel = kernel(
                1,
                element,
                vec![moved(
                    vec![at(Base::Input, 0), at(Base::Input, 1)],
                    vec![at(Base::Output, 0), at(Base::Scratch, 0)],
                    count,
                    Some(Reduction::Max),
                )],
            );
            solo.run(&kernel, sizes(chunk, 3 * chunk), [0, 0]);
        }
    }
}

/// NaN, infinities and zeros: the model says only that a NaN is one; here is which operand wins.
#[test]
fn special_values_of_every_type() {
    for sm in [70, 90] {
        for element in
            [Element::F32, Element::F64, Element::F16, Element::Bf16, Element::F8E4m3, Element::F8E5m2]
        {
            // Quiet NaN, one, -0, +0, the largest value and its opposite, as bits of the type.
            let values: [u64; 6] = match element {
                Element::F64 => {
                    [0x7ff8 << 48, 0x3ff0 << 48, 1 << 63, 0, 0x7fef_ffff_ffff_ffff, 0xffef_ffff_ffff_ffff]
                }
                Element::F32 => [0x7fc0_0000, 0x3f80_0000, 0x8000_0000, 0, 0x7f7f_ffff, 0xff7f_ffff],
                Element::F16 => [0x7e00, 0x3c00, 0x8000, 0, 0x7bff, 0xfbff],
                Element::Bf16 => [0x7fc0, 0x3f80, 0x8000, 0, 0x7f7f, 0xff7f],
                Element::F8E4m3 => [0x7f, 0x38, 0x80, 0, 0x7e, 0xfe],
                _ => [0x7f, 0x3c, 0x80, 0, 0x7b, 0xfb],
            };
            let size = element.bytes();
            let bits = |value: u64| value.to_le_bytes()[..size].to_vec();
            let pairs: Vec<_> = values.iter().flat_map(|&a| values.iter().map(move |&b| (a, b))).collect();
            let [left, right] = [|pair: &(u64, u64)| pair.0, |pair: &(u64, u64)| pair.1]
                .map(|side| pairs.iter().map(side).flat_map(bits).collect::<Vec<u8>>());
            let chunk = left.len() as u64;
            let solo = Solo::new(2048, 2, 2048).for_sm(sm);
            let (world, memory) = (&solo.world, &solo.world.memory[0]);
            for reduction in REDUCTIONS {
                world.machine.write(0, memory.input + 64, &[&left[..], &right].concat());
                let plan = moved(
                    vec![at(Base::Input, 0), at(Base::Input, 1)],
                    vec![at(Base::Output, 0)],
                    1,
                    Some(reduction),
                );
                let kernel = Kernel { ranks: 2, ..kernel(1, element, vec![plan]) };
                world.run(&[kernel], sizes(chunk, 2 * chunk), [0, 0]);
                let found = world.machine.read(0, memory.output + 64, left.len());
                for (nth, found) in found.chunks(size).enumerate() {
                    let (a, b) = (&left[nth * size..][..size], &right[nth * size..][..size]);
                    let expected = crate::elements::reduce(element, reduction, 2, &[a, b]);
                    let nan = crate::elements::is_nan;
                    assert!(
                        found == expected || nan(found, element) && nan(&expected, element),
                        "sm_{sm} {element:?} {reduction:?} of {a:x?} and {b:x?}: {found:x?}, not {expected:x?}"
                    );
                }
            }
        }
    }
}

/// Every FP8 code as a sum with zero, and rounding of every sum of two codes.
#[test]
fn every_pair_of_fp8_codes() {
    for sm in [70, 90] {
        for element in [Element::F8E4m3, Element::F8E5m2] {
            let solo = Solo::new(140_000, 1, 65_536).for_sm(sm);
            let (world, memory) = (&solo.world, &solo.world.memory[0]);
            let left: Vec<u8> = (0..=u16::MAX).map(|pair| pair as u8).collect();
            let right: Vec<u8> = (0..=u16::MAX).map(|pair| (pair >> 8) as u8).collect();
            world.machine.write(0, memory.input + 64, &[&left[..], &right].concat());
            let plan = moved(
                vec![at(Base::Input, 0), at(Base::Input, 1)],
                vec![at(Base::Output, 0)],
                1,
                Some(Reduction::Sum),
            );
            world.run(&[kernel(1, element, vec![plan])], sizes(65_536, 131_072), [0, 0]);
            let found = world.machine.read(0, memory.output + 64, left.len());
            for (nth, &found) in found.iter().enumerate() {
                let [a, b] = [left[nth], right[nth]].map(|code| crate::elements::f8_value(code, element));
                let sum = a.zip(b).map_or(f32::NAN, |(a, b)| a + b);
                let nan = crate::elements::is_nan(&[found], element);
                assert!(
                    if sum.is_nan() { nan } else { found == crate::elements::f8_code(sum, element) },
                    "sm_{sm} {element:?}: {a:?} + {b:?} = {sum}: {found:#x}"
                );
            }
        }
    }
}

#[test]
fn mistakes_are_refused() {
    let solo = Solo::new(64, 1, 128);
    let refused = |kernel: &Kernel| solo.world.render(kernel).unwrap_err().to_string();
    let copy = || moved(vec![at(Base::Input, 0)], vec![at(Base::Output, 0)], 1, None);
    let good = kernel(1, Element::F32, vec![copy()]);
    assert!(solo.world.render(&good).is_ok());
    let begun_by = |step: Step| {
        let mut kernel = with_packets(good.clone(), 0, 1);
        kernel.laps.as_mut().expect("it has laps").meeting.push(step);
        kernel
    };
    let port = |data: Option<Operand>, signal: bool| {
        let put =
            |side| PortPut { source: side, target: side, count: fixed(1), awaits: None, by_rows: false };
        let channel = if data.is_some() || !signal { fixed(0) } else { Number::Row(0) };
        Step::Port(Port { channel, put: data.map(put), signal, flush: true })
    };
    let by_rows = |kernel: Kernel, reached: u32, shared: bool| {
        let rows = Rows {
            me: 0,
            reached,
            shared,
            tables: 4096,
            controls: 0,
            words: 3,
            exact: false,
            bounded: false,
        };
        Kernel { addresses: 20, double_scratch: true, ranks: 3, rows: Some(rows), ..kernel }
    };
    for (reached, shared, fits) in [
        (3, false, true),
        (3, true, true),
        (1, true, true),
        (2, false, false),
        (0, true, false),
        (4, true, false),
    ] {
        let kernel = by_rows(good.clone(), reached, shared);
        assert_eq!(solo.world.render(&kernel).is_ok(), fits, "{reached} of 3, shared: {shared}");
    }
    let put_by_rows = |source: Base, target: Base, count: u32| {
        let put = PortPut {
            source: at(source, 0),
            target: at(target, 0),
            count: fixed(count),
            awaits: None,
            by_rows: true,
        };
        Step::Port(Port { channel: fixed(0), put: Some(put), signal: true, flush: false })
    };
    let put = |source, target, count| {
        by_rows(kernel(3, Element::F32, vec![put_by_rows(source, target, count)]), 1, true)
    };
    for target in [Base::Output, Base::Scratch] {
        assert!(solo.world.render(&put(Base::Input, target, 1)).is_ok(), "{target:?}");
    }
    let text_of = |flush: bool| {
        let mut kernel = put(Base::Input, Base::Output, 1);
        let Step::Port(port) = &mut kernel.shapes[0].steps[0] else { panic!("a request") };
        port.flush = flush;
        solo.world.render(&kernel).unwrap()
    };
    assert!(text_of(true).len() > text_of(false).len() + 200, "a flush waits");
    for (source, target, count) in [
        (Base::Input, Base::Output, 2),
        (Base::Output, Base::Output, 1),
        (Base::Input, Base::Input, 1),
        (Base::Input, Base::Packets, 1),
    ] {
        let text = refused(&put(source, target, count));
        assert!(text.contains("one chunk, from an input") || text.contains("packets"), "{text}");
    }
    for step in
        [Step::FindRows, Step::PutRows { channel: fixed(0) }, put_by_rows(Base::Input, Base::Output, 1)]
    {
        let text = refused(&kernel(1, Element::F32, vec![step]));
        assert!(text.contains("a step of rows in a kernel that has none"), "{text}");
    }
    let addresses = Kernel { addresses: 600, ..good.clone() };
    assert!(refused(&addresses).contains("4096"), "{}", refused(&addresses));
    for (broken, word) in [
        (Kernel { symbol: "1 2".into(), ..good.clone() }, "identifier"),
        (Kernel { threads: 33, ..good.clone() }, "multiple of 32"),
        (Kernel { blocks: Vec::new(), ..good.clone() }, "block"),
        (kernel(1, Element::F32, vec![Step::Loop { unit: 8, chunks: fixed(1), body: vec![copy()] }]), "16"),
        (kernel(1, Element::F32, vec![Step::Acquire { at: Number::Row(0) }]), "numbers"),
        (kernel(1, Element::F32, vec![moved(vec![], vec![at(Base::Output, 0)], 1, None)]), "source"),
        (
            kernel(
                1,
                Element::F32,
                vec![moved(vec![at(Base::Input, 0); 2], vec![at(Base::Output, 0)], 1, None)],
            ),
            "reduction",
        ),
        (
            kernel(
                1,
                Element::F32,
                vec![moved(vec![at(Base::Input, 0)], vec![at(Base::Packets, 0)], 1, None)],
            ),
            "laps",
        ),
        (begun_by(Step::Sync), "signals and waits only"),
        (begun_by(port(None, true)), "must be fixed"),
        (begun_by(port(Some(at(Base::Packets, 0)), true)), "signals and waits only"),
        (begun_by(port(None, false)), "signals and waits only"),
    ] {
        assert!(refused(&broken).contains(word), "{}", refused(&broken));
    }
}
