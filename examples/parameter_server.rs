//! A parameter server: rank 0 tells of each new version of the parameters, and the workers read it when they like.
//!
//! A notice is a short message with a token. The server makes progress and does nothing else for the reads. There are no GPUs.

use std::{error::Error, sync::mpsc, time::Duration};

use aqueduct::message::{Messenger, MessengerConfig, Queue, Token};
use aqueduct::{Deadline, bootstrap, bootstrap::Bootstrap};

const NOTICE: u16 = 1;
const GRADIENT: u16 = 2;
const STEPS: usize = 10;
type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    let deadline = Deadline::after(Duration::from_secs(60));
    let all = bootstrap::from_env()?.filter(|all| all.size() > 1);
    let all = all.ok_or("start some ranks: aqueduct run -n 3 -- parameter-server")?;
    let messenger = Messenger::join(&*all, MessengerConfig::default(), deadline)?;
    let (notices, gradients) = (messenger.queue(NOTICE)?, messenger.queue(GRADIENT)?);
    all.barrier(deadline)?;
    match (all.rank(), all.size() - 1) {
        (0, workers) => serve(&messenger, workers, &gradients, deadline)?,
        (_, workers) => work(&messenger, workers as usize, &notices, deadline)?,
    }
    println!("rank {}: {STEPS} steps", all.rank());
    all.barrier(deadline)?;
    Ok(messenger.close(deadline)?)
}

/// Each version is the sum of all gradients so far.
fn serve(messenger: &Messenger, workers: u32, gradients: &Queue, deadline: Deadline) -> Outcome {
    let workers = (1..=workers).map(|rank| messenger.peer(rank, deadline)).collect::<Result<Vec<_>, _>>()?;
    let mut parameters = vec![0_u8; 1 << 20];
    for _ in 0..STEPS {
        let version = messenger.expose(parameters.clone())?;
        for worker in &workers {
            worker.send_within(NOTICE, &version.token().to_bytes(), deadline)?;
        }
        for _ in &workers {
            let gradient = messenger.wait_for(deadline, || gradients.try_recv())?.bytes()[0];
            parameters.iter_mut().for_each(|parameter| *parameter = parameter.wrapping_add(gradient));
        }
        // All have read this version; its token is of no use from here on.
        version.revoke();
    }
    Ok(())
}

/// Reads each version, checks it, and answers with a gradient of 1.
fn work(messenger: &Messenger, workers: usize, notices: &Queue, deadline: Deadline) -> Outcome {
    for step in 0..STEPS {
        let notice = messenger.wait_for(deadline, || notices.try_recv())?;
        let (token, (tell, told)) = (Token::from_bytes(notice.bytes())?, mpsc::channel());
        let into = vec![0; usize::try_from(token.len())?];
        notice.peer().read(&token, 0, into, deadline, move |read| drop(tell.send(read)))?.posted()?;
        let parameters = messenger.wait_for(deadline, || told.try_recv().ok())??;
        if parameters.iter().any(|parameter| usize::from(*parameter) != step * workers % 256) {
            return Err("a version is not the sum of all gradients before it".into());
        }
        notice.peer().send_within(GRADIENT, &[1], deadline)?;
    }
    Ok(())
}
