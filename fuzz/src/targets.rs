//! The list of targets, and the properties that all of them must have.

use aqueduct::internals::fuzzing as core;

use crate::{memory, software};

/// How a decoder relates to its encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Every accepted input is exactly what the encoder writes.
    Exact,
    /// Every accepted input, encoded again, is accepted and has the same meaning.
    Stable,
    /// There is no encoder.
    OneWay,
}

/// A decoder under test.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target and of its corpus.
    pub name: &'static str,
    /// Decodes the input and encodes the result, or returns `None` if the input was refused.
    pub decode: fn(&[u8]) -> Option<Vec<u8>>,
    /// How decoder and encoder relate.
    pub form: Form,
    /// Bytes that the decoder may hold for any input, however short; see [`memory::limit`].
    pub memory: usize,
}

/// The value of `spare` for all targets but the instantiator, whose output is larger than its input.
const LITTLE: usize = 1 << 20;

/// All targets.
pub const TARGETS: &[Target] = &[
    new("peer-info", core::peer_info, Form::Exact),
    new("setup", core::setup, Form::Exact),
    new("release", core::release, Form::Exact),
    new("failure", core::failure, Form::Stable),
    new("endpoint", core::endpoint, Form::Exact),
    new("memory", core::memory, Form::Stable),
    new("qp-address", core::qp_address, Form::Stable),
    new("remote-region", core::remote_region, Form::Exact),
    new("frames", core::frames, Form::Exact),
    new("handshake", core::handshake, Form::Exact),
    new("stranger", core::stranger, Form::Exact),
    new("hello", core::hello, Form::Stable),
    new("answer", core::answer, Form::OneWay),
    new("unique-id-body", core::unique_id_body, Form::Stable),
    new("unique-id", core::unique_id, Form::Stable),
    new("node-list", core::node_list, Form::OneWay),
    new("task-counts", core::task_counts, Form::OneWay),
    new("launch", core::launch, Form::OneWay),
    new("pmi", core::pmi, Form::OneWay),
    new("store", core::store, Form::OneWay),
    new("rendezvous-file", core::rendezvous_file, Form::Stable),
    new("collective", core::collective, Form::OneWay),
    new("mail", core::mail, Form::Exact),
    new("plan-word", core::plan_word, Form::Stable),
    new("collective-word", core::collective_word, Form::Stable),
    new("meeting-word", core::meeting_word, Form::Stable),
    new("meeting-answer", core::meeting_answer, Form::Stable),
    new("membership", core::membership, Form::Exact),
    // Checks and the simulator run small plans.
    Target { name: "plan-file", decode: core::plan_file, form: Form::Stable, memory: 16 << 20 },
    new("environment", core::environment, Form::OneWay),
    new("faults", core::faults, Form::OneWay),
    new("message-frames", core::message_frames, Form::OneWay),
    new("message-packets", core::message_packets, Form::OneWay),
    new("message-ring", core::message_ring, Form::OneWay),
    new("message-hello", core::message_hello, Form::Exact),
    new("message-address", core::message_address, Form::Exact),
    new("message-read", core::message_read, Form::Exact),
    new("message-fetch", core::message_fetch, Form::Stable),
    new("message-key", core::message_key, Form::Stable),
    new("message-place", core::message_place, Form::Exact),
    new("message-handed", core::message_handed, Form::Exact),
    new("message-credit", core::message_credit, Form::Exact),
    new("message-offer", core::message_offer, Form::Stable),
    new("message-packet", core::message_packet, Form::Exact),
    new("channel-trigger", software::channel_trigger, Form::Exact),
    // A device, its thread and its memory are made for the first input.
    Target { name: "connection", decode: software::connection, form: Form::OneWay, memory: 64 << 20 },
    new("ptx", software::ptx, Form::OneWay),
    Target { name: "template", decode: software::template, form: Form::OneWay, memory: 16 << 20 },
];

const fn new(name: &'static str, decode: fn(&[u8]) -> Option<Vec<u8>>, form: Form) -> Target {
    Target { name, decode, form, memory: LITTLE }
}

/// Finds a target by its name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

impl Target {
    /// Runs the decoder, asserts the properties of all decoders, and returns whether it accepted the input.
    ///
    /// # Panics
    /// If the decoder has a defect. Memory is checked only if [`memory::Counting`] is the allocator.
    pub fn check(&self, bytes: &[u8]) -> bool {
        let (again, peak) = memory::peak(|| (self.decode)(bytes));
        let limit = memory::limit(bytes.len(), self.memory);
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
