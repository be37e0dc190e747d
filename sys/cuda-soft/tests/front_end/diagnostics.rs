//! Texts that are refused, with line, column and message of the error.

use super::compile;

/// A kernel that declares some registers of each kind and has `body` on line 5.
fn in_kernel(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_70\n.func (.param .b32 r) f(.param .b32 a) {{ ret; }} .extern .func (.param .b32 r) \
         cudaGraphSetConditional(.param .b32 a); .visible .entry k(.param .u64 p) {{ .reg .b32 %r<5>; .reg .b64 %d<5>; \
         .reg .f32 %f<5>; .reg .pred %p<5>; .reg .u16 h; .shared .b32 sh; .local .b32 loc; \
         .param .b32 arg; .param .b32 got;\n\n{body}\nret; }}"
    )
}

fn check(text: &str, expected: &str) {
    let error = compile(text).expect_err(expected);
    let first = error.lines().next().unwrap_or_default();
    let (place, message) = first.split_once("; error   : ").expect("the form of a log line");
    let place = place.strip_prefix("ptxas application ptx input, line ").expect("the form of a log line");
    let found = format!("{} {message}", place.replace(", column ", ":"));
    assert!(found.starts_with(expected), "expected {expected}\n   found {found}");
}

#[test]
fn instructions() {
    for (body, expected) in [
        ("foo.s32 %r1, %r2;", "5:1 Not a name of any known instruction: 'foo'"),
        ("  add.s33 %r1, %r2, %r3;", "5:6 Unknown modifier '.s33'"),
        ("add.lo.s32 %r1, %r2, %r3;", "5:4 Illegal modifier '.lo' for instruction 'add'"),
        ("add.sat.u32 %r1, %r2, %r3;", "5:4 Illegal modifier '.sat' for instruction 'add'"),
        ("add.s32 %r1, %r2;", "5:1 Arguments mismatch for instruction 'add': 3 operands wanted, 2 found"),
        (
            "add.s32 %r1, %r2, %f1;",
            "5:19 Arguments mismatch for instruction 'add': a .f32 register where .s32",
        ),
        ("add.s32 %r1, %r2, nope;", "5:19 Unknown symbol 'nope'"),
        ("add.s32 5, %r2, %r3;", "5:9 Result register required for instruction 'add'"),
        ("add.u32 %r1, %tid.x, 1;", "5:14 Special register argument not allowed for instruction 'add'"),
        ("add.f32 %f1, %f2, 1;", "5:19 Constant does not agree with type .f32"),
        ("mul.s32 %r1, %r2, %r3;", "5:1 Unexpected instruction types specified for 'mul'"),
        ("and.s32 %r1, %r2, %r3;", "5:1 Unexpected instruction types specified for 'and'"),
        ("neg.u32 %r1, %r2;", "5:1 Instruction 'neg' applies only to signed numeric types"),
        (
            "div.f32 %f1, %f2, %f3;",
            "5:1 Rounding modifier or '.approx' modifier required for instruction 'div'",
        ),
        ("fma.f32 %f1, %f2, %f3, %f1;", "5:1 Rounding modifier required for instruction 'fma'"),
        ("cvt.f32.s32 %f1, %r1;", "5:1 Rounding modifier required for instruction 'cvt'"),
        ("shl.b32 %r1, %r2, %d1;", "5:19 Arguments mismatch for instruction 'shl'"),
        ("mov.u32 %r1, %f1;", "5:14 Arguments mismatch for instruction 'mov'"),
        (
            "mov.u32 %r1, {h, h};",
            "5:9 Arguments mismatch for instruction 'mov': 2 parts do not make the type",
        ),
        ("mov.u64 %d1, %clock;", "5:14 Arguments mismatch for instruction 'mov'"),
        ("bra nope;", "5:5 Unknown symbol 'nope'"),
        ("@%r1 bra nope;", "5:2 Predicate expression expected"),
        ("vote.all.pred %p1, %p2;", "5:1 '.sync' modifier required for instruction 'vote'"),
        (
            "bar.sync 0, 5;",
            "5:13 Number of threads participating in barrier must be in multiple of warp size",
        ),
        ("bar.sync 16;", "5:10 Barrier number must be from 0 to 15"),
        ("wmma.load;", "5:1 Instruction 'wmma' is not supported by the software device"),
        (
            "vadd.u32.u32.u32 %r1, %r2.b1, %r3.h0;",
            "5:26 Selector '.b1' is not supported by the software device",
        ),
        (
            "vadd.u32.u32.u32 %r1.h1, %r2, %r3, %r4;",
            "5:21 Selector '.h1' is not supported by the software device",
        ),
        (
            "vset4.u32.u32.eq %r1.b20, %r2.b7654, %r3, %r4;",
            "5:21 Selector '.b20' is not supported by the software device",
        ),
        ("vset.u32.u32.eq %r1, %r2, %r3;", "5:1 Instruction 'vset' is not supported by the software device"),
        (
            "vmad.u32.u32.u32 %r1, %r2.b1, %r3, -%r4;",
            "5:1 Instruction 'vmad' is not supported by the software device",
        ),
        ("multimem.red.add.u32 [%d1], %r1;", "5:1 Feature 'multimem' requires PTX ISA .version 8.1 or later"),
        (
            "tex.2d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%d1, {%r1, %r2}];",
            "5:1 Instruction 'tex' is not supported by the software device",
        ),
        (
            "cvt.rn.bf16x2.ue8m0x2 %r1, h;",
            "5:14 Unknown modifier '.ue8m0x2': the software device does not support it",
        ),
        (
            "@%p1 st.param.b32 [arg], %r1;",
            "5:19 Illegal to predicate instruction 'st.param' with operand 'arg'",
        ),
        (
            "@%p1 ld.param.b32 %r1, [arg];",
            "5:24 Illegal to predicate instruction 'ld.param' with operand 'arg'",
        ),
        ("ld.param.b32 %r1, [arg];", "5:19 'arg' is read but no call before has returned it"),
        (
            "st.param.b32 [arg], 1; call (got), f, (arg); ld.param.b32 %r1, [arg];",
            "5:64 'arg' is read but no call before has returned it",
        ),
        (
            "call (got), cudaGraphSetConditional, (arg);",
            "5:13 Unresolved extern 'cudaGraphSetConditional': the software device does not support",
        ),
        (
            ".global .texref t;",
            "5:9 '.texref': textures and surfaces are not supported by the software device",
        ),
    ] {
        check(&in_kernel(body), expected);
    }
}

#[test]
fn memory_accesses() {
    for (body, expected) in [
        ("ld.acquire.u32 %r1, [%d1];", "5:1 Modifier '.acquire' requires scope with 'ld' instruction"),
        ("ld.gpu.u32 %r1, [%d1];", "5:1 A scope requires '.relaxed' or '.acquire' with 'ld'"),
        ("ld.volatile.gpu.u32 %r1, [%d1];", "5:1 Modifier '.volatile' cannot be combined with a scope"),
        ("ld.release.gpu.u32 %r1, [%d1];", "5:1 A scope requires '.relaxed' or '.acquire' with 'ld'"),
        ("ld.relaxed.cta.local.u32 %r1, [loc];", "5:31 State space mismatch between instruction and address"),
        ("ld.global.u32 %r1, [sh];", "5:20 State space mismatch between instruction and address"),
        ("ld.u64 %d1, [p];", "5:13 State space mismatch between instruction and address"),
        ("st.param.u64 [p], %d1;", "5:14 State space mismatch between instruction and address"),
        ("ld.global.v2.f32 {%f1}, [%d1];", "5:18 Argument vector size mismatch for instruction 'ld'"),
        ("ld.global.f32 %d1, [h];", "5:20 Arguments mismatch for instruction 'ld'"),
        ("ld.global.u32 %f1, [%d1];", "5:15 Arguments mismatch for instruction 'ld'"),
        ("st.global.u64 [%d1], %r1;", "5:22 Arguments mismatch for instruction 'st'"),
        ("atom.add.s64 %d1, [%d2], %d3;", "5:1 Unexpected instruction types specified for 'atom'"),
        (
            "atom.cas.b128 %d1, [%d2], %d3, %d4;",
            "5:9 '.b128' of instruction 'atom' is not supported by the software device",
        ),
        ("red.add.v2.f32 [%d1], {%f1, %f2};", "5:1 Feature 'vector atomics' requires PTX ISA .version 8.1"),
        ("red.acquire.gpu.add.u32 [%d1], %r2;", "5:4 Illegal modifier '.acquire' for instruction 'red'"),
        ("fence.acquire.gpu;", "5:1 Feature 'fence.acquire' requires PTX ISA .version 8.6 or later"),
        ("fence.acq_rel.cluster;", "5:1 Feature '.cluster scope' requires .target sm_90 or higher"),
        ("cp.async.bulk.commit_group;", "5:1 Feature 'cp.async.bulk' requires .target sm_90 or higher"),
        (
            "cp.reduce.async.bulk.commit_group;",
            "5:1 Instruction 'cp.reduce.async' is not supported by the software",
        ),
    ] {
        check(&in_kernel(body), expected);
    }
}

#[test]
fn multimem() {
    let head = ".version 9.0\n.target sm_90\n.visible .entry k(.param .u64 p) { .reg .b64 %d<3>; .reg .b32 %r<9>; \
                .reg .b16 %h<9>; .reg .f32 %f<9>; .reg .f64 %g<3>; .shared .b32 sh;";
    // Accepted and refused as by ptxas 13.0.
    for good in [
        "ld_reduce.add.u32 %r1, [%d1]",
        "ld_reduce.and.b32 %r1, [%d1]",
        "ld_reduce.min.s64 %d2, [%d1]",
        "ld_reduce.acquire.sys.global.min.s32 %r1, [%d1]",
        "ld_reduce.weak.add.v4.f32 {%f1, %f2, _, %f4}, [%d1]",
        "ld_reduce.add.f64 %g1, [%d1]",
        "ld_reduce.add.v8.f16 {%h1, %h2, %h3, %h4, %h5, %h6, %h7, %h8}, [%d1]",
        "ld_reduce.add.v4.acc::f32.f16x2 {%r1, %r2, %r3, %r4}, [%d1]",
        "ld_reduce.max.bf16x2 %r1, [%d1+16]",
        "st.release.gpu.s32 [%d1], 5",
        "st.v2.bf16 [%d1], {%h1, %h2}",
        "st.weak.f64 [%d1], %g1",
        "red.add.u64 [%d1], 1",
        "red.release.sys.global.max.s64 [%d1], %d2",
        "red.relaxed.cta.add.v4.f32 [%d1], {%f1, %f2, %f3, %f4}",
    ] {
        let text = format!("{head}\n\nmultimem.{good};\nret; }}");
        compile(&text).unwrap_or_else(|error| panic!("{good}: {error}"));
    }
    for (bad, expected) in [
        ("add.u32 %r1, [%d1];", "5:1 Operation modifier required for instruction 'multimem'"),
        ("ld_reduce.add.s64 %d2, [%d1];", "5:1 Incorrect type '.s64' for the reduction"),
        ("ld_reduce.add.b32 %r1, [%d1];", "5:1 Incorrect type '.b32' for the reduction"),
        ("ld_reduce.and.u32 %r1, [%d1];", "5:1 Incorrect type '.u32' for the reduction"),
        ("ld_reduce.min.f32 %f1, [%d1];", "5:1 Incorrect type '.f32' for the reduction"),
        ("red.min.f16x2 [%d1], %r1;", "5:1 Incorrect type '.f16x2' for the reduction"),
        ("ld_reduce.relaxed.min.s32 %r1, [%d1];", "5:1 Semantics and scope of 'multimem' require each other"),
        ("st.weak.sys.u32 [%d1], %r1;", "5:1 Semantics and scope of 'multimem' require each other"),
        ("ld_reduce.release.sys.min.s32 %r1, [%d1];", "5:1 Semantics and scope"),
        ("red.weak.add.u32 [%d1], 1;", "5:13 Illegal modifier '.weak' for instruction 'multimem'"),
        ("ld_reduce.add.f16 %h1, [%d1];", "5:1 '.f16' with this vector is no operand"),
        ("st.v2.b32 [%d1], {%r1, %r2};", "5:1 '.b32' with this vector is no operand"),
        ("ld_reduce.add.v2.f64 {%g1, %g2}, [%d1];", "5:1 '.f64' with this vector is no operand"),
        (
            "ld_reduce.min.acc::f32.f16x2 %r1, [%d1];",
            "5:1 Modifier '.acc::f32' requires '.add' of 16-bit floats",
        ),
        (
            "ld_reduce.add.acc::f32.f32 %f1, [%d1];",
            "5:1 Modifier '.acc::f32' requires '.add' of 16-bit floats",
        ),
        ("ld_reduce.add.shared.u32 %r1, [%r2];", "5:23 Illegal modifier '.shared'"),
        ("ld_reduce.add.u32 %r1, [sh];", "5:33 State space mismatch"),
        ("ld_reduce.add.u32 %d2, [%d1];", "5:28 Arguments mismatch for instruction 'multimem'"),
        ("st.v2.f16 [%d1], {%h1};", "5:27 Argument vector size mismatch for instruction 'multimem'"),
        (
            "ld_reduce.add.v2.e4m3x2 {%h1, %h2}, [%d1];",
            "5:26 '.e4m3x2' of instruction 'multimem' is not supported by the software device",
        ),
    ] {
        check(&format!("{head}\n\nmultimem.{bad}\nret; }}"), expected);
    }
}

#[test]
fn declarations_and_scopes() {
    for (body, expected) in [
        (".reg .b32 h;", "5:11 Duplicate definition of variable 'h'"),
        (".reg .b32 %r2;", "5:11 Duplicate definition of variable '%r2'"),
        ("L: L: bra L;", "5:4 Duplicate definition of label 'L'"),
        ("{ .reg .b32 in; L: } mov.b32 in, 1;", "5:30 Unknown symbol 'in'"),
        ("{ L: } bra L;", "5:12 Unknown symbol 'L'"),
        (".reg .b128 wide;", "5:6 Type '.b128' is not supported by the software device"),
        (".reg .b33 odd;", "5:6 Unknown modifier '.b33' in a declaration"),
        (".wrong 5;", "5:1 Unknown directive '.wrong'"),
        (".local .align 3 .b8 a[4];", "5:15 Alignment 3 is not a power of two"),
        ("add.s32 %r1, %r2, %r3", "6:1 Parsing error near 'ret': expected ';'"),
        ("mov.b32 %r1, ;", "5:14 Parsing error near ';': expected an operand"),
        ("mov.b32 %r1, 1 / 0;", "5:16 Division by zero in a constant expression"),
        ("mov.b32 %r1, `;", "5:14 Unexpected character '`'"),
    ] {
        check(&in_kernel(body), expected);
    }
}

#[test]
fn modules() {
    let head = ".version 8.0\n.target sm_70\n.address_size 64\n";
    for (text, expected) in [
        ("", "1:1 Missing .version directive at start of file"),
        (".version 99.0\n.target sm_70", "1:10 Unsupported .version 99.0; current version is '9.0'"),
        (".version 8.0\n.entry k() {}", "2:1 Missing .target directive after .version"),
        (".version 8.0\n.target sm_71", "2:9 Unknown target 'sm_71'"),
        (".version 8.0\n.target sm_70\n.address_size 32", "3:15 .address_size must be 64 on this device"),
        (&format!("{head}.entry k() {{ ret;"), "4:18 Parsing error near end of text: expected '}'"),
        (&format!("{head}.entry k() {{}} .entry k() {{}}"), "4:22 Duplicate definition of 'k'"),
        (&format!("{head}.extern .global .u32 x;\n.global .u64 y = x;"), "5:18 Unresolved extern 'x'"),
        (
            &format!("{head}.func f(.param .b32 a);\n.entry k() {{ call f, (1); }}"),
            "5:19 Unresolved extern 'f'",
        ),
        (
            &format!("{head}.func f(.param .b32 a) {{}}\n.entry k() {{ call f; }}"),
            "5:19 Call has wrong number",
        ),
        (&format!("{head}.global .u32 x = y;"), "4:18 Unknown symbol 'y'"),
        (&format!("{head}.global .u32 x[2] = {{1, 2, 3}};"), "4:21 3 initial values for 2 elements"),
        (&format!("{head}.global .u32 x[0] = {{}};"), "4:14 Non-external variable 'x' has incomplete type"),
        (&format!("{head}.global .u32 x[] = {{}};"), "4:14 Non-external variable 'x' has incomplete type"),
        (
            &format!("{head}.const .u32 x[2][0] = {{{{}}, {{}}}};"),
            "4:13 Non-external variable 'x' has incomplete type",
        ),
        (&format!("{head}.local .b32 x;"), "4:1 '.local' variables cannot be declared at module scope"),
        (&format!("{head}.entry k() .maxntid 1, 1, 1, 1 {{}}"), "4:12 '.maxntid' does not take 4 values"),
        (&format!("{head}.entry k() .fast {{}}"), "4:12 Unknown directive '.fast'"),
    ] {
        check(text, expected);
    }
}

#[test]
fn one_compilation_reports_several_errors() {
    let error = compile(&in_kernel("add.s32 %r1;\nfoo;\nbra nope;")).expect_err("two kinds of errors");
    assert_eq!(error.lines().count(), 1, "syntax first: {error}");
    let error = compile(&in_kernel("add.s32 %r1;\nmov.b32 %r1, 1;\nbra nope;")).expect_err("two errors");
    let lines: Vec<_> = error.lines().collect();
    assert_eq!(lines.len(), 2, "{error}");
    assert!(lines[0].contains("line 5") && lines[1].contains("line 7"), "{error}");
}

#[test]
fn instructions_of_later_devices() {
    for (body, expected) in [
        (
            "discard.global.L2 [%d1], 64;",
            "5:26 Arguments mismatch for instruction 'discard': the size is 128",
        ),
        (
            "applypriority.global.L2::evict_normal [%d1], 64;",
            "5:46 Arguments mismatch for instruction 'applypriority'",
        ),
        ("cvt.sat.f32.bf16 %f1, h;", "5:4 Illegal modifier '.sat' for instruction 'cvt'"),
        ("cvt.rn.sat.bf16.f32 h, %f1;", "5:7 Illegal modifier '.sat' for instruction 'cvt'"),
    ] {
        let text = in_kernel(body)
            .replace(".version 8.0", ".version 8.6")
            .replace("sm_70", "sm_90")
            .replace(".u16 h", ".b16 h");
        check(&text, expected);
        let right = body.replace(" 64;", " 128;").replace(".sat", "");
        compile(&text.replace(body, &right)).expect(&right);
    }
}
