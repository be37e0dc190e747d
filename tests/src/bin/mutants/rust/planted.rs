//! Chooses one planted mutant by the variable `PLANTED_MUTANT`, and notes the reached ones in a file of the folder
//! `PLANTED_REACHED`: one byte for each number. The tool adds this module to a copy of the library; it is in no other build.

use std::ffi::{CStr, c_char, c_int};

/// The chosen number; 0 is none.
static mut CHOSEN: u32 = 0;
/// Where reached mutants are noted, shared by all processes of a test; null if nobody asks.
static mut REACHED: *mut u8 = std::ptr::null_mut();
/// One more than the largest number.
const NUMBERS: usize = 1 << 16;

/// Whether mutant `number` is chosen. Constant functions call it as well, so it uses neither atomics nor the environment.
pub(crate) const fn is(number: u32) -> bool {
    // SAFETY: `CHOSEN` and `REACHED` are written only by `choose`, before `main`. The mapping has `NUMBERS` bytes, and the
    // tool gives out smaller numbers. Concurrent writers of a byte all write 1.
    unsafe {
        if !REACHED.is_null() {
            *REACHED.add(number as usize) = 1;
        }
        CHOSEN == number
    }
}

/// The place of the chosen mutant in `numbers`, from 1; 0 is the program as it was.
pub(crate) const fn which(numbers: &[u32]) -> usize {
    let (mut at, mut found) = (0, 0);
    while at < numbers.len() {
        if is(numbers[at]) {
            found = at + 1;
        }
        at += 1;
    }
    found
}

extern "C" fn choose(_: c_int, _: *const *const c_char, _: *const *const c_char) {
    // SAFETY: the loader calls this once, before `main` and any other thread. `getenv` returns null or a string that nobody
    // changes meanwhile. The mapping is never removed.
    unsafe {
        let value = |name: &CStr| {
            let value = libc::getenv(name.as_ptr());
            (!value.is_null()).then(|| CStr::from_ptr(value).to_str().expect("the tool writes UTF-8"))
        };
        if let Some(number) = value(c"PLANTED_MUTANT") {
            CHOSEN = number.parse().expect("the tool writes a number");
        }
        if let Some(folder) = value(c"PLANTED_REACHED") {
            let path = std::ffi::CString::new(format!("{folder}/reached")).expect("a path has no zero");
            let fd = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC, 0o666);
            assert!(fd >= 0 && libc::ftruncate(fd, NUMBERS as libc::off_t) == 0, "{folder} cannot be written");
            let both = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(std::ptr::null_mut(), NUMBERS, both, libc::MAP_SHARED, fd, 0);
            assert!(at != libc::MAP_FAILED, "{folder}/reached cannot be mapped");
            libc::close(fd);
            REACHED = at.cast();
        }
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static CHOOSE: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = choose;
