//! A plan's kernel on some warps of each block, beside others that do something else: no fragment may wait for these. The others watch a
//! counter that the kernel writes weakly, which the race detector reports; the lanes that use it skip these tests.

use aqueduct_ptx::plan::{Base, Element, Kernel, Step};

use crate::rig::{BARRIERS, CALLS, fixed, kernel, moved, with_packets};
use crate::solo::{Solo, at, sizes};

/// Threads of the group, and of its block.
const GROUP: u32 = 64;
const ALL: u32 = 160;

/// The text of a kernel whose blocks have more threads, which meet each other at a barrier resource of their own and stay until the group has
/// counted its call, number `call`.
fn beside_others(text: &str, call: u64) -> String {
    let threads = format!(".reqntid {GROUP}, 1, 1");
    let others = format!(
        "
    .reg .u32 %zz_thread;
    .reg .u64 %zz_at;
    .reg .u32 %zz_seen;
    .reg .pred %zz_p;
    mov.u32 %zz_thread, %tid.x;
    setp.lt.u32 %zz_p, %zz_thread, {GROUP};
    @%zz_p bra ZZ_GROUP;
    mov.u32 %zz_thread, %ctaid.x;
    ld.param.u64 %zz_at, [args+40];
    mad.wide.u32 %zz_at, %zz_thread, 8, %zz_at;
ZZ_STAY:
    bar.sync 1, {rest};
    ld.relaxed.gpu.global.u32 %zz_seen, [%zz_at+{CALLS}];
    setp.ne.u32 %zz_p, %zz_seen, {};
    bar.red.or.pred %zz_p, 1, {rest}, %zz_p;
    @%zz_p bra ZZ_STAY;
    ret;
ZZ_GROUP:
",
        call as u32,
        rest = ALL - GROUP,
    );
    assert_eq!((text.matches(&threads).count(), text.matches("\n{").count() > 0), (1, true));
    let text = text.replace(&threads, &format!(".reqntid {ALL}, 1, 1"));
    let (head, body) = text.split_once("\n{").expect("a body");
    format!("{head}\n{{{others}{body}")
}

/// Runs calls of a kernel on a group of each block.
fn run(kernel: &Kernel) {
    let mut solo = Solo::new(4096, 4, 1024);
    for _ in 0..3 {
        solo.run_as(kernel, (sizes(1000, 4000), [0, 4]), ALL, |text, call| beside_others(&text, call), || {});
    }
}

#[test]
fn other_warps_of_a_block_need_not_meet_its_group() {
    let copy = |from, to| moved(vec![at(from, 0)], vec![at(to, 0)], 4, None);
    let steps =
        |meeting: Step| vec![copy(Base::Input, Base::Scratch), meeting, copy(Base::Scratch, Base::Output)];
    let of =
        |steps: Vec<Step>| Kernel { threads: GROUP, double_scratch: true, ..kernel(1, Element::F32, steps) };
    run(&of(steps(Step::Sync)));
    run(&of(steps(Step::Barrier { state: fixed(BARRIERS), blocks: fixed(1) })));
    // A call that meets only when it ends.
    run(&of(vec![copy(Base::Input, Base::Output)]));
    // One that may give up, and so asks when it meets.
    let packets = vec![
        moved(vec![at(Base::Input, 0)], vec![at(Base::Packets, 0)], 4, None),
        moved(vec![at(Base::Packets, 0)], vec![at(Base::Output, 0)], 4, None),
        Step::Sync,
    ];
    run(&with_packets(Kernel { threads: GROUP, ..kernel(1, Element::F32, packets) }, 0, 4));
}
