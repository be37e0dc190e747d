//! What an Ethernet connection receives, see [`crate::fuzzing`].
#![forbid(unsafe_code)]

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::frame::Frame;
use super::inbox::{COPIES, Inbox};
use super::landing::Turn;
use super::reads::Reads;
use super::staging::Staging;
use crate::deadline::Deadline;
use crate::gpu::{Context, GpuBuffer};
use crate::memory::{HostBuffer, Place, Regions, Rights, register_host};
use crate::net::fuzzing::Recorded;
use crate::sync::{Mutex, lock};
use crate::transport::endpoint::Transport;
use crate::transport::stock::Half;

/// Of each buffer. The peer may reach the middle of it, and nothing at its ends.
const BYTES: usize = 256;
const GRANTED: Range<usize> = 64..192;
/// The numbers of its grants: host memory that it may write and read, device memory that it may write, host memory that it may read.
const HOST: u64 = 1;
const DEVICE: u64 = 2;
const CONSTANT: u64 = 3;
/// What this end has asked to read, in this order, each into as much of the buffer for answers.
const ASKED: [Range<usize>; 2] = [64..72, 80..144];
/// What all memory is full of before.
const GARBAGE: u8 = 0xa5;

/// Pinned memory and buffers, made once.
struct Rig {
    half: Arc<Half>,
    host: Arc<HostBuffer>,
    device: Arc<GpuBuffer>,
    constant: Arc<HostBuffer>,
    answers: Arc<HostBuffer>,
}

/// The state behind a stream of frames.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// The host, the device, the constant and the answers' buffer.
    memory: [Vec<u8>; 4],
    landed: u64,
    acknowledge: Option<u64>,
    acknowledged: Option<u64>,
    /// Sizes of the reads that the peer asks for.
    asked: Vec<usize>,
    /// Reads of this end that have no answer.
    waiting: usize,
    bye: bool,
}

/// A stream of frames from the peer: the first byte says how many bytes arrive at a time. However they arrive, they must do the same, and
/// nothing to memory that the peer was not granted.
///
/// # Panics
/// If they do not.
pub fn connection(context: &Context, bytes: &[u8]) -> Option<Vec<u8>> {
    static RIG: OnceLock<Mutex<Rig>> = OnceLock::new();
    let (cut, stream) = bytes.split_first()?;
    // Nobody else receives into its memory meanwhile.
    let rig = lock(RIG.get_or_init(|| Mutex::new(Rig::new(context))));
    let whole = rig.receive(stream, usize::from(*cut).max(1));
    assert_eq!(whole, rig.receive(stream, stream.len().max(1)), "cuts change nothing");
    whole.ok().map(|_| Vec::new())
}

impl Rig {
    fn new(context: &Context) -> Self {
        let host = || Arc::new(HostBuffer::new(context, BYTES).expect("host memory"));
        let device = Arc::new(GpuBuffer::new(context, BYTES).expect("device memory"));
        let half = Arc::new(Half::new(context, 2).expect("pinned memory"));
        Self { half, host: host(), device, constant: host(), answers: host() }
    }

    /// What `stream` leads to if `step` bytes of it arrive at a time, or the text of the error that it ends in. Which frames have landed
    /// before an error depends on the device.
    fn receive(&self, stream: &[u8], step: usize) -> Result<Outcome, String> {
        let soon = Deadline::after(Duration::from_secs(60));
        for host in [&self.host, &self.constant, &self.answers] {
            host.memory().write(0, &[GARBAGE; BYTES]).expect("in range");
        }
        self.device.upload(0, &[GARBAGE; BYTES], soon).expect("in range");
        let regions = Arc::new(Regions::default());
        let grant = |place, rights| regions.grant(1, place, GRANTED.len(), rights);
        let both = Rights::REMOTE_WRITE | Rights::REMOTE_READ;
        let device = Place::Device(self.device.slice(GRANTED).expect("in range"));
        let granted = [
            grant(place(&self.host, GRANTED), both),
            grant(device, Rights::REMOTE_WRITE),
            grant(place(&self.constant, GRANTED), Rights::REMOTE_READ),
        ];
        assert!(granted.iter().map(|grant| grant.number()).eq([HOST, DEVICE, CONSTANT]));
        let reads = Arc::new(Reads::new(1));
        ASKED.iter().for_each(|at| reads.ask(place(&self.answers, at.clone()), at.len()));
        let mut inbox = Inbox::new(Staging::new(self.half.clone(), None), 1, reads.clone());

        let raw = Recorded::new(stream, step);
        let mut outcome = Outcome::default();
        loop {
            let turn = inbox.progress(&raw, &regions, COPIES).map_err(|error| error.to_string());
            let ended = turn.and_then(|turn| {
                let ended = raw.is_empty() && !turn.again && !turn.progress;
                outcome.add(turn);
                // A device ends sometime what it has begun.
                inbox.stream().synchronize(soon).map_err(|error| error.to_string())?;
                assert!(!soon.expired(), "the inbox goes on for ever");
                Ok(ended)
            });
            self.check_ends(soon);
            match ended {
                Ok(false) => {}
                Ok(true) => break,
                Err(error) => {
                    inbox.close();
                    return Err(error);
                }
            }
        }
        outcome.memory = self.memory(soon);
        (outcome.landed, outcome.waiting) = (inbox.landed(), reads.waiting());
        inbox.close();
        Ok(outcome)
    }

    fn memory(&self, soon: Deadline) -> [Vec<u8>; 4] {
        let mut all: [Vec<u8>; 4] = std::array::from_fn(|_| vec![0; BYTES]);
        let [host, device, constant, answers] = &mut all;
        self.host.memory().read(0, host).expect("in range");
        self.constant.memory().read(0, constant).expect("in range");
        self.answers.memory().read(0, answers).expect("in range");
        self.device.download(0, device, soon).expect("in range");
        all
    }

    fn check_ends(&self, soon: Deadline) {
        let [host, device, constant, answers] = self.memory(soon);
        let outside = |memory: &[u8], inside: &[Range<usize>]| {
            let hit = (0..)
                .zip(memory)
                .find(|(at, byte)| **byte != GARBAGE && !inside.iter().any(|range| range.contains(at)));
            assert_eq!(hit, None, "memory that the peer was not granted");
        };
        outside(&host, &[GRANTED]);
        outside(&device, &[GRANTED]);
        outside(&constant, &[]);
        outside(&answers, &ASKED);
    }
}

impl Outcome {
    fn add(&mut self, turn: Turn) {
        let Turn { acknowledge, acknowledged, asked, bye, .. } = turn;
        self.acknowledge = acknowledge.or(self.acknowledge);
        self.acknowledged = self.acknowledged.max(acknowledged);
        self.asked.extend(asked.iter().map(|(_, len)| len));
        self.bye |= bye;
    }
}

fn place(buffer: &Arc<HostBuffer>, range: Range<usize>) -> Place {
    let memory = register_host(buffer, range.start, range.len(), Transport::Ethernet.into());
    memory.expect("in range").place().clone()
}

/// Streams of every kind of frame, in pieces of some sizes.
pub(crate) fn streams() -> Vec<(&'static str, Vec<u8>)> {
    let frame = |frame: Frame, len: usize| {
        let mut bytes = frame.encode().to_vec();
        bytes.extend((1..=u8::MAX).cycle().take(len));
        bytes
    };
    let write = |region, offset, len| frame(Frame::Write { region, offset, len }, len as usize);
    let update = |region, offset| frame(Frame::Update { region, offset, value: 0x0123_4567_89ab_cdef }, 0);
    let read = |region, len| frame(Frame::Read { region, offset: 8, len }, 0);
    let data = |len| frame(Frame::Data { len }, len as usize);
    let plain = |kind| frame(kind, 0);
    let streams = [
        [write(HOST, 0, 128), update(HOST, 120), plain(Frame::Ask)].concat(),
        [write(DEVICE, 1, 127), update(DEVICE, 64), write(HOST, 3, 5), plain(Frame::Ask)].concat(),
        [read(CONSTANT, 16), data(8), read(HOST, 120), plain(Frame::Ack { count: 2 })].concat(),
        [data(8), data(64), update(HOST, 0), plain(Frame::Bye), plain(Frame::Ack { count: 9 })].concat(),
    ];
    let cuts = [1, 33, 200];
    streams.iter().flat_map(|s| cuts.map(|cut| ("connection", [&[cut], &s[..]].concat()))).collect()
}
