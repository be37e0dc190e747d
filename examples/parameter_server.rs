//! A parameter server: rank 0 tells of each new version of the parameters, and the workers read it when they like.
//!
//! A notice is a short message with a token. The server makes progress and does nothing else for the reads. There are no GPUs.

use std::{error::Error, time::Duration};

use aqueduct::message::{Message, Messenger, MessengerConfig, Queue, Token};
use aqueduct::{Deadline, bootstrap, bootstrap::Bootstrap};

const NOTICE: u16 = 1;
const GRADIENT: u16 = 2;
const STEPS: usize = 10;
const PARAMETERS: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let deadline = Deadline::after(Duration::from_secs(60));
    let bootstrap = bootstrap::from_env()?.filter(|all| all.size() > 1);
    let bootstrap = bootstrap.ok_or("start some ranks: aqueduct run -n 3 -- parameter-server")?;
    let messenger = Messenger::join(&*bootstrap, MessengerConfig::default(), deadline)?;
    let (notices, gradients) = (messenger.queue(NOTICE)?, messenger.queue(GRADIENT)?);
    bootstrap.barrier(deadline)?;
    match bootstrap.rank() {
        0 => serve(&messenger, &*bootstrap, &gradients, deadline)?,
        _ => work(&messenger, &notices, deadline)?,
    }
    println!("rank {}: {STEPS} steps", bootstrap.rank());
    bootstrap.barrier(deadline)?;
    Ok(messenger.close(deadline)?)
}

/// Each version is the sum of all gradients so far.
fn serve(
    messenger: &Messenger,
    all: &dyn Bootstrap,
    gradients: &Queue,
    deadline: Deadline,
) -> Result<(), Box<dyn Error>> {
    let workers = (1..all.size()).map(|rank| messenger.peer(rank, deadline));
    let workers = workers.collect::<Result<Vec<_>, _>>()?;
    let mut parameters = vec![0_u8; PARAMETERS];
    for _ in 0..STEPS {
        let version = messenger.expose(parameters.clone())?;
        for worker in &workers {
            worker.send_within(NOTICE, &version.token().to_bytes(), deadline)?;
        }
        for _ in &workers {
            let gradient = next(messenger, gradients, deadline)?.bytes()[0];
            parameters.iter_mut().for_each(|parameter| *parameter = parameter.wrapping_add(gradient));
        }
        // All have read this version; its token is of no use from here on.
        version.revoke();
    }
    Ok(())
}

/// Reads each version, checks it, and answers with a gradient of 1.
fn work(messenger: &Messenger, notices: &Queue, deadline: Deadline) -> Result<(), Box<dyn Error>> {
    let mut before = None;
    for _ in 0..STEPS {
        let notice = next(messenger, notices, deadline)?;
        let (token, (tell, told)) = (Token::from_bytes(notice.bytes())?, std::sync::mpsc::channel());
        let into = vec![0; usize::try_from(token.len())?];
        notice.peer().read(&token, 0, into, deadline, move |read| drop(tell.send(read)))?;
        let parameters = until(messenger, deadline, || told.try_recv().ok())??;
        let even = parameters.iter().all(|parameter| *parameter == parameters[0]);
        if !even || before.is_some_and(|before| parameters[0] <= before) {
            return Err("the parameters are not those of one later version".into());
        }
        before = Some(parameters[0]);
        notice.peer().send_within(GRADIENT, &[1], deadline)?;
    }
    Ok(())
}

fn next(messenger: &Messenger, queue: &Queue, deadline: Deadline) -> Result<Message, Box<dyn Error>> {
    until(messenger, deadline, || queue.try_recv())
}

/// Makes progress, asleep while there is nothing to do, until `done` gives something.
fn until<T>(
    messenger: &Messenger,
    deadline: Deadline,
    mut done: impl FnMut() -> Option<T>,
) -> Result<T, Box<dyn Error>> {
    loop {
        if let Some(value) = done() {
            return Ok(value);
        }
        if messenger.poll()? == 0 && !messenger.wait(deadline)? {
            return Err("the other ranks did not answer in time".into());
        }
    }
}
