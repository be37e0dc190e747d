//! [`VerbsTable`]: one field per row of `functions.txt`.

use crate::bindings::*;
use crate::table::for_each_verbs_fn;

/// The type of a field: a required function is a plain pointer, an optional one an `Option`.
macro_rules! field_type {
    (required ($($arg:ident : $ty:ty),*) -> $ret:ty) => { unsafe extern "C" fn($($ty),*) -> $ret };
    (optional ($($arg:ident : $ty:ty),*) -> $ret:ty) => { Option<unsafe extern "C" fn($($ty),*) -> $ret> };
}

/// The value of a field for a function that fails with `EOPNOTSUPP`.
macro_rules! unsupported {
    (required ($($arg:ident : $ty:ty),*) -> $ret:ty) => {{
        unsafe extern "C" fn entry($(_: $ty),*) -> $ret {
            <$ret as Unsupported>::unsupported()
        }
        entry
    }};
    (optional ($($arg:ident : $ty:ty),*) -> $ret:ty) => { None };
}

macro_rules! define_table {
    ($({ $need:ident $symbol:ident $version:literal ($($arg:ident : $ty:ty),*) -> $ret:ty })*) => {
        /// The functions of libibverbs: function pointers under the names of the C API.
        ///
        /// A required function can always be called. An optional one is `None` if the library does not have it; only
        /// features that need it are then unavailable. [`load`](crate::load) or the linker (feature `linked`) fills
        /// the table; tests fill it by hand.
        ///
        /// A function that returns `int` returns 0, an `errno` value, or -1 with `errno` set. Which of these it uses
        /// differs between functions and between providers, so callers must accept all three.
        #[derive(Clone, Copy)]
        #[expect(missing_docs, reason = "the manual pages of libibverbs document each function under this name")]
        pub struct VerbsTable {
            $(pub $symbol: field_type!($need ($($arg: $ty),*) -> $ret),)*
        }

        impl VerbsTable {
            /// A table in which required functions fail with `EOPNOTSUPP` and optional ones are missing. Other
            /// providers start from it with struct update syntax.
            pub const fn not_supported() -> Self {
                Self { $($symbol: unsupported!($need ($($arg: $ty),*) -> $ret),)* }
            }

            /// The optional functions that this table does not have.
            pub fn missing(&self) -> Vec<&'static str> {
                [$((stringify!($symbol), missing!($need self.$symbol))),*]
                    .into_iter()
                    .filter_map(|(name, missing)| missing.then_some(name))
                    .collect()
            }
        }

        impl std::fmt::Debug for VerbsTable {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct("VerbsTable").field("missing", &self.missing()).finish_non_exhaustive()
            }
        }

        /// Every function of the table: symbol, symbol version and whether it is required.
        pub const FUNCTIONS: &[Function] = &[
            $(Function { symbol: stringify!($symbol), version: $version, required: required!($need) },)*
        ];
    };
}

macro_rules! missing {
    (required $field:expr) => {
        false
    };
    (optional $field:expr) => {
        $field.is_none()
    };
}

macro_rules! required {
    (required) => {
        true
    };
    (optional) => {
        false
    };
}

/// One row of `functions.txt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// The name in libibverbs.
    pub symbol: &'static str,
    /// The symbol version whose ABI is called, e.g. `IBVERBS_1.1`.
    pub version: &'static str,
    /// Whether [`load`](crate::load) refuses a library without it.
    pub required: bool,
}

for_each_verbs_fn!(define_table);

/// The result of an unsupported function, by return type.
trait Unsupported {
    fn unsupported() -> Self;
}

impl Unsupported for core::ffi::c_int {
    fn unsupported() -> Self {
        libc::EOPNOTSUPP
    }
}

impl Unsupported for () {
    fn unsupported() -> Self {}
}

/// A GUID of zero means that there is none.
impl Unsupported for __be64 {
    fn unsupported() -> Self {
        0
    }
}

impl<T> Unsupported for *mut T {
    fn unsupported() -> Self {
        // SAFETY: the location of this thread's errno is always valid.
        unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
        std::ptr::null_mut()
    }
}

impl Unsupported for *const core::ffi::c_char {
    fn unsupported() -> Self {
        c"not supported".as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_entries_fail_with_eopnotsupp() {
        let table = VerbsTable::not_supported();
        // SAFETY: the entries ignore their arguments.
        unsafe {
            assert_eq!((table.ibv_fork_init)(), libc::EOPNOTSUPP);
            assert!((table.ibv_alloc_pd)(std::ptr::null_mut()).is_null());
        }
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
        assert!(table.ibv_reg_dmabuf_mr.is_none());
        assert!(format!("{table:?}").contains("ibv_reg_dmabuf_mr"));
    }

    #[test]
    fn every_row_is_unique_and_has_a_version() {
        for (i, f) in FUNCTIONS.iter().enumerate() {
            assert!(f.symbol.trim_start_matches('_').starts_with("ibv_"), "{f:?}");
            assert!(FUNCTIONS[i + 1..].iter().all(|g| g.symbol != f.symbol), "{f:?}");
            assert!(f.version.starts_with("IBVERBS_1."), "{f:?}");
        }
    }
}
