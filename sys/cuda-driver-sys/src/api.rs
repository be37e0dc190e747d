//! [`DriverTable`]: one field per row of `functions.txt`.

use crate::bindings::*;
use crate::table::for_each_driver_fn;

/// The type of a field: a required function is a plain pointer, an optional one an `Option`.
macro_rules! field_type {
    (required ($($arg:ident : $ty:ty),*)) => { unsafe extern "C" fn($($ty),*) -> CUresult };
    (optional ($($arg:ident : $ty:ty),*)) => { Option<unsafe extern "C" fn($($ty),*) -> CUresult> };
}

/// The value of a field for a function that returns `CUDA_ERROR_NOT_SUPPORTED`.
macro_rules! unsupported {
    (required ($($arg:ident : $ty:ty),*)) => {{
        unsafe extern "C" fn entry($(_: $ty),*) -> CUresult {
            CUresult::CUDA_ERROR_NOT_SUPPORTED
        }
        entry
    }};
    (optional ($($arg:ident : $ty:ty),*)) => { None };
}

macro_rules! define_table {
    ($({ $need:ident $symbol:ident $stem:literal $version:literal ($($arg:ident : $ty:ty),*) })*) => {
        /// The functions of the driver API: function pointers with the ABI names of libcuda.
        ///
        /// A required function can always be called. An optional one is `None` if the driver does not have it; only
        /// features that need it are then unavailable. [`load`](crate::load) fills the table; a software device or a
        /// static build fills it by hand.
        #[derive(Clone, Copy)]
        #[expect(non_snake_case, reason = "the names of the C API")]
        #[expect(missing_docs, reason = "the CUDA driver API reference documents each function under this name")]
        pub struct DriverTable {
            $(pub $symbol: field_type!($need ($($arg: $ty),*)),)*
        }

        impl DriverTable {
            /// A table in which required functions return `CUDA_ERROR_NOT_SUPPORTED` and optional ones are missing.
            /// Other drivers start from it with struct update syntax.
            pub const fn not_supported() -> Self {
                Self { $($symbol: unsupported!($need ($($arg: $ty),*)),)* }
            }

            /// The ABI names of the optional functions that this table does not have.
            pub fn missing(&self) -> Vec<&'static str> {
                [$((stringify!($symbol), missing!($need self.$symbol))),*]
                    .into_iter()
                    .filter_map(|(name, missing)| missing.then_some(name))
                    .collect()
            }
        }

        impl std::fmt::Debug for DriverTable {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct("DriverTable").field("missing", &self.missing()).finish_non_exhaustive()
            }
        }

        /// Every function of the table: ABI symbol, API version and whether it is required.
        pub const FUNCTIONS: &[Function] = &[
            $(Function { symbol: stringify!($symbol), stem: $stem, version: $version, required: required!($need) },)*
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
    /// The ABI name in libcuda, e.g. `cuMemAlloc_v2`.
    pub symbol: &'static str,
    /// Its name for `cuGetProcAddress`, e.g. `cuMemAlloc`.
    pub stem: &'static str,
    /// The lowest driver API version with the ABI that is called, e.g. 3020.
    pub version: i32,
    /// Whether [`load`](crate::load) refuses a driver without it.
    pub required: bool,
}

for_each_driver_fn!(define_table);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_entries_answer_not_supported() {
        let table = DriverTable::not_supported();
        // SAFETY: the entry ignores its argument.
        assert_eq!(unsafe { (table.cuInit)(0) }, CUresult::CUDA_ERROR_NOT_SUPPORTED);
        assert!(table.cuMemCreate.is_none());
        assert!(format!("{table:?}").contains("cuMulticastCreate"));
    }

    #[test]
    fn every_row_is_unique_and_its_stem_fits() {
        for (i, f) in FUNCTIONS.iter().enumerate() {
            assert!(f.symbol.starts_with(f.stem), "{f:?}");
            assert!(FUNCTIONS[i + 1..].iter().all(|g| g.symbol != f.symbol), "{f:?}");
            assert!((2000..20000).contains(&f.version), "{f:?}");
        }
    }
}
