//! From syntax trees to [`code::Module`](crate::code::Module).
