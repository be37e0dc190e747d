//! The second process: it answers.

use std::io::BufRead as _;
use std::net::TcpStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};
use aqueduct::Deadline;
use aqueduct::message::{Address, Memory, Messenger, Secret, SharedMemory};

use super::bare::{Bare, Work};
use super::limits::Flags;
use super::pair::{BACK, BARE, COUNT, COUNTED, ECHO, EXPOSE, EXPOSED, READY, Way, config, pause};

/// Serves until the other process leaves.
pub(super) fn serve(deadline: Deadline) -> Result<ExitCode> {
    let mut lines = std::io::stdin().lock().lines();
    let mut line = || lines.next().context("the measuring process has exited")?.context("standard input");
    let secret: Secret = line()?.parse()?;
    let address: Address = line()?.parse()?;
    let mut bare = Bare::new(TcpStream::connect(line()?).context("the bare socket")?, deadline)?;
    let mut flags = Flags::open(&line()?, deadline)?;
    let way = Way::from_name(&line()?)?;
    let messenger = Messenger::new(1, config(secret, way))?;
    let counted = Arc::new(AtomicU32::new(0));
    let counter = counted.clone();
    // An answer that cannot be sent is the loss of the peer, which ends the loop below.
    messenger.on(ECHO, |message| drop(message.reply(BACK, message.bytes())))?;
    messenger.on(COUNT, move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    })?;
    messenger.on(COUNTED, move |message| {
        drop(message.reply(COUNTED, &counted.swap(0, Ordering::Relaxed).to_le_bytes()));
    })?;
    let (expose, orders) = (messenger.queue(EXPOSE)?, messenger.queue(BARE)?);
    let peer = messenger.connect(&address, deadline)?;
    peer.send_within(READY, b"", deadline)?;
    let (mut exposed, mut idle) = (None, 0);
    while peer.lost().is_none() {
        if messenger.poll()? == 0 {
            if way == Way::Verbs && exposed.is_some() {
                // The reader's device needs nothing of this process, and might share its processor.
                messenger.wait(deadline)?;
                deadline.check("perf", "the measuring process")?;
            } else if pause(&mut idle) {
                deadline.check("perf", "the measuring process")?;
            }
        }
        if let Some(message) = expose.try_recv() {
            let size =
                message.bytes().try_into().map(u64::from_le_bytes).context("a size has eight bytes")?;
            let memory = messenger.expose(memory(usize::try_from(size)?, way)?)?;
            peer.send_within(EXPOSED, &memory.token().to_bytes(), deadline)?;
            exposed = Some(memory);
        }
        if let Some(order) = orders.try_recv() {
            let (work, rest) = order.bytes().split_first().context("an order has thirteen bytes")?;
            let (count, size) = rest.split_at_checked(4).context("an order has thirteen bytes")?;
            let (count, size) = (u32::from_le_bytes(count.try_into()?), u64::from_le_bytes(size.try_into()?));
            match Work::from_number(*work)? {
                Work::Flag => flags.serve(count)?,
                work => bare.serve(work, count, usize::try_from(size)?)?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `size` bytes to read. Memory that can be mapped is for those who map it: others could change it, so sending it costs a copy more.
fn memory(size: usize, way: Way) -> Result<Memory> {
    if way != Way::SharedMemory {
        return Ok(vec![7; size].into());
    }
    let memory = SharedMemory::allocate(size)?;
    memory.fill(7);
    Ok(memory.into())
}
