//! Short kernels in PTX text, for what nvcc emits only in places.

use super::rig::Corpus;

/// Runs `body` with `threads` threads. Each has its index in `%tid`, and returns what the body leaves in `%res`. `items`
/// precede the kernel.
pub(crate) fn results_of(items: &str, body: &str, threads: u32) -> Vec<u64> {
    let text = format!(
        ".version 9.0\n.target sm_90\n.address_size 64\n{items}\n\
         .visible .entry k(.param .u64 k_out) {{\n\
         .reg .b64 %res, %out, %at, %d<16>; .reg .b32 %tid, %r<16>; .reg .b16 %h<8>; .reg .pred %p<8>;\n\
         .reg .f32 %f<8>; .reg .f64 %g<8>;\n\
         mov.u32 %tid, %tid.x; mov.u64 %res, 0;\n{body}\n\
         STORE: mov.u32 %tid, %tid.x; ld.param.u64 %out, [k_out]; mad.wide.u32 %at, %tid, 8, %out;\n\
         st.global.u64 [%at], %res; ret; }}\n"
    );
    let corpus = Corpus::text(&text, body);
    let out = corpus.buffer(&vec![u64::MAX; threads as usize]);
    corpus.run("k", 1, threads, 0, &[out.address]);
    corpus.read(out)
}

fn results(body: &str, threads: u32) -> Vec<u64> {
    results_of("", body, threads)
}

#[test]
fn the_carry_flag_of_a_subtraction_is_the_complement_of_the_borrow() {
    for (body, expected) in [
        ("sub.cc.u64 %d1, 5, 3; addc.u64 %res, 0, 0;", 1),
        ("sub.cc.u64 %d1, 3, 5; addc.u64 %res, 0, 0;", 0),
        ("sub.cc.u32 %r1, 5, 3; addc.u64 %res, 0, 0;", 1),
        ("add.cc.u64 %d1, 1, 2; subc.u64 %res, 0, 0;", u64::MAX),
        ("add.cc.u64 %d1, -1, 2; subc.u64 %res, 0, 0;", 0),
        ("add.cc.u64 %d1, -1, 2; subc.cc.u64 %d2, 0, 1; addc.u64 %res, 0, 0;", 0),
        ("sub.cc.u64 %d1, 3, 5; madc.lo.u64 %res, 3, 4, 5;", 17),
    ] {
        assert_eq!(results(body, 1), [expected], "{body}");
    }
}

#[test]
fn a_shuffle_from_a_lane_that_does_not_take_part_gives_zero() {
    // The upper lanes have 100 + their index in %r1 but are elsewhere, then gone.
    let values = "add.u32 %r1, %tid, 100; setp.ge.u32 %p1, %tid, 8; mov.u32 %r2, 0;";
    let take = "shfl.sync.down.b32 %r2|%p2, %r1, 4, 31, 0xff; selp.u32 %r3, 1000, 0, %p2; add.u32 %r2, %r2, %r3;\n\
                cvt.u64.u32 %res, %r2;";
    let elsewhere = format!("{values} @%p1 bra DONE; {take} DONE: bar.warp.sync -1;");
    let gone = format!("{values} @%p1 exit; {take}");
    for (body, upper) in [(elsewhere, 0), (gone, u64::MAX)] {
        let expected: Vec<u64> = (0..32)
            .map(|lane| match lane {
                0..4 => 1104 + lane,
                4..8 => 1000,
                _ => upper,
            })
            .collect();
        assert_eq!(results(&body, 32), expected, "{body}");
    }
    // A source out of range leaves the lane its own value.
    let beyond = format!("{values} shfl.sync.down.b32 %r2, %r1, 4, 31, -1; cvt.u64.u32 %res, %r2;");
    let expected: Vec<u64> = (0..32).map(|lane| 100 + if lane < 28 { lane + 4 } else { lane }).collect();
    assert_eq!(results(&beyond, 32), expected);
}

#[test]
fn calls_through_pointers_reach_the_function_that_each_lane_names() {
    let items = ".func (.param .b32 r) triple(.param .b32 x) { .reg .b32 %a; ld.param.b32 %a, [x]; mul.lo.u32 %a, %a, 3;\n\
         st.param.b32 [r], %a; ret; }\n\
         .func (.param .b32 r) plus(.param .b32 x) { .reg .b32 %a; ld.param.b32 %a, [x]; add.u32 %a, %a, 1000;\n\
         st.param.b32 [r], %a; ret; }\n\
         .func bump(.param .b64 to) { .reg .b64 %a; .reg .b32 %b; ld.param.b64 %a, [to]; ld.u32 %b, [%a];\n\
         add.u32 %b, %b, 1; st.u32 [%a], %b; ret; }\n\
         .global .align 8 .u64 table[3] = {triple, plus, bump};\n";
    let body = "and.b32 %r1, %tid, 1; mov.u64 %d1, table; mad.wide.u32 %d2, %r1, 8, %d1; ld.global.u64 %d3, [%d2];\n\
         { .param .b32 p0; st.param.b32 [p0], %tid; .param .b32 q0;\n\
         proto_0 : .callprototype (.param .b32 _) _ (.param .b32 _);\n\
         call (q0), %d3, (p0), proto_0; ld.param.b32 %r2, [q0]; }\n\
         .local .b32 word; st.local.u32 [word], %r2; mov.u64 %d4, word; cvta.local.u64 %d4, %d4;\n\
         ld.global.u64 %d5, [table+16];\n\
         { .param .b64 p0; st.param.b64 [p0], %d4; proto_1 : .callprototype ()_ (.param .b64 _);\n\
         call %d5, (p0), proto_1; }\n\
         ld.local.u32 %r3, [word]; mov.u64 %d3, triple; TARGETS: .calltargets triple, plus;\n\
         call (%r4), %d3, (%r3), TARGETS; cvt.u64.u32 %res, %r4;";
    let expected: Vec<u64> = (0..40).map(|t| 3 * (1 + if t % 2 == 0 { 3 * t } else { t + 1000 })).collect();
    assert_eq!(results_of(items, body, 40), expected);
}

#[test]
fn what_a_call_returned_stays_through_later_calls() {
    // PTX ISA 7.1 lets only the instructions right after a call read what it returned; ptxas 13 keeps it for longer, also
    // across branches and in loops, and so does this device.
    let items = ".func (.param .align 8 .b8 r[16]) pair(.param .b32 a) { .reg .b32 %a; ld.param.b32 %a, [a];\n\
                 st.param.b32 [r], %a; mul.lo.s32 %a, %a, %a; st.param.b32 [r+12], %a; ret; }";
    let body = "{ .param .b32 a; .param .b32 b; .param .align 8 .b8 p[16]; .param .align 8 .b8 q[16];\n\
         st.param.b32 [a], %tid; st.param.b32 [b], 7; mov.u32 %r9, 0; AGAIN: call (p), pair, (a); call (q), pair, (b);\n\
         setp.gt.u32 %p1, %tid, 15; @%p1 bra LATER; ld.param.b32 %r1, [q]; add.u32 %r9, %r9, %r1; LATER:\n\
         ld.param.b32 %r2, [p+12]; ld.param.b32 %r3, [q+12]; add.u32 %r9, %r9, %r2; add.u32 %r9, %r9, %r3;\n\
         setp.lt.u32 %p2, %r9, 200; @%p2 bra AGAIN; } cvt.u64.u32 %res, %r9;";
    let expected: Vec<u64> = (0..32u64)
        .map(|t| {
            let round = t * t + 49 + if t > 15 { 0 } else { 7 };
            round * 200u64.div_ceil(round)
        })
        .collect();
    assert_eq!(results_of(items, body, 32), expected);
}

/// The bits of `value` as an `f16`.
fn half(value: f32) -> u64 {
    half::f16::from_f32(value).to_bits().into()
}

#[test]
fn comparisons_of_halves_have_results_of_every_type() {
    let [one, two, nan, tiny] = [half(1.0), half(2.0), 0x7e00, 0x0001];
    let (low, high) = (two << 16 | one, one << 16 | two);
    let small = tiny << 16;
    for (body, expected) in [
        (format!("mov.b16 %h1, {one}; mov.b16 %h2, {two}; set.lt.f16.f16 %h3, %h1, %h2; cvt.u64.u16 %res, %h3;"), half(1.0)),
        (format!("mov.b16 %h1, {one}; mov.b16 %h2, {two}; set.gt.u16.f16 %h3, %h1, %h2; cvt.u64.u16 %res, %h3;"), 0),
        (format!("mov.b16 %h1, {one}; mov.b16 %h2, {two}; set.lt.u32.f16 %r3, %h1, %h2; cvt.u64.u32 %res, %r3;"), 0xffff_ffff),
        (format!("mov.b16 %h1, {nan}; mov.b16 %h2, {two}; set.ltu.s16.f16 %h3, %h1, %h2; cvt.u64.u16 %res, %h3;"), 0xffff),
        ("set.eq.f16.u32 %h1, %tid, 0; cvt.u64.u16 %res, %h1;".to_owned(), half(1.0)),
        (format!("mov.b32 %r1, {low}; mov.b32 %r2, {high}; set.lt.f16x2.f16x2 %r3, %r1, %r2; cvt.u64.u32 %res, %r3;"), half(1.0)),
        (format!("mov.b32 %r1, {low}; mov.b32 %r2, {high}; set.gt.u32.f16x2 %r3, %r1, %r2; cvt.u64.u32 %res, %r3;"), 0xffff_0000),
        (format!("mov.b32 %r1, {small}; mov.b32 %r2, 0; set.eq.ftz.u32.f16x2 %r3, %r1, %r2; cvt.u64.u32 %res, %r3;"), 0xffff_ffff),
        (format!("mov.b32 %r1, {small}; mov.b32 %r2, 0; set.eq.u32.f16x2 %r3, %r1, %r2; cvt.u64.u32 %res, %r3;"), 0xffff),
        (format!("mov.b32 %r1, {low}; mov.b32 %r2, {high}; setp.lt.f16x2 %p1|%p2, %r1, %r2; selp.u64 %res, 1, 0, %p1; @%p2 add.u64 %res, %res, 2;"), 1),
        (format!("mov.b32 %r1, {low}; mov.b32 %r2, {high}; setp.gt.f16x2 %p1|%p2, %r1, %r2; selp.u64 %res, 1, 0, %p1; @%p2 add.u64 %res, %res, 2;"), 2),
        ("mov.b32 %r1, 0x3f803f80; mov.b32 %r2, 0x3f804000; set.eq.bf16x2.bf16x2 %r3, %r1, %r2; cvt.u64.u32 %res, %r3;".to_owned(), 0x3f80_0000),
    ] {
        assert_eq!(results(&body, 1), [expected], "{body}");
    }
}

#[test]
fn atomics_add_halves_and_pairs_of_halves() {
    let items = ".global .align 4 .b32 sum; .global .align 4 .b16 single; .global .align 4 .b32 brain;";
    let pair = half(0.5) << 16 | half(1.0);
    let body = format!(
        "mov.b32 %r1, {pair}; mov.b16 %h1, {}; mov.b32 %r2, 0x3f803f80; mov.u64 %d1, sum;\n\
         atom.add.noftz.f16x2 %r3, [%d1], %r1; red.global.add.noftz.f16 [single], %h1;\n\
         atom.global.add.noftz.bf16x2 %r4, [brain], %r2; bar.sync 0;\n\
         ld.global.u32 %r5, [sum]; ld.global.u16 %h2, [single]; ld.global.u32 %r6, [brain];\n\
         cvt.u64.u16 %d2, %h2; cvt.u64.u32 %res, %r5; shl.b64 %d2, %d2, 32; or.b64 %res, %res, %d2;\n\
         xor.b32 %r6, %r6, 0x42004200; cvt.u64.u32 %d3, %r6; shl.b64 %d3, %d3, 48; or.b64 %res, %res, %d3;",
        half(0.25)
    );
    let expected = half(8.0) << 32 | half(16.0) << 16 | half(32.0);
    assert_eq!(results_of(items, &body, 32), [expected; 32]);
    // The target of f16x2 atomics is sm_60, that of f16 sm_70.
    let old = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k(.param .u64 p) { .reg .b64 %d; \
               .reg .b32 %r; .reg .b16 %h; ld.param.u64 %d, [p]; mov.b32 %r, 0; mov.b16 %h, 0;\n\
               red.add.noftz.f16x2 [%d], %r; red.add.noftz.f16 [%d], %h; ret; }";
    Corpus::text(old, "sm_70");
}

#[test]
fn the_heap_of_kernels_gives_blocks_and_takes_them_back() {
    let items =
        ".extern .func (.param .b64 r) malloc (.param .b64 n);\n.extern .func free (.param .b64 p);\n";
    // Each thread fills a block of 64 KiB at its ends, so that the heap of 8 MiB holds those of 100 threads but not 1000.
    let body = "{ .param .b64 n; .param .b64 r; st.param.b64 [n], 65536; call (r), malloc, (n); ld.param.b64 %d1, [r]; }\n\
         setp.eq.u64 %p1, %d1, 0; @%p1 bra FULL; st.u32 [%d1], %tid; st.u32 [%d1+65532], %tid; bar.sync 0;\n\
         ld.u32 %r1, [%d1]; ld.u32 %r2, [%d1+65532]; add.u32 %r1, %r1, %r2; cvt.u64.u32 %res, %r1;\n\
         { .param .b64 p; st.param.b64 [p], %d1; call free, (p); } bra STORE; FULL: bar.sync 0; mov.u64 %res, -1;";
    for _ in 0..3 {
        let got = results_of(items, body, 100);
        assert_eq!(got, (0..100).map(|t| 2 * t).collect::<Vec<u64>>());
    }
    let full = results_of(items, body, 256).iter().filter(|r| **r == u64::MAX).count();
    assert_eq!(full, 128);
}

#[test]
fn pairs_of_8_bit_floats_convert_both_ways() {
    for (body, expected) in [
        // 1.0 and 448 in e4m3; a is the high byte.
        ("cvt.rn.satfinite.e4m3x2.f32 %h1, 0f3F800000, 0f43E00000; cvt.u64.u16 %res, %h1;", 0x387e),
        ("cvt.rn.satfinite.e4m3x2.f32 %h1, 0f7F800000, 0fFFC00000; cvt.u64.u16 %res, %h1;", 0x7e7f),
        ("cvt.rn.satfinite.relu.e5m2x2.f32 %h1, 0fBF800000, 0f3F800000; cvt.u64.u16 %res, %h1;", 0x003c),
        ("mov.b32 %r1, 0xc0003c00; cvt.rn.satfinite.e4m3x2.f16x2 %h1, %r1; cvt.u64.u16 %res, %h1;", 0xc038),
        ("mov.b16 %h1, 0x387e; cvt.rn.f16x2.e4m3x2 %r1, %h1; cvt.u64.u32 %res, %r1;", 0x3c00_5f00),
        ("mov.b16 %h1, 0xfc01; cvt.rn.f16x2.e5m2x2 %r1, %h1; cvt.u64.u32 %res, %r1;", 0xfc00_0100),
    ] {
        assert_eq!(results(body, 1), [expected], "{body}");
    }
}

#[test]
fn video_instructions_work_on_bytes_and_halves() {
    let (a, b) = ("mov.b32 %r1, 0x01ff7f80;", "mov.b32 %r2, 0xff01807f;");
    for (form, expected) in [
        ("vabsdiff4.u32.u32.u32 %r3, %r1, %r2, 0", 0xfefe_0101u64),
        ("vabsdiff4.s32.s32.s32.add %r3, %r1, %r2, 5", 5 + 2 + 2 + 255 + 255),
        ("vadd4.u32.u32.u32.sat %r3, %r1, %r2, 0", 0xffff_ffff),
        ("vadd2.s32.s32.s32 %r3, %r1, %r2, 0", 0x0100_ffff),
        ("vavrg4.u32.u32.u32 %r3, %r1, %r2, 0", 0x8080_8080),
        ("vmax4.s32.s32.s32 %r3, %r1, %r2, 0", 0x0101_7f7f),
        ("vset4.u32.u32.lt.add %r3, %r1, %r2, 10", 12),
        ("vabsdiff.u32.u32.u32.add %r3, %r1, %r2, 7", 0xff01_807f - 0x01ff_7f80 + 7),
        ("vsub.s32.u32.u32.sat %r3, 5, -1", 0x8000_0000),
    ] {
        let body = format!("{a} {b} {form}; cvt.u64.u32 %res, %r3;");
        assert_eq!(results(&body, 1), [expected], "{form}");
    }
}

/// The results of one element may be the operands of a later one.
#[test]
fn atomic_operations_on_vectors_return_and_change_each_element() {
    let body = "mov.u64 %d1, vector; mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000;
        atom.global.add.v2.f32 {%f1, %f2}, [%d1], {%f2, %f1};
        red.global.add.v2.f32 [%d1], {%f1, %f2};
        ld.global.v2.f32 {%f3, %f4}, [%d1];
        mov.b32 %r1, %f3; mov.b32 %r2, %f4; mov.b64 %res, {%r1, %r2};";
    let items = ".global .align 8 .f32 vector[2] = {0f41200000, 0f41A00000};";
    // 10 + 2 + 10 and 20 + 1 + 20
    let expected = u64::from(41f32.to_bits()) << 32 | u64::from(22f32.to_bits());
    assert_eq!(results_of(items, body, 1), [expected]);
}
