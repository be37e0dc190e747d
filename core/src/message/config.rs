//! The settings of a messenger, and their defaults.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use super::verbs::{Choice, Nic};
use super::wire::Wire;
use crate::env::{Env, SHORTEST_PEER_TIMEOUT, Selection};
use crate::error::{Error, Result};
use crate::fault;
use crate::net::{Layer, Network, Secret};
use crate::rdma::{self, INLINE_BYTES};

/// The longest [`eager_limit`](MessengerConfig::with_eager_limit), in bytes.
pub const MAX_EAGER: usize = 64 << 10;

/// Settings of a [`Messenger`](super::Messenger). Two that talk to each other may differ in all of them but the secret.
#[derive(Clone, Debug)]
pub struct MessengerConfig {
    pub(super) secret: Option<Secret>,
    pub(super) interfaces: Selection,
    pub(super) peer_timeout: Option<Duration>,
    pub(super) linger: Duration,
    /// How often links are asked whether their peers' hosts answer.
    pub(super) checks: Duration,
    pub(super) layer: Option<Arc<dyn Layer>>,
    /// Faults on purpose in the network; none unless set. A layer replaces them.
    pub(super) faults: Option<fault::Rules>,
    pub(super) shared_memory: bool,
    pub(super) verbs: Choice,
    pub(super) limits: Limits,
    #[cfg(test)]
    pub(super) wrap: Wrap,
}

/// The bounds of what one peer may occupy in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) eager: usize,
    pub(super) inbox_messages: usize,
    pub(super) inbox_bytes: usize,
    pub(super) send_buffer: usize,
    pub(super) reads: usize,
    pub(super) read_depth: usize,
    pub(super) longs: usize,
}

/// Puts something between the engine and its wires.
#[cfg(test)]
#[derive(Clone, Default)]
pub(super) struct Wrap(pub(super) Option<Arc<WrapWire>>);

#[cfg(test)]
type WrapWire = dyn Fn(Box<dyn Wire>) -> Box<dyn Wire> + Send + Sync;

#[cfg(test)]
impl std::fmt::Debug for Wrap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wrap")
    }
}

impl Default for MessengerConfig {
    fn default() -> Self {
        Self {
            secret: None,
            interfaces: Selection::default(),
            peer_timeout: Some(Duration::from_secs(10)),
            linger: Duration::from_secs(1),
            checks: Duration::from_secs(1),
            layer: None,
            faults: None,
            shared_memory: true,
            verbs: Choice::default(),
            limits: Limits {
                eager: 8 << 10,
                inbox_messages: 4096,
                inbox_bytes: 1 << 20,
                send_buffer: 256 << 10,
                reads: 4096,
                read_depth: 64,
                longs: 1024,
            },
            #[cfg(test)]
            wrap: Wrap::default(),
        }
    }
}

impl MessengerConfig {
    /// The defaults, changed where the environment of this process says so: `AQUEDUCT_SOCKET_IFNAME` and `AQUEDUCT_SOCKET_FAMILY`
    /// ([`with_interfaces`](Self::with_interfaces)), `AQUEDUCT_PEER_TIMEOUT`, `AQUEDUCT_MESSAGE_EAGER`,
    /// `AQUEDUCT_MESSAGE_SHARED_MEMORY`, and `AQUEDUCT_FAULTS`. The secret is not in the environment: a messenger that joins a bootstrap has
    /// the bootstrap's. Nothing below reads the environment.
    ///
    /// # Errors
    /// `InvalidUsage` for a variable that cannot be read.
    pub fn from_env() -> Result<Self> {
        Ok(Self::of(Env::get()?))
    }

    /// The settings in `env`.
    fn of(env: &Env) -> Self {
        let mut config = Self {
            interfaces: env.selection(),
            shared_memory: env.message_shared_memory,
            faults: env.faults.clone(),
            ..Self::default()
        };
        if env.peer_timeout_is_set {
            config.peer_timeout = env.peer_timeout;
        }
        if let Some(bytes) = env.message_eager {
            config.limits.eager = bytes as usize;
        }
        config
    }

    /// The same for those who know `secret`. Without it, the secret of the bootstrap that the messenger joins.
    #[must_use]
    pub fn with_secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// The same on other interfaces.
    #[must_use]
    pub fn with_interfaces(mut self, interfaces: Selection) -> Self {
        self.interfaces = interfaces;
        self
    }

    /// Whether processes of the same host and user talk over shared memory, if both sides allow it; true. Otherwise they use
    /// TCP, as those of other hosts do.
    #[must_use]
    pub fn with_shared_memory(mut self, allowed: bool) -> Self {
        self.shared_memory = allowed;
        self
    }

    /// Whether messengers that do not share memory talk over RDMA queue pairs, if both sides want it and have a device; false. Without a
    /// device that can be used, and with a peer that has none, they use TCP; the log says so, at level info.
    #[must_use]
    pub fn with_verbs(mut self, wanted: bool) -> Self {
        self.verbs.allowed = wanted;
        self
    }

    /// The same with one of the RDMA devices `names`, separated by commas: the first that has an active port. All devices of the
    /// host.
    #[must_use]
    pub fn with_ib_devices(mut self, names: impl Into<String>) -> Self {
        self.verbs.devices = Some(names.into());
        self
    }

    /// The same with other settings of the RDMA device's port and of queue pairs.
    #[must_use]
    pub fn with_ib(mut self, settings: rdma::Settings) -> Self {
        self.verbs.settings = settings;
        self
    }

    /// Packets of up to so many bytes, 8 for the packet and 16 for each message in it included, are handed to the RDMA device inside their
    /// request (`IBV_SEND_INLINE`), which saves it a read of the host's memory and costs the processor a copy; 256, which is also
    /// the most; with 0 none are. A device that takes less gets less.
    #[must_use]
    pub fn with_inline(mut self, bytes: usize) -> Self {
        self.verbs.inline = bytes;
        self
    }

    /// The same with other verbs: statically linked ones, or a stand-in.
    #[must_use]
    #[doc(hidden)]
    pub fn with_verbs_library(mut self, verbs: rdma::Verbs) -> Self {
        self.verbs.library = Some(verbs);
        self
    }

    /// The longest message that is sent at once, in bytes; 8 KiB, at most [`MAX_EAGER`]. A longer one goes with
    /// [`Peer::send_long`](super::Peer::send_long). Between two messengers the smaller limit holds.
    #[must_use]
    pub fn with_eager_limit(mut self, bytes: usize) -> Self {
        self.limits.eager = bytes;
        self
    }

    /// How many messages of one peer, and how many bytes of them, may wait here to be dispatched, or be on their way: 4096 and 1
    /// MiB; at least one message, and as many bytes as the [eager limit](Self::with_eager_limit). Beyond it that peer's sends return
    /// [`Sent::Retry`](super::Sent::Retry); all else goes on.
    #[must_use]
    pub fn with_inbox(mut self, messages: usize, bytes: usize) -> Self {
        (self.limits.inbox_messages, self.limits.inbox_bytes) = (messages, bytes);
        self
    }

    /// How many bytes for one peer may wait here to be sent; 256 KiB, at least the [eager limit](Self::with_eager_limit). Beyond it
    /// sends return [`Sent::Retry`](super::Sent::Retry).
    #[must_use]
    pub fn with_send_buffer(mut self, bytes: usize) -> Self {
        self.limits.send_buffer = bytes;
        self
    }

    /// How many reads from one peer may be under way: 4096, of which a peer is asked for 64 at a time; over TCP a peer of the same host for
    /// one, or several of 1 MiB together.
    #[must_use]
    pub fn with_reads(mut self, reads: usize, depth: usize) -> Self {
        (self.limits.reads, self.limits.read_depth) = (reads, depth);
        self
    }

    /// For how long a peer's host may leave the system without an answer before the peer counts as lost; 10 s, kept to about a
    /// second, at least 1.25 s. `None`: as long as the operating system says, often a quarter of an hour. A process that dies is noticed at once in
    /// either case; one that is slow, or stopped, is not lost.
    #[must_use]
    pub fn with_peer_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.peer_timeout = timeout;
        self
    }

    /// For how long dropping a messenger or closing a peer may wait until what was sent has left; 1 s.
    #[must_use]
    pub fn with_linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// How often links are asked whether their peers' hosts answer, for which a sleeping thread wakes; 1 s. For tests that must see
    /// a wake-up that was lost: the next look would make up for it.
    #[must_use]
    #[doc(hidden)]
    pub fn with_checks_every(mut self, pause: Duration) -> Self {
        self.checks = pause;
        self
    }

    /// The same with `layer` between links and their sockets, for fault injection.
    #[must_use]
    #[doc(hidden)]
    pub fn with_layer(mut self, layer: Arc<dyn Layer>) -> Self {
        self.layer = Some(layer);
        self
    }

    /// `Ok` if a messenger can work with these settings.
    pub(super) fn check(&self) -> Result<()> {
        self.verbs.settings.check()?;
        let limits = &self.limits;
        let wrong = |text: String| Err(Error::usage("MessengerConfig", text));
        if !(1..=MAX_EAGER).contains(&limits.eager) {
            return wrong(format!("the eager limit is 1 to {MAX_EAGER} bytes, not {}", limits.eager));
        }
        if self.verbs.inline > INLINE_BYTES {
            let inline = self.verbs.inline;
            return wrong(format!("packets of up to {INLINE_BYTES} bytes can leave inline, not of {inline}"));
        }
        let least = [
            ("messages in the inbox", limits.inbox_messages, 1),
            ("bytes in the inbox", limits.inbox_bytes, limits.eager),
            ("bytes in the send buffer", limits.send_buffer, limits.eager),
            ("reads", limits.reads, 1),
            ("reads asked for at a time", limits.read_depth, 1),
        ];
        if let Some(timeout) = self.peer_timeout.filter(|timeout| *timeout < SHORTEST_PEER_TIMEOUT) {
            let least = SHORTEST_PEER_TIMEOUT.as_secs_f64();
            return wrong(format!("the peer timeout is {least} seconds or more, or none, not {timeout:?}"));
        }
        match least.into_iter().find(|(_, value, least)| value < least) {
            Some((what, value, least)) => wrong(format!("{what}: at least {least}, not {value}")),
            None => Ok(()),
        }
    }

    /// The RDMA device, if one is wanted and can be used.
    pub(super) fn nic(&self) -> Option<Arc<Nic>> {
        if !self.verbs.allowed {
            return None;
        }
        match Nic::open(&self.verbs) {
            Ok(nic) => Some(Arc::new(nic)),
            Err(error) => {
                log::info!("messages go over TCP: {error}");
                None
            }
        }
    }

    /// The wire to use instead of `wire`: in tests, something may be put around it.
    pub(super) fn wrap(&self, wire: Box<dyn Wire>) -> Box<dyn Wire> {
        #[cfg(test)]
        if let Some(wrap) = &self.wrap.0 {
            return wrap(wire);
        }
        wire
    }

    /// The network of the messengers of a job. Its key is derived from the job's secret, so that it opens nothing else.
    pub(super) fn network(&self, secret: &Secret) -> Network {
        let network = Network::new(secret.derive("messages")).with_faults(self.faults.as_ref());
        match &self.layer {
            Some(layer) => network.with_layer(layer.clone()),
            None => network,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::env::PREFIX;
    use crate::error::ErrorKind;

    fn of(variables: &[(&str, &str)]) -> MessengerConfig {
        let variables: BTreeMap<String, String> =
            variables.iter().map(|(name, value)| (format!("{PREFIX}{name}"), (*value).into())).collect();
        MessengerConfig::of(&Env::parse(&variables).unwrap())
    }

    #[test]
    fn without_variables_the_defaults_hold() {
        let (found, expected) = (of(&[]), MessengerConfig::default());
        assert_eq!((found.limits, found.peer_timeout), (expected.limits, Some(Duration::from_secs(10))));
        assert!(found.shared_memory && found.faults.is_none() && found.secret.is_none());
        assert_eq!(found.interfaces, expected.interfaces);
    }

    #[test]
    fn each_variable_changes_its_setting() {
        let found = of(&[("SOCKET_IFNAME", "=lo"), ("PEER_TIMEOUT", "2m"), ("MESSAGE_EAGER", "1024")]);
        assert_eq!(found.interfaces.names.as_deref(), Some("=lo"));
        assert_eq!((found.peer_timeout, found.limits.eager), (Some(Duration::from_secs(120)), 1024));
        assert!(found.shared_memory);
        let found = of(&[
            ("PEER_TIMEOUT", "0"),
            ("MESSAGE_SHARED_MEMORY", "0"),
            ("SOCKET_FAMILY", "6"),
            ("FAULTS", "net:from=1:after=64:drop"),
        ]);
        assert_eq!((found.peer_timeout, found.shared_memory), (None, false));
        assert_eq!(found.interfaces.family, crate::env::SocketFamily::V6);
        assert!(found.faults.is_some_and(|plan| !plan.net.is_empty()));
        for bytes in ["1", "65536"] {
            of(&[("MESSAGE_EAGER", bytes)]).check().unwrap();
        }
        MessengerConfig::default().with_inline(256).check().unwrap();
        assert!(
            MessengerConfig::default().with_inline(257).check().unwrap_err().message().contains("not of 257")
        );
    }

    #[test]
    fn peers_have_time_to_answer() {
        let check = |timeout| MessengerConfig::default().with_peer_timeout(timeout).check();
        for timeout in [None, Some(SHORTEST_PEER_TIMEOUT), Some(Duration::MAX)] {
            check(timeout).unwrap();
        }
        for timeout in [Duration::ZERO, SHORTEST_PEER_TIMEOUT - Duration::from_nanos(1)] {
            let error = check(Some(timeout)).unwrap_err();
            assert!(
                error.kind() == ErrorKind::InvalidUsage && error.message().contains("1.25 seconds"),
                "{error}"
            );
        }
    }

    /// A message of that length would never be sent.
    #[test]
    fn the_longest_eager_message_fits_into_inbox_and_send_buffer() {
        let config = |inbox, send_buffer| {
            MessengerConfig::default()
                .with_eager_limit(1000)
                .with_inbox(1, inbox)
                .with_send_buffer(send_buffer)
                .check()
        };
        config(1000, 1000).unwrap();
        for (refused, what) in [(config(999, 1000), "inbox"), (config(1000, 999), "send buffer")] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidUsage);
            assert!(error.message().contains(what) && error.message().contains("at least 1000"), "{error}");
        }
    }

    #[test]
    fn this_process_s_environment_is_read() {
        let found = MessengerConfig::from_env().unwrap();
        assert_eq!(found.shared_memory, Env::get().unwrap().message_shared_memory);
        found.check().unwrap();
    }
}
