//! Small programs, and the exact code that they compile to.

use cuda_soft::code::op::{AtomOp, Binary, Mem, Op, Special};
use cuda_soft::code::{Addr, Base, Function, PredSrc, Reg, Scope, Semantics, Space, Src, Ty};

use super::compile;

const DECLARATIONS: &str =
    ".reg .b16 %h<4>; .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .f32 %f<4>; .reg .pred %p<4>;";

/// Compiles a module with one kernel `k(u32 a, u64 b)` and this body.
fn kernel(body: &str) -> Function {
    let text = format!(
        ".version 9.0\n.target sm_90\n.address_size 64\n.extern .shared .align 128 .b8 dynamic[];\n\
         .global .b32 word;\n.visible .entry k(.param .u32 a, .param .u64 b) {{ {DECLARATIONS}\n{body}\n}}"
    );
    let mut module = compile(&text).unwrap_or_else(|error| panic!("{body}\n{error}"));
    module.functions.remove(0)
}

fn ops(body: &str) -> Vec<Op> {
    kernel(body).code.into_iter().map(|inst| inst.op).collect()
}

fn access(body: &str) -> Mem {
    match ops(body).pop() {
        Some(Op::Ld { mem, .. } | Op::St { mem, .. } | Op::Atom { mem, .. }) => mem,
        other => panic!("{body}: {other:?}"),
    }
}

#[test]
fn accesses_carry_semantics_scope_and_space() {
    use Semantics::{AcqRel, Acquire, Relaxed, Release, Volatile, Weak};
    for (body, sem, scope, space, ty, count) in [
        ("ld.global.u32 %r1, [%d1];", Weak, None, Space::Global, Ty::U32, 1),
        ("ld.weak.v4.f32 {%f0, %f1, _, %f2}, [%d1];", Weak, None, Space::Generic, Ty::F32, 4),
        ("ld.relaxed.sys.v2.u64 {%d1, %d2}, [%d1];", Relaxed, Some(Scope::Sys), Space::Generic, Ty::U64, 2),
        ("ld.acquire.gpu.global.u32 %r1, [%d1];", Acquire, Some(Scope::Gpu), Space::Global, Ty::U32, 1),
        ("ld.volatile.shared.u32 %r1, [%r1];", Volatile, Some(Scope::Sys), Space::Shared, Ty::U32, 1),
        ("ld.mmio.relaxed.sys.u32 %r1, [%d1];", Volatile, Some(Scope::Sys), Space::Generic, Ty::U32, 1),
        ("ld.global.nc.L1::no_allocate.L2::128B.b8 %r1, [%d1];", Weak, None, Space::Global, Ty::B8, 1),
        ("st.release.sys.global.u64 [%d1], %d2;", Release, Some(Scope::Sys), Space::Global, Ty::U64, 1),
        ("st.relaxed.cluster.global.u64 [%d1], 5;", Relaxed, Some(Scope::Cluster), Space::Global, Ty::U64, 1),
        ("atom.add.u32 %r1, [%d1], 1;", Relaxed, Some(Scope::Gpu), Space::Generic, Ty::U32, 1),
        (
            "atom.acq_rel.sys.global.cas.b64 %d1, [%d2], 0, 1;",
            AcqRel,
            Some(Scope::Sys),
            Space::Global,
            Ty::B64,
            1,
        ),
        ("atom.add.release.gpu.u32 %r1, [%d1], 1;", Release, Some(Scope::Gpu), Space::Generic, Ty::U32, 1),
        ("red.shared.max.s32 [%r1], %r2;", Relaxed, Some(Scope::Gpu), Space::Shared, Ty::S32, 1),
        (
            "red.release.cta.shared::cta.add.f32 [%r1], %f1;",
            Release,
            Some(Scope::Cta),
            Space::Shared,
            Ty::F32,
            1,
        ),
    ] {
        let mem = access(body);
        assert_eq!((mem.sem, mem.space, mem.ty, mem.count), (sem, space, ty, count), "{body}");
        assert!(scope.is_none_or(|scope| scope == mem.scope), "{body}: {:?}", mem.scope);
    }
}

#[test]
fn addresses_name_what_they_start_from() {
    for (body, base, offset) in [
        ("ld.param.u32 %r1, [a];", Base::KernelParam, 0),
        ("ld.param.u64 %d1, [b+4-4];", Base::KernelParam, 8),
        ("ld.global.u32 %r1, [word+8];", Base::Global(0), 8),
        ("ld.u32 %r1, [word];", Base::Global(0), 0),
        (
            ".shared .b64 x; .shared .b32 y; ld.shared.u32 %r1, [y]; mov.u32 %r2, x; ld.shared.u32 %r1, [y];",
            Base::Zero,
            8,
        ),
        (".local .b64 x[2]; .local .b32 y; st.local.u32 [y], %r1;", Base::Frame, 16),
        ("ld.global.u32 %r1, [4096];", Base::Zero, 4096),
        ("ld.global.u32 %r1, [%d1+-8];", Base::Reg(Reg::W64(0)), -8),
    ] {
        assert_eq!(access(body).addr, Addr { base, offset }, "{body}");
    }
}

#[test]
fn dynamic_shared_memory_begins_where_the_launch_says() {
    let function = kernel("mov.u64 %d1, dynamic; ld.shared.u32 %r1, [dynamic+4];");
    assert_eq!(function.dynamic_shared_align, 128);
    let starts = function
        .code
        .iter()
        .filter(|i| matches!(i.op, Op::Special { special: Special::DynamicSharedBase, .. }));
    assert_eq!(starts.count(), 2);
    let Some(Op::Ld { mem, .. }) = function.code.last().map(|i| &i.op) else { panic!("a load") };
    assert!(matches!(mem.addr, Addr { base: Base::Reg(Reg::W32(_)), offset: 4 }), "{mem:?}");
}

#[test]
fn special_registers_land_in_place() {
    let [Op::Special { d, special: Special::Tid(1) }] = ops("mov.u32 %r3, %tid.y;")[..] else {
        panic!("one")
    };
    assert_eq!(d, Reg::W32(0), "slots are given at first use");
    assert!(matches!(
        ops("mov.u16 %h1, %tid.x;")[..],
        [Op::Special { .. }, Op::Cvt { dty: Ty::U16, sty: Ty::U32, .. }]
    ));
    assert!(matches!(ops("cvt.u64.u32 %d1, %laneid;")[..], [Op::Special { .. }, Op::Cvt { .. }]));
    assert!(matches!(
        ops("mov.u32 %r1, %cluster_nctarank;")[..],
        [Op::Special { special: Special::ClusterNCtaRank, .. }]
    ));
    assert!(matches!(ops("mov.u32 %r1, %tid.w;")[..], [Op::Mov { a: Src::Imm(0), .. }]));
    assert!(matches!(ops("mov.u32 %r1, WARP_SZ;")[..], [Op::Mov { a: Src::Imm(32), .. }]));
}

#[test]
fn constants_have_the_bits_of_the_type() {
    for (body, bits) in [
        ("mov.u32 %r1, -1;", 0xffff_ffff),
        ("mov.b16 %h1, -2;", 0xfffe),
        ("mov.s64 %d1, -1;", u64::MAX),
        ("mov.f32 %f1, 1.5;", 0x3fc0_0000),
        ("mov.f32 %f1, 0f7F800000;", 0x7f80_0000),
        ("mov.u32 %r1, (1 << 4) | 3;", 19),
    ] {
        let [Op::Mov { a, .. }] = ops(body)[..] else { panic!("{body}") };
        assert_eq!(a, Src::Imm(bits), "{body}");
    }
}

#[test]
fn labels_belong_to_their_scopes() {
    let code = kernel(
        "L: { .reg .pred %p1; setp.eq.u32 %p1, %r1, 0; @%p1 bra L; bra M; L: @!%p1 bra N; M: }\n@%p1 bra L; N: ret;",
    )
    .code;
    let targets: Vec<u32> =
        code.iter().filter_map(|i| if let Op::Bra { target } = i.op { Some(target) } else { None }).collect();
    assert_eq!(targets, [3, 4, 5, 0]);
    assert!(code[3].guard.negate && !code[4].guard.negate);
    assert_ne!(code[3].guard.pred, code[4].guard.pred, "the inner %p1 is another register");
}

#[test]
fn indexed_branches_list_their_targets() {
    let ops = ops("brx.idx %r1, T; T: .branchtargets A, B, A; A: exit; B: ret;");
    let Op::Brx { targets, .. } = &ops[0] else { panic!("{ops:?}") };
    assert_eq!(targets[..], [1, 2, 1]);
}

#[test]
fn vectors_pack_and_unpack() {
    let ops = ops("mov.b64 %d1, {%r1, 7}; mov.b64 {_, %r2}, %d1; mov.b32 %r3, {%h1, %h2};");
    assert!(matches!(ops[0], Op::Pack { count: 2, bits: 32, parts: [Src::Reg(_), Src::Imm(7), ..], .. }));
    assert!(matches!(
        ops[1],
        Op::Unpack { count: 2, bits: 32, d: [None, Some(Reg::W32(_)), None, None], .. }
    ));
    assert!(matches!(ops[2], Op::Pack { count: 2, bits: 16, .. }));
}

#[test]
fn predicates_are_registers_of_their_own() {
    let ops = ops(
        "setp.lt.and.s32 %p1|%p2, %r1, -5, !%p3; mov.pred %p1, 0; not.pred %p2, %p1; selp.b32 %r1, 1, 2, %p2;",
    );
    let Op::Setp { p: Some(_), q: Some(_), b: Src::Imm(0xffff_fffb), combine: Some((_, c)), .. } = &ops[0]
    else {
        panic!("{:?}", ops[0])
    };
    assert!(matches!(c, PredSrc::Reg { negate: true, .. }));
    assert!(matches!(ops[1], Op::PredOp { a: PredSrc::Imm(false), b: PredSrc::Imm(true), .. }));
}

#[test]
fn calls_pass_registers_and_parameters_through_frames() {
    let text = ".version 8.0\n.target sm_70\n.address_size 64\n\
        .func (.reg .u32 r) add(.reg .u32 x, .param .u64 y) { .reg .u64 t; ld.param.u64 t, [y]; cvt.u32.u64 r, t;\n\
          add.u32 r, r, x; ret; }\n\
        .visible .entry k() { .reg .u32 v; { .param .u64 y; st.param.u64 [y], 7; call (v), add, (5, y); } ret; }";
    let module = compile(text).expect("compiles");
    let callee = &module.functions[0];
    assert!(matches!(
        callee.code[0].op,
        Op::Ld { mem: Mem { addr: Addr { base: Base::Frame, offset: 4 }, .. }, .. }
    ));
    let [.., store, end, fall] = &callee.code[..] else { panic!("{:?}", callee.code) };
    assert!(matches!((&store.op, &end.op), (Op::St { .. }, Op::Ret)));
    assert!(matches!(fall.op, Op::St { .. }), "falling off the end returns the value too");
    let kernel = &module.functions[1].code;
    let Some(Op::Call(call)) = kernel.iter().map(|i| &i.op).find(|op| matches!(op, Op::Call(_))) else {
        panic!("{kernel:?}")
    };
    let sizes: Vec<u32> = call.args.iter().map(|copy| copy.size).collect();
    assert_eq!((sizes, call.args[1].to, call.returns[0].size), (vec![4, 8], 8, 4));
}

#[test]
fn function_hints_reach_the_launch() {
    let text = ".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry k(.param .b8 a[3], .param .u64 b)\n\
        .maxntid 8, 4\n.minnctapersm 2\n.pragma \"nounroll\";\n{ ret; } .entry q() .reqntid 32 { }";
    let module = compile(text).expect("compiles");
    let (k, q) = (&module.functions[0], &module.functions[1]);
    assert_eq!((k.max_threads, k.min_blocks_per_sm, k.param_size, k.params[1].offset), (32, 2, 16, 8));
    assert_eq!((q.max_threads, q.required_block), (32, [32, 1, 1]));
}

#[test]
fn every_instruction_knows_its_line() {
    let function = kernel("mov.u32 %r1, 1;\n\nadd.u32 %r1, %r1, 2;\nret;");
    assert_eq!(function.lines, [7, 9, 10]);
    assert!(matches!(function.code[1].op, Op::Binary { op: Binary::Add, ty: Ty::U32, .. }));
}

#[test]
fn reductions_have_no_result() {
    assert!(matches!(ops("red.add.u32 [%d1], 1;")[..], [Op::Atom { op: AtomOp::Add, d: None, .. }]));
    assert!(matches!(ops("atom.exch.b32 _, [%d1], 1;")[..], [Op::Atom { op: AtomOp::Exch, d: None, .. }]));
}

#[test]
fn each_element_of_a_vector_is_an_atomic_operation() {
    let code = ops("atom.global.add.v4.f32 {%f1, _, %f0, %f2}, [%d1+32], {%f2, %f1, 0f00000000, %f0};");
    let atoms: Vec<_> = code
        .iter()
        .filter_map(|op| match op {
            Op::Atom { op: AtomOp::Add, mem, d, .. } => {
                Some((mem.ty, mem.count, mem.addr.offset, d.is_some()))
            }
            _ => None,
        })
        .collect();
    let expected = [(4, 32, true), (1, 36, false), (1, 40, true), (1, 44, true)];
    assert_eq!(atoms, expected.map(|(count, offset, result)| (Ty::F32, count, offset, result)));
    for body in [
        "red.relaxed.gpu.global.add.v2.f32 [%d1], {%f1, %f2};",
        "red.global.min.noftz.v8.f16 [%d1], {%h1, %h1, %h1, %h1, %h2, %h2, %h2, %h2};",
        "atom.max.noftz.v2.bf16x2 {%r1, %r2}, [%d1], {%r3, %r4};",
    ] {
        assert!(matches!(ops(body).last(), Some(Op::Atom { .. })), "{body}");
    }
}
