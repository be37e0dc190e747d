//! The macro that declares a structure of the ABI, and the layout that it exports.

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
                <Self as $crate::abi::layout::DeviceStruct>::zeroed()
            }
        }

        // SAFETY: repr(C), integers only (nested structures are of the same kind), padding excluded above.
        unsafe impl $crate::abi::layout::DeviceStruct for $name {
            const LAYOUT: $crate::abi::layout::StructLayout = $crate::abi::layout::StructLayout {
                name: stringify!($name),
                prefix: $prefix,
                doc: &[$($doc),*],
                size: size_of::<$name>(),
                fields: &[$(
                    $crate::abi::layout::Field {
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
