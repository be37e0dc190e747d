//! Finds libibverbs at run time and fills a [`VerbsTable`] from it.
//!
//! The loader opens the path that the caller gives, or else `libibverbs.so.1`, then `libibverbs.so`, as dlopen(3) finds
//! them. It resolves each function with dlvsym(3) and the symbol version of its row, or else, for libraries without
//! versions, with dlsym(3). An error names everything that was tried.

use std::ffi::{CString, c_void};
use std::fmt;

use libloading::Library;

use crate::api::VerbsTable;
use crate::table::for_each_verbs_fn;

/// The library names to try if the caller gives no path.
pub const LIBRARY_NAMES: &[&str] = &["libibverbs.so.1", "libibverbs.so"];

/// A loaded libibverbs.
#[derive(Debug)]
pub struct Loaded {
    /// The functions, valid until the process ends: the library is never unloaded, because the providers that it loads
    /// cannot unregister.
    pub table: VerbsTable,
    /// The name or path that dlopen(3) accepted.
    pub library: String,
    /// The optional functions that this library does not have.
    pub missing: Vec<&'static str>,
}

/// The reason why libibverbs could not be loaded.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// No library could be opened.
    LibraryNotFound {
        /// Each path or name tried, with the message of the dynamic loader.
        tried: Vec<(String, String)>,
    },
    /// The library does not have all required functions: it is too old, or it is not libibverbs.
    SymbolsNotFound {
        /// The library that was opened.
        library: String,
        /// The missing functions with their symbol versions.
        symbols: Vec<(&'static str, &'static str)>,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LibraryNotFound { tried } => {
                write!(f, "libibverbs could not be opened; tried")?;
                for (i, (path, why)) in tried.iter().enumerate() {
                    write!(f, "{} {path} ({why})", if i == 0 { "" } else { "," })?;
                }
                write!(f, "; install rdma-core (Debian: libibverbs1 and ibverbs-providers)")
            }
            Self::SymbolsNotFound { library, symbols } => {
                write!(f, "{library} lacks required functions:")?;
                for (i, (symbol, version)) in symbols.iter().enumerate() {
                    write!(f, "{} {symbol} ({version})", if i == 0 { "" } else { "," })?;
                }
                write!(f, "; update rdma-core")
            }
        }
    }
}

impl std::error::Error for LoadError {}

/// Opens the library at `path`, or the first of [`LIBRARY_NAMES`], and fills a table from it.
///
/// Opening a library runs its initialisers, so the caller must trust the path.
pub fn load(path: Option<&str>) -> Result<Loaded, LoadError> {
    let names: Vec<&str> = path.map_or_else(|| LIBRARY_NAMES.to_vec(), |p| vec![p]);
    let mut tried = Vec::new();
    for name in names {
        // SAFETY: the initialisers of libibverbs have no preconditions; the caller vouches for any other path.
        match unsafe { Library::new(name) } {
            Ok(library) => return fill(library, name),
            Err(error) => tried.push((name.to_owned(), explain(&error))),
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
    // `into_raw` keeps the library loaded for ever: see `Loaded::table`.
    let handle = libloading::os::unix::Library::from(library).into_raw();
    let mut missing = Vec::new();
    let mut symbols = Vec::new();

    macro_rules! resolve {
        (required $symbol:ident $version:literal) => {
            match find(handle, stringify!($symbol), $version) {
                // SAFETY: the library exports this symbol with the signature in the header, and the field's type is
                // generated from the header. A function pointer and `*mut c_void` have the same size.
                Some(pointer) => unsafe { std::mem::transmute::<*mut c_void, _>(pointer) },
                None => {
                    symbols.push((stringify!($symbol), $version));
                    VerbsTable::not_supported().$symbol
                }
            }
        };
        (optional $symbol:ident $version:literal) => {
            match find(handle, stringify!($symbol), $version) {
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
        ($({ $need:ident $symbol:ident $version:literal $args:tt -> $ret:ty })*) => {
            VerbsTable { $($symbol: resolve!($need $symbol $version),)* }
        };
    }
    let table = for_each_verbs_fn!(build);

    if symbols.is_empty() {
        Ok(Loaded { table, library: name.to_owned(), missing })
    } else {
        Err(LoadError::SymbolsNotFound { library: name.to_owned(), symbols })
    }
}

/// Returns the address of `symbol` with ABI `version`, or by name alone if the library has no symbol versions.
fn find(library: *mut c_void, symbol: &str, version: &str) -> Option<*mut c_void> {
    let name = CString::new(symbol).ok()?;
    #[cfg(target_env = "gnu")]
    {
        let version = CString::new(version).ok()?;
        // SAFETY: `library` is a handle from dlopen that is never closed, and both names are C strings.
        let found = unsafe { libc::dlvsym(library, name.as_ptr(), version.as_ptr()) };
        if !found.is_null() {
            return Some(found);
        }
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = version;
    // SAFETY: as above.
    Some(unsafe { libc::dlsym(library, name.as_ptr()) }).filter(|found| !found.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_names_what_was_tried() {
        let text = load(Some("/nonexistent/libibverbs.so.1")).unwrap_err().to_string();
        assert!(text.contains("/nonexistent/libibverbs.so.1"), "{text}");
        assert!(text.contains("install rdma-core"), "{text}");
    }

    #[test]
    fn a_library_that_is_not_libibverbs_names_the_missing_functions() {
        let text = load(Some("libc.so.6")).unwrap_err().to_string();
        let head = "libc.so.6 lacks required functions: ibv_get_device_list (IBVERBS_1.1)";
        assert!(text.contains(head), "{text}");
        assert!(!text.contains("ibv_reg_dmabuf_mr"), "optional functions are not required: {text}");
    }
}
