//! Modules that are compiled together, and the resolution of their symbols.

use cuda_soft::code::op::{CallTarget, Op, Service};
use cuda_soft::code::{Module, Relocation, Symbol};
use cuda_soft::{lower, ptx};

const HEAD: &str = ".version 8.0\n.target sm_70\n.address_size 64\n";

fn link(bodies: &[&str]) -> Result<Module, String> {
    let modules: Result<Vec<_>, _> = bodies.iter().map(|body| ptx::parse(&format!("{HEAD}{body}"))).collect();
    lower::compile(&modules.map_err(|e| e.to_string())?).map_err(|e| e.to_string())
}

#[test]
fn extern_symbols_resolve_across_modules() {
    let caller = ".extern .func (.param .b32 r) twice(.param .b32 x);\n.extern .global .align 4 .b8 table[];\n\
        .visible .entry k() { .reg .b32 %r<2>; .reg .b64 %d; mov.u64 %d, table; call (%r1), twice, (%r0); }";
    let callee = ".visible .func (.param .b32 r) twice(.param .b32 x) { ret; }\n\
        .visible .global .align 4 .b8 table[8];\n.func hidden() { ret; }";
    let module = link(&[caller, callee]).expect("resolves");
    let kernel = &module.functions[module.kernel("k").expect("k")];
    let called = kernel.code.iter().find_map(|i| match &i.op {
        Op::Call(call) => Some(call.target),
        _ => None,
    });
    let Some(CallTarget::Function(index)) = called else { panic!("a call: {:?}", kernel.code) };
    assert_eq!(module.functions[index as usize].name, "twice");
    assert_eq!(module.globals[module.global("table").expect("table")].size, 8);
    // Alone, the caller does not link; and another module's internal function does not resolve its symbol.
    assert!(link(&[caller]).expect_err("unresolved").contains("Unresolved extern 'table'"));
    let stranger = ".extern .func hidden();\n.visible .entry k() { call hidden; }";
    assert!(link(&[stranger, callee]).expect_err("hidden").contains("Unresolved extern 'hidden'"));
}

#[test]
fn definitions_collide_unless_weak() {
    let one = ".visible .func f() { ret; }";
    assert!(link(&[one, one]).expect_err("twice").contains("Multiple definition of 'f'"));
    let weak = ".weak .func f() { trap; }";
    let module = link(&[one, weak]).expect("the weak one gives way");
    assert_eq!(module.functions.len(), 1);
    let static_one = ".func f() { ret; }";
    assert_eq!(link(&[static_one, static_one]).expect("each its own").functions.len(), 2);
}

#[test]
fn declarations_have_to_match() {
    let callee = ".visible .func f(.param .b64 x) { ret; }";
    let caller = ".extern .func f(.param .b32 x);\n.visible .entry k() { call f, (1); }";
    assert!(link(&[callee, caller]).expect_err("another type").contains("does not match its definition"));
}

#[test]
fn addresses_in_initial_values_are_relocated() {
    let module = link(&[".global .u32 a = 5; .const .u64 p[2] = {generic(a)+4, 7}; .func f() { ret; }\n\
        .global .u64 q = f;"])
    .expect("compiles");
    let p = &module.globals[module.global("p").expect("p")];
    assert!(p.constant);
    assert_eq!(p.init, [(8, 7u64.to_le_bytes().to_vec())]);
    assert_eq!(p.relocations, [Relocation { offset: 0, size: 8, symbol: Symbol::Global(0), addend: 4 }]);
    let q = &module.globals[module.global("q").expect("q")];
    assert_eq!(q.relocations[0].symbol, Symbol::Function(0));
}

#[test]
fn initial_values_are_laid_out_by_type_and_shape() {
    let module =
        link(&[".global .b16 x[2][3] = {{1, 2}, {-1, 0x1234, 5}}; .global .f32 f[2] = {1.0, 0f40000000};\n\
        .global .v2 .u32 v = {1, 2}; .global .s8 c[] = {-1, 2, 3}; .global .f64 d = 0d3FF0000000000000;"])
        .expect("compiles");
    let pieces = |name: &str| module.globals[module.global(name).expect(name)].init.clone();
    let bytes = |name: &str| match &pieces(name)[..] {
        [(0, bytes)] => bytes.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(bytes("x"), [1, 0, 2, 0, 0, 0, 0xff, 0xff, 0x34, 0x12, 5, 0]);
    assert_eq!(bytes("f"), [1f32.to_le_bytes(), 2f32.to_le_bytes()].concat());
    assert_eq!(bytes("v"), [1, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(bytes("c"), [0xff, 2, 3]);
    assert_eq!(bytes("d"), 1f64.to_le_bytes());
}

#[test]
fn few_initial_values_of_a_large_array_take_little_memory() {
    let module = link(&[".global .u32 x[2][1000000] = {{1, 2}, {3}};"]).expect("compiles");
    let global = &module.globals[module.global("x").expect("x")];
    let pieces = [(0, vec![1, 0, 0, 0, 2, 0, 0, 0]), (4_000_000, vec![3, 0, 0, 0])];
    assert_eq!((global.size, &global.init[..]), (8_000_000, &pieces[..]));
}

#[test]
fn kernels_share_shared_memory_only_where_they_must() {
    let module = link(&[".shared .b32 both; .shared .align 8 .b8 one[100];\n\
        .func f() { .reg .b32 %r; ld.shared.u32 %r, [both]; }\n\
        .visible .entry a() { .reg .b32 %r; .shared .b32 own[4]; mov.u32 %r, own; mov.u32 %r, one; call f; }\n\
        .visible .entry b() { .shared .b32 own[2]; .reg .b32 %r; mov.u32 %r, own; call f; }\n\
        .visible .entry c() { .shared .b64 own; .reg .b32 %r; mov.u32 %r, own; }"])
    .expect("compiles");
    let size = |name: &str| module.functions[module.kernel(name).expect(name)].shared_size;
    assert_eq!((size("a"), size("b"), size("c")), (124, 12, 8));
}

#[test]
fn the_run_time_services_are_known() {
    let module = link(&[".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n\
        .visible .entry k() { .param .b64 f; .param .b64 a; .param .b32 r; call (r), vprintf, (f, a); }"])
    .expect("compiles");
    let calls =
        |op: &Op| matches!(op, Op::Call(c) if matches!(c.target, CallTarget::Service(Service::Printf)));
    assert!(module.functions[0].code.iter().any(|i| calls(&i.op)));
}
