//! Memory of another process: this test binary, started again as the exporter.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use super::{Gate, SOON, context};
use crate::gpu::ipc::{LegacyHandle, LegacyMapping};
use crate::gpu::{BufferOptions, Context, Device, GpuBuffer, HandlePolicy, Stream};
use crate::sync::{AtomicBool, Ordering};

const WORDS: [u32; 4] = [11, 22, 33, 44];
const MARK: &str = "legacy handle: ";

/// Exports a buffer, prints its handle, and keeps it until told to end.
#[test]
#[ignore = "run in a process of its own by the tests of this file"]
fn exporter() {
    let options = BufferOptions { zeroed: true, handles: HandlePolicy::Legacy };
    let buffer = GpuBuffer::with_options(&context(0), 4096, options).unwrap();
    buffer.upload(64, &WORDS, SOON).unwrap();
    let handle = LegacyHandle::export(buffer.context(), buffer.ptr()).unwrap();
    let text: String = handle.0.iter().map(|b| format!("{b:02x}")).collect();
    println!("\n{MARK}{text}");
    std::io::stdout().flush().unwrap();
    // Until the other end closes.
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

struct Exporter {
    child: Child,
    handle: LegacyHandle,
}

impl Exporter {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "gpu::tests::soft::peer::exporter", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let text = out.lines().find_map(|line| Some(line.unwrap().strip_prefix(MARK)?.to_owned())).unwrap();
        let mut bytes = [0; 64];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap();
        }
        Self { child, handle: LegacyHandle(bytes) }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn a_legacy_handle_is_opened_once_and_closed_when_no_work_can_use_it() {
    let exporter = Exporter::start();
    let context = context(1);
    let first = LegacyMapping::open(&context, &exporter.handle).unwrap();
    let second = LegacyMapping::open(&context, &exporter.handle).unwrap();
    assert_eq!(first.ptr(), second.ptr());
    assert!(first.size() >= 4096);
    let mut seen = [0_u32; 4];
    first.slice(..).unwrap().download(64, &mut seen, SOON).unwrap();
    assert_eq!(seen, WORDS);
    assert!(first.slice(..=first.size()).is_err());

    let closed = Arc::new(AtomicBool::new(false));
    let note = closed.clone();
    first.close_then(move || note.store(true, Ordering::Relaxed));
    assert!(!closed.load(Ordering::Relaxed), "another mapping of it is open");

    let stream = Stream::new(&context).unwrap();
    let gate = Gate::close(&stream);
    let other = Stream::new(&Context::new(&Device::new(context.driver(), 5).unwrap()).unwrap()).unwrap();
    let elsewhere = Gate::close(&other);
    let slice = second.slice(64..80).unwrap();
    stream.fill(&slice, 1).unwrap();
    drop((second, slice));
    assert!(!closed.load(Ordering::Relaxed), "the stream has work on it");
    gate.open();
    stream.synchronize(SOON).unwrap();
    assert!(!closed.load(Ordering::Relaxed), "the driver may wait for every device, and another one works");
    elsewhere.open();
    other.synchronize(SOON).unwrap();
    context.reap();
    assert!(closed.load(Ordering::Relaxed));
}

#[test]
fn the_handle_of_a_process_that_is_gone_is_refused() {
    let exporter = Exporter::start();
    let handle = exporter.handle.clone();
    drop(exporter);
    assert!(LegacyMapping::open(&context(1), &handle).is_err());
}
