//! The list of targets, and what is asserted of all of them.

use aqueduct::fuzzing as core;

use crate::{memory, software};

/// What a decoder's answer is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// What is accepted is exactly what the encoder writes.
    Exact,
    /// What is accepted and encoded again is accepted again and means the same.
    Stable,
    /// There is no encoder.
    OneWay,
}

/// A decoder under test.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of its corpus.
    pub name: &'static str,
    /// Decodes and encodes again; `None` if the input was refused.
    pub decode: fn(&[u8]) -> Option<Vec<u8>>,
    /// How the two relate.
    pub form: Form,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "peer-info", decode: core::peer_info, form: Form::Exact },
    Target { name: "setup", decode: core::setup, form: Form::Exact },
    Target { name: "release", decode: core::release, form: Form::Exact },
    Target { name: "failure", decode: core::failure, form: Form::Stable },
    Target { name: "endpoint", decode: core::endpoint, form: Form::Exact },
    Target { name: "memory", decode: core::memory, form: Form::Stable },
    Target { name: "qp-address", decode: core::qp_address, form: Form::Stable },
    Target { name: "remote-region", decode: core::remote_region, form: Form::Exact },
    Target { name: "frames", decode: core::frames, form: Form::Exact },
    Target { name: "unique-id", decode: core::unique_id, form: Form::Stable },
    Target { name: "node-list", decode: core::node_list, form: Form::OneWay },
    Target { name: "task-counts", decode: core::task_counts, form: Form::OneWay },
    Target { name: "launch", decode: core::launch, form: Form::OneWay },
    Target { name: "pmi", decode: core::pmi, form: Form::OneWay },
    Target { name: "store", decode: core::store, form: Form::OneWay },
    Target { name: "environment", decode: core::environment, form: Form::OneWay },
    Target { name: "faults", decode: core::faults, form: Form::OneWay },
    Target { name: "ptx", decode: software::ptx, form: Form::OneWay },
];

/// The target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

impl Target {
    /// Runs the decoder and asserts what holds of all of them; whether it accepted the input.
    ///
    /// # Panics
    /// If the decoder has a defect. Memory is only watched where [`memory::Counting`] is the allocator.
    pub fn check(&self, bytes: &[u8]) -> bool {
        let (again, peak) = memory::peak(|| (self.decode)(bytes));
        let limit = memory::limit(bytes.len());
        assert!(
            peak <= limit,
            "{}: {peak} bytes taken for an input of {}, limit {limit}",
            self.name,
            bytes.len()
        );
        let Some(again) = again else { return false };
        match self.form {
            Form::Exact => assert_eq!(again, bytes, "{}: not what the encoder writes", self.name),
            Form::Stable => {
                assert_eq!(
                    (self.decode)(&again),
                    Some(again),
                    "{}: encoded again it is not the same",
                    self.name
                );
            }
            Form::OneWay => {}
        }
        true
    }
}
