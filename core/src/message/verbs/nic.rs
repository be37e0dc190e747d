//! The RDMA device of a messenger.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::copies::Copies;
use super::regions::Regions;
use super::reports::Reports;
use crate::error::{Error, ErrorKind, Result};
use crate::rdma::{About, Access, Context, INLINE_BYTES, Port, ProtectionDomain, Settings, Verbs};
use crate::sync::{AtomicUsize, OnceLock, Ordering};

/// Links of one messenger that read by their devices at a time; each holds memory for that. Further ones are sent the data.
pub(super) const MAX_READERS: usize = 64;
/// Requests for windows that a device may be late with, after which it is asked for no more: each has held up progress.
const MAX_LATE: usize = 3;

/// Whether a messenger uses an RDMA device, and which.
#[derive(Clone, Debug)]
pub(in crate::message) struct Choice {
    pub(in crate::message) allowed: bool,
    /// The verbs to use; libibverbs of this host if `None`.
    pub(in crate::message) library: Option<Verbs>,
    /// Names of devices, separated by commas; all if `None`.
    pub(in crate::message) devices: Option<String>,
    pub(in crate::message) settings: Settings,
    /// The most bytes that a packet may have to be sent inline, if the device takes so many.
    pub(in crate::message) inline: usize,
}

impl Default for Choice {
    fn default() -> Self {
        Self {
            allowed: false,
            library: None,
            devices: None,
            settings: Settings::default(),
            inline: INLINE_BYTES,
        }
    }
}

/// An opened device and the port that is used.
#[derive(Debug)]
pub(in crate::message) struct Nic {
    pub(super) context: Context,
    pub(super) domain: ProtectionDomain,
    pub(super) port: Port,
    pub(super) settings: Settings,
    /// The most bytes of a packet that is to be sent inline.
    pub(super) inline: usize,
    /// Reports of the device about its links.
    pub(super) reports: Arc<Reports>,
    /// The error that ended all links of the device.
    failed: OnceLock<Error>,
    /// Links that read by it.
    readers: AtomicUsize,
    /// Requests for windows with which it was late.
    late: AtomicUsize,
    /// Registrations of shared memory.
    pub(super) regions: Arc<Regions>,
    /// Copies of short memory.
    pub(super) copies: Arc<Copies>,
}

/// A place among the links that read by the device.
#[derive(Debug)]
pub(super) struct Place {
    nic: Arc<Nic>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.nic.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Nic {
    /// A place for one more link that reads.
    ///
    /// # Errors
    /// `Exhausted` if there are too many.
    pub(super) fn place(self: &Arc<Self>) -> Result<Place> {
        let add = |count: usize| (count < MAX_READERS).then_some(count + 1);
        match self.readers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => Ok(Place { nic: self.clone() }),
            Err(_) => {
                let text = format!("{MAX_READERS} links read by device {} already", self.name());
                Err(Error::new(ErrorKind::Exhausted, "read", text))
            }
        }
    }

    /// Opens the first device of `choice` that has an active port.
    ///
    /// # Errors
    /// `Unsupported` if there is none, with the reason of each; `InvalidUsage` for settings that cannot be and devices that do
    /// not exist.
    pub(in crate::message) fn open(choice: &Choice) -> Result<Self> {
        choice.settings.check()?;
        let verbs = match &choice.library {
            Some(verbs) => verbs.clone(),
            None => Verbs::load(None)?,
        };
        let mut reasons = Vec::new();
        for device in verbs.devices(choice.devices.as_deref())? {
            match Self::over(device.open(), choice) {
                Ok(nic) => return Ok(nic),
                Err(error) => reasons.push(error.message().to_owned()),
            }
        }
        if reasons.is_empty() {
            reasons.push("there is none".into());
        }
        let text = format!("no RDMA device can be used: {}", reasons.join("; "));
        Err(Error::new(ErrorKind::Unsupported, "Messenger", text))
    }

    fn over(context: Result<Context>, choice: &Choice) -> Result<Self> {
        let context = context?;
        let port = context.active_port(&choice.settings)?;
        let domain = context.protection_domain()?;
        let (failed, readers, late) = (OnceLock::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        let (regions, copies, reports) = (Arc::default(), Arc::default(), Arc::default());
        let (settings, inline) = (choice.settings.clone(), choice.inline);
        Ok(Self { context, domain, port, settings, inline, reports, failed, readers, late, regions, copies })
    }

    /// Whether rights to parts of registered memory can be given to one peer and taken away again.
    pub(super) fn has_windows(&self) -> bool {
        self.context.attributes().max_windows > 0 && self.late.load(Ordering::Relaxed) < MAX_LATE
    }

    /// The rights of the one registration of shared memory: for what this side reads into it, and for windows, which show it to peers, if there are any.
    pub(super) fn access(&self) -> Access {
        if self.has_windows() { Access::LOCAL_WRITE | Access::BIND } else { Access::LOCAL_WRITE }
    }

    /// Notes that the device did not change a window in time.
    pub(super) fn window_was_late(&self) {
        if self.late.fetch_add(1, Ordering::Relaxed) + 1 == MAX_LATE {
            log::warn!(
                "{}: memory windows take too long; memory that peers read is registered instead",
                self.name()
            );
        }
    }

    /// Regions registered so far.
    pub(in crate::message) fn registrations(&self) -> u64 {
        self.domain.registered()
    }

    /// The device's name.
    pub(in crate::message) fn name(&self) -> &str {
        self.context.device().name()
    }

    /// An error if the device has reported that it failed. What it has reported of links is kept for them. Costs a system call.
    pub(super) fn check(&self) -> Result<()> {
        while let Some(event) = self.reports.next(&self.context)? {
            log::warn!("{}: {event}", self.name());
            if let Some(error) = event.error().filter(|_| event.about == About::Device) {
                let _ = self.failed.set(error);
            }
        }
        self.failed.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}
