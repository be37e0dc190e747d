//! Compiles and runs the examples that docs/device-library.md shows, and compares the texts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aqueduct::Result;
use aqueduct::device::device_library;
use aqueduct::gpu::{Context, LaunchConfig, Module, Stream, arg};
use aqueduct::proxy::{Proxy, ProxyConfig, ProxyHandlerResult, ProxyTrigger};
use aqueduct_ptx::abi;
use aqueduct_ptx::abi::DeviceStruct;
use aqueduct_tests::ranks;

use crate::group::{Machine, context};

const DOCUMENT: &str = include_str!("../../../docs/device-library.md");
const KERNEL: &str = include_str!("say.ptx");

/// A kernel that sends its argument to the host, which gives it back.
fn say(context: &Context, what: u64) -> Result<u64> {
    let library = device_library(context)?;
    let module = Module::link_ptx(context, &[("my kernel", KERNEL), ("the device library", &library)])?;
    let kernel = module.function("say")?;

    let heard = Arc::new(AtomicU64::new(0));
    let ear = heard.clone();
    let proxy = Proxy::start(context, ProxyConfig::default(), move |trigger: &ProxyTrigger| {
        ear.store(trigger.payload()[0], Ordering::Relaxed);
        Ok(ProxyHandlerResult::Continue)
    })?;
    let (stream, fifo) = (Stream::new(context)?, proxy.fifo());
    // SAFETY: the arguments are those of `say`, and what the handle leads to is retained.
    unsafe { kernel.launch(&stream, &LaunchConfig::linear(1, 1), &[arg(&fifo), arg(&what)]) }?;
    stream.retain_all(proxy.keep_alive())?;
    proxy.report_to(&stream);
    // An error if the proxy stopped or failed before the push. A push that the FIFO refuses, because its first word has the
    // highest bit set, is known to the kernel alone: pass the status on if it can happen.
    stream.synchronize(Duration::from_secs(10))?;
    // Handles everything pushed before; a later push would be refused.
    proxy.stop(Duration::from_secs(10))?;
    Ok(heard.load(Ordering::Relaxed))
}

pub(super) fn says(machine: Machine, test: &str) {
    if ranks::start(1, test).is_none() {
        return;
    }
    assert_eq!(say(&context(&machine.driver(), 0), 4711).unwrap(), 4711);
}

/// The first code block of this language in the document.
fn block(language: &str) -> &'static str {
    let fence = format!("```{language}\n");
    let begin = DOCUMENT.find(&fence).expect("the document has such a block") + fence.len();
    &DOCUMENT[begin..begin + DOCUMENT[begin..].find("```").expect("it ends")]
}

#[test]
fn the_document_shows_what_runs() {
    assert!(
        include_str!("documented.rs").contains(block("rust,no_run")),
        "copy `say` into docs/device-library.md"
    );
    assert_eq!(block("ptx"), KERNEL, "copy say.ptx into docs/device-library.md");
}

#[test]
fn the_document_names_every_operation_and_handle() {
    let declared = aqueduct_ptx::declarations().unwrap();
    let names = declared.match_indices("aqueduct_device_").map(|(at, prefix)| &declared[at + prefix.len()..]);
    for name in names.map(|rest| rest.split('(').next().unwrap()) {
        let variants = ["_ll8", "_ll16", "_ll128", "_u32", "_u64"];
        let stem = variants.iter().find_map(|variant| name.strip_suffix(variant)).unwrap_or(name);
        let rows = ["memory_channel_", "port_", "fifo_", "semaphore_"];
        let row =
            rows.into_iter().find(|family| stem.starts_with(family)).map_or("barriers", |family| family);
        let line = DOCUMENT.lines().find(|line| line.starts_with(&format!("| `{row}`")));
        let plain =
            DOCUMENT.lines().filter(|line| line.starts_with("| barriers") || line.starts_with("| without"));
        let operation = stem.strip_prefix(row).unwrap_or(stem);
        let named = |line: &str| line.split(['|', ',', ' ', ':']).any(|word| word == operation);
        assert!(line.into_iter().chain(plain).any(named), "{name} is missing in docs/device-library.md");
    }
    for (handle, size) in [
        ("MemoryChannelHandle", abi::MemoryChannelHandle::LAYOUT.size),
        ("PortChannelHandle", abi::PortChannelHandle::LAYOUT.size),
        ("FifoHandle", abi::FifoHandle::LAYOUT.size),
        ("SemaphoreHandle", abi::SemaphoreHandle::LAYOUT.size),
        ("AbortHandle", abi::AbortHandle::LAYOUT.size),
        ("GridBarrierHandle", abi::GridBarrierHandle::LAYOUT.size),
    ] {
        let shown =
            |line: &str| line.starts_with(&format!("| `{handle}`")) && line.ends_with(&format!("| {size} |"));
        assert!(DOCUMENT.lines().any(shown), "{handle} has {size} bytes");
    }
}
