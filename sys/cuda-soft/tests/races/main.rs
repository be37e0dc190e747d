//! The race detector: programs that are right, and the same programs with one race planted in each.

#![allow(missing_docs, reason = "a test")]

mod child;
mod device;
mod documented;
mod engines;
mod host_functions;
mod kernels;
mod limits;
mod multicast;
mod patterns;
mod program;
mod streams;
mod values;
