//! The process that measures, and what it asks of its partner.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use aqueduct::Deadline;
use aqueduct::bootstrap::Selection;
use aqueduct::message::{Messenger, MessengerConfig, Peer, Queue, Secret, Sent, Token};
use clap::ValueEnum as _;

use super::bare::{Bare, Work};
use super::limits::{Flags, YIELD};
use super::place::Place;
use crate::program;

/// Kinds of messages.
pub(super) const READY: u16 = 1;
pub(super) const ECHO: u16 = 2;
pub(super) const BACK: u16 = 3;
pub(super) const COUNT: u16 = 4;
pub(super) const COUNTED: u16 = 5;
pub(super) const EXPOSE: u16 = 6;
pub(super) const EXPOSED: u16 = 7;
pub(super) const BARE: u16 = 8;

/// The transport of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Way {
    /// TCP on loopback
    Tcp,
    /// Shared memory
    #[value(name = "shm")]
    SharedMemory,
    /// Queue pairs of an RDMA device, over which both processes meet; see AQUEDUCT_IB_DEVICES
    Verbs,
}

impl Way {
    /// As [`Peer::transport`] says it.
    fn transport(self) -> &'static str {
        match self {
            Self::SharedMemory => "shared memory",
            way => way.name(),
        }
    }

    /// As the option has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::SharedMemory => "shm",
            Self::Verbs => "verbs",
        }
    }

    pub(super) fn from_name(name: &str) -> Result<Self> {
        let found = Self::value_variants().iter().find(|way| way.name() == name);
        found
            .copied()
            .with_context(|| format!("{name} carries no messages; do both processes run the same version?"))
    }
}

/// Messengers that meet on the loopback interface.
pub(super) fn config(secret: Secret, way: Way) -> MessengerConfig {
    let interfaces = Selection { names: Some("=lo".into()), ..Selection::default() };
    let config = MessengerConfig::default()
        .with_secret(secret)
        .with_interfaces(interfaces)
        .with_shared_memory(way == Way::SharedMemory)
        .with_verbs(way == Way::Verbs);
    match std::env::var("AQUEDUCT_IB_DEVICES") {
        Ok(devices) => config.with_ib_devices(devices),
        Err(_) => config,
    }
}

/// A partner in a process of its own. Dropping it ends the process.
pub(super) struct Pair {
    child: Child,
    messenger: Messenger,
    peer: Peer,
    back: Queue,
    counted: Queue,
    exposed: Queue,
    bare: Bare,
    flags: Flags,
    /// The partner opens it when it starts.
    _words: OwnedFd,
    deadline: Deadline,
}

impl Pair {
    pub(super) fn start(way: Way, deadline: Deadline) -> Result<Self> {
        let secret = Secret::random()?;
        let messenger = Messenger::new(0, config(secret.clone(), way))?;
        let ready = messenger.queue(READY)?;
        let [back, counted, exposed] = [BACK, COUNTED, EXPOSED].map(|kind| messenger.queue(kind));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen on loopback")?;
        let (flags, words) = Flags::create(deadline)?;
        let mut child = Command::new(program::path()?)
            .args(["perf", "message", "--partner", "--timeout"])
            .arg(format!("{}ms", deadline.remaining().as_millis().max(1)))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start a second process")?;
        // The secret goes where no other user can see it.
        let told = child.stdin.take().context("a piped child has standard input").and_then(|mut input| {
            let lines = [
                secret.to_text().expose().to_owned(),
                messenger.address().to_string(),
                listener.local_addr()?.to_string(),
                Flags::path(&words),
                way.name().to_owned(),
            ];
            Ok(input.write_all((lines.join("\n") + "\n").as_bytes())?)
        });
        let met = told.and_then(|()| {
            let ready = next(&messenger, &ready, deadline).context("the second process did not come")?;
            // It has connected to the socket before it said that it is ready.
            let (stream, _) = listener.accept()?;
            // Without a place for sockets or a device, for example, messengers of one host use TCP.
            let (wanted, met) = (way.transport(), ready.peer().transport());
            if met != wanted {
                bail!("the two processes met over {met}, not over {wanted}; AQUEDUCT_LOG=info says why");
            }
            Ok((ready.peer().clone(), Bare::new(stream, deadline)?))
        });
        match met {
            Ok((peer, bare)) => Ok(Self {
                child,
                messenger,
                peer,
                back: back?,
                counted: counted?,
                exposed: exposed?,
                bare,
                flags,
                _words: words,
                deadline,
            }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// One round trip; its time in µs and the number of wrong bytes.
    pub(super) fn trip(&mut self, body: &mut [u8], number: u32) -> Result<(f64, u64)> {
        body.fill(number as u8);
        let since = Instant::now();
        if self.peer.send(ECHO, body)? != Sent::Done {
            bail!("there is no room for a single message");
        }
        let answer = next(&self.messenger, &self.back, self.deadline)?;
        let time = since.elapsed().as_secs_f64() * 1e6;
        Ok((time, wrong(answer.bytes(), body.len(), number as u8)))
    }

    /// Sends `count` messages; the time in µs until the partner has them, and how many are missing.
    pub(super) fn burst(&mut self, body: &[u8], count: u32) -> Result<(f64, u64)> {
        let (since, mut idle) = (Instant::now(), 0);
        for _ in 0..count {
            while self.peer.send(COUNT, body)? != Sent::Done {
                self.messenger.poll()?;
                if pause(&mut idle) {
                    self.deadline.check("perf", "the other process to take messages")?;
                }
            }
        }
        self.peer.send_within(COUNTED, b"", self.deadline)?;
        let answer = next(&self.messenger, &self.counted, self.deadline)?;
        let time = since.elapsed().as_secs_f64() * 1e6;
        let got = answer.bytes().try_into().map(u32::from_le_bytes).context("a count has four bytes")?;
        Ok((time, u64::from(got.abs_diff(count))))
    }

    /// Has the partner expose `size` bytes.
    pub(super) fn exposed(&mut self, size: u64) -> Result<Token> {
        self.peer.send_within(EXPOSE, &size.to_le_bytes(), self.deadline)?;
        Ok(Token::from_bytes(next(&self.messenger, &self.exposed, self.deadline)?.bytes())?)
    }

    /// Reads all of the memory `count` times into `places`, as many at a time as there are; the time in µs and the number of wrong bytes of the
    /// last reads.
    pub(super) fn reads(&mut self, token: &Token, count: u32, places: &mut Vec<Place>) -> Result<(f64, u64)> {
        let length = usize::try_from(token.len())?;
        let (tell, told) = mpsc::channel();
        let (mut begun, mut done) = (0, 0);
        let since = Instant::now();
        while done < count {
            while begun < count
                && let Some(into) = places.pop()
            {
                match into.read(&self.peer, token, self.deadline, tell.clone())? {
                    None => begun += 1,
                    // More than may be under way: tried again when one has ended.
                    Some(refused) => {
                        places.push(refused);
                        break;
                    }
                }
            }
            self.messenger.poll()?;
            while let Ok(read) = told.try_recv() {
                places.push(read?);
                done += 1;
            }
            self.deadline.check("perf", "reads to complete")?;
        }
        let time = since.elapsed().as_secs_f64() * 1e6;
        // The place that was read into last is the last one.
        let read = places.iter().rev().take(count as usize);
        Ok((time, read.map(|place| Ok(wrong(&place.bytes()?, length, 7))).sum::<Result<u64>>()?))
    }

    /// The bare socket's times, see [`Bare::measure`].
    pub(super) fn bare(&mut self, work: Work, count: u32, size: u64) -> Result<Vec<f64>> {
        let order = [&[work as u8][..], &count.to_le_bytes(), &size.to_le_bytes()].concat();
        self.peer.send_within(BARE, &order, self.deadline)?;
        while self.messenger.poll()? > 0 {}
        self.bare.measure(work, count, usize::try_from(size)?)
    }

    /// Round trips of a word of shared memory; the times in µs.
    pub(super) fn flags(&mut self, count: u32) -> Result<Vec<f64>> {
        let order = [&[Work::Flag as u8][..], &count.to_le_bytes(), &0_u64.to_le_bytes()].concat();
        self.peer.send_within(BARE, &order, self.deadline)?;
        while self.messenger.poll()? > 0 {}
        self.flags.measure(count)
    }

    /// Ends the partner.
    pub(super) fn end(mut self) -> Result<()> {
        self.peer.close(self.deadline)?;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("the second process ended with {status}");
        }
        Ok(())
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // Both fail if the process has already been waited for, which is the normal case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How many of `length` bytes are not `byte`.
fn wrong(bytes: &[u8], length: usize, byte: u8) -> u64 {
    (bytes.iter().filter(|b| **b != byte).count() + bytes.len().abs_diff(length)) as u64
}

/// Offers the processor to others once in [`YIELD`] polls in vain. True then: the caller looks at the clock as rarely, because that takes
/// as long as a poll.
pub(super) fn pause(idle: &mut u32) -> bool {
    *idle = idle.wrapping_add(1);
    let is_due = idle.is_multiple_of(YIELD);
    if is_due {
        std::thread::yield_now();
    }
    is_due
}

/// The next message of `queue`; polls without sleeping.
pub(super) fn next(
    messenger: &Messenger,
    queue: &Queue,
    deadline: Deadline,
) -> Result<aqueduct::message::Message> {
    let mut idle = 0_u32;
    loop {
        if let Some(message) = queue.try_recv() {
            return Ok(message);
        }
        if messenger.poll()? == 0 && pause(&mut idle) {
            deadline.check("perf", "the other process to answer")?;
        }
    }
}
