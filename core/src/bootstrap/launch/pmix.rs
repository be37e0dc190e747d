//! A client of a PMIx server, through its library, which is opened when it is needed.
//!
//! Only seven functions and three structs of the standard (PMIx 4.1, chapters 3, 5 and 6; unchanged since 2.0) are
//! used. Rank 0 puts its text, all pass a fence that collects it, and get it. The library's calls wait without a
//! limit, so they run on a thread of their own, which is left behind if they do not return.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::mpsc;

use libloading::Library;

use super::launcher::OP;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::net::SecretText;

const LIBRARIES: [&str; 2] = ["libpmix.so.2", "libpmix.so"];
const ID: &CStr = c"aqueduct.id";
const JOB_SIZE: &CStr = c"pmix.job.size";
const COLLECT_DATA: &CStr = c"pmix.collect";

const SUCCESS: c_int = 0;
const BOOL: u16 = 1;
const STRING: u16 = 3;
const UINT32: u16 = 14;
const SCOPE_GLOBAL: u8 = 3;
const RANK_WILDCARD: u32 = u32::MAX - 1;

/// `pmix_proc_t`: a process of a namespace.
#[repr(C)]
#[derive(Clone, Copy)]
struct Proc {
    namespace: [c_char; 256],
    rank: u32,
}

/// `pmix_value_t`: a type and a union, of which only words are used here.
#[repr(C)]
#[derive(Clone, Copy)]
struct Value {
    kind: u16,
    data: Data,
}

#[repr(C)]
#[derive(Clone, Copy)]
union Data {
    flag: bool,
    string: *mut c_char,
    uint32: u32,
    /// The largest member, `pmix_envar_t`: two pointers and a character.
    words: [u64; 3],
}

/// `pmix_info_t`: an attribute of a call.
#[repr(C)]
struct Info {
    key: [c_char; 512],
    flags: u32,
    value: Value,
}

type Init = unsafe extern "C" fn(*mut Proc, *mut Info, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Proc, usize, *const Info, usize) -> c_int;
type Get = unsafe extern "C" fn(*const Proc, *const c_char, *const Info, usize, *mut *mut Value) -> c_int;
type Finalize = unsafe extern "C" fn(*const Info, usize) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// PMIx's library.
pub(super) struct Pmix {
    init: Init,
    put: Put,
    commit: Commit,
    fence: Fence,
    get: Get,
    finalize: Finalize,
    error_string: ErrorString,
}

impl Pmix {
    /// Opens the library; `None` if this host has none that the loader finds.
    pub(super) fn open() -> Option<Self> {
        let library = LIBRARIES.iter().find_map(|name| {
            // SAFETY: PMIx's initialisers only prepare the library's own data.
            unsafe { Library::new(name) }.ok()
        })?;
        // It may leave threads behind that run its code: never unloaded.
        let library = Box::leak(Box::new(library));
        // SAFETY: the types are those of pmix.h; the library is never unloaded.
        unsafe {
            Some(Self {
                init: *library.get(b"PMIx_Init\0").ok()?,
                put: *library.get(b"PMIx_Put\0").ok()?,
                commit: *library.get(b"PMIx_Commit\0").ok()?,
                fence: *library.get(b"PMIx_Fence\0").ok()?,
                get: *library.get(b"PMIx_Get\0").ok()?,
                finalize: *library.get(b"PMIx_Finalize\0").ok()?,
                error_string: *library.get(b"PMIx_Error_string\0").ok()?,
            })
        }
    }

    /// Gives rank 0's text to all ranks, and says how many there are: `mine` makes the text on rank 0 and is `None`
    /// on the others. Collective.
    pub(super) fn share(self, mine: Option<SecretText>, deadline: Deadline) -> Result<(SecretText, u32)> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let work = move || {
            // The receiver is gone if the deadline has passed.
            let _ = sender.send(self.converse(mine));
        };
        std::thread::Builder::new()
            .name("aq-pmix".to_owned())
            .spawn(work)
            .map_err(|error| Error::system(OP, "cannot start a thread", error))?;
        receiver.recv_timeout(deadline.remaining()).unwrap_or_else(|_| {
            let text =
                "the PMIx server did not bring the ranks together in time; every rank it started must join";
            Err(Error::timeout(OP, text))
        })
    }

    fn converse(&self, mine: Option<SecretText>) -> Result<(SecretText, u32)> {
        let mut me = Proc { namespace: [0; 256], rank: 0 };
        // SAFETY: `me` is written during the call; no attributes are passed.
        self.check("PMIx_Init", unsafe { (self.init)(&mut me, ptr::null_mut(), 0) })?;
        let outcome = self.exchange(&me, mine);
        // SAFETY: no attributes; nothing of the library is used after it.
        let ended = self.check("PMIx_Finalize", unsafe { (self.finalize)(ptr::null(), 0) });
        let outcome = outcome?;
        ended.map(|()| outcome)
    }

    fn exchange(&self, me: &Proc, mine: Option<SecretText>) -> Result<(SecretText, u32)> {
        let size = self.get(Proc { rank: RANK_WILDCARD, ..*me }, JOB_SIZE, UINT32, |value| {
            // SAFETY: `get` has checked that the value is a number.
            Some(unsafe { value.data.uint32 })
        })?;
        if let Some(text) = mine {
            let text = CString::new(text.expose())
                .map_err(|_| Error::new(ErrorKind::Internal, OP, "an id with a zero byte"))?;
            let mut value = Value { kind: STRING, data: Data { words: [0; 3] } };
            value.data.string = text.as_ptr().cast_mut();
            // SAFETY: key and text are terminated and outlive the call, which copies them.
            let put = unsafe { (self.put)(SCOPE_GLOBAL, ID.as_ptr(), &mut value) };
            self.check("PMIx_Put", put)?;
        }
        // SAFETY: no arguments, after PMIx_Init.
        self.check("PMIx_Commit", unsafe { (self.commit)() })?;
        let collect = Info::flag(COLLECT_DATA);
        // SAFETY: no processes means all of the namespace; `collect` is one attribute and outlives the call.
        self.check("PMIx_Fence", unsafe { (self.fence)(ptr::null(), 0, &collect, 1) })?;
        let text = self.get(Proc { rank: 0, ..*me }, ID, STRING, |value| {
            // SAFETY: `get` has checked that the value is a text; it is freed once, here, after it was copied.
            unsafe {
                let text = value.data.string;
                if text.is_null() {
                    return None;
                }
                let copy = CStr::from_ptr(text).to_str().ok().map(SecretText::new);
                libc::free(text.cast::<c_void>());
                copy
            }
        })?;
        Ok((text, size))
    }

    /// The value of `key` at `whose`, which must be of type `kind`; `take` takes what the value owns.
    fn get<T>(
        &self,
        whose: Proc,
        key: &CStr,
        kind: u16,
        take: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T> {
        let mut value: *mut Value = ptr::null_mut();
        // SAFETY: `whose` and the terminated `key` outlive the call; `value` is written during it.
        let got = unsafe { (self.get)(&whose, key.as_ptr(), ptr::null(), 0, &mut value) };
        self.check("PMIx_Get", got)?;
        // SAFETY: on success `value` is null or points to a value that malloc made and the caller owns.
        let taken = unsafe { value.as_ref() }.filter(|value| value.kind == kind).and_then(take);
        // SAFETY: ours, see above; what it owned was taken, or leaks if it is of an unexpected type.
        unsafe { libc::free(value.cast::<c_void>()) };
        taken.ok_or_else(|| {
            let text = format!("the PMIx server's value of {} is of another type", key.to_string_lossy());
            Error::new(ErrorKind::System, OP, text)
        })
    }

    fn check(&self, call: &str, status: c_int) -> Result<()> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: takes any number; returns a text that is never freed, or null.
        let text = unsafe {
            let text = (self.error_string)(status);
            if text.is_null() { "unknown".into() } else { CStr::from_ptr(text).to_string_lossy() }
        };
        let text =
            format!("{call} failed: {text} ({status}); set AQUEDUCT_RENDEZVOUS_FILE to do without PMIx");
        Err(Error::new(ErrorKind::System, OP, text).with_code(status))
    }
}

impl Info {
    fn flag(key: &CStr) -> Self {
        let mut info =
            Self { key: [0; 512], flags: 0, value: Value { kind: BOOL, data: Data { words: [0; 3] } } };
        for (to, from) in info.key.iter_mut().zip(key.to_bytes_with_nul()) {
            *to = *from as c_char;
        }
        info.value.data.flag = true;
        info
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::mem::{offset_of, size_of};

    use super::*;

    /// A C program that compiles only if `pmix.h` agrees with the numbers of this file.
    fn assertions() -> String {
        let mut text = "#include <stddef.h>\n#include <string.h>\n#include <pmix.h>\n".to_owned();
        let numbers = [
            ("sizeof(pmix_proc_t)", size_of::<Proc>()),
            ("offsetof(pmix_proc_t, rank)", offset_of!(Proc, rank)),
            ("sizeof(pmix_value_t)", size_of::<Value>()),
            ("offsetof(pmix_value_t, data)", offset_of!(Value, data)),
            ("sizeof(((pmix_value_t *)0)->type)", size_of::<u16>()),
            ("sizeof(pmix_info_t)", size_of::<Info>()),
            ("offsetof(pmix_info_t, flags)", offset_of!(Info, flags)),
            ("offsetof(pmix_info_t, value)", offset_of!(Info, value)),
            ("sizeof(pmix_status_t)", size_of::<c_int>()),
            ("sizeof(pmix_scope_t)", size_of::<u8>()),
            ("PMIX_SUCCESS", SUCCESS as usize),
            ("PMIX_BOOL", BOOL.into()),
            ("PMIX_STRING", STRING.into()),
            ("PMIX_UINT32", UINT32.into()),
            ("PMIX_GLOBAL", SCOPE_GLOBAL.into()),
            ("(PMIX_RANK_WILDCARD)", RANK_WILDCARD as usize),
        ];
        for (expression, value) in numbers {
            writeln!(text, "_Static_assert({expression} == {value}u, \"{expression}\");").unwrap();
        }
        for (name, key) in [("PMIX_JOB_SIZE", JOB_SIZE), ("PMIX_COLLECT_DATA", COLLECT_DATA)] {
            let key = key.to_str().unwrap();
            writeln!(text, "_Static_assert(__builtin_strcmp({name}, \"{key}\") == 0, \"{name}\");").unwrap();
        }
        for (name, ty) in [
            ("Init", "pmix_status_t (*{})(pmix_proc_t *, pmix_info_t *, size_t)"),
            ("Put", "pmix_status_t (*{})(pmix_scope_t, const char *, pmix_value_t *)"),
            ("Commit", "pmix_status_t (*{})(void)"),
            ("Fence", "pmix_status_t (*{})(const pmix_proc_t *, size_t, const pmix_info_t *, size_t)"),
            (
                "Get",
                "pmix_status_t (*{})(const pmix_proc_t *, const char *, const pmix_info_t *, size_t, pmix_value_t **)",
            ),
            ("Finalize", "pmix_status_t (*{})(const pmix_info_t *, size_t)"),
            ("Error_string", "const char *(*{})(pmix_status_t)"),
        ] {
            writeln!(text, "{} = PMIx_{name};", ty.replace("{}", &format!("p_{name}"))).unwrap();
        }
        text
    }

    #[test]
    #[ignore = "needs cc and pmix.h"]
    fn the_header_agrees() {
        let base = std::env::temp_dir().join(format!("aqueduct-pmix-{}", std::process::id()));
        let source = base.with_extension("c");
        std::fs::write(&source, assertions()).unwrap();
        let includes =
            ["/usr/lib/x86_64-linux-gnu/pmix2/include", "/usr/lib/aarch64-linux-gnu/pmix2/include"];
        let compiled = std::process::Command::new("cc")
            .args(["-Werror", "-fsyntax-only"])
            .args(includes.map(|path| format!("-I{path}")))
            .arg(&source)
            .output()
            .unwrap();
        std::fs::remove_file(&source).unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    }
}
