//! Remote reads between two messengers of one host, as a share of the C library's memcpy in the same run.
//!
//! Each round copies a vector to another one with memcpy, then reads as many bytes of shared memory, of ordinary memory over rings, and of
//! ordinary memory over TCP; so all see the same machine. `of memcpy` is the median of the ratios of the rounds. Every destination is used again, so its pages are there. A first read of
//! each kind, which maps or connects, is not counted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use aqueduct::Result;
use aqueduct::message::{Exposed, Messenger, Peer, SharedMemory};

use super::{PATIENCE, messenger, pin};

const SIZES: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 64 << 20];
const ROUNDS: usize = 25;

/// Bytes that one measurement moves: a few reads of the largest size, many of the smallest.
const VOLUME: usize = 64 << 20;
const MOST: usize = 2_000;

pub(super) fn main() -> Result<()> {
    println!(
        "# {:<10} {:<22} {:>11} {:>9} {:>11} {:>9} {:>10}",
        "bytes", "subject", "median us", "min us", "median GB/s", "of memcpy", "of its min"
    );
    let stop = Arc::new(AtomicBool::new(false));
    let (shared, tcp) = (messenger(1, true)?, messenger(1, false)?);
    let owners = [shared, tcp].map(Arc::new);
    let threads = owners.clone().map(|owner| {
        let stop = stop.clone();
        std::thread::spawn(move || -> Result<()> {
            pin(1);
            while !stop.load(Ordering::Relaxed) {
                if owner.poll()? == 0 {
                    owner.wait(std::time::Duration::from_millis(50))?;
                }
            }
            Ok(())
        })
    });
    pin(0);
    for size in SIZES {
        measure(size, &owners)?;
    }
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("an owner's thread panicked").expect("poll"));
    Ok(())
}

/// A way to read.
struct Subject {
    name: &'static str,
    reader: Messenger,
    peer: Peer,
    exposed: Exposed,
    /// The destination; the completion brings it back.
    back: Arc<Mutex<Option<Vec<u8>>>>,
    times: Vec<f64>,
}

impl Subject {
    /// Rank `rank` reads what `owner` exposes.
    fn new(name: &'static str, rank: u32, owner: &Messenger, exposed: Exposed, size: usize) -> Result<Self> {
        let reader = messenger(rank, true)?;
        let peer = reader.connect(owner.address(), PATIENCE)?;
        let back = Arc::new(Mutex::new(Some(vec![1; size])));
        let mut subject = Self { name, reader, peer, exposed, back, times: Vec::new() };
        subject.read()?;
        Ok(subject)
    }

    /// Reads all bytes once.
    fn read(&mut self) -> Result<()> {
        let into = self.back.lock().expect("one thread").take().expect("it came back");
        let back = self.back.clone();
        let done =
            move |bytes: Result<Vec<u8>>| *back.lock().expect("one thread") = Some(bytes.expect("read"));
        self.peer.read(&self.exposed.token(), 0, into, PATIENCE, done)?.posted()?;
        // A read of mapped memory has ended with the call, as far as 1 MiB goes: only its completion is left to run.
        self.reader.dispatch(usize::MAX);
        while self.back.lock().expect("one thread").is_none() {
            self.reader.poll()?;
        }
        Ok(())
    }

    fn check(&self, expected: &[u8]) {
        let bytes = self.back.lock().expect("one thread");
        assert!(bytes.as_deref() == Some(expected), "{} brought other bytes", self.name);
    }
}

fn measure(size: usize, [shared, tcp]: &[Arc<Messenger>; 2]) -> Result<()> {
    let source: Vec<u8> = (0..size).map(|n| (n * 7 + n / 251) as u8).collect();
    let memory = SharedMemory::allocate(size)?;
    memory.write(0, &source)?;
    let mut subjects = [
        Subject::new("shared memory", 2, shared, shared.expose(&memory)?, size)?,
        Subject::new("other memory, rings", 3, shared, shared.expose(source.clone())?, size)?,
        Subject::new("other memory, TCP", 4, tcp, tcp.expose(source.clone())?, size)?,
    ];
    let mut into = vec![1_u8; size];
    let mut copies = Vec::new();
    let count = (VOLUME / size).clamp(1, MOST);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..count {
            std::hint::black_box(&mut into).copy_from_slice(std::hint::black_box(&source));
        }
        copies.push(micros(start, count));
        for (slower, subject) in subjects.iter_mut().enumerate() {
            let count = if slower > 0 { count.div_ceil(16) } else { count };
            let start = Instant::now();
            for _ in 0..count {
                subject.read()?;
            }
            subject.times.push(micros(start, count));
        }
    }
    line(size, "memcpy", &copies, &copies);
    for subject in &mut subjects {
        subject.check(&source);
        line(size, subject.name, &subject.times, &copies);
    }
    Ok(())
}

fn line(size: usize, name: &str, times: &[f64], copies: &[f64]) {
    // Neighbours in time saw the same machine.
    let mut ratios: Vec<f64> = times.iter().zip(copies).map(|(time, copy)| copy / time).collect();
    let (mut times, mut copies) = (times.to_vec(), copies.to_vec());
    [&mut ratios, &mut times, &mut copies].into_iter().for_each(|all| all.sort_by(f64::total_cmp));
    let [median, least] = [times[times.len() / 2], times[0]];
    let rate = size as f64 / median / 1e3;
    let ratios = [ratios[ratios.len() / 2], copies[0] / least];
    println!(
        "  {size:<10} {name:<22} {median:>11.2} {least:>9.2} {rate:>11.2} {:>9.3} {:>10.3}",
        ratios[0], ratios[1]
    );
}

/// Microseconds of one of `count` since `start`.
fn micros(start: Instant, count: usize) -> f64 {
    start.elapsed().as_secs_f64() * 1e6 / count as f64
}
