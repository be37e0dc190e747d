//! Reads into devices while several threads drive the reader's messenger.

use super::*;
use crate::sync::{AtomicU64, Ordering};

/// One thread of the reader polls while another one sleeps, in whose place the first one sends.
#[test]
fn parts_of_a_read_come_while_another_thread_sleeps() {
    const READS: u64 = 6;
    let context = context(0);
    for wire in WIRES {
        let Pair { owner, reader, peer } = pair(wire);
        let shared = SharedMemory::allocate(2_000_000).unwrap();
        let exposed = [owner.expose(bytes(2_000_000, 1)).unwrap(), owner.expose(&shared).unwrap()];
        let into = Arc::new(GpuBuffer::new(&context, 2_000_000).unwrap());
        let (reader, ended) = (Arc::new(reader), Arc::new(AtomicU64::new(0)));
        let until = Instant::now() + SOON;
        let on = move |ended: &AtomicU64| ended.load(Ordering::SeqCst) < READS && Instant::now() < until;
        // Not joined: a thread that waits for itself would never come back.
        for polls in [false, true] {
            let (reader, ended) = (reader.clone(), ended.clone());
            std::thread::spawn(move || {
                while on(&ended) {
                    let _ = if polls { reader.poll() } else { reader.wait(SOON / 600).map(|_| 0) };
                }
            });
        }
        let serves = ended.clone();
        std::thread::spawn(move || {
            while on(&serves) {
                let _ = owner.poll();
            }
        });
        for n in 0..READS {
            let told = ended.clone();
            let token = exposed[n as usize % 2].token();
            peer.read_into(&token, 0, &into, SOON, move |outcome| {
                outcome.unwrap();
                told.fetch_add(1, Ordering::SeqCst);
            })
            .unwrap()
            .posted()
            .unwrap();
            while ended.load(Ordering::SeqCst) <= n {
                assert!(Instant::now() < until, "over {wire:?}, {n} reads have ended");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
