//! Builds a module with one kernel per instruction form, runs it, and compares.

use std::ffi::CString;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use cuda_driver_sys::CUresult;

use super::super::dut::{Dut, ok};
use super::exact::Format;

/// The operands `a`, `b` and `c` of one thread.
pub(super) type Operands = [u64; 3];

/// One instruction form.
pub(super) struct Form {
    /// The instructions: operands in `%a16`, `%a32`, `%a64` and so on, results in `%x64` and `%y64`.
    body: String,
    /// The expected `%x64` and `%y64`.
    oracle: Box<dyn Fn(Operands) -> [u64; 2]>,
    /// The format of the first result if every NaN of it is right: hardware keeps some payloads.
    any_nan: Option<Format>,
    /// Whether a first result other than the oracle's is right, too.
    near: Option<Box<Near>>,
}

type Near = dyn Fn(Operands, u64) -> bool;

impl Form {
    /// `instruction` with a result of `d` bits and sources of these widths, and its oracle.
    pub(super) fn new(
        instruction: &str,
        d: u32,
        sources: &[u32],
        oracle: impl Fn(Operands) -> u64 + 'static,
    ) -> Self {
        let mut body = format!("{instruction} %x{d}");
        for (name, width) in "abc".chars().zip(sources) {
            let _ = write!(body, ", %{name}{width}");
        }
        body.push(';');
        if d < 64 {
            let _ = write!(body, " cvt.u64.u{d} %x64, %x{d};");
        }
        Self::raw(body, move |operands| [oracle(operands), 0])
    }

    /// A form with two results.
    pub(super) fn raw(body: String, oracle: impl Fn(Operands) -> [u64; 2] + 'static) -> Self {
        Self { body, oracle: Box::new(oracle), any_nan: None, near: None }
    }

    /// Accepts every NaN of this format.
    pub(super) fn any_nan(self, format: Format) -> Self {
        Self { any_nan: Some(format), ..self }
    }

    /// Accepts every first result that `near` holds for; the oracle's is only reported.
    pub(super) fn near(self, near: impl Fn(Operands, u64) -> bool + 'static) -> Self {
        Self { near: Some(Box::new(near)), ..self }
    }
}

const REGISTERS: &str = ".reg .b16 %a16, %b16, %c16, %x16, %y16; .reg .b32 %a32, %b32, %c32, %x32, %y32;\n\
    .reg .b64 %a64, %b64, %c64, %x64, %y64, %in, %out; .reg .b32 %n, %count, %block; .reg .pred %p, %q;\n";

fn module(forms: &[Form]) -> String {
    let mut text = String::from(".version 8.1\n.target sm_90\n.address_size 64\n");
    for (number, form) in forms.iter().enumerate() {
        let _ = writeln!(
            text,
            ".visible .entry k{number}(.param .u64 from, .param .u64 to, .param .u32 threads) {{\n{REGISTERS}\
             ld.param.u64 %in, [from]; ld.param.u64 %out, [to]; ld.param.u32 %count, [threads];\n\
             mov.u32 %n, %tid.x; mov.u32 %block, %ctaid.x; mad.lo.u32 %n, %block, 128, %n;\n\
             setp.ge.u32 %p, %n, %count; @%p ret; mad.wide.u32 %in, %n, 24, %in; mad.wide.u32 %out, %n, 16, %out;\n\
             ld.global.u64 %a64, [%in]; ld.global.u64 %b64, [%in+8]; ld.global.u64 %c64, [%in+16];\n\
             cvt.u32.u64 %a32, %a64; cvt.u32.u64 %b32, %b64; cvt.u32.u64 %c32, %c64;\n\
             cvt.u16.u64 %a16, %a64; cvt.u16.u64 %b16, %b64; cvt.u16.u64 %c16, %c64; mov.u64 %y64, 0;\n\
             {}\n\
             st.global.u64 [%out], %x64; st.global.u64 [%out+8], %y64; ret; }}",
            form.body
        );
    }
    text
}

/// Runs every form over all operands.
///
/// # Panics
/// With the first differences of each form whose results differ from its oracle.
pub(super) fn check(dut: &Dut, forms: &[Form], operands: &[Operands]) {
    let text = CString::new(module(forms)).expect("no NUL");
    // `ci/ptx.sh` has NVIDIA's assembler read what the software device accepts.
    if let Some(folder) = std::env::var_os("CONFORMANCE_TEXTS") {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let path = Path::new(&folder).join(format!("instructions.{:x}.ptx", hasher.finish()));
        std::fs::write(path, text.as_bytes()).expect("the folder can be written");
    }
    let (t, mut module) = (&dut.t, std::ptr::null_mut());
    ok!((t.cuModuleLoadData)(&raw mut module, text.as_ptr().cast()));
    let bytes: Vec<u8> = operands.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    let (from, size) = (dut.alloc(bytes.len()), operands.len() * 16);
    dut.upload(from, &bytes);
    let to = dut.alloc(size);
    let mut report = String::new();
    for (number, form) in forms.iter().enumerate() {
        dut.upload(to, &vec![0xEE; size]);
        let name = CString::new(format!("k{number}")).expect("no NUL");
        let mut kernel = std::ptr::null_mut();
        ok!((t.cuModuleGetFunction)(&raw mut kernel, module, name.as_ptr()));
        let (mut from, mut to, mut threads) = (from, to, u32::try_from(operands.len()).expect("few"));
        let mut parameters = [(&raw mut from).cast(), (&raw mut to).cast(), (&raw mut threads).cast()];
        let (blocks, stream, extra) = (threads.div_ceil(128), std::ptr::null_mut(), std::ptr::null_mut());
        let parameters = parameters.as_mut_ptr();
        ok!((t.cuLaunchKernel)(kernel, blocks, 1, 1, 128, 1, 1, 0, stream, parameters, extra));
        ok!((t.cuCtxSynchronize)());
        let bytes = dut.download(to, size);
        compare(form, operands, &bytes, &mut report);
    }
    dut.free(from);
    dut.free(to);
    ok!((t.cuModuleUnload)(module));
    assert!(report.is_empty(), "{report}");
}

/// Adds a form's first differences to `report`.
fn compare(form: &Form, operands: &[Operands], bytes: &[u8], report: &mut String) {
    let word = |at: usize| u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
    let nan = |bits: u64| form.any_nan.is_some_and(|format| format.is_nan(bits));
    let mut differences = 0;
    for (n, operands) in operands.iter().enumerate() {
        let (got, wanted) = ([word(2 * n), word(2 * n + 1)], (form.oracle)(*operands));
        let right = match &form.near {
            Some(near) => near(*operands, got[0]),
            None => got[0] == wanted[0] || nan(got[0]) && nan(wanted[0]),
        };
        if right && got[1] == wanted[1] {
            continue;
        }
        differences += 1;
        if differences <= 3 {
            let [a, b, c] = operands;
            let _ = writeln!(
                report,
                "{}\n  of {a:#x} {b:#x} {c:#x}: {:#x} {:#x}, the oracle says {:#x} {:#x}",
                form.body, got[0], got[1], wanted[0], wanted[1]
            );
        }
    }
    if differences > 3 {
        let _ = writeln!(report, "  {differences} differences of {}", operands.len());
    }
}
