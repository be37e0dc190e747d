//! Targets that need the software device or its parts.

use std::sync::OnceLock;

use aqueduct::gpu::{Context, Device, Driver};
use aqueduct::internals::fuzzing;
use aqueduct_ptx::abi::{ChannelTrigger, ProxyTrigger, TriggerKind};
use cuda_soft::{lower, ptx};

/// Bytes of a trigger.
const TRIGGER: usize = size_of::<ProxyTrigger>();

/// One slot of a FIFO as the channels' consumer reads it.
pub(crate) fn channel_trigger(bytes: &[u8]) -> Option<Vec<u8>> {
    let bytes: &[u8; TRIGGER] = bytes.try_into().ok()?;
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 * at + byte]));
    let slot = ProxyTrigger { words: std::array::from_fn(word) };
    let lap = slot.words[0] >> 63 == 1;
    // A user-defined trigger may use the whole payload. A slot with mixed lap bits is not a trigger.
    let payload = ProxyTrigger::from_payload(slot.payload(), lap);
    assert_eq!(payload == Ok(slot), slot.is_whole(lap));
    let trigger = slot.decode().ok()?;
    assert!(slot.is_whole(lap));
    Some(words(trigger.encode(lap).expect("was decoded")))
}

fn words(slot: ProxyTrigger) -> Vec<u8> {
    slot.words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Triggers of both laps.
pub(crate) fn triggers() -> Vec<(&'static str, Vec<u8>)> {
    let kind = TriggerKind::DATA.with(TriggerKind::FLAG).with(TriggerKind::SYNC);
    let (dst_offset, src_offset) = ((1 << 48) - 1, 4096);
    let full = ChannelTrigger { kind, dst_id: 1, dst_offset, src_id: 2, src_offset, size: 64, semaphore: 3 };
    let seed = |(trigger, lap): (ChannelTrigger, bool)| {
        ("channel-trigger", words(trigger.encode(lap).expect("fits")))
    };
    [(full, true), (full, false), (ChannelTrigger::default(), true)].map(seed).to_vec()
}

/// What an Ethernet connection receives, for host memory and that of a device.
pub(crate) fn connection(bytes: &[u8]) -> Option<Vec<u8>> {
    static CONTEXT: OnceLock<Context> = OnceLock::new();
    let context = CONTEXT.get_or_init(|| {
        let driver = Driver::software(cuda_soft::driver_table()).expect("the software driver");
        Context::new(&Device::new(&driver, 0).expect("device 0")).expect("its context")
    });
    fuzzing::connection(context, bytes)
}

/// A PTX module, parsed and compiled.
pub(crate) fn ptx(bytes: &[u8]) -> Option<Vec<u8>> {
    let module = ptx::parse(str::from_utf8(bytes).ok()?).ok()?;
    lower::compile(&[module]).ok().map(|_| Vec::new())
}

/// A template, followed by a line `---` and the fragment `part.ptxi` that it may include.
pub(crate) fn template(bytes: &[u8]) -> Option<Vec<u8>> {
    let text = str::from_utf8(bytes).ok()?;
    let (main, part) = text.split_once("---\n").unwrap_or((text, ""));
    aqueduct_ptx::fuzzing::render(main, part).ok().map(String::into_bytes)
}
