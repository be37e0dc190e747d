//! Messages between two messengers of one host: `cargo run --release -p aqueduct-benches --bin messages`
//!
//! Two threads on two processors. Every round bounces a bare flag between the threads, a word of memory in each direction, then 8
//! bytes through the bare rings, and then a message of 8 bytes between two messengers; so all see the same machine. Prints
//! nanoseconds one way, the ratios to the flag, and millions of messages per second one way. On a machine under other load the
//! minimum is most reliable.
//!
//! With `reads` behind `--`, it measures remote reads instead.

#[path = "message_reads.rs"]
mod reads;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aqueduct::Result;
use aqueduct::internals::ring::BareRing;
use aqueduct::message::{Messenger, MessengerConfig, Secret, Sent};

const ROUNDS: usize = 41;
/// Bounces per round: a round is short enough to end within one time slice of the scheduler.
const BOUNCES: u64 = 2_000;
/// Messages of one measurement of the rate.
const BURST: u64 = 200_000;
const PATIENCE: Duration = Duration::from_secs(60);

const PING: u16 = 1;
const PONG: u16 = 2;
const COUNTED: u16 = 3;
const DONE: u16 = 4;

/// A word in a cache line of its own; lines are fetched in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Flag(AtomicU64);

fn main() -> Result<()> {
    if std::env::args().any(|argument| argument == "reads") {
        return reads::main();
    }
    println!(
        "# {:<24} {:>9} {:>9} {:>11} {:>9} {:>10} {:>9}",
        "subject", "median ns", "min", "of the flag", "of min", "median M/s", "max"
    );
    for (name, shared) in [("shared memory", true), ("TCP, loopback", false)] {
        let measured = measure(shared)?;
        let flag = &measured.flag;
        line("bare flag", flag, flag, &[]);
        line("bare ring", &measured.ring, flag, &measured.ring_rate);
        line(&format!("message, {name}"), &measured.message, flag, &measured.rate);
    }
    Ok(())
}

fn line(name: &str, times: &[f64], flag: &[f64], rates: &[f64]) {
    let [median, least] = [times[times.len() / 2], times[0]];
    let ratios = [median / flag[flag.len() / 2], least / flag[0]];
    print!("  {name:<24} {median:>9.1} {least:>9.1} {:>11.2} {:>9.2}", ratios[0], ratios[1]);
    match rates.last() {
        Some(most) => println!(" {:>10.2} {most:>9.2}", rates[rates.len() / 2]),
        None => println!(),
    }
}

/// Nanoseconds one way, and millions per second; all sorted.
#[derive(Default)]
struct Measured {
    flag: Vec<f64>,
    ring: Vec<f64>,
    ring_rate: Vec<f64>,
    message: Vec<f64>,
    rate: Vec<f64>,
}

fn messenger(rank: u32, shared: bool) -> Result<Messenger> {
    let config =
        MessengerConfig::default().with_secret(Secret::from_bytes([1; 32])).with_shared_memory(shared);
    Messenger::new(rank, config)
}

fn measure(shared: bool) -> Result<Measured> {
    let (here, there) = (messenger(0, shared)?, messenger(1, shared)?);
    let flags: Arc<[Flag; 2]> = Arc::default();
    let [mut ring, mut their_ring] = BareRing::pair()?;
    let stop = Arc::new(AtomicU64::new(0));
    there.on(PING, |message| bounce(&message.reply(PONG, message.bytes())))?;
    let received = Arc::new(AtomicU64::new(0));
    let count = received.clone();
    there.on(COUNTED, move |message| {
        if count.fetch_add(1, Ordering::Relaxed) + 1 == BURST {
            count.store(0, Ordering::Relaxed);
            bounce(&message.reply(DONE, &[]));
        }
    })?;
    let pongs = Arc::new(AtomicU64::new(0));
    for kind in [PONG, DONE] {
        let pongs = pongs.clone();
        here.on(kind, move |_| {
            pongs.fetch_add(1, Ordering::Relaxed);
        })?;
    }
    let address = there.address().clone();
    std::thread::scope(|scope| {
        let (their_flags, their_stop) = (flags.clone(), stop.clone());
        let other = scope.spawn(move || -> Result<()> {
            pin(1);
            for round in 0..ROUNDS as u64 {
                for bounce in 1..=BOUNCES {
                    await_flag(&their_flags[0], round * BOUNCES + bounce);
                    their_flags[1].0.store(round * BOUNCES + bounce, Ordering::Release);
                }
                for _ in 0..BOUNCES {
                    while their_ring.pull()?.is_none() {
                        std::hint::spin_loop();
                    }
                    their_ring.push(&[7; 8])?;
                }
                if round % 4 == 0 {
                    let mut left = BURST;
                    while left > 0 {
                        left -= u64::from(their_ring.pull()?.is_some());
                    }
                    their_ring.push(&[])?;
                }
                while their_stop.load(Ordering::Relaxed) <= round {
                    there.poll()?;
                }
            }
            Ok(())
        });
        pin(0);
        let peer = here.connect(&address, PATIENCE)?;
        let mut measured = Measured::default();
        let mut answers = 0;
        for round in 0..ROUNDS as u64 {
            let start = Instant::now();
            for bounce in 1..=BOUNCES {
                flags[0].0.store(round * BOUNCES + bounce, Ordering::Release);
                await_flag(&flags[1], round * BOUNCES + bounce);
            }
            measured.flag.push(per(start, 2 * BOUNCES));
            let start = Instant::now();
            for _ in 0..BOUNCES {
                ring.push(&[7; 8])?;
                while ring.pull()?.is_none() {
                    std::hint::spin_loop();
                }
            }
            measured.ring.push(per(start, 2 * BOUNCES));
            if round % 4 == 0 {
                let start = Instant::now();
                for _ in 0..BURST {
                    while !ring.push(&[7; 8])? {
                        std::hint::spin_loop();
                    }
                }
                while ring.pull()?.is_none() {}
                measured.ring_rate.push(1e3 / per(start, BURST));
            }
            let start = Instant::now();
            for _ in 0..BOUNCES {
                bounce(&peer.send(PING, &[7; 8]));
                answers += 1;
                while pongs.load(Ordering::Relaxed) < answers {
                    here.poll()?;
                }
            }
            measured.message.push(per(start, 2 * BOUNCES));
            if round % 4 == 0 {
                let start = Instant::now();
                for _ in 0..BURST {
                    while peer.send(COUNTED, &[7; 8])? != Sent::Done {
                        here.poll()?;
                    }
                }
                answers += 1;
                while pongs.load(Ordering::Relaxed) < answers {
                    here.poll()?;
                }
                measured.rate.push(1e3 / per(start, BURST));
            }
            stop.store(round + 1, Ordering::Relaxed);
        }
        other.join().expect("the other thread panicked")?;
        let Measured { flag, ring, ring_rate, message, rate } = &mut measured;
        for values in [flag, ring, ring_rate, message, rate] {
            values.sort_by(f64::total_cmp);
        }
        Ok(measured)
    })
}

/// A message between pings always finds room.
fn bounce(sent: &Result<Sent>) {
    assert!(matches!(sent, Ok(Sent::Done)), "a message was not sent: {sent:?}");
}

fn await_flag(flag: &Flag, value: u64) {
    while flag.0.load(Ordering::Acquire) != value {
        std::hint::spin_loop();
    }
}

/// Nanoseconds of one of `count` since `start`.
fn per(start: Instant, count: u64) -> f64 {
    start.elapsed().as_secs_f64() * 1e9 / count as f64
}

/// Binds this thread to the processor with this number; without it, the machine decides.
fn pin(processor: usize) {
    // SAFETY: all-zero is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number is far below the size of the set.
    unsafe { libc::CPU_SET(processor, &mut set) };
    // SAFETY: the set lives across the call and its size is passed with it. A failure is no error.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
}
