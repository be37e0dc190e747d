//! A CUDA device in software.

pub mod code;
