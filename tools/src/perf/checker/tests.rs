use std::sync::Arc;

use aqueduct::gpu::GpuBuffer;
use aqueduct::plan::Element;

use super::samples::{SAMPLE, SAMPLES};
use super::*;

/// Bytes, and elements of every type.
fn kinds() -> impl Iterator<Item = Kind> {
    Element::ALL.map(Kind::Element).into_iter().chain([Kind::Byte])
}

/// Every kind with one reduction or more: the kernel's ways for integers, f32 and f64 have all.
fn kinds_and_reductions() -> impl Iterator<Item = (Kind, Reduction)> {
    let pairs = (0..).zip(kinds()).flat_map(|(index, kind)| {
        let all = matches!(kind, Kind::Element(Element::F32 | Element::F64 | Element::I8 | Element::U64));
        let count = if all { Reduction::ALL.len() } else { 1 };
        (0..count).map(move |turn| (kind, Reduction::ALL[(index + turn) % Reduction::ALL.len()]))
    });
    // Bytes are those of one rank.
    pairs
        .filter(|(kind, op)| *kind != Kind::Byte || *op == Reduction::Sum)
        .chain([(Kind::Byte, Reduction::Sum)])
}

fn expected(kind: Kind, op: Reduction) -> Expected {
    let ranks = if kind == Kind::Byte { 1 } else { 3 };
    Expected { kind, op, first: 1, ranks, iteration: 4, mask: !0, thin: 0 }
}

/// A checker whose kernel nobody has proved.
fn with_kernel(rank: &Rank, text: &str) -> Checker {
    Checker { kernel: Some(Kernel::load(rank, text).unwrap()), part: RefCell::new(vec![0; PART]) }
}

/// The kernel with a part of its text replaced.
fn broken(from: &str, to: &str) -> String {
    assert_eq!(KERNEL.matches(from).count(), 1, "{from}");
    KERNEL.replace(from, to)
}

#[test]
fn device_and_host_make_and_find_the_same() {
    let rank = Rank::join().unwrap();
    for (kind, op) in kinds_and_reductions() {
        let (expected, size) = (expected(kind, op), kind.bytes());
        // Of so many ranks only some have a term of the types with few bits.
        let coarse = if kind == Kind::Byte { expected } else { Expected { ranks: 20, ..expected }.exact(20) };
        let [device, host] =
            [CheckBy::Device, CheckBy::Host].map(|by| Checker::prepare(&rank, by, kind, op).unwrap());
        assert!(device.kernel.is_some() && host.kernel.is_none());
        for count in [1, 3, 1501] {
            let memory = Arc::new(GpuBuffer::new(&rank.context, count * size).unwrap());
            let memory = memory.slice(..).unwrap();
            for (maker, finder, expected) in [
                (&device, &host, expected),
                (&host, &device, expected),
                (&device, &device, expected),
                (&device, &host, coarse),
                (&host, &device, coarse),
            ] {
                memory.fill(GUARD_BYTE, rank.deadline()).unwrap();
                maker.fill(&rank, &memory, expected).unwrap();
                assert_eq!(finder.wrong(&rank, &memory, expected, 0).unwrap(), 0, "{expected:?} {count}");
                let mut seen = vec![0_u8; count * size];
                memory.download(0, &mut seen, rank.deadline()).unwrap();
                // Every seventh element.
                seen.iter_mut().step_by(7 * size).for_each(|byte| *byte ^= 1);
                memory.upload(0, &seen, rank.deadline()).unwrap();
                let wrong = finder.wrong(&rank, &memory, expected, 0).unwrap();
                assert_eq!(wrong, count.div_ceil(7) as u64, "{expected:?} {count}");
            }
        }
    }
}

/// As for a part of a buffer, at any offset of bytes, and where the index outgrows 32 bits.
#[test]
fn a_comparison_may_begin_with_any_element() {
    let rank = Rank::join().unwrap();
    for kind in kinds() {
        let (expected, size) = (expected(kind, Reduction::Sum), kind.bytes());
        let checker = Checker::prepare(&rank, CheckBy::Device, kind, Reduction::Sum).unwrap();
        let memory = Arc::new(GpuBuffer::new(&rank.context, 1500 * size).unwrap());
        for start in [1, 8, 4095, (1 << 32) - 77, (1 << 34) - 77, 1 << 40] {
            let mut data = vec![0; 1500 * size];
            expected.fill(start, &mut data);
            memory.upload(0, &data, rank.deadline()).unwrap();
            let all = memory.slice(..).unwrap();
            assert_eq!(checker.wrong(&rank, &all, expected, start).unwrap(), 0, "{kind:?} {start}");
            let shifted = checker.wrong(&rank, &all, expected, start + 1).unwrap();
            assert!(shifted > 1300, "{kind:?} {start}: {shifted}");
        }
    }
}

#[test]
fn a_kernel_that_finds_too_little_or_too_much_is_refused() {
    let rank = Rank::join().unwrap();
    for (from, to) in [
        ("setp.ne.u64 %differs, %seen, %bits;", "setp.ne.u64 %differs, %seen, %seen;"),
        ("setp.ne.u64 %differs, %seen, %bits;", "setp.eq.u64 %differs, %seen, %bits;"),
        ("add.u64 %found, %found, 1;", "mov.u64 %found, 2;"),
        ("mul.lo.u32 %hash, %hash, 0x846CA68B;", "mul.lo.u32 %hash, %hash, 0x846CA68D;"),
        ("mul.wide.u32 %stride, %t, %u;", "mul.wide.u32 %stride, %t, 512;"),
    ] {
        let kernel = Kernel::load(&rank, &broken(from, to)).unwrap();
        let expected = expected(Kind::Element(Element::F32), Reduction::Sum);
        let error = kernel.prove(&rank, expected).unwrap_err().to_string();
        assert!(error.contains("is broken on this device") && error.contains("--check-by host"), "{error}");
    }
}

/// The host looks at samples of what the kernel does in the measurement, too.
#[test]
fn samples_show_a_kernel_that_breaks_later() {
    let rank = Rank::join().unwrap();
    let memory = Arc::new(GpuBuffer::new(&rank.context, 3 * SAMPLES * SAMPLE).unwrap());
    let all = memory.slice(..).unwrap();
    let expected = expected(Kind::Byte, Reduction::Sum);
    let blind = broken("setp.ne.u64 %differs, %seen, %bits;", "setp.ne.u64 %differs, %seen, %seen;");
    let blind = with_kernel(&rank, &blind);
    blind.fill(&rank, &all, expected).unwrap();
    assert_eq!(blind.wrong(&rank, &all, expected, 0).unwrap(), 0);
    let stale = Expected { iteration: 3, ..expected };
    let error = blind.wrong(&rank, &all, stale, 0).unwrap_err().to_string();
    assert!(error.contains("found 0 wrong elements") && error.contains("in samples of it"), "{error}");
    let idle = with_kernel(&rank, &broken("st.global.u8 [%at], %bits;", "add.u64 %at, %at, 0;"));
    memory.fill(0, rank.deadline()).unwrap();
    let error = idle.fill(&rank, &all, expected).unwrap_err().to_string();
    assert!(error.contains("the kernel that makes test data made"), "{error}");
}

#[test]
fn a_touched_guard_is_counted() {
    let rank = Rank::join().unwrap();
    let checker = Checker::prepare(&rank, CheckBy::Auto, Kind::Byte, Reduction::Sum).unwrap();
    let memory = Arc::new(GpuBuffer::new(&rank.context, 100).unwrap());
    memory.fill(GUARD_BYTE, rank.deadline()).unwrap();
    memory.upload(40, &[0_u8, GUARD_BYTE, 1], rank.deadline()).unwrap();
    assert_eq!(checker.touched(&rank, &memory.slice(..).unwrap()).unwrap(), 2);
}
