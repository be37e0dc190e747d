//! Finds libcuda at run time and fills a [`DriverTable`] from it.
//!
//! The loader opens the path that the caller gives, or else `libcuda.so.1`, then `libcuda.so`, as dlopen(3) finds them.
//! It resolves each function with `cuGetProcAddress_v2`, or the first version of `cuGetProcAddress` on older drivers,
//! at the API version of its row. If that fails, it looks the ABI name up with dlsym(3). An error names everything that
//! was tried.

use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;

use libloading::Library;

use crate::api::DriverTable;
use crate::bindings::{CUdriverProcAddressQueryResult, CUresult};
use crate::table::for_each_driver_fn;

/// The library names to try if the caller gives no path.
pub const LIBRARY_NAMES: &[&str] = &["libcuda.so.1", "libcuda.so"];

/// A loaded driver library.
#[derive(Debug)]
pub struct Loaded {
    /// The functions, valid until the process ends: the library is never unloaded, because the driver has threads and
    /// exit handlers.
    pub table: DriverTable,
    /// The name or path that dlopen(3) accepted.
    pub library: String,
    /// The optional functions that this driver does not have.
    pub missing: Vec<&'static str>,
}

/// The reason why no driver could be loaded.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// No library could be opened.
    LibraryNotFound {
        /// Each path or name tried, with the message of the dynamic loader.
        tried: Vec<(String, String)>,
    },
    /// The library does not have all required functions: it is too old, or it is not libcuda.
    SymbolsNotFound {
        /// The library that was opened.
        library: String,
        /// The missing functions, each with the API version that introduced its ABI.
        symbols: Vec<(&'static str, i32)>,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LibraryNotFound { tried } => {
                write!(f, "no CUDA driver library could be opened; tried")?;
                for (i, (path, why)) in tried.iter().enumerate() {
                    write!(f, "{} {path} ({why})", if i == 0 { "" } else { "," })?;
                }
                write!(f, "; install the NVIDIA driver or give the path of libcuda.so.1")
            }
            Self::SymbolsNotFound { library, symbols } => {
                write!(f, "{library} lacks required functions:")?;
                for (i, (symbol, version)) in symbols.iter().enumerate() {
                    let (major, minor) = (version / 1000, version % 1000 / 10);
                    write!(f, "{} {symbol} (CUDA {major}.{minor})", if i == 0 { "" } else { "," })?;
                }
                write!(f, "; update the NVIDIA driver")
            }
        }
    }
}

impl std::error::Error for LoadError {}

/// Opens the driver library at `path`, or the first of [`LIBRARY_NAMES`], and fills a table from it.
///
/// Opening a library runs its initialisers, so the caller must trust the path.
pub fn load(path: Option<&Path>) -> Result<Loaded, LoadError> {
    let names: Vec<&Path> = path.map_or_else(|| LIBRARY_NAMES.iter().map(Path::new).collect(), |p| vec![p]);
    let mut tried = Vec::new();
    for name in names {
        // SAFETY: the initialisers of libcuda have no preconditions; the caller vouches for any other path.
        match unsafe { Library::new(name) } {
            Ok(library) => return fill(library, &name.to_string_lossy()),
            Err(error) => tried.push((name.to_string_lossy().into_owned(), explain(&error))),
        }
    }
    Err(LoadError::LibraryNotFound { tried })
}

fn explain(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

#[expect(
    clippy::missing_transmute_annotations,
    reason = "the target is the field's type, generated from the header"
)]
fn fill(library: Library, name: &str) -> Result<Loaded, LoadError> {
    // `ManuallyDrop` keeps the library loaded for ever (see `Loaded::table`), also after a failure: libcuda does not
    // support unloading.
    let resolver = Resolver::new(std::mem::ManuallyDrop::new(library));
    let mut missing = Vec::new();
    let mut symbols = Vec::new();

    macro_rules! resolve {
        (required $symbol:ident $stem:literal $version:literal) => {
            match resolver.find(stringify!($symbol), $stem, $version) {
                // SAFETY: the library exports this symbol with the signature in the pinned header, and the field's type
                // is generated from that header. A function pointer and `*mut c_void` have the same size.
                Some(pointer) => unsafe { std::mem::transmute::<*mut c_void, _>(pointer) },
                None => {
                    symbols.push((stringify!($symbol), $version));
                    DriverTable::not_supported().$symbol
                }
            }
        };
        (optional $symbol:ident $stem:literal $version:literal) => {
            match resolver.find(stringify!($symbol), $stem, $version) {
                // SAFETY: as for required functions; `pointer` is not null, so the `Option` is `Some`.
                Some(pointer) => unsafe { std::mem::transmute::<*mut c_void, _>(pointer) },
                None => {
                    missing.push(stringify!($symbol));
                    None
                }
            }
        };
    }
    macro_rules! build {
        ($({ $need:ident $symbol:ident $stem:literal $version:literal $args:tt })*) => {
            DriverTable { $($symbol: resolve!($need $symbol $stem $version),)* }
        };
    }
    let table = for_each_driver_fn!(build);

    if symbols.is_empty() {
        Ok(Loaded { table, library: name.to_owned(), missing })
    } else {
        Err(LoadError::SymbolsNotFound { library: name.to_owned(), symbols })
    }
}

type GetProcAddress1 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> CUresult;
type GetProcAddress2 = unsafe extern "C" fn(
    *const c_char,
    *mut *mut c_void,
    c_int,
    u64,
    *mut CUdriverProcAddressQueryResult,
) -> CUresult;

/// Resolves functions with the newest lookup function of the library.
struct Resolver {
    library: std::mem::ManuallyDrop<Library>,
    by_version_2: Option<GetProcAddress2>,
    by_version_1: Option<GetProcAddress1>,
}

impl Resolver {
    fn new(library: std::mem::ManuallyDrop<Library>) -> Self {
        // SAFETY: libcuda exports these symbols with these signatures since CUDA 12.0 and CUDA 11.3.
        let by_version_2 =
            unsafe { library.get::<GetProcAddress2>(b"cuGetProcAddress_v2\0") }.ok().map(|s| *s);
        // SAFETY: as above.
        let by_version_1 = unsafe { library.get::<GetProcAddress1>(b"cuGetProcAddress\0") }.ok().map(|s| *s);
        Self { library, by_version_2, by_version_1 }
    }

    fn find(&self, symbol: &str, stem: &str, version: i32) -> Option<*mut c_void> {
        let stem = CString::new(stem).ok()?;
        let mut pointer = std::ptr::null_mut();
        let mut status = CUdriverProcAddressQueryResult(0);
        let found = if let Some(get) = self.by_version_2 {
            // SAFETY: `stem` is a C string, and `pointer` and `status` are valid for writes.
            unsafe { get(stem.as_ptr(), &raw mut pointer, version, 0, &raw mut status) }
        } else if let Some(get) = self.by_version_1 {
            // SAFETY: as above.
            unsafe { get(stem.as_ptr(), &raw mut pointer, version, 0) }
        } else {
            CUresult::CUDA_ERROR_NOT_FOUND
        };
        if found == CUresult::CUDA_SUCCESS && !pointer.is_null() {
            return Some(pointer);
        }
        let name = CString::new(symbol).ok()?;
        // SAFETY: only the address is read here; `fill` casts it to its type.
        let address = unsafe { self.library.get::<*mut c_void>(name.as_bytes_with_nul()) }.ok()?;
        Some(*address).filter(|p| !p.is_null())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_names_what_was_tried() {
        let error = load(Some(Path::new("/nonexistent/libcuda.so.1"))).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/nonexistent/libcuda.so.1"), "{text}");
        assert!(text.contains("install the NVIDIA driver"), "{text}");
    }

    #[test]
    fn a_library_that_is_not_libcuda_names_the_missing_functions() {
        let error = load(Some(Path::new("libc.so.6"))).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("libc.so.6 lacks required functions: cuInit (CUDA 2.0)"), "{text}");
        assert!(!text.contains("cuMemCreate"), "optional functions are not required: {text}");
    }
}
