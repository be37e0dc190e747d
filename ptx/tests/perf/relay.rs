//! The bare hop that `aqueduct perf port-lat` compares with: this thread sees the word and sets the flag.

use std::sync::atomic::Ordering;

use crate::clock::{IMPATIENT, PATIENT, looking_at_the_clock};
use crate::device::{Args, Machine};
use crate::ring::word;
use crate::{ONE, WHILE, until};

struct Hop {
    machine: Machine,
    word: u64,
    flag: u64,
    result: u64,
}

const ITERATIONS: u32 = 3;
const FIRST: u64 = 7;

impl Hop {
    fn start(begins: bool, fenced: bool, patience: u64) -> Self {
        let machine = Machine::new(1);
        let [word, flag] = [(); 2].map(|()| machine.host(8) as u64);
        let result = machine.alloc(0, 24);
        let function = looking_at_the_clock(&machine, "perf_port_bare");
        let args = Args::default().u64(word).u64(flag).u32(ITERATIONS).u64(FIRST);
        let args = args.u32(begins.into()).u32(fenced.into()).u64(patience).u64(result);
        machine.launch(0, function, ONE, &args);
        Self { machine, word, flag, result }
    }

    /// Time, positions taken, and whether a wait was given up.
    fn results(&self) -> [u64; 3] {
        self.machine.finish();
        let words = self.machine.read(0, self.result, 24);
        [0, 8, 16].map(|at| u64::from_ne_bytes(words[at..at + 8].try_into().expect("eight bytes")))
    }
}

#[test]
fn a_bare_hop_waits_for_each_value_and_writes_each_once() {
    for (begins, fenced) in [(true, false), (true, true), (false, false), (false, true)] {
        let hop = Hop::start(begins, fenced, PATIENT);
        let told = |value: u64| word(hop.flag).store(value, Ordering::Release);
        let written = || word(hop.word).load(Ordering::Acquire);
        for value in FIRST..=FIRST + u64::from(ITERATIONS) {
            if !begins {
                assert_eq!(written(), if value == FIRST { 0 } else { value - 1 });
                told(value);
            }
            until(&hop.machine, "the next value", || (written() == value).then_some(()));
            std::thread::sleep(WHILE);
            assert_eq!(written(), value, "the next value comes after the answer");
            if begins {
                told(value);
            }
        }
        let [time, positions, given_up] = hop.results();
        assert!(time > 0);
        assert_eq!(positions, if fenced { u64::from(ITERATIONS) + 1 } else { 0 });
        assert_eq!(given_up, 0);
    }
}

#[test]
fn a_bare_hop_that_nobody_answers_is_given_up() {
    for begins in [true, false] {
        let hop = Hop::start(begins, false, IMPATIENT);
        assert_eq!(hop.results(), [0, 0, 1]);
        assert_eq!(word(hop.word).load(Ordering::Acquire), if begins { FIRST } else { 0 });
    }
}
