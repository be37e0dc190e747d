//! Requests that are executed late, and completions that come later still, with `AQUEDUCT_SOFT_UNKIND`.
//!
//! A NIC executes the requests of one queue pair in order, and those of different ones in any order. A completion tells that
//! a request is done, and no more: the data may have come long before it. A thread in place of the NIC chooses by the seed
//! which queue pair goes on, how far, and which completions can be polled.

use std::sync::{Condvar, Once};
use std::time::Duration;

use rdma_core_sys::{ibv_send_wr, ibv_sge, ibv_wc_status};

use super::machine::{Entry, Machine, machine};
use super::windows::Change;

/// A request that was accepted, as a NIC copies it.
pub(super) struct Posted {
    pub(super) wr: ibv_send_wr,
    pub(super) sge: ibv_sge,
    /// The change, if it is a request for a window.
    pub(super) change: Option<Change>,
    /// The data, if it is inline.
    pub(super) inline: Option<Box<[u8]>>,
    /// It ends with this status and is not executed.
    pub(super) forced: Option<ibv_wc_status>,
    /// Neither this one nor one behind it is executed.
    pub(super) held: bool,
}

/// Choices that verbs leave open, made by a seed.
pub(super) struct Unkind {
    seed: u64,
    state: u64,
}

static MORE: Condvar = Condvar::new();

impl Unkind {
    /// As the environment says.
    pub(super) fn from_env() -> Option<Self> {
        let value = std::env::var("AQUEDUCT_SOFT_UNKIND").ok().filter(|value| !value.is_empty())?;
        let seed = value.parse().unwrap_or_else(|_| panic!("AQUEDUCT_SOFT_UNKIND: {value} is no number"));
        Some(Self::new(seed))
    }

    pub(super) fn new(seed: u64) -> Self {
        eprintln!("stand-in for verbs: unkind, AQUEDUCT_SOFT_UNKIND={seed}");
        Self { seed, state: seed }
    }

    /// As ConnectX, irdma, hns and others have it.
    pub(super) fn max_inline(&self) -> u32 {
        [220, 64, 32, 8][(self.seed % 4) as usize]
    }

    /// A number below `count` (SplitMix64, Steele, Lea and Flood 2014).
    pub(super) fn below(&mut self, count: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.state;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % count as u64) as usize
    }
}

/// A queue that has something to do.
enum Turn {
    /// The next requests of a queue pair.
    Requests(u32),
    /// The next completions of requests of a queue pair, or of its receives, in a completion queue.
    Completions(usize, (u32, bool)),
}

impl Machine {
    /// There is something to do later.
    pub(super) fn wake_nic(&self) {
        if self.by_hand {
            return;
        }
        static NIC: Once = Once::new();
        NIC.call_once(|| {
            std::thread::Builder::new().name("stand-in".to_owned()).spawn(run).expect("a thread");
        });
        MORE.notify_all();
    }

    fn turns(&self) -> Vec<Turn> {
        let qps = self.qps.iter().flatten();
        let requests = qps.filter(|qp| qp.pending.front().is_some_and(|posted| !posted.held));
        // SAFETY: the queue pair is live under the lock.
        let mut turns: Vec<Turn> = requests.map(|qp| Turn::Requests(unsafe { (*qp.raw).qp_num })).collect();
        for (handle, cq) in self.cqs.iter().enumerate() {
            let Some(cq) = cq else { continue };
            let mut known = Vec::new();
            for entry in &cq.late {
                if !known.contains(&entry.queue()) {
                    known.push(entry.queue());
                }
            }
            turns.extend(known.into_iter().map(|queue| Turn::Completions(handle, queue)));
        }
        turns
    }

    fn chosen(&mut self, count: usize) -> usize {
        self.unkind.as_mut().map_or(0, |unkind| unkind.below(count))
    }

    /// Does a part of what is to be done. Returns a pause after it, or nothing if there was nothing to do.
    pub(super) fn step(&mut self) -> Option<Duration> {
        let mut turns = self.turns();
        if turns.is_empty() {
            return None;
        }
        let turn = turns.swap_remove(self.chosen(turns.len()));
        let most = 1 + self.chosen(8);
        match turn {
            Turn::Requests(number) => {
                for _ in 0..most {
                    let Some(qp) = self.find_qp(number) else { break };
                    if qp.pending.front().is_none_or(|posted| posted.held) {
                        break;
                    }
                    let Some(posted) = qp.pending.pop_front() else { break };
                    // SAFETY: the lists were copied; keys that are no longer registered are refused.
                    unsafe { self.carry_out(number, &posted) };
                }
            }
            Turn::Completions(handle, queue) => {
                for _ in 0..most {
                    let late = &mut self.cq(handle as u32).late;
                    let Some(at) = late.iter().position(|entry| entry.queue() == queue) else { break };
                    let entry = late.remove(at).expect("found just now");
                    self.appear(handle as u32, entry);
                }
            }
        }
        Some(match self.chosen(16) {
            0 => Duration::from_micros(self.chosen(400) as u64),
            _ => Duration::ZERO,
        })
    }
}

impl Entry {
    /// Completions of one send or receive queue come in its order.
    fn queue(&self) -> (u32, bool) {
        (self.qp, self.received)
    }
}

/// Steps between which callers mostly do not get the lock: on a busy machine each time costs many milliseconds.
const STEPS: usize = 32;

/// The NIC.
fn run() {
    let mut machine = machine();
    loop {
        let steps = if machine.chosen(4) == 0 { 1 } else { STEPS };
        let steps = if machine.by_hand { 0 } else { steps };
        let done = (0..steps).map_while(|_| machine.step());
        match done.fold(None, |_, pause| Some(pause)) {
            Some(pause) => {
                drop(machine);
                if pause.is_zero() {
                    std::thread::yield_now()
                } else {
                    std::thread::sleep(pause)
                }
                machine = super::machine::machine();
            }
            None => machine = MORE.wait(machine).unwrap_or_else(std::sync::PoisonError::into_inner),
        }
    }
}
