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
