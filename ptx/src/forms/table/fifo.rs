//! Operations of a FIFO, for triggers of a user's own meaning.

use super::common::{POSITION, PUSHED, WAITED};
use crate::abi::{DeviceStruct, FifoHandle, ProxyTrigger};
use crate::forms::operation::{Argument, Given, Operation, Type, same};

const FIFO: Argument = Argument { name: "fifo", ty: Type::Handle(&FifoHandle::LAYOUT), doc: "the queue" };

pub(super) static ALL: &[Operation] = &[
    Operation {
        name: "fifo_push",
        does: &[
            "Pushes a trigger of four words of 63 bits each, of which the consumer sees all or nothing; waits while the",
            "FIFO is full. The host sees what this thread wrote before, and its group before the group's barrier.",
        ],
        fragment: "fifo_push",
        takes: &[
            FIFO,
            Argument {
                name: "trigger",
                ty: Type::Value(&ProxyTrigger::LAYOUT),
                doc: "the four words; the top bit of each is zero",
            },
        ],
        with: &[
            ("WORD0", "trigger.words[0]"),
            ("WORD1", "trigger.words[1]"),
            ("WORD2", "trigger.words[2]"),
            ("WORD3", "trigger.words[3]"),
        ],
        gives: &[PUSHED, POSITION],
    },
    Operation {
        name: "fifo_poll",
        does: &[
            "Whether the host has dealt with the trigger at position; if so, sees what it did. Never waits.",
        ],
        fragment: "fifo_poll",
        takes: &[FIFO, same("position")],
        with: &[],
        gives: &[Given { param: "POPPED", name: "popped", doc: "1 or 0" }],
    },
    Operation {
        name: "fifo_sync",
        does: &["Waits until the host has dealt with the trigger at position, and sees what it did."],
        fragment: "fifo_sync",
        takes: &[FIFO, same("position")],
        with: &[],
        gives: &[WAITED],
    },
];
