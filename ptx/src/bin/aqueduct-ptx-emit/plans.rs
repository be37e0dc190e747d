//! Descriptions of plans' kernels whose text an assembler should accept: the shapes that plans have, with few and many ranks.

use aqueduct_ptx::plan::{
    Base, Block, Element, Kernel, Laps, Move, Number, Operand, PacketForm, Port, PortPut, Reduction, Rows,
    Shape, Share, Signal, Step, Wait,
};

/// Addresses of each rank: control area, input, output, scratch, packets, handle and three offsets of a port channel.
const ADDRESSES: u32 = 9;

fn fixed(value: u32) -> Number {
    Number::Fixed(value)
}

fn at(rank: u32, base: Base, first: u32) -> Operand {
    let place = match base {
        Base::Input => 1,
        Base::Output => 2,
        Base::Scratch => 3,
        Base::Packets => 4,
    };
    Operand {
        base,
        address: fixed(ADDRESSES * rank + place),
        first: fixed(first),
        rank: fixed(rank),
        multicast: false,
    }
}

fn moved(sources: Vec<Operand>, targets: Vec<Operand>, count: u32, reduction: Option<Reduction>) -> Move {
    Move { sources, targets, count: fixed(count), reduction, share: None, by_rows: false }
}

fn signals(ranks: u32, first: u32) -> Vec<Signal> {
    let signal = |peer: u32| Signal {
        outbound: fixed(first + 16 * peer),
        peer: fixed(ADDRESSES * peer),
        inbound: fixed(first + 8),
        relaxed: false,
    };
    (1..ranks).map(signal).collect()
}

fn waits(ranks: u32, first: u32) -> Vec<Wait> {
    let wait = |peer: u32| Wait {
        inbound: fixed(first + 16 * peer + 8),
        expected: fixed(first + 512 + 8 * peer),
        rank: fixed(peer),
    };
    (1..ranks).map(wait).collect()
}

fn kernel(
    name: &str,
    ranks: u32,
    element: Element,
    threads: u32,
    steps: Vec<Step>,
    rows: Vec<Vec<u32>>,
) -> Kernel {
    Kernel {
        symbol: format!("plan_{name}_{ranks}_{}", element.name()),
        element,
        ranks,
        threads,
        addresses: ADDRESSES * ranks,
        calls: 0,
        double_scratch: true,
        packets: PacketForm::Ll16,
        rows: None,
        laps: Some(Laps {
            packets: 4,
            chunks: 4 * ranks,
            barrier: 64,
            meeting: vec![Step::Signal(signals(ranks, 1024)), Step::Wait(waits(ranks, 1024))],
        }),
        trace: None,
        follows: false,
        shapes: vec![Shape { steps }],
        blocks: rows.into_iter().map(|row| Block { shape: 0, row }).collect(),
    }
}

/// Packets to all peers, and the reduction of all.
fn one_shot(ranks: u32, element: Element, threads: u32) -> Kernel {
    let share = Some(Share { member: Number::Row(0), of: fixed(8) });
    let targets = (1..ranks).map(|peer| at(peer, Base::Packets, 0)).collect();
    let sources =
        (0..ranks).map(|peer| if peer == 0 { at(0, Base::Input, 0) } else { at(0, Base::Packets, peer) });
    let send = Move { share, ..moved(vec![at(0, Base::Input, 0)], targets, 1, None) };
    let reduce =
        Move { share, ..moved(sources.collect(), vec![at(0, Base::Output, 0)], 1, Some(Reduction::Sum)) };
    let rows = (0..8).map(|member| vec![member]).collect();
    kernel("one_shot", ranks, element, threads, vec![Step::Move(send), Step::Move(reduce)], rows)
}

/// The same by lines, of chunks that hardly any block has whole; then what has come goes on as lines.
fn by_lines(ranks: u32, element: Element, threads: u32) -> Kernel {
    let share = Some(Share { member: Number::Row(0), of: fixed(8) });
    let of_count = |count: u32| {
        let targets = (1..ranks).map(|peer| at(peer, Base::Packets, 0)).collect();
        let sources = (0..ranks)
            .map(|peer| if peer == 0 { at(0, Base::Input, 0) } else { at(0, Base::Packets, peer) })
            .collect();
        let output = vec![at(0, Base::Output, 0)];
        let on = vec![at(1, Base::Packets, ranks), at(0, Base::Output, 1), at(0, Base::Scratch, 0)];
        [
            Step::Move(Move { share, ..moved(vec![at(0, Base::Input, 0)], targets, count, None) }),
            Step::Move(Move { share, ..moved(sources, output, count, Some(Reduction::Sum)) }),
            Step::Move(Move { share, ..moved(vec![at(0, Base::Packets, 1)], on, count, None) }),
        ]
    };
    let steps = [of_count(1), of_count(3)].concat();
    let rows = (0..8).map(|member| vec![member]).collect();
    Kernel { packets: PacketForm::Ll128, ..kernel("lines", ranks, element, threads, steps, rows) }
}

/// Chunks to their owners, reduction, and the results to all, in slices.
fn two_shot(ranks: u32, element: Element, threads: u32, count: u32) -> Kernel {
    let share = Some(Share { member: Number::Row(0), of: Number::Row(1) });
    let mut body = Vec::new();
    for peer in 1..ranks {
        let put =
            moved(vec![at(0, Base::Input, count * peer)], vec![at(peer, Base::Scratch, 0)], count, None);
        body.push(Step::Move(Move { share, ..put }));
    }
    let meet = |body: &mut Vec<Step>, first: u32| {
        body.extend([
            Step::Sync,
            Step::Signal(signals(ranks, first)),
            Step::Wait(waits(ranks, first)),
            Step::Sync,
        ]);
    };
    meet(&mut body, 2048);
    let sources = (0..ranks)
        .map(|peer| if peer == 0 { at(0, Base::Input, 0) } else { at(0, Base::Scratch, count * peer) });
    let targets = (0..ranks).map(|peer| at(peer, Base::Output, 0)).collect();
    body.push(Step::Move(Move { share, ..moved(sources.collect(), targets, count, Some(Reduction::Avg)) }));
    meet(&mut body, 3072);
    let steps = vec![Step::Loop { unit: 1 << 16, chunks: fixed(count), body }];
    kernel(
        &format!("two_shot_{count}"),
        ranks,
        element,
        threads,
        steps,
        (0..24).map(|member| vec![member, 24]).collect(),
    )
}

/// A chunk from the rank before, reduced and sent on, again and again.
fn ring(ranks: u32, element: Element, threads: u32) -> Kernel {
    let of_turn =
        |rank: u32, base: Base, entry: u32| Operand { first: Number::Row(entry), ..at(rank, base, 0) };
    let sources = vec![of_turn(0, Base::Input, 0), of_turn(0, Base::Scratch, 1)];
    let targets = vec![of_turn(1, Base::Scratch, 2)];
    let body = vec![
        Step::Wait(waits(2, 2048)),
        Step::Sync,
        Step::Move(moved(sources, targets, 1, Some(Reduction::Sum))),
        Step::Sync,
        Step::Signal(signals(2, 2048)),
    ];
    let turns = ranks - 1;
    let row = |block: u32| (0..turns).flat_map(|turn| [block + turn, turn, turn + 1]).collect();
    let repeat = Step::Repeat { turns, stride: 3, body };
    kernel("ring", ranks, element, threads, vec![repeat], (0..2).map(row).collect())
}

/// Requests to a proxy, semaphores and barriers.
fn ports(ranks: u32, element: Element, threads: u32) -> Kernel {
    let offset = |place: u32, operand: Operand| Operand { address: fixed(place), ..operand };
    let put = |base: Base, awaits: bool| {
        Step::Port(Port {
            channel: fixed(5),
            put: Some(PortPut {
                source: offset(6, at(0, base, 0)),
                target: offset(7, at(1, if base == Base::Packets { base } else { Base::Scratch }, 1)),
                count: fixed(2),
                awaits: awaits.then_some(at(0, base, 0)),
                by_rows: false,
            }),
            signal: true,
            flush: !awaits,
        })
    };
    let steps = vec![
        Step::Acquire { at: fixed(4000) },
        put(Base::Input, false),
        put(Base::Packets, true),
        Step::Sync,
        Step::Release { at: fixed(4004) },
        Step::Port(Port { channel: fixed(5), put: None, signal: false, flush: true }),
        Step::Barrier { state: fixed(4008), blocks: fixed(2) },
    ];
    let mut kernel = kernel("ports", ranks, element, threads, steps, vec![Vec::new(); 2]);
    let lap = Port { channel: fixed(5), put: None, signal: true, flush: true };
    let more = [Step::Port(lap), Step::PortWait { channel: fixed(5) }];
    kernel.laps.iter_mut().for_each(|laps| laps.meeting.extend(more.clone()));
    kernel
}

/// Chunks of sizes of their own: put to all peers, or reduced from all.
fn by_rows(ranks: u32, element: Element, reduces: bool) -> Kernel {
    // The control areas, the words of the caller's numbers, and each rank's input and output.
    let words = size_of::<aqueduct_ptx::abi::PlanRows>() as u32 / 8;
    let side = |rank: u32, base: Base, row: u32| Operand {
        base,
        address: fixed(ranks + words + 2 * rank + u32::from(base == Base::Output)),
        first: fixed(row),
        rank: fixed(rank),
        multicast: false,
    };
    let share = Some(Share { member: Number::Row(0), of: fixed(8) });
    let part = |sources, targets, reduction| {
        Step::Move(Move { share, by_rows: true, ..moved(sources, targets, 1, reduction) })
    };
    let meet = |first| {
        let signals = signals(ranks, first).into_iter().zip(1..);
        let signals = signals.map(|(signal, peer)| Signal { peer: fixed(peer), ..signal }).collect();
        [Step::Signal(signals), Step::Wait(waits(ranks, first)), Step::Sync]
    };
    let mut steps = vec![Step::ShowRows, Step::Sync];
    steps.extend(meet(2048));
    steps.push(Step::JudgeRows);
    if reduces {
        let sources = (0..ranks).map(|rank| side(rank, Base::Input, rank * ranks)).collect();
        steps.push(part(sources, vec![side(0, Base::Output, 0)], Some(Reduction::Sum)));
    } else {
        steps.extend((0..ranks).map(|rank| {
            part(vec![side(0, Base::Input, rank)], vec![side(rank, Base::Output, rank * ranks)], None)
        }));
    }
    steps.push(Step::Sync);
    steps.extend(meet(3072));
    let name = if reduces { "reduced_rows" } else { "rows" };
    let rows = (0..8).map(|member| vec![member]).collect();
    Kernel {
        addresses: 3 * ranks + words,
        laps: None,
        rows: Some(Rows {
            me: 0,
            reached: ranks,
            shared: false,
            tables: 4096,
            controls: 0,
            words: ranks,
            exact: reduces,
            bounded: false,
        }),
        ..kernel(name, ranks, element, 512, steps, rows)
    }
}

/// Chunks of sizes of their own, of which proxies put those of two ranks that this one does not reach, to be reduced from scratch.
fn rows_by_ports(element: Element) -> Kernel {
    let words = size_of::<aqueduct_ptx::abi::PlanRows>() as u32 / 8;
    // Behind the two reached control areas and the words: input and output, scratch, the peer's input, and of each port the handles for rows and
    // for parts, and the offsets of their memories.
    let at = |place: u32, base: Base, first: u32| Operand {
        base,
        address: fixed(2 + words + place),
        first: fixed(first),
        rank: fixed(0),
        multicast: false,
    };
    let port = |peer: u32| (fixed(2 + words + 4 + 2 * peer), fixed(2 + words + 5 + 2 * peer));
    let put = |peer: u32| {
        let (source, target) = (at(8, Base::Input, peer), at(9, Base::Scratch, 0));
        let put = PortPut { source, target, count: fixed(1), awaits: None, by_rows: true };
        Step::Port(Port { channel: port(peer - 2).1, put: Some(put), signal: true, flush: false })
    };
    let meeting = |peer: u32| Step::PutRows { channel: port(peer - 2).0 };
    let hears = |peer: u32| Step::PortWait { channel: port(peer - 2).0 };
    let signal = Signal { outbound: fixed(2048), peer: fixed(1), inbound: fixed(2064), relaxed: false };
    let wait = Wait { inbound: fixed(2064), expected: fixed(2056), rank: fixed(1) };
    let barrier = || Step::Barrier { state: fixed(4008), blocks: fixed(8) };
    let share = Some(Share { member: Number::Row(0), of: fixed(8) });
    let sources =
        vec![at(0, Base::Input, 0), at(3, Base::Input, 4), at(2, Base::Scratch, 0), at(2, Base::Scratch, 1)];
    let reduced = moved(sources, vec![at(1, Base::Output, 0)], 1, Some(Reduction::Sum));
    let reduced = || Step::Move(Move { share, by_rows: true, ..reduced.clone() });
    let mut first = vec![Step::ShowRows, Step::Sync, meeting(2), meeting(3)];
    first.extend([
        Step::Signal(vec![signal]),
        Step::Wait(vec![wait]),
        hears(2),
        hears(3),
        barrier(),
        Step::JudgeRows,
    ]);
    first.extend([put(2), put(3), hears(2), hears(3), barrier(), reduced()]);
    let others = vec![Step::FindRows, barrier(), Step::JudgeRows, barrier(), reduced()];
    let blocks = (0..8).map(|member| Block { shape: member.min(1), row: vec![member] }).collect();
    let rows = Rows {
        me: 0,
        reached: 2,
        shared: true,
        tables: 4096,
        controls: 0,
        words: 2,
        exact: true,
        bounded: true,
    };
    Kernel {
        addresses: 2 + words + 10,
        laps: None,
        rows: Some(rows),
        shapes: vec![Shape { steps: first }, Shape { steps: others }],
        blocks,
        ..kernel("rows_by_ports", 4, element, 512, Vec::new(), vec![Vec::new(); 8])
    }
}

/// All of them, with their names.
pub(crate) fn all() -> Vec<(String, Kernel)> {
    let mut kernels = vec![ports(2, Element::F32, 256), rows_by_ports(Element::F16)];
    for ranks in [2, 4, 8] {
        kernels.push(by_rows(ranks, Element::U8, false));
        let threads = if ranks == 8 { 512 } else { 1024 };
        for element in Element::ALL {
            let often = matches!(element, Element::F32 | Element::Bf16 | Element::F8E4m3);
            if often || ranks == 8 {
                kernels.push(one_shot(ranks, element, 512));
                kernels.push(by_lines(ranks, element, 512));
                kernels.push(two_shot(ranks, element, threads, 1));
            }
            if ranks == 8 {
                kernels.push(by_rows(ranks, element, true));
                kernels.push(ring(ranks, element, 512));
            }
            if often {
                kernels.push(two_shot(ranks, element, threads, 2));
            }
        }
    }
    kernels.into_iter().map(|kernel| (kernel.symbol.replacen('_', ".", 1), kernel)).collect()
}
