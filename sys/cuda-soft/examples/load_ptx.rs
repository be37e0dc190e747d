//! Loads PTX files on the software device, and says which ones it refuses and why.
//!
//! `cargo run -p aqueduct-cuda-soft --release --example load_ptx -- FILE...`
//!
//! `AQUEDUCT_SOFT_CC` selects the compute capability. The last line has the totals; the exit status is 0 even if files are
//! refused. `ci/samples.sh` runs this program over the PTX of a folder of CUDA C++.

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::{CString, c_void};

use cuda_driver_sys::{CUjit_option as Opt, CUresult, DriverTable};

const LOG: usize = 16 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let table = cuda_soft::driver_table();
    let mut context = std::ptr::null_mut();
    // SAFETY: the pointers are to locals.
    let ready = unsafe {
        [
            (table.cuInit)(0),
            (table.cuDevicePrimaryCtxRetain)(&raw mut context, 0),
            (table.cuCtxSetCurrent)(context),
        ]
    };
    if let Some(code) = ready.into_iter().find(|code| *code != CUresult::CUDA_SUCCESS) {
        return Err(format!("the software device does not start: {code:?}").into());
    }
    let (mut loaded, mut refused) = (0, 0);
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for file in std::env::args().skip(1) {
        match load(&table, &file)? {
            None => {
                loaded += 1;
                println!("loaded   {file}");
            }
            Some(log) => {
                refused += 1;
                println!("refused  {file}");
                for line in log.lines() {
                    println!("           {line}");
                }
                *reasons.entry(reason(&log)).or_default() += 1;
            }
        }
    }
    let mut reasons: Vec<(String, usize)> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (reason, count) in reasons {
        println!("{count:5} refused: {reason}");
    }
    println!("{loaded} loaded, {refused} refused");
    Ok(())
}

/// The message of the first error, without its place.
fn reason(log: &str) -> String {
    let first = log.lines().next().unwrap_or_default();
    first.split_once("error   : ").map_or(first, |(_, message)| message).to_owned()
}

/// Loads and unloads a file. Returns the log of the compiler if it is refused.
fn load(table: &DriverTable, file: &str) -> Result<Option<String>, Box<dyn Error>> {
    let text = CString::new(std::fs::read(file)?)?;
    let mut log = vec![0u8; LOG];
    let mut options = [Opt::CU_JIT_ERROR_LOG_BUFFER, Opt::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let size = std::ptr::without_provenance_mut::<c_void>(LOG);
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), size];
    let mut module = std::ptr::null_mut();
    // SAFETY: the text ends with NUL, the arrays have two elements, and the buffer has the size given with it.
    let code = unsafe {
        (table.cuModuleLoadDataEx)(
            &raw mut module,
            text.as_ptr().cast(),
            2,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    if code == CUresult::CUDA_SUCCESS {
        // SAFETY: loaded just now.
        unsafe { (table.cuModuleUnload)(module) };
        return Ok(None);
    }
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[..end]).into_owned();
    Ok(Some(if text.is_empty() { format!("{code:?}") } else { text }))
}
