//! Times that can be computed by hand, and what becomes of plans and machines that do not fit.

use super::super::{
    Block, Buffer, Form, Kind, Op, Operand, Operation, Plan, Share, check, programs, samples,
};
use super::{ArrowKind, Machine, predict, timeline};

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;

/// A machine on which only the named numbers take time.
fn machine(numbers: &[(&str, f64)]) -> Machine {
    let mut machine = Machine::named("h200-x8").unwrap();
    for key in [
        "launch_us",
        "launch_block_us",
        "launch_any_block_us",
        "launch_warp_us",
        "sync_us",
        "barrier_us",
        "step_us",
        "local_us",
        "link_us",
        "link_load_reverse",
        "link_store_reverse",
        "packet_us",
        "packet_turn_us",
        "signal_us",
        "release_us",
        "semaphore_us",
        "port_push_us",
        "port_poll_us",
        "port_busy_us",
        "port_put_us",
        "port_signal_us",
        "port_flush_us",
        "copy_us",
        "nic_us",
    ] {
        *machine.number(key).unwrap() = 0.0;
    }
    for key in [
        "local_gbps",
        "local_block_gbps",
        "link_out_gbps",
        "link_in_gbps",
        "link_block_gbps",
        "port_gbps",
        "nic_gbps",
    ] {
        *machine.number(key).unwrap() = 1e9;
    }
    for &(key, value) in numbers {
        *machine.number(key).unwrap() = value;
    }
    machine
}

fn program(collective: &str, name: &str, ranks: u32) -> Plan {
    programs::find(collective, Some(name))
        .unwrap()
        .program(ranks, &programs::Choices::default())
        .unwrap()
        .compile()
        .unwrap()
}

#[track_caller]
fn takes(plan: &Plan, numbers: &[(&str, f64)], bytes: u64, us: f64) {
    let predicted = predict(plan, &machine(numbers), bytes).unwrap();
    assert!((predicted - us).abs() < 1e-3 * us.max(1.0), "{numbers:?}: {predicted} instead of {us}");
}

/// Of n ranks, a ring passes a chunk 2 (n - 1) times; each pass is a put, a signal and a wait.
#[test]
fn a_ring_takes_as_many_passes_as_it_has() {
    let plan = program("all-reduce", "ring", 8);
    let bytes = 8 << 20;
    takes(&plan, &[("signal_us", 2.0)], bytes, 15.0 * 2.0);
    takes(&plan, &[("release_us", 3.0)], bytes, 14.0 * 3.0);
    // A rank's link carries one chunk of 1 MiB in each pass.
    takes(&plan, &[("link_out_gbps", 10.0)], bytes, 14.0 * 104.857_6);
    takes(&plan, &[("link_in_gbps", 10.0)], bytes, 14.0 * 104.857_6);
    takes(&plan, &[("link_block_gbps", 20.0)], bytes, 14.0 * 52.428_8);
    takes(&plan, &[("launch_us", 7.0)], bytes, 7.0);
    takes(&plan, &[("launch_warp_us", 0.5)], bytes, 16.0);
}

/// A call of a plan whose blocks share everything launches as many of them as its message needs, and these share it.
#[test]
fn a_grid_grows_with_its_message() {
    let mut one = program("all-reduce", "one-shot", 2);
    one.settings.threads_per_block = 512;
    let plan = samples::shared_by(64, one);
    // Each thread has one packet of 8 bytes: of 128 threads in short messages, of 512 in longer ones.
    let blocks = [(K, 1), (2 * K, 2), (2 * K + 8, 3), (32 * K, 32), (33 * K, 9), (M, 64)];
    for (bytes, blocks) in blocks {
        takes(&plan, &[("launch_any_block_us", 1.0)], bytes, f64::from(blocks - 1));
    }
    takes(&plan, &[("launch_warp_us", 1.0)], 32 * K, 4.0);
    takes(&plan, &[("launch_warp_us", 1.0)], 33 * K, 16.0);
    // 32 blocks of 128 threads have 1 KiB each, and 64 of 512 threads have 16 KiB.
    let turn = |threads: f64| 2.0 * 8.0 * threads;
    takes(&plan, &[("packet_turn_us", 1.0)], 32 * K, 1024.0 / turn(128.0));
    takes(&plan, &[("packet_turn_us", 1.0)], M, 16384.0 / turn(512.0));
    // Blocks of other plans are all launched.
    let mut signals = plan.clone();
    for rank in &mut signals.ranks {
        rank.semaphores.push(1);
        let more = [Op::Acquire { semaphore: 0 }, Op::Release { semaphore: 0 }];
        rank.blocks[63].ops.extend(more.map(|op| Operation { op, origin: 0 }));
    }
    takes(&signals, &[("launch_block_us", 1.0)], K, 63.0);
}

/// Directions are apart: what a rank gives does not delay what it takes, but for the share of the way back.
#[test]
fn both_directions_of_a_link_are_used_at_once() {
    let plan = program("all-gather", "all-pairs", 2);
    let link = [("link_out_gbps", 10.0), ("link_in_gbps", 10.0)];
    takes(&plan, &link, 1 << 20, 104.857_6);
    takes(&plan, &[link[0], link[1], ("link_store_reverse", 0.5)], 1 << 20, 1.5 * 104.857_6);
    takes(&plan, &[link[0], link[1], ("link_load_reverse", 0.5)], 1 << 20, 104.857_6);
}

#[test]
fn packets_take_their_way_and_the_turns_of_their_reader() {
    let plan = samples::one_shot(2, false);
    takes(&plan, &[("packet_us", 0.7)], 1 << 20, 0.7);
    takes(&plan, &[("link_out_gbps", 20.0)], 1 << 20, 104.857_6);
    let (_, block) = (0, &plan.ranks[0].blocks[0]);
    let reads = block.ops.iter().any(|operation| {
        matches!(&operation.op, Op::Move(moved) if moved.sources.iter().any(|source| source.form == Form::Packets))
    });
    assert!(reads);
    // Threads of 8 bytes twice each.
    let threads = f64::from(plan.settings.threads_per_block);
    let turns = f64::from(1 << 20) / (threads * 2.0 * 8.0);
    takes(&plan, &[("packet_turn_us", 0.5)], 1 << 20, 0.5 * turns);
}

/// A message that ends within the first of a plan's chunks leaves nothing to do for the others.
#[test]
fn only_what_exists_is_moved() {
    let plan = program("all-reduce", "two-shot", 8);
    let link = [("link_out_gbps", 1.0), ("link_load_reverse", 0.0)];
    let one = predict(&plan, &machine(&link), 16).unwrap();
    let all = predict(&plan, &machine(&link), 8 * 16).unwrap();
    assert!(one > 0.0 && one < all, "{one} {all}");
}

#[test]
fn between_hosts_nics_carry_what_port_channels_put() {
    let plan = program("broadcast", "line", 4);
    let mut hosts = machine(&[("nic_us", 5.0)]);
    assert!(predict(&plan, &hosts, 1 << 20).unwrap() < 1e-3, "one host");
    hosts.gpus = 2.0;
    let across = predict(&plan, &hosts, 1 << 20).unwrap();
    assert!(across >= 5.0, "{across}");
    (hosts.nic_us, hosts.nic_gbps) = (0.0, 1.0);
    let slow = predict(&plan, &hosts, 1 << 20).unwrap();
    assert!((slow - 1048.576).abs() < 1.0, "{slow}");
}

#[test]
fn memory_channels_between_hosts_are_refused() {
    let plan = program("all-reduce", "ring", 16);
    let error = predict(&plan, &Machine::named("h200-x8").unwrap(), 1 << 20).unwrap_err().to_string();
    assert!(error.contains("ranks 0 and 15 share memory and are on different hosts of h200-x8"), "{error}");
    assert!(error.contains("8 GPUs"), "{error}");
}

#[test]
fn plans_that_never_end_and_sizes_that_do_not_divide_are_refused() {
    let machine = Machine::named("h200-x2").unwrap();
    let mut plan = samples::two_shot(2);
    let ops = samples::ops(&mut plan, 1, 0);
    let last = ops.iter().rposition(|operation| matches!(operation.op, Op::Signal { .. })).unwrap();
    ops.remove(last);
    let error = predict(&plan, &machine, 1 << 10).unwrap_err().to_string();
    assert!(error.contains("wait for each other for ever; `aqueduct plan check` says where"), "{error}");
    let error = predict(&program("all-to-all", "direct", 2), &machine, 1001).unwrap_err().to_string();
    assert!(error.contains("do not divide"), "{error}");
    plan.ranks[0].memory_channels[0] = 9;
    assert!(predict(&plan, &machine, 1 << 10).unwrap_err().to_string().contains("rank 0"));
}

/// Loops, semaphores, barriers, switches, ports: each plan ends, and its timeline has every operation as often as it runs.
#[test]
fn timelines_have_every_operation_and_every_arrow() {
    let machine = Machine::named("h200-x8").unwrap();
    for plan in samples::all()
        .into_iter()
        .chain(programs::all(4).into_iter().map(|program| program.compile().unwrap()))
    {
        if !check::check(&plan).is_empty() {
            continue;
        }
        // Every loop runs once or twice.
        let bytes = 1 << 20;
        let timeline =
            timeline(&plan, &machine, bytes).unwrap_or_else(|error| panic!("{}: {error}", plan.name));
        assert_eq!(timeline.end() == 0, plan.operations() == 0, "{}", plan.name);
        let mut waits = [0, 0];
        for (rank, rank_plan) in (0..).zip(&plan.ranks) {
            for (block, contents) in (0..).zip(&rank_plan.blocks) {
                let spans: Vec<_> =
                    timeline.spans.iter().filter(|span| (span.rank, span.block) == (rank, block)).collect();
                assert_eq!(
                    runs(contents),
                    spans.iter().filter(|span| span.iteration == 0).count(),
                    "{}",
                    plan.name
                );
                assert!(spans.iter().all(|span| span.start <= span.end), "{}", plan.name);
                for span in spans {
                    match span.op_of(&plan).unwrap() {
                        Op::Wait { .. } => waits[0] += 1,
                        Op::Acquire { .. } => waits[1] += 1,
                        _ => {}
                    }
                }
            }
            // Initial values are acquired without a release.
            waits[1] -= rank_plan.semaphores.iter().sum::<u32>() as usize;
        }
        for (kind, waits) in [ArrowKind::Signal, ArrowKind::Semaphore].into_iter().zip(waits) {
            let arrows: Vec<_> = timeline.arrows.iter().filter(|arrow| arrow.kind == kind).collect();
            assert_eq!(arrows.len(), waits, "{} {kind:?}", plan.name);
            assert!(arrows.iter().all(|arrow| arrow.from.at <= arrow.to.at), "{}", plan.name);
        }
    }
}

/// Operations of a block, those of a loop once.
fn runs(block: &Block) -> usize {
    let each = block.ops.iter().map(|operation| match &operation.op {
        Op::Loop(repeated) => repeated.body.len(),
        _ => 1,
    });
    each.sum()
}

/// The steady state counts, not the first call: a rank that only sends ends its calls before the others.
#[test]
fn calls_follow_each_other() {
    let plan = samples::two_shot(2);
    let once = timeline(&plan, &Machine::named("h200-x2").unwrap(), 1 << 20).unwrap().end() as f64 / 1e3;
    let each = predict(&plan, &Machine::named("h200-x2").unwrap(), 1 << 20).unwrap();
    assert!((each - once).abs() < 0.05 * once, "{each} {once}");
}

#[test]
fn an_endless_loop_is_refused() {
    let mut plan = samples::two_shot(2);
    plan.collective.kind = Kind::Custom("copies".into());
    for rank in 0..2 {
        let copy = Op::Move(Box::new(super::super::Move {
            sources: vec![Operand::local(Buffer::Input, 0)],
            targets: vec![Operand::local(Buffer::Output, 0)],
            count: 1,
            reduction: None,
            share: None,
        }));
        *samples::ops(&mut plan, rank, 0) = vec![
            Op::Loop(Box::new(super::super::Loop { unit: 16, chunks: 1, body: vec![copy.at(0)] })).at(0),
        ];
    }
    let error = timeline(&plan, &Machine::named("h200-x2").unwrap(), 64 << 20).unwrap_err().to_string();
    assert!(error.contains("more than 1000000 operations in a call; use a smaller message"), "{error}");
}

/// A copy engine pays for each node of its stream, and moves at the rate of links.
#[test]
fn copies_take_a_node_each_and_the_time_of_the_link() {
    let plan = samples::copies::all_gather(2);
    let predicted = |numbers: &[(&str, f64)], bytes| predict(&plan, &machine(numbers), bytes).unwrap();
    // The kernel that meets the peer, the local copy, the copy to the peer, the kernel of the end.
    let nodes = predicted(&[("copy_us", 10.0)], 1 << 20);
    assert!((nodes - 40.0).abs() < 0.1, "{nodes}");
    let linked = predicted(&[("link_out_gbps", 100.0)], 100_000_000);
    assert!((linked - 1000.0).abs() < 1.0, "{linked}");
    let engine = predicted(&[("port_gbps", 50.0)], 100_000_000);
    assert!((engine - 2000.0).abs() < 1.0, "{engine}");
    // Read and written.
    let own = predicted(&[("local_gbps", 100.0)], 100_000_000);
    assert!((own - 2000.0).abs() < 1.0, "{own}");
}

/// A kernel ends once all of its stores have arrived, also those that began before others and took longer.
#[test]
fn a_call_ends_with_its_last_store() {
    let numbers = [("link_block_gbps", 10.0), ("release_us", 1000.0), ("semaphore_us", 5.0)];
    let plan = program("all-reduce", "one-shot", 2);
    let once = predict(&plan, &machine(&numbers), M).unwrap();
    let mut more = plan.clone();
    for rank in &mut more.ranks {
        // This block stores a little while the other one stores much.
        let mut late = rank.blocks[0].clone();
        late.ops.truncate(1);
        let Op::Move(moved) = &mut late.ops[0].op else { panic!("it begins with packets") };
        moved.share = Some(Share { member: 63, of: 64 });
        rank.semaphores.push(0);
        let operation = |op| Operation { op, origin: 0 };
        late.ops.splice(0..0, [operation(Op::Acquire { semaphore: 0 }), operation(Op::Sync)]);
        rank.blocks[0].ops.insert(0, operation(Op::Release { semaphore: 0 }));
        rank.blocks.push(late);
    }
    let both = predict(&more, &machine(&numbers), M).unwrap();
    assert!(once > 1100.0 && (both - once).abs() < 0.01 * once, "{once} {both}");
}
