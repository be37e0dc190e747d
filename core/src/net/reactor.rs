//! One service thread for many authenticated streams and listeners.
//!
//! The thread owns the reading side: it decodes frames and gives them to a [`Handler`]. Sending goes straight to
//! the socket from the posting thread; only what does not fit is left to the service thread. Other threads talk to
//! it through [`Commands`].

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::commands::{Acceptor, Command, Commands, WAKE};
use super::handler::Handler;
use super::link::Link;
use super::listener::Listener;
use super::registration::Registration;
use super::service::{Service, adopt};
use super::stream::Stream;
use crate::error::{Error, Result};
use crate::service_thread;
use crate::sync::{AtomicU64, Ordering};

/// Settings of a [`Reactor`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ReactorConfig {
    /// How often [`Handler::tick`] is called; never if `None`.
    pub tick: Option<Duration>,
}

/// A service thread. Dropping it closes its links in an orderly way and joins the thread, in at most a quarter of
/// a second; in a forked child, where the thread does not exist, nothing is touched.
#[derive(Debug)]
pub struct Reactor {
    commands: Arc<Commands>,
    thread: Option<JoinHandle<()>>,
    next_id: Arc<AtomicU64>,
    creator: u32,
}

impl Reactor {
    /// Starts the thread; `name` shows in `ps -L` and debuggers (15 bytes).
    pub fn start(name: &str, config: ReactorConfig, handler: Box<dyn Handler>) -> Result<Self> {
        let failed = |error| Error::system("reactor", "cannot start a service thread", error);
        let commands = Arc::new(Commands::new().map_err(failed)?);
        let next_id = Arc::new(AtomicU64::new(WAKE + 1));
        let mut service = Service::new(commands.clone(), next_id.clone(), handler, config.tick);
        let run = move || service.run_to_end();
        let builder = std::thread::Builder::new().name(name.into()).stack_size(512 << 10);
        let thread = service_thread::spawn(builder, run);
        Ok(Self { commands, thread: Some(thread.map_err(failed)?), next_id, creator: std::process::id() })
    }

    /// Serves `stream` from now on. Frames that it has read already are delivered first.
    pub fn add(&self, stream: Stream) -> Link {
        let (link, decoder) = adopt(self.next_id.fetch_add(1, Ordering::Relaxed), stream, &self.commands);
        self.commands.push(Command::Add(link.clone(), decoder));
        link
    }

    /// Serves `listener` from now on; its connections come to [`Handler::accepted`].
    pub fn listen(&self, listener: Listener) {
        self.commands.push(Command::Listen(Box::new(listener)));
    }

    /// A place for something to serve; [`Registration::serve`] fills it.
    pub fn reserve(&self) -> Registration {
        Registration::new(self.commands.clone(), self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Gives the connections of `listener` to `acceptor` until that has enough; the listener is closed then.
    pub fn accept(&self, listener: Listener, acceptor: Acceptor) -> Registration {
        let registration = self.reserve();
        self.commands.push(Command::Accept(registration.id(), Box::new(listener), acceptor));
        registration
    }

    /// Lets the thread go on without an owner until its handler says that it is finished.
    pub fn detach(mut self) {
        drop(self.thread.take());
    }

    /// Closes all listeners: nobody new can connect, and the paths of unix sockets are removed.
    pub fn stop_listening(&self) {
        self.commands.push(Command::StopListening { unix: true });
    }

    /// Closes the listeners that other hosts can reach.
    pub fn stop_listening_tcp(&self) {
        self.commands.push(Command::StopListening { unix: false });
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.creator != std::process::id() {
            std::mem::forget(thread);
            return;
        }
        self.commands.push(Command::Stop);
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            log::error!("a service thread ended with a panic");
        }
    }
}
