//! Output of kernels, seen by a parent process.

use std::process::Command;

use super::rig::Corpus;

/// Starts this test again as a child, and returns its standard output and standard error.
pub(crate) fn child(name: &str) -> (String, String) {
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env("RUST_BACKTRACE", "0")
        .output()
        .expect("the child runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    (stdout, stderr)
}

/// The PTX of `printf("%s %d of %lld: %5.2f %c %x%%\n", ...)`, as nvcc packs the arguments.
const SAYS: &str = ".version 9.0\n.target sm_90\n.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.global .align 1 .b8 format[32] = {37, 115, 32, 37, 100, 32, 111, 102, 32, 37, 108, 108, 100, 58, 32, 37, 53, 46, 50, 102, 32, 37, 99, 32, 37, 120, 37, 37, 10};
.global .align 1 .b8 word[7] = {116, 104, 114, 101, 97, 100};
.visible .entry k(.param .u64 out) {
    .local .align 8 .b8 args[40]; .reg .b64 %d<8>; .reg .b32 %r<8>; .reg .f64 %f<2>;
    mov.u32 %r1, %tid.x; mov.u64 %d1, word; st.local.u64 [args], %d1; st.local.u32 [args+8], %r1;
    mov.u64 %d2, -9; st.local.u64 [args+16], %d2; mov.f64 %f1, 0d3FF4000000000000; st.local.f64 [args+24], %f1;
    mov.u32 %r2, 65; st.local.u32 [args+32], %r2; mov.u32 %r3, 255; st.local.u32 [args+36], %r3;
    mov.u64 %d3, format; cvta.global.u64 %d3, %d3; mov.u64 %d4, args; cvta.local.u64 %d4, %d4;
    { .param .b64 p0; st.param.b64 [p0], %d3; .param .b64 p1; st.param.b64 [p1], %d4; .param .b32 q;
      call (q), vprintf, (p0, p1); ld.param.b32 %r4, [q]; }
    ld.param.u64 %d5, [out]; mad.wide.u32 %d6, %r1, 4, %d5; st.global.u32 [%d6], %r4;
    ret;
}";

#[test]
#[ignore = "the child of another test"]
fn prints() {
    let corpus = Corpus::text(SAYS, "printf");
    let out = corpus.buffer(&[0u32; 3]);
    corpus.start("k", 1, 3, &[out.address]);
    println!("before the synchronisation");
    corpus.synchronize().expect("no error");
    println!("after it");
    assert_eq!(corpus.read(out), [6; 3], "vprintf returns the number of arguments");
}

#[test]
fn a_kernel_prints_at_the_next_synchronisation() {
    let (stdout, _) = child("output::prints");
    let line = |t| format!("thread {t} of -9:  1.25 A ff%\n");
    let expected = format!("before the synchronisation\n{}{}{}after it\n", line(0), line(1), line(2));
    assert!(stdout.contains(&expected), "{stdout}");
}

const ASSERTS: &str = ".version 9.0\n.target sm_90\n.address_size 64
.extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.global .align 1 .b8 message[6] = {120, 32, 60, 32, 51};
.global .align 1 .b8 file[5] = {97, 46, 99, 117};
.global .align 1 .b8 name[9] = {118, 111, 105, 100, 32, 107, 40, 41};
.visible .entry k(.param .u64 out) {
    .reg .b64 %d<8>; .reg .b32 %r<4>; .reg .pred %p1;
    mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 2; @%p1 bra DONE;
    mov.u64 %d1, message; mov.u64 %d2, file; mov.u64 %d3, name;
    { .param .b64 a; st.param.b64 [a], %d1; .param .b64 b; st.param.b64 [b], %d2; .param .b32 c; st.param.b32 [c], 17;
      .param .b64 d; st.param.b64 [d], %d3; .param .b64 e; st.param.b64 [e], 1;
      call __assertfail, (a, b, c, d, e); }
DONE: ret;
}";

#[test]
#[ignore = "the child of another test"]
fn asserts() {
    let corpus = Corpus::text(ASSERTS, "assert");
    corpus.start("k", 1, 4, &[0]);
    let failed = cuda_driver_sys::CUresult::CUDA_ERROR_ASSERT;
    // Any call that reports the error writes the text.
    assert_eq!(corpus.poll(), failed);
    assert_eq!(corpus.synchronize(), Err(failed), "the error is sticky");
}

#[test]
fn a_failed_assertion_names_its_place_and_fails_the_context() {
    let (_, stderr) = child("output::asserts");
    let expected = "a.cu:17: void k(): block: [0,0,0], thread: [2,0,0] Assertion `x < 3` failed.\n";
    assert!(stderr.contains(expected), "{stderr}");
}
