//! Operations of a Device2Device semaphore without a channel.

use super::common::{TAKEN, WAITED};
use crate::abi::{DeviceStruct, SemaphoreHandle};
use crate::forms::operation::{Argument, Operation, Type};

const SEMAPHORE: Argument =
    Argument { name: "semaphore", ty: Type::Handle(&SemaphoreHandle::LAYOUT), doc: "the semaphore" };

pub(super) static ALL: &[Operation] = &[
    Operation {
        name: "semaphore_signal",
        does: &[
            "Publishes what this thread wrote, and what its group wrote before the group's barrier, then signals once.",
        ],
        fragment: "sem_signal",
        takes: &[SEMAPHORE],
        with: &[],
        gives: &[],
    },
    Operation {
        name: "semaphore_relaxed_signal",
        does: &["Signals once and publishes nothing else: orders execution, not data."],
        fragment: "sem_relaxed_signal",
        takes: &[SEMAPHORE],
        with: &[],
        gives: &[],
    },
    Operation {
        name: "semaphore_wait",
        does: &["Takes one signal, waiting for it; sees what was published before it."],
        fragment: "sem_wait",
        takes: &[SEMAPHORE],
        with: &[],
        gives: &[WAITED],
    },
    Operation {
        name: "semaphore_relaxed_wait",
        does: &["Takes one signal, waiting for it: orders execution, not data."],
        fragment: "sem_relaxed_wait",
        takes: &[SEMAPHORE],
        with: &[],
        gives: &[WAITED],
    },
    Operation {
        name: "semaphore_poll",
        does: &["Takes one signal if there is one; if so, sees what was published before it. Never waits."],
        fragment: "sem_poll",
        takes: &[SEMAPHORE],
        with: &[],
        gives: &[TAKEN],
    },
];
