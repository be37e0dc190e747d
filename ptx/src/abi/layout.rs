//! How a structure declares itself to both sides: one macro, one table.

use super::{CONSTANTS, STRUCTS};

/// A structure of the device ABI.
///
/// # Safety
/// The type must be `repr(C)`, without padding, and valid for every bit pattern, zero included.
pub unsafe trait DeviceStruct: Copy + Send + Sync + 'static {
    /// Names and offsets of its fields.
    const LAYOUT: StructLayout;

    /// The structure with every field zero.
    fn zeroed() -> Self {
        // SAFETY: the trait's contract says that all-zero bytes are a valid value.
        unsafe { std::mem::zeroed() }
    }

    /// The bytes a kernel reads.
    fn as_bytes(&self) -> &[u8] {
        let base = std::ptr::from_ref(self).cast::<u8>();
        // SAFETY: the trait's contract excludes padding, so all bytes are initialised; the borrow keeps `self`
        // alive and unchanged.
        unsafe { std::slice::from_raw_parts(base, size_of::<Self>()) }
    }
}

/// Layout of one structure, as exported to templates and to the C header.
#[derive(Clone, Copy, Debug)]
pub struct StructLayout {
    /// Rust name.
    pub name: &'static str,
    /// Prefix of its symbols.
    pub prefix: &'static str,
    /// Documentation, one string per source line.
    pub doc: &'static [&'static str],
    /// Bytes.
    pub size: usize,
    /// Fields in declaration order.
    pub fields: &'static [Field],
}

/// One field of a [`StructLayout`].
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Rust name.
    pub name: &'static str,
    /// Name behind the structure's prefix: the symbol is `PREFIX_SUFFIX`.
    pub suffix: &'static str,
    /// Rust type, as written.
    pub rust_type: &'static str,
    /// Documentation, one string per source line.
    pub doc: &'static [&'static str],
    /// Bytes from the start of the structure.
    pub offset: usize,
}

/// All symbols templates may use without being given them: `PREFIX_SUFFIX` per field (its offset),
/// `PREFIX_SIZE` per structure (its bytes), and the module's constants.
pub fn symbols() -> Vec<(String, u64)> {
    let mut table = Vec::new();
    for layout in STRUCTS {
        table.push((format!("{}_SIZE", layout.prefix), layout.size as u64));
        for field in layout.fields {
            table.push((format!("{}_{}", layout.prefix, field.suffix), field.offset as u64));
        }
    }
    table.extend(CONSTANTS.iter().map(|&(name, value)| (name.to_owned(), value)));
    table
}

/// The value of one symbol.
pub fn symbol(name: &str) -> Option<u64> {
    symbols().into_iter().find(|(known, _)| known == name).map(|(_, value)| value)
}

/// Declares a structure, asserts its frozen offsets and size, and derives its [`StructLayout`].
macro_rules! device_struct {
    (
        $(#[doc = $doc:literal])*
        pub struct $name:ident as $prefix:literal size $size:literal {
            $(
                $(#[doc = $field_doc:literal])*
                pub $field:ident: $type:ty => $suffix:literal at $offset:literal,
            )*
        }
    ) => {
        $(#[doc = $doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $( $(#[doc = $field_doc])* pub $field: $type, )*
        }

        const _: () = {
            assert!(size_of::<$name>() == $size);
            $( assert!(std::mem::offset_of!($name, $field) == $offset); )*
            // No padding: the fields fill the structure.
            assert!(0 $( + size_of::<$type>() )* == $size);
        };

        impl Default for $name {
            fn default() -> Self {
                <Self as $crate::abi::DeviceStruct>::zeroed()
            }
        }

        // SAFETY: repr(C), integers only (nested structures are of the same kind), padding excluded above.
        unsafe impl $crate::abi::DeviceStruct for $name {
            const LAYOUT: $crate::abi::StructLayout = $crate::abi::StructLayout {
                name: stringify!($name),
                prefix: $prefix,
                doc: &[$($doc),*],
                size: size_of::<$name>(),
                fields: &[$(
                    $crate::abi::Field {
                        name: stringify!($field),
                        suffix: $suffix,
                        rust_type: stringify!($type),
                        doc: &[$($field_doc),*],
                        offset: std::mem::offset_of!($name, $field),
                    },
                )*],
            };
        }
    };
}

pub(super) use device_struct;
